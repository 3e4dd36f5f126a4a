//! The sources of a kubelet, each against a server on loopback that follows the vendor's conventions.

use std::fs;
use std::process::{Command, Stdio};

use data_encoding::HEXLOWER;
use memchr::memmem;
use sha2::{Digest, Sha256};
use slipway::release::{Binary, Image, Release, Table, Unpack};

use super::servers::{Files, ask_for, program, run, run_with, serve, serve_layout};
use super::{LOCK, Place};

fn locked(place: &Place) -> toml::Table {
    let text = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    let lock: toml::Table = toml::from_str(&text).unwrap();
    lock["kubelet"].as_table().unwrap().clone()
}

/// The newest patch release of the release table is pinned from a release server and built in; an image of it, which the
/// build itself wrote as an OCI layout, is pinned from a registry and is the same program; a server with a wrong digest is
/// refused and the next source taken.
#[test]
fn a_kubelet_comes_from_a_release_server_or_a_registry() {
    let place = Place::new("sources", None);
    let program = program(&place.folder, "v1.36.3");
    let sha256 = HEXLOWER.encode(&Sha256::digest(&program));
    let files = Files::default();
    let host = serve(files.clone());
    let set = |path: &str, bytes: &[u8]| {
        files
            .lock()
            .unwrap()
            .insert(path.to_owned(), bytes.to_vec());
    };
    let binary = "/release/v1.36.3/bin/linux/amd64/kubelet";
    set(binary, &program);
    set(&format!("{binary}.sha256"), sha256.as_bytes());

    let template = "/release/{version}/bin/linux/{arch}/kubelet";
    let release = format!("{{ release = \"http://{host}{template}\" }}");
    ask_for(&place, "1.36", std::slice::from_ref(&release));
    let (good, said) = run(&place, &["build", "recipes/small.toml", "-o", "out"]);
    assert!(good, "{said}");
    let kubelet = locked(&place);
    assert_eq!(kubelet["version"].as_str(), Some("v1.36.3"));
    assert_eq!(kubelet["sha256"].as_str(), Some(sha256.as_str()));
    let out = place.folder.join("out/small-1.0");
    let manifest = fs::read_to_string(out.join("manifest.json")).unwrap();
    assert!(manifest.contains(&sha256), "{manifest}");

    // A package more moves no kubelet, and its server, which is away, is not asked.
    set(&format!("{binary}.sha256"), b"away");
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    fs::write(&recipe, text.replace("[\"mount\"]", "[\"mount\", \"jq\"]")).unwrap();
    let (good, said) = run(&place, &LOCK);
    assert!(good && said.contains("+ jq "), "{said}");
    assert_eq!(locked(&place), kubelet);
    set(&format!("{binary}.sha256"), sha256.as_bytes());

    serve_layout(&out.join("kubelet.oci"), "kubelet", &set);
    let image = format!("{{ oci = \"{host}/kubelet:v1.36.3\" }}");
    ask_for(&place, "1.36.3", std::slice::from_ref(&image));
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good, "{said}");
    assert_eq!(locked(&place)["sha256"].as_str(), Some(sha256.as_str()));

    // The digest does not match the program, so the image is next.
    set(&format!("{binary}.sha256"), "0".repeat(64).as_bytes());
    ask_for(&place, "1.36", &[release.clone(), image]);
    // The pin still fits: its source is one of the recipe's.
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good && said.contains("no pin changed"), "{said}");
    let words = ["lock", "recipes/small.toml", "--renew=kubelet"];
    let (good, said) = run(&place, &words);
    assert!(good && said.contains(&"0".repeat(64)), "{said}");
    let source = locked(&place)["source"].to_string();
    assert!(source.contains("oci"), "{source}");
}

