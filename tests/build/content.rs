//! A build of a recipe that brings content in every way: files and archives of a server, templates, certificate authorities, programs
//! that run in the root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};
use slipway::host::cache::Cache;
use slipway::publish::sbom::{self, Property};

use super::servers::{Files, run, serve};
use super::{Place, RECIPE};

/// What the recipe has beside [`RECIPE`].
const MORE: &str = r#"
[variables]
zone = "eu-1"

[ca]
certificates = ["corp.pem"]

[overlay]
archives = [{ url = "SERVER/agent.tar.gz", sha256 = "AGENT", to = "/usr/lib/agent", strip = 1 }]

[files."/usr/bin/tool"]
url = "SERVER/tool"
sha256 = "TOOL"
mode = "0755"

[files."/etc/zone"]
content = "{{ zone }} of {{ image.name }}\n"
template = true

[files."/var/lib/made/kept"]
content = "the recipe has the last word\n"

[kernel.options]
i6300esb = "heartbeat=60"

[sysctl]
vm.max_map_count = 262144

[locale]
lang = "de_DE.UTF-8"
generate = ["de_DE.UTF-8"]
timezone = "Europe/Berlin"

[groups.ops]

[users.agent]
groups = ["ops", "systemd-journal"]
home = "/var/lib/agent"
comment = "The agent"

[users.messagebus]
uid = 150

[files."/var/lib/agent"]
directory = true
mode = "0700"
user = "agent"

[[build.run]]
name = "setup"
command = ["sh", "-e", "setup.sh"]
inputs = ["setup.sh", "data"]
environment = { WORD = "given" }

[[build.run]]
name = "second"
command = ["sh", "-ec", "cat /etc/made >> /etc/made.too; update-ca-certificates; openssl verify -CAfile /etc/ssl/certs/ca-certificates.crt /usr/share/ca-certificates/slipway/corp.crt; ! test -e /run/inputs/setup.sh"]
"#;

/// What the first program does: it sees the packages, the archive, its inputs and its environment, and neither a network nor the host.
const SETUP: &str = r##"
test "$(id -u)" = 0
test -x /usr/lib/agent/run
test "$(wc -l < /proc/net/dev)" = 3
grep -q sshd /etc/passwd
openssl verify -CApath /etc/ssl/certs data/corp.pem > /dev/null
openssl verify -CAfile /etc/ssl/certs/ca-certificates.crt data/corp.pem > /dev/null
test "$(getent passwd agent)" = "agent:x:550:550:The agent:/var/lib/agent:/usr/sbin/nologin"
test "$(id -nG agent)" = "agent systemd-journal ops"
grep -q '^agent:!\*:' /etc/shadow
test "$(getent passwd messagebus | cut -d: -f3,4)" = 150:150
test "$(stat -c %G /usr/lib/dbus-1.0/dbus-daemon-launch-helper)" = messagebus
for path in . setup.sh data data/words; do test "$(stat -c %Y "$path")" = "$SOURCE_DATE_EPOCH"; done
test "$(LC_ALL=de_DE.UTF-8 date -d 2026-03-01 +%B)" = März
echo "$WORD $(cat data/words) $SOURCE_DATE_EPOCH" > /etc/made
mkdir -p /var/lib/made /opt/made
echo run > /var/lib/made/kept
echo run > /opt/made/file
rm /etc/ssh/moduli
echo "# changed" >> /etc/nsswitch.conf
touch /etc/hostname.was /tmp/scratch
chown 7:7 /etc/hostname.was
"##;

fn sum(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

fn agent() -> Vec<u8> {
    let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(
        Vec::new(),
        flate2::Compression::fast(),
    ));
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o4755);
    header.set_uid(1000);
    header.set_gid(1000);
    header.set_size(5);
    tar.append_data(&mut header, "agent-1/run", &b"agent"[..])
        .unwrap();
    tar.into_inner().unwrap().finish().unwrap()
}

fn authority() -> String {
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "Corp ROOT");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().pem()
}

/// What the programs changed, by their names.
fn listed(place: &Path) -> BTreeMap<String, Value> {
    let text = fs::read(place.join("out/small-1.0/changes.json")).unwrap();
    let all: Vec<Value> = serde_json::from_slice(&text).unwrap();
    all.into_iter()
        .map(|run| (run["name"].as_str().unwrap().to_owned(), run))
        .collect()
}

fn paths(run: &Value, kind: &str) -> Vec<String> {
    let list = run[kind].as_array().unwrap().iter();
    list.map(|one| one["path"].as_str().unwrap().to_owned())
        .collect()
}

/// A place with the recipe's files, served ones among them, and the text that [`MORE`] comes to.
struct Bench {
    place: Place,
    files: Files,
    server: String,
    more: String,
}

