//! Trees as layers: an archive beside the recipe, a container image of a registry on loopback, and what is refused.

use std::collections::HashMap;
use std::path::Path;

use super::super::found::tests::found;
use super::super::words::tests::{KERNEL, recipe};
use super::*;
use crate::debian::loopback::Loopback;
use crate::host::progress::{Kind as Shown, Progress};
use crate::layer::Writer;
use crate::layer::merge::merge;
use crate::lock::Lock;
use crate::recipe::{Mistakes, Recipe};

fn session(folder: &Path) -> Session {
    let cache = Cache::at(folder.join("cache")).unwrap();
    Session::new(cache, Progress::new(Shown::Quiet))
}

/// A tar archive of these files, as a text: it has only zeros and ASCII.
fn archive(files: &[(&str, &str)]) -> String {
    let mut out = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        out.append_data(&mut header, path, content.as_bytes())
            .unwrap();
    }
    String::from_utf8(out.into_inner().unwrap()).unwrap()
}

/// A registry with one image `k` of these files, owned by user 7; gives its reference.
fn registry(folder: &Path, entries: &[Entry]) -> String {
    let image = oci::Image {
        name: "r.example/k:v1".to_owned(),
        architecture: "amd64".to_owned(),
        run: oci::RunConfig::default(),
        layers: vec![oci::layer(entries, 7, &folder.join("layer")).unwrap()],
    };
    let layout = folder.join("layout");
    oci::write_layout(&layout, &[image], 7).unwrap();
    let mut served = HashMap::new();
    for blob in std::fs::read_dir(layout.join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap();
        let digest = format!("sha256:{}", blob.file_name().to_str().unwrap());
        let bytes = std::fs::read(blob.path()).unwrap();
        served.insert(format!("/v2/k/manifests/{digest}"), bytes.clone());
        served.insert(format!("/v2/k/blobs/{digest}"), bytes);
    }
    let server = Loopback::serve(served);
    let index = std::fs::read_to_string(layout.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    format!("{}/k:v1@{digest}", server.url.trim_start_matches("http://"))
}

fn locked(recipe: Recipe) -> LockedRecipe {
    LockedRecipe {
        recipe,
        lock: Lock::default(),
    }
}

fn below() -> Found {
    found(vec![
        Entry::symlink("/opt", "var/opt"),
        Entry::directory("/usr/lib", 0o711),
        Entry::file("/usr/lib/agent/old", 0o644, "package"),
    ])
}

#[test]
fn archives_and_images_lie_over_packages_in_their_order() {
    let scratch = tempfile::tempdir().unwrap();
    let session = session(scratch.path());
    let mut image = vec![
        Entry::directory("/app", 0o700),
        Entry::file("/app/bin", 0o4755, "image"),
        Entry::symlink("/app/link", "/etc/passwd"),
        Entry::file("/else", 0o644, ""),
    ];
    image.iter_mut().for_each(|entry| entry.uid = 7);
    let reference = registry(scratch.path(), &image);
    let text = format!(
        "{KERNEL}[[overlay.archives]]\nfile = 'a.tar'\nto = '/usr/lib/agent'\nstrip = 1\n\
         [[overlay.archives]]\nfile = 'a.tar'\nto = '/opt/agent'\n\
         [[overlay.images]]\noci = '{reference}'\nto = '/usr/lib/agent'\npath = '/app'\n"
    );
    let tar = archive(&[("v1/bin", "archive"), ("v1/old", "new"), ("v1/x/y", "y")]);
    let (_folder, recipe) = recipe(&text, &[("a.tar", &tar)]);
    let (below, locked) = (below(), locked(recipe));
    let layers = layers(&session, &locked, &below).unwrap();
    assert!(layers.iter().all(|layer| layer.writer == Writer::Recipe));
    let base: Vec<Entry> = below.tree.values().cloned().collect();
    let merged = merge(&base, &layers, &[]).unwrap();
    assert!(merged.refused.is_empty() && merged.conflicts.is_empty());
    let read = |path: &str| match &merged.tree[path].kind {
        Kind::File(source) => String::from_utf8(source.read().unwrap()).unwrap(),
        other => panic!("{path}: {other:?}"),
    };
    // The image is over the archive, and that over the package.
    assert_eq!(read("/usr/lib/agent/bin"), "image");
    assert_eq!(read("/usr/lib/agent/old"), "new");
    assert_eq!(read("/usr/lib/agent/x/y"), "y");
    assert_eq!(read("/usr/share/factory/var/opt/agent/v1/bin"), "archive");
    let bin = &merged.tree["/usr/lib/agent/bin"];
    assert_eq!((bin.mode, bin.uid), (0o755, 0));
    assert_eq!(merged.tree["/usr/lib"].mode, 0o711);
    assert!(!merged.tree.contains_key("/usr/lib/agent/else"));
    // What is made once is found again, with the same key.
    let again = super::layers(&session, &locked, &below).unwrap();
    let keys = |layers: &[Layer]| {
        layers
            .iter()
            .map(|layer| layer.key.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&again), keys(&layers));
}

#[test]
fn trees_that_cannot_be_taken_are_mistakes_at_their_places() {
    let scratch = tempfile::tempdir().unwrap();
    let session = session(scratch.path());
    let reference = registry(scratch.path(), &[Entry::file("/else", 0o644, "")]);
    // With the same digest the cache has it: a manifest is the same in every repository.
    let (gone, _) = reference.split_once('@').unwrap();
    let gone = format!("{gone}@sha256:{}", "0".repeat(64));
    let text = format!(
        "{KERNEL}[[overlay.archives]]\nfile = 'page'\nto = '/usr/lib/a'\n\
         [[overlay.archives]]\nfile = 'run.tar'\nto = '/'\n\
         [[overlay.images]]\noci = '{reference}'\nto = '/usr/lib/b'\npath = '/app'\n\
         [[overlay.images]]\noci = '{gone}'\nto = '/usr/lib/b'\n"
    );
    let tar = archive(&[("run/x", "")]);
    let files = [
        ("page", "<html>no archive</html>"),
        ("run.tar", tar.as_str()),
    ];
    let (folder, recipe) = recipe(&text, &files);
    let error = layers(&session, &locked(recipe), &below()).unwrap_err();
    let report = error.downcast_ref::<Mistakes>().unwrap().render(false);
    let report = report.replace(folder.path().to_str().unwrap(), "");
    for expected in [
        "/a.toml:7:1\n",
        "it is not a tar archive",
        "/a.toml:10:1\n",
        "/run/x would never be seen",
        "/a.toml:13:1\n",
        "it has no files in /app",
        "/a.toml:17:1\n",
        "404",
        "4 mistakes",
    ] {
        assert!(report.contains(expected), "{expected}\n{report}");
    }
}
