//! Several images of one recipe, and what one has otherwise than the other.

use std::fs;

use super::Place;
use super::servers::run;

/// What makes two images of the small recipe.
const VARIANTS: &str = "
[variants.plain]

[variants.more.debian]
packages = [\"jq\"]

[variants.more.files.\"/etc/motd\"]
content = \"more\\n\"
mode = \"0600\"
";

#[test]
fn one_run_builds_all_variants_and_diff_says_what_differs() {
    let place = Place::new("variants", None);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let text = text.split("[[artifacts]]").next().unwrap();
    fs::write(&recipe, format!("{text}{VARIANTS}")).unwrap();
    let recipe = recipe.to_str().unwrap();
    let out = place.folder.join("out");
    let folder = |name: &str| out.join(name).to_str().unwrap().to_owned();

    let words = [
        "--json",
        "build",
        recipe,
        "-o",
        out.to_str().unwrap(),
        "--set",
        "image.version=2",
    ];
    let (built, said) = run(&place, &words);
    assert!(built, "{said}");
    let (plain, more) = (folder("small-plain-2"), folder("small-more-2"));
    for folder in [&plain, &more] {
        assert!(fs::exists(format!("{folder}/disk.raw")).unwrap(), "{said}");
    }
    assert!(place.folder.join("recipes/small.more.lock").is_file());

    let (equal, said) = run(&place, &["diff", "--exit-code", &plain, &plain]);
    assert!(equal && said.contains("no difference"), "{said}");
    let (equal, said) = run(
        &place,
        &["--json", "-q", "diff", "--exit-code", &plain, &more],
    );
    assert!(!equal, "{said}");
    let (_, json) = said.split_at(said.find('{').unwrap());
    let found: serde_json::Value = serde_json::from_str(json).unwrap();
    let names = |key: &str, name: &str| -> Vec<String> {
        let list = found[key].as_array().unwrap().iter();
        list.map(|item| item[name].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("packages", "name"), ["jq", "libjq1", "libonig5"]);
    let files = names("files", "path");
    assert!(files.contains(&"/usr/bin/jq".to_owned()), "{files:?}");
    let list = found["files"].as_array().unwrap();
    let motd = list
        .iter()
        .find(|file| file["path"] == "/etc/motd")
        .unwrap();
    assert_eq!(motd["what"], serde_json::json!(["content", "mode"]));
    assert_eq!(motd["to"], 5);
    // Nothing else is another one: only what the packages bring, what lists them, and the image's own names.
    let known = |path: &String| {
        [
            "jq",
            "onig",
            "/etc/motd",
            "/etc/ld.so.cache",
            "/usr/lib/os-release",
            "/usr/lib/slipway/packages",
        ]
        .iter()
        .any(|known| path.contains(known))
    };
    let others: Vec<_> = files.iter().filter(|path| !known(path)).collect();
    assert!(others.is_empty(), "{others:?}");
    // Each lock renews the packages that it has.
    let (done, said) = run(&place, &["lock", recipe, "--renew=jq"]);
    assert!(done && said.contains("small.plain.lock"), "{said}");
    let (done, said) = run(&place, &["lock", recipe, "--renew=jqq"]);
    assert!(!done && said.contains("the nearest name is jq"), "{said}");
}

/// What makes images for three kinds of machines of the small recipe.
const MACHINES: &str = "
[variants.aws]
artifacts = [{ kind = \"aws\" }]
[variants.aws.kernel]
platforms = [\"aws\"]

[variants.gce]
artifacts = [{ kind = \"gce\" }]
[variants.gce.kernel]
platforms = [\"gce\"]

[variants.metal]
artifacts = [{ kind = \"pxe\" }]
[variants.metal.kernel]
package = \"linux-image-amd64\"
platforms = [\"metal\"]
";

/// Steps whose product all three have, but for the kernel of real machines.
const SHARED: [&str; 3] = ["tools", "rootfs", "kernel"];
/// Steps whose product has the name of the image or the drivers of its machines.
const OWN: [&str; 4] = ["root", "initramfs", "bootable", "publish"];

#[test]
fn one_run_builds_the_images_of_three_kinds_of_machines_from_shared_steps() {
    let place = Place::new("machines", None);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let text = text.split("[[artifacts]]").next().unwrap();
    fs::write(&recipe, format!("{text}{MACHINES}")).unwrap();
    let words = ["--json", "-q", "build", "recipes/small.toml", "-o", "out"];
    let (built, said) = run(&place, &words);
    assert!(built, "{said}");
    let (_, json) = said.split_at(said.find('[').unwrap());
    let told: Vec<serde_json::Value> = serde_json::from_str(json).unwrap();
    let mut disks = Vec::new();
    for (at, (variant, of_kind)) in [
        ("aws", &["aws-register-image.json"][..]),
        ("gce", &["gce.tar.gz"]),
        ("metal", &["pxe/boot.ipxe"]),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(told[at]["variant"], variant, "{said}");
        let out = place.folder.join(format!("out/small-{variant}-1.0"));
        let sums = fs::read_to_string(out.join("SHA256SUMS")).unwrap();
        let disk = sums.lines().find(|line| line.ends_with(" disk.raw"));
        disks.push(disk.unwrap().to_owned());
        let has = |name: &&&str| sums.contains(**name);
        assert!(of_kind.iter().all(|name| has(&name)), "{variant}: {sums}");
        let others = ["aws-register-image.json", "gce.tar.gz", "boot.ipxe"];
        let found = others.iter().filter(|name| sums.contains(**name)).count();
        assert_eq!(found, 1, "{variant}: {sums}");

        let outcome = |name: &str| {
            let steps = told[at]["steps"].as_array().unwrap().iter();
            let mut steps = steps.filter(|step| step["name"] == name);
            let step = steps.next();
            let step = step.unwrap_or_else(|| panic!("{variant} has no step {name}: {said}"));
            assert!(steps.next().is_none(), "{variant}: two steps {name}");
            step["outcome"].as_str().unwrap().to_owned()
        };
        for name in SHARED {
            let own = at == 0 || (variant, name) == ("metal", "kernel");
            let expected = if own { "made" } else { "hit" };
            // A step that is made again was asked for with other packages, or another time.
            assert_eq!(
                outcome(name),
                expected,
                "{variant}: {name}\n{said}\n{}",
                lines_of_locks(&place)
            );
        }
        for name in OWN {
            assert_eq!(outcome(name), "made", "{variant}: {name}");
        }
    }
    disks.dedup();
    assert_eq!(disks.len(), 3, "{disks:?}");
    // Of one state of the mirror, also if it has a later one meanwhile.
    let epochs = ["aws", "gce", "metal"].map(|variant| epoch(&place, variant));
    assert_eq!(epochs[0], epochs[1]);
    assert_eq!(epochs[0], epochs[2]);
}

/// The line of a variant's lock with the time of its packages.
fn epoch(place: &Place, variant: &str) -> String {
    let path = place.folder.join(format!("recipes/small.{variant}.lock"));
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with("epoch = "));
    line.unwrap_or_else(|| panic!("no epoch: {text}"))
        .to_owned()
}

/// Times and sources of the locks that were made, for a failure's message.
fn lines_of_locks(place: &Place) -> String {
    let folder = place.folder.join("recipes");
    let mut found = String::new();
    for entry in fs::read_dir(&folder).unwrap().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "lock") {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text
                .lines()
                .filter(|line| line.contains("epoch") || line.contains("date"));
            let lines: Vec<&str> = lines.collect();
            found += &format!("{}: {}\n", path.display(), lines.join(", "));
        }
    }
    found
}