impl Bench {
    fn new() -> Self {
        let place = Place::new("content", None);
        let (tool, agent) = (b"a tool".to_vec(), agent());
        let more = MORE
            .replace("TOOL", &sum(&tool))
            .replace("AGENT", &sum(&agent));
        // Downloads are shared with other runs: what an earlier one fetched is fetched again.
        let cache = Cache::at(place.folder.join("cache")).unwrap();
        for content in [&tool, &agent] {
            fs::remove_file(cache.object(&sum(content))).ok();
        }
        let served = [
            ("/tool".to_owned(), tool),
            ("/agent.tar.gz".to_owned(), agent),
        ];
        let files: Files = Arc::new(Mutex::new(served.into()));
        let server = format!("http://{}", serve(files.clone()));
        let recipes = place.folder.join("recipes");
        fs::create_dir(recipes.join("data")).unwrap();
        let corp = authority();
        for (name, content) in [
            ("corp.pem", corp.as_str()),
            ("data/corp.pem", &corp),
            ("data/words", "words"),
            ("setup.sh", SETUP),
        ] {
            fs::write(recipes.join(name), content).unwrap();
        }
        let more = more.replace("SERVER", &server);
        Self {
            place,
            files,
            server,
            more,
        }
    }

    fn serve(&self, path: &str, content: &[u8]) {
        let mut files = self.files.lock().unwrap();
        files.insert(path.to_owned(), content.to_vec());
    }

    /// Builds the recipe with this behind it, without other forms of the disk, which take a minute each.
    fn build(&self, more: &str, out: &str) -> (bool, String) {
        let (base, _) = RECIPE.split_once("[[artifacts]]").unwrap();
        let path = self.place.folder.join("recipes/small.toml");
        fs::write(path, format!("{base}{more}")).unwrap();
        run(&self.place, &["build", "recipes/small.toml", "-o", out])
    }

    fn sums(&self, out: &str) -> String {
        let path = self.place.folder.join(out).join("small-1.0/SHA256SUMS");
        fs::read_to_string(path).unwrap()
    }
}

#[test]
fn a_recipe_brings_files_of_servers_authorities_and_what_programs_make() {
    let bench = Bench::new();
    refused(&bench);
    let (good, said) = bench.build(&bench.more, "out");
    assert!(good, "{said}");
    recorded(&listed(&bench.place.folder));
    // What has to be fetched is said: nothing any more.
    let words = ["build", "recipes/small.toml", "--dry-run"];
    let (good, said) = run(&bench.place, &words);
    assert!(good && said.contains("nothing to fetch"), "{said}");
    let cached = said.lines().find(|line| line.starts_with("in the cache: "));
    assert!(
        cached.is_some_and(|line| line.contains("bootable")),
        "{said}"
    );

    // With the programs run again the bytes are the same.
    for step in ["run", "archive", "root"] {
        fs::remove_dir_all(bench.place.folder.join("cache/steps").join(step)).unwrap();
    }
    let (good, said) = bench.build(&bench.more, "again");
    assert!(good, "{said}");
    assert_eq!(bench.sums("again"), bench.sums("out"));
    bill(&bench);
    in_the_root(&bench);
}

/// A lying server, a program that fails, and one that writes where Slipway has a file.
fn refused(bench: &Bench) {
    bench.serve("/tool", b"another");
    let (good, said) = bench.build(&bench.more, "out");
    assert!(!good, "{said}");
    for expected in ["small.toml:", &sum(b"a tool"), &sum(b"another")] {
        assert!(said.contains(expected), "{expected}\n{said}");
    }
    let words = ["build", "recipes/small.toml", "--dry-run"];
    let (good, said) = run(&bench.place, &words);
    // Packages may have to be fetched too: what other tests left in the cache says nothing here.
    let line = format!("\n  {}/tool\n", bench.server);
    assert!(good && said.contains(&line), "{said}");
    assert!(!said.contains("/agent.tar.gz"), "{said}");
    bench.serve("/tool", b"a tool");

    let more = |command: &str| {
        bench
            .more
            .replace("cat /etc/made", &format!("{command}; cat /etc/made"))
    };
    let (good, said) = bench.build(&more("echo no such luck >&2; false"), "out");
    assert!(!good && said.contains("no such luck"), "{said}");
    assert!(said.contains("running second"), "{said}");
    let left = fs::read_dir(bench.place.folder.join("cache/tmp")).unwrap();
    assert_eq!(left.count(), 0);

    let (good, said) = bench.build(
        &more("mkdir -p /usr/lib/slipway; touch /usr/lib/slipway/y"),
        "out",
    );
    let expected = "/usr/lib/slipway/y is in /usr/lib/slipway";
    assert!(!good && said.contains(expected), "{said}");
    assert!(said.contains("small.toml:"), "{said}");
}

