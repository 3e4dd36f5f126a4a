//! Container images in the root: those that others built, and those that are composed of packages.

#[path = "../generated/package.rs"]
mod package;

use std::fs;

use memchr::memmem;
use slipway::layer::Entry;
use slipway::oci;

use super::Place;
use super::servers::{Files, ask_for, program, run, serve, serve_layout};

/// Images that others built are pulled by their digest or read from a layout, and are in the root under their own names.
#[test]
fn images_of_others_are_baked_under_their_own_names() {
    let place = Place::new("prebuilt", None);
    let program = program(&place.folder, "v1.36.3");
    fs::write(place.folder.join("recipes/kubelet"), &program).unwrap();
    let layer =
        |name: &str, entries: &[Entry]| oci::layer(entries, 7, &place.folder.join(name)).unwrap();
    let image = oci::Image {
        name: "r.example/app:v1".to_owned(),
        architecture: "amd64".to_owned(),
        run: oci::RunConfig {
            user: "1000".to_owned(),
            entrypoint: vec!["/app".to_owned()],
            ..oci::RunConfig::default()
        },
        layers: vec![
            layer("lower", &[Entry::file("/app", 0o4755, "below")]),
            layer(
                "upper",
                &[Entry::file("/app", 0o4755, "a text of the upper layer")],
            ),
        ],
    };
    let layout = place.folder.join("recipes/app.oci");
    oci::write_layout(&layout, &[image], 7).unwrap();
    let files = Files::default();
    let host = serve(files.clone());
    serve_layout(&layout, "group/app", &|path, bytes| {
        files
            .lock()
            .unwrap()
            .insert(path.to_owned(), bytes.to_vec());
    });
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    ask_for(&place, "1.36.3", &["{ file = \"kubelet\" }".to_owned()]);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let prebuilt = format!(
        "prebuilt = [{{ oci = \"{host}/group/app:v2@{digest}\" }}, {{ layout = \"app.oci\", name = \"r.example/app:v1\" }}]\n\
         [root]\ncompression = \"none\"\n"
    );
    // Images that are not there are mistakes of the recipe, all at once.
    let absent = prebuilt
        .replace(digest, &format!("sha256:{}", "0".repeat(64)))
        .replace("r.example/app:v1", "r.example/app:v2");
    fs::write(&recipe, format!("{text}{absent}")).unwrap();
    let (good, said) = run(&place, &["build", "recipes/small.toml", "-o", "out"]);
    assert!(!good, "{said}");
    let line = format!("recipes/small.toml:{}:", text.lines().count() + 1);
    assert_eq!(said.matches(&line).count(), 2, "{said}");
    for expected in [
        "404 Not Found",
        "it has no image \"r.example/app:v2\"",
        "2 mistakes",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    fs::write(&recipe, format!("{text}{prebuilt}")).unwrap();
    let (good, said) = run(&place, &["build", "recipes/small.toml", "-o", "out"]);
    assert!(good, "{said}");
    let out = place.folder.join("out/small-1.0");
    let sbom = fs::read_to_string(out.join("sbom.cdx.json")).unwrap();
    assert!(sbom.contains("pkg:oci/app@sha256%3A"), "{sbom}");
    let disk = fs::read(out.join("disk.raw")).unwrap();
    let has = |text: &str| memmem::find(&disk, text.as_bytes()).is_some();
    for name in [
        format!("\"names\":[\"{host}/group/app:v2\",\"{host}/group/app@{digest}\"]"),
        "\"names\":[\"r.example/app:v1\"]".to_owned(),
        "a text of the upper layer".to_owned(),
    ] {
        assert!(has(&name), "{name} is not on the disk");
    }
}

/// Makes a key, which nothing makes in a container, and one that a node makes on its first boot.
const POSTINST: &str = "#!/bin/sh
set -e
mkdir -p /etc/keymaker /etc/munge
head -c 16 /dev/urandom | od >/etc/keymaker/key
head -c 16 /dev/urandom | od >/etc/munge/munge.key
";

/// An image of packages is installed in a folder of the root, with what they depend on, and its check runs in it; a package that
/// does not exist has its place, and so has one whose script makes a key.
#[test]
fn an_image_of_packages_is_installed_and_checked() {
    let place = Place::new("composed", None);
    let program = program(&place.folder, "v1.36.3");
    fs::write(place.folder.join("recipes/kubelet"), &program).unwrap();
    package::write(
        &place.folder.join("recipes/keymaker.deb"),
        "keymaker",
        POSTINST,
    );
    ask_for(&place, "1.36.3", &["{ file = \"kubelet\" }".to_owned()]);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    // The root has the package too, and another file in the place of its key.
    let debs = "[debian]\ndebs = [{ file = \"keymaker.deb\" }]\n";
    let text = text.replacen("[debian]\n", debs, 1);
    let text = format!("{text}[files.\"/etc/keymaker/key\"]\nremove = true\n");
    let write = |package: &str, option: &str, root: &str| {
        let image = format!(
            "[[containers.composed]]\nname = \"r.example/tools:v1\"\npackages = [\"{package}\", \"keymaker\"]\n\
             entrypoint = [\"/usr/bin/jq\"]\nuser = \"1000:1000\"\nenvironment = {{ TOOLS = \"yes\" }}\n\
             check = [\"/usr/bin/jq\", \"{option}\", 'env.TOOLS == \"yes\"']\n[root]\ncompression = \"none\"\n{root}"
        );
        fs::write(&recipe, format!("{text}{image}")).unwrap();
        run(
            &place,
            &["build", "recipes/small.toml", "-o", "out", "--quiet"],
        )
    };
    let line = text.lines().count() + 3;
    let (good, said) = write("jqq", "-ne", "");
    let missing = format!("recipes/small.toml:{line}:13");
    assert!(!good && said.contains(&missing), "{missing}: {said}");
    assert!(said.contains("did you mean `jq`?"), "{said}");
    let (good, said) = write("jq", "-ne", "");
    let generates = [
        "a script of `keymaker` generates in the container image r.example/tools:v1 what is different",
        "`same-on-every-node = [\"/etc/keymaker/key\"]` in [root]",
        &format!("recipes/small.toml:{line}:19"),
    ];
    for words in generates {
        assert!(!good && said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("remove = true"), "{said}");
    let root = "same-on-every-node = [\"/etc/keymaker/key\"]\n";
    let (good, said) = write("jq", "--wrong", root);
    assert!(!good && said.contains("the check of the image"), "{said}");
    assert!(said.contains("Unknown option"), "{said}");
    let (good, said) = write("jq", "-ne", root);
    assert!(good, "{said}");
    let lacks = "warning: the container image r.example/tools:v1 lacks";
    assert!(
        said.contains(lacks) && said.contains(": /etc/munge/munge.key"),
        "{said}"
    );
    let out = place.folder.join("out/small-1.0");
    let removed = fs::read_to_string(out.join("removed.txt")).unwrap();
    let (_, of_image) = removed
        .split_once("the container image r.example/tools:v1 lacks")
        .unwrap();
    assert!(of_image.contains("\n/etc/munge/munge.key\n"), "{removed}");
    let sbom = fs::read_to_string(out.join("sbom.cdx.json")).unwrap();
    assert!(sbom.contains("\"image r.example/tools:v1\""), "{sbom}");
    let disk = fs::read(out.join("disk.raw")).unwrap();
    let has = |text: &str| memmem::find(&disk, text.as_bytes()).is_some();
    for words in [
        "\"names\":[\"r.example/tools:v1\"]",
        r#"\"User\":\"1000:1000\""#,
        // Of its program, which nothing else in this image has.
        "jq - commandline JSON processor",
    ] {
        assert!(has(words), "{words} is not on the disk");
    }
}