/// A version that no release table knows is refused before anything is asked for, and its lock stays; a version that the
/// recipe's own table knows is taken, and a recipe's own kubelet may be of any version.
#[test]
fn a_version_that_no_table_knows_is_refused_before_any_request() {
    let place = Place::new("unknown", None);
    let program = program(&place.folder, "v1.36.2");
    let sha256 = HEXLOWER.encode(&Sha256::digest(&program));
    let files = Files::default();
    let host = serve(files.clone());
    let binary = "/release/v1.36.2/bin/linux/amd64/kubelet";
    for (path, bytes) in [
        (binary.to_owned(), program.clone()),
        (format!("{binary}.sha256"), sha256.clone().into_bytes()),
    ] {
        files.lock().unwrap().insert(path, bytes);
    }
    let template = "/release/{version}/bin/linux/{arch}/kubelet";
    let release = format!("{{ release = \"http://{host}{template}\" }}");
    let lock = place.folder.join("recipes/small.lock");

    fs::write(place.folder.join("recipes/kubelet"), &program).unwrap();
    ask_for(&place, "1.36.2", &["{ file = \"kubelet\" }".to_owned()]);
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good, "{said}");
    let before = fs::read(&lock).unwrap();

    // No mirror answers at this address: a request to it would be the error.
    ask_for(&place, "1.36.2", &[release]);
    let nowhere = [("SLIPWAY_DEBIAN_MIRROR", "http://127.0.0.1:9/debian")];
    let (good, said) = run_with(&place, &["lock", "recipes/small.toml"], &nowhere);
    assert!(!good, "{said}");
    for word in [
        "1.36.2 is in no release table",
        "1.36.3",
        "slipway release add 1.36.2",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains("127.0.0.1:9"), "{said}");
    let after = fs::read(&lock).unwrap();
    assert_eq!(
        before, after,
        "a lock that could not be renewed was changed"
    );

    let sum = format!("h1:{}=", "A".repeat(43));
    let go_sum: String = [
        ("k8s.io/kubernetes", "v1.36.2"),
        ("github.com/coredns/coredns", "v1.14.2"),
    ]
    .iter()
    .map(|(module, version)| format!("{module} {version} {sum}\n{module} {version}/go.mod {sum}\n"))
    .collect();
    fs::write(place.folder.join("recipes/go.sum"), go_sum).unwrap();
    let add = [
        "release",
        "add",
        "--file",
        "recipes/slipway-releases.toml",
        "1.36.2",
        "--compiled",
        "--go-sum",
        "recipes/go.sum",
    ];
    let (good, said) = run(&place, &add);
    assert!(good, "{said}");
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good, "{said}");
    assert_eq!(locked(&place)["sha256"].as_str(), Some(sha256.as_str()));
}

/// Programs of the release beside the kubelet are pinned each by its own digest, and baked; a source that has one program
/// only is passed over, and told so.
#[test]
fn the_other_programs_of_a_release_come_from_the_same_server() {
    let place = Place::new("components", None);
    let kubelet = program(&place.folder, "v1.36.3");
    let kubectl = [kubelet.as_slice(), b"another"].concat();
    let files = Files::default();
    let host = serve(files.clone());
    let set = |path: &str, bytes: &[u8]| {
        files
            .lock()
            .unwrap()
            .insert(path.to_owned(), bytes.to_vec());
    };
    for (name, bytes) in [("kubelet", &kubelet), ("kubectl", &kubectl)] {
        let path = format!("/release/v1.36.3/bin/linux/amd64/{name}");
        set(&path, bytes);
        let sha256 = HEXLOWER.encode(&Sha256::digest(bytes));
        set(&format!("{path}.sha256"), sha256.as_bytes());
    }
    let of = |template: &str| {
        format!(
            "{{ release = \"http://{host}/release/{{version}}/bin/linux/{{arch}}/{template}\" }}"
        )
    };
    ask_for(&place, "1.36.3", &[of("kubelet"), of("{program}")]);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let text = text.replace("[containers]", "tools = [\"kubectl\"]\n[containers]");
    fs::write(&recipe, text).unwrap();
    let (good, said) = run(&place, &["build", "recipes/small.toml", "-o", "out"]);
    assert!(good && said.contains("{program}"), "{said}");
    let lock = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    let lock: toml::Table = toml::from_str(&lock).unwrap();
    let pinned = lock["components"]["kubectl"]["sha256"].as_str();
    let sha256 = HEXLOWER.encode(&Sha256::digest(&kubectl));
    assert_eq!(pinned, Some(sha256.as_str()));
    let sbom = fs::read_to_string(place.folder.join("out/small-1.0/sbom.cdx.json")).unwrap();
    assert!(
        sbom.contains(&sha256) && sbom.contains("cmd/kubectl"),
        "{sbom}"
    );
}