/// The SBOM has the packages that are in the root, by their licences there, and no others but as excluded.
fn bill(bench: &Bench) {
    let cache = bench.place.folder.join("cache/steps/rootfs");
    let mut indexes = fs::read_dir(cache).unwrap();
    let index = indexes.next().unwrap().unwrap().path().join("rootfs.json");
    assert!(indexes.next().is_none(), "two roots");
    let index: Value = serde_json::from_slice(&fs::read(index).unwrap()).unwrap();
    let paths = index.as_array().unwrap().iter();
    let paths = paths.map(|entry| entry["path"].as_str().unwrap());
    let docs: BTreeSet<&str> = paths
        .clone()
        .filter_map(|path| path.strip_prefix("/usr/share/doc/"))
        .collect();
    let is_licence = |path: &&&str| {
        path.split_once('/')
            .is_none_or(|(_, name)| name == "copyright")
    };
    let others: Vec<_> = docs.iter().filter(|path| !is_licence(path)).collect();
    assert!(others.is_empty(), "{others:?}");

    let sbom = bench.place.folder.join("out/small-1.0/sbom.cdx.json");
    let sbom = sbom::components(&fs::read_to_string(sbom).unwrap()).unwrap();
    let of = |set: &str| -> BTreeMap<&str, bool> {
        let has = |property: &Property| property.name == "slipway:set" && property.value == set;
        let listed = sbom.iter().filter(|found| found.properties.iter().any(has));
        listed
            .map(|found| (found.name.as_str(), !found.is_removed()))
            .collect()
    };
    let root = of("root");
    assert!(root.len() > 80 && root["openssh-server"], "{root:?}");
    assert!(root.values().any(|ships| !ships), "{root:?}");
    for (name, ships) in &root {
        assert_eq!(docs.contains(name), *ships, "{name}");
    }
    let without = docs.iter().filter(|path| !path.contains('/'));
    let unlisted: Vec<_> = without.filter(|name| !root.contains_key(**name)).collect();
    assert!(unlisted.is_empty(), "{unlisted:?}");
    assert_eq!(of("locales"), BTreeMap::from([("locales", false)]));
    assert!(!docs.contains("locales"));
}

fn recorded(runs: &BTreeMap<String, Value>) {
    let first = &runs["setup"];
    let added = [
        "/etc/hostname.was",
        "/etc/made",
        "/var/lib/made",
        "/var/lib/made/kept",
        "/var/opt/made",
        "/var/opt/made/file",
    ];
    assert_eq!(paths(first, "added"), added);
    assert_eq!(paths(first, "removed"), ["/etc/ssh/moduli"]);
    assert_eq!(paths(first, "changed"), ["/etc/nsswitch.conf"]);
    assert_eq!(paths(&runs["second"], "added"), ["/etc/made.too"]);
    let made = first["added"].as_array().unwrap().iter();
    let mut made = made.filter(|one| one["path"] == "/etc/made");
    assert!(made.next().unwrap()["sha256"].as_str().unwrap().len() == 64);
}

/// Looks at the root of the built image by comparing it with one of the recipe alone: `slipway diff` lists every file that differs.
fn in_the_root(bench: &Bench) {
    let (good, said) = bench.build("", "plain");
    assert!(good, "{said}");
    let folders = ["plain", "out"].map(|out| format!("{out}/small-1.0"));
    let (good, said) = run(&bench.place, &["diff", &folders[0], &folders[1]]);
    assert!(good, "{said}");
    for expected in [
        "+ /etc/made 23 B",
        "+ /etc/made.too 23 B",
        "- /etc/ssh/moduli",
        "~ /etc/nsswitch.conf",
        "+ /etc/zone 14 B",
        "+ /etc/sysctl.d/90-recipe.conf 71 B",
        "+ /etc/modprobe.d/zz-recipe.conf 101 B",
        "+ /etc/locale.conf 67 B",
        "~ /etc/localtime target",
        "~ /etc/passwd content",
        "~ /usr/lib/dbus-1.0/dbus-daemon-launch-helper owner",
        "+ /usr/lib/locale/de_DE.utf8 ",
        "~ /etc/ca-certificates.conf",
        "~ /etc/ssl/certs/ca-certificates.crt",
        "+ /etc/ssl/certs/corp.pem",
        "+ /usr/share/ca-certificates/slipway ",
        "+ /usr/bin/tool 6 B",
        "+ /usr/lib/agent 5 B, 2 paths",
        // What the recipe has in place of the program's, which was four bytes long.
        "+ /usr/share/factory/var/lib/made 29 B, 2 paths",
        "+ /usr/share/factory/var/opt 4 B, 3 paths",
    ] {
        assert!(said.contains(expected), "{expected}\n{said}");
    }
}
