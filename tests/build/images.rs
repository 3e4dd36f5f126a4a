//! Container images in the root: those that others built, and those that are composed of packages.

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

/// An image of packages is installed in a folder of the root, with what they depend on, and its check runs in it; a package that
/// does not exist has its place.
#[test]
fn an_image_of_packages_is_installed_and_checked() {
    let place = Place::new("composed", None);
    let program = program(&place.folder, "v1.36.3");
    fs::write(place.folder.join("recipes/kubelet"), &program).unwrap();
    ask_for(&place, "1.36.3", &["{ file = \"kubelet\" }".to_owned()]);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let write = |package: &str, option: &str| {
        let image = format!(
            "[[containers.composed]]\nname = \"r.example/tools:v1\"\npackages = [\"{package}\"]\nentrypoint = [\"/usr/bin/jq\"]\n\
             user = \"1000:1000\"\ncheck = [\"/usr/bin/jq\", \"{option}\"]\n[root]\ncompression = \"none\"\n"
        );
        fs::write(&recipe, format!("{text}{image}")).unwrap();
        run(&place, &["build", "recipes/small.toml", "-o", "out"])
    };
    let (good, said) = write("jqq", "--version");
    let line = format!("recipes/small.toml:{}:13", text.lines().count() + 3);
    assert!(!good && said.contains(&line), "{line}: {said}");
    assert!(said.contains("did you mean `jq`?"), "{said}");
    let (good, said) = write("jq", "--wrong");
    assert!(!good && said.contains("the check of the image"), "{said}");
    assert!(said.contains("Unknown option"), "{said}");
    let (good, said) = write("jq", "--version");
    assert!(good, "{said}");
    let out = place.folder.join("out/small-1.0");
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