/// A table beside the recipe with all that 1.36.3 implies; `kubelet` is the SHA-256 of that program.
fn write_table(place: &Place, registry: &str, kubelet: &str, digest: &str) {
    let files = [
        ("kubelet", ""),
        ("kubectl", ""),
        ("kubeadm", ""),
        ("kube-apiserver", ""),
        ("kube-controller-manager", ""),
        ("kube-scheduler", ""),
        ("kube-proxy", ""),
        ("crictl", "crictl"),
        ("cni-plugins", "."),
    ];
    let binaries = files.map(|(name, path)| Binary {
        name: name.to_owned(),
        architecture: "amd64".to_owned(),
        url: format!("{{release}}/v1.36.3/bin/linux/amd64/{name}"),
        path: path.to_owned(),
        unpack: if path.is_empty() {
            Unpack::None
        } else {
            Unpack::TarGz
        },
        sha256: if name == "kubelet" {
            kubelet.to_owned()
        } else {
            "b".repeat(64)
        },
    });
    let images = [
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "coredns",
        "etcd",
        "pause",
    ];
    let images = images.map(|name| Image {
        name: name.to_owned(),
        reference: format!("{registry}/{name}:v1"),
        digest: digest.to_owned(),
    });
    let mut release = Release {
        version: "1.36.3".to_owned(),
        id: String::new(),
        binaries: binaries.into(),
        images: images.into(),
        module: None,
    };
    release.id = release.identity();
    let mut table = Table {
        releases: vec![release],
    };
    let path = place.folder.join("recipes/slipway-releases.toml");
    table.write(&path).unwrap();
}

/// What the release table has of a program is its place and its hash: no checksum is asked for, and a server with another
/// program fails the lock though another source follows.
#[test]
fn the_release_table_says_where_a_program_is_and_which() {
    let place = Place::new("table", None);
    let program = program(&place.folder, "v1.36.3");
    let sha256 = HEXLOWER.encode(&Sha256::digest(&program));
    let files = Files::default();
    let host = serve(files.clone());
    let path = "/k8s/v1.36.3/bin/linux/amd64/kubelet".to_owned();
    files.lock().unwrap().insert(path.clone(), program.clone());
    let digest = format!("sha256:{}", "a".repeat(64));
    write_table(&place, "r.example", &sha256, &digest);
    let template = "k8s/{version}/bin/linux/{arch}/{program}";
    let release = format!("{{ release = \"http://{host}/{template}\" }}");
    ask_for(&place, "1.36", std::slice::from_ref(&release));
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let images = "images = [\"pause\", \"etcd\"]\nimages-from = \"registry\"\n";
    fs::write(&recipe, text.replace("images = []\n", images)).unwrap();
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good, "{said}");
    assert_eq!(locked(&place)["sha256"].as_str(), Some(sha256.as_str()));
    let lock = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    assert!(
        lock.contains(&format!("etcd = \"r.example/etcd:v1@{digest}\"")),
        "{lock}"
    );

    // Another program, which is not in the cache under that hash.
    let other = "c".repeat(64);
    write_table(&place, "r.example", &other, &digest);
    fs::write(place.folder.join("recipes/kubelet"), &program).unwrap();
    ask_for(
        &place,
        "1.36.3",
        &[release, "{ file = \"kubelet\" }".to_owned()],
    );
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(!good, "{said}");
    for word in [&sha256, &other, "as the release table says of kubelet"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// A gzipped archive of these files: path and content.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut archive = tar::Builder::new(out);
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.set_uid(1000);
        header.set_gid(1000);
        archive.append_data(&mut header, path, *content).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

/// crictl and the CNI plugins are taken from the archives of their own releases, by the checksum beside each or the release table's
/// hash; an archive without the program, of another version or with another hash fails the lock with what it has.
#[test]
#[allow(
    clippy::too_many_lines,
    reason = "one server, and one fault after the other"
)]
fn crictl_and_the_cni_plugins_come_from_their_own_releases() {
    let place = Place::new("own", None);
    let kubelet = program(&place.folder, "v1.36.3");
    let crictl = program(&place.folder, "v1.35.0");
    let files = Files::default();
    let host = serve(files.clone());
    let set = |path: &str, bytes: &[u8]| {
        let sha256 = HEXLOWER.encode(&Sha256::digest(bytes));
        let mut files = files.lock().unwrap();
        files.insert(format!("{path}.sha256"), sha256.clone().into_bytes());
        files.insert(path.to_owned(), bytes.to_vec());
        sha256
    };
    let kubelets = set("/release/v1.36.3/bin/linux/amd64/kubelet", &kubelet);
    let of_crictl = "/github/kubernetes-sigs/cri-tools/releases/download/v1.35.0/crictl-v1.35.0-linux-amd64.tar.gz";
    let of_plugins = "/github/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-amd64-v1.9.1.tgz";
    let plugins: Vec<(String, Vec<u8>)> = ["bridge", "host-local", "loopback", "portmap", "tap"]
        .iter()
        .map(|name| {
            (
                format!("./{name}"),
                format!("the plugin {name}").into_bytes(),
            )
        })
        .collect();
    let plugins: Vec<(&str, &[u8])> = plugins
        .iter()
        .map(|(path, content)| (path.as_str(), content.as_slice()))
        .collect();
    let template = "/release/{version}/bin/linux/{arch}/{program}";
    let release = format!("{{ release = \"http://{host}{template}\" }}");
    ask_for(&place, "1.36.3", &[release]);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let own = format!(
        "tools = [\"crictl\"]\ncni-plugins = \"release\"\ngithub = \"http://{host}/github\"\n[containers]"
    );
    let text = text.replace("[containers]", &own);
    fs::write(&recipe, format!("{text}[root]\ncompression = \"none\"\n")).unwrap();

    // Each mistake of a server, and last what is right.
    for (crictls, pluginss, expected) in [
        (
            archive(&[("bin/crictl", &crictl)]),
            archive(&plugins),
            "the archive of crictl v1.35.0 has bin/crictl, expected crictl",
        ),
        (
            archive(&[("crictl", &kubelet)]),
            archive(&plugins),
            "crictl answers \"Kubernetes v1.36.3\" to --version, expected 1.35.0",
        ),
        (
            archive(&[("crictl", &crictl)]),
            archive(&plugins[..2]),
            "has bridge, host-local, expected loopback, portmap",
        ),
        (b"<html>".to_vec(), archive(&plugins), "not a tar archive"),
    ] {
        set(of_crictl, &crictls);
        set(of_plugins, &pluginss);
        let (good, said) = run(&place, &LOCK);
        assert!(!good && said.contains(expected), "{expected}: {said}");
        assert!(!place.folder.join("recipes/small.lock").exists());
    }
    let sha256 = set(of_crictl, &archive(&[("crictl", &crictl)]));
    set(of_plugins, &archive(&plugins));
    let (good, said) = run(&place, &["build", "recipes/small.toml", "-o", "out"]);
    assert!(good, "{said}");
    let lock = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    let lock: toml::Table = toml::from_str(&lock).unwrap();
    let pinned = &lock["components"]["crictl"];
    assert_eq!(pinned["sha256"].as_str(), Some(sha256.as_str()));
    assert_eq!(pinned["version"].as_str(), Some("v1.35.0"));
    let url = pinned["source"]["archive"]["url"].as_str().unwrap();
    assert!(url.ends_with(of_crictl), "{url}");
    let out = place.folder.join("out/small-1.0");
    let sbom = fs::read_to_string(out.join("sbom.cdx.json")).unwrap();
    for purl in [
        "pkg:golang/sigs.k8s.io/cri-tools@v1.35.0#cmd/crictl",
        "pkg:golang/github.com/containernetworking/plugins@v1.9.1",
    ] {
        assert!(sbom.contains(purl), "{purl}: {sbom}");
    }
    let disk = fs::read(out.join("disk.raw")).unwrap();
    for text in [
        "the plugin host-local",
        "L /var/opt/cni/bin/tap - - - - /usr/lib/cni/tap",
        "runtime-endpoint: unix:///run/containerd/containerd.sock",
    ] {
        let found = memmem::find(&disk, text.as_bytes());
        assert!(found.is_some(), "{text} is not on the disk");
    }
    // The pin is kept by a recipe that wants the same, and a server that is away is not asked.
    set(of_crictl, b"away");
    let text = fs::read_to_string(&recipe).unwrap();
    fs::write(&recipe, text.replace("\"1.36.3\"", "\"1.36\"")).unwrap();
    let (good, said) = run(&place, &LOCK);
    assert!(good && said.contains("no pin changed"), "{said}");

    // The release table has another hash, and another place.
    write_table(
        &place,
        "r.example",
        &kubelets,
        &format!("sha256:{}", "d".repeat(64)),
    );
    let found = set(
        "/release/v1.36.3/bin/linux/amd64/cni-plugins",
        &archive(&plugins),
    );
    fs::write(&recipe, &text).unwrap();
    let (good, said) = run(&place, &LOCK);
    assert!(!good, "{said}");
    for word in [
        &found,
        &"b".repeat(64),
        "as the release table says of cni-plugins",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// The same programs compiled from their Go modules, where no server of releases is reached: crictl says its version, and a plugin
/// answers as the CNI specification has it ("VERSION"). Minutes, and some hundred megabytes of modules: `just own-programs`.
#[test]
#[ignore = "compiles 19 Go programs"]
fn crictl_and_the_cni_plugins_are_compiled_from_their_modules() {
    let place = Place::new("modules", None);
    let kubelet = program(&place.folder, "v1.36.3");
    fs::write(place.folder.join("recipes/kubelet"), &kubelet).unwrap();
    let sources = ["{ file = \"kubelet\" }", "{ go-module = true }"].map(str::to_owned);
    ask_for(&place, "1.36.3", &sources);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let own = "tools = [\"crictl\"]\ncni-plugins = \"release\"\n[containers]";
    fs::write(&recipe, text.replace("[containers]", own)).unwrap();
    let (good, said) = run(&place, &["build", "recipes/small.toml", "-o", "out"]);
    assert!(good, "{said}");
    println!("{said}");
    let lock = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    let lock: toml::Table = toml::from_str(&lock).unwrap();
    let cache = slipway::host::cache::Cache::at(place.folder.join("cache")).unwrap();
    let object = |name: &str| cache.object(lock["components"][name]["sha256"].as_str().unwrap());
    let unpacked = place.folder.join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    fs::copy(object("crictl"), unpacked.join("crictl")).unwrap();
    let archive = fs::File::open(object("cni-plugins")).unwrap();
    tar::Archive::new(archive).unpack(&unpacked).unwrap();
    fs::set_permissions(
        unpacked.join("crictl"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let ask = |name: &str, word: &[&str], variables: &[(&str, &str)]| {
        #[allow(clippy::disallowed_methods, reason = "the programs under test")]
        let mut child = Command::new(unpacked.join(name))
            .args(word)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, b"{\"cniVersion\":\"1.0.0\"}").unwrap();
        drop(stdin);
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let version = lock["components"]["crictl"]["version"].as_str().unwrap();
    let said = ask("crictl", &["--version"], &[]);
    assert!(said.contains(version.trim_start_matches('v')), "{said}");
    for plugin in ["bridge", "host-local", "loopback", "portmap", "vrf"] {
        let said = ask(plugin, &[], &[("CNI_COMMAND", "VERSION")]);
        assert!(said.contains("supportedVersions"), "{plugin}: {said}");
    }
}
