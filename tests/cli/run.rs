//! `slipway run`: what it asks of this host is looked at before anything is built or fetched.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::stderr;

/// An address where nothing listens: a request is an error that names it.
const DEAD: &str = "127.0.0.1:9";
/// The bound of a refusal, on a machine that is at other work.
const SOON: Duration = Duration::from_secs(5);

/// What `run` says of why it does not begin.
fn refused(folder: &Path, words: &[&str]) -> String {
    refused_by(folder, "run", words)
}

fn refused_by(folder: &Path, command: &str, words: &[&str]) -> String {
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .arg(command)
        .args(words)
        .current_dir(folder)
        .env("SLIPWAY_CACHE", folder.join("cache"))
        .env("SLIPWAY_DEBIAN_MIRROR", format!("http://{DEAD}/debian"))
        .output()
        .unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(began.elapsed() < SOON, "{said}");
    assert!(!said.contains(DEAD), "{said}");
    assert!(!folder.join("small.lock").exists() && !folder.join("out").exists());
    said
}

#[test]
fn a_run_that_cannot_begin_is_refused_before_its_recipe_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = folder.path().join("small.toml");
    fs::copy("src/recipe/tests/small.toml", recipe).unwrap();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let forward = format!("{port}:22");
    // As another run has it.
    let node = folder.path().join("node");
    fs::create_dir(&node).unwrap();
    let lock = File::create(node.join("lock")).unwrap();
    lock.lock().unwrap();
    let in_use = format!("--forward {forward}: listening at port {port} of this host");
    for (words, expected) in [
        (["--forward", &forward], in_use.as_str()),
        (["--memory", "99999999"], "--memory 99999999: this host has"),
        (["--node", "node"], "node is the node of another run"),
        (["--node", "small.toml/node"], "making small.toml/node"),
        (
            ["--ignition", "gone.ign"],
            "--ignition gone.ign: No such file",
        ),
        (
            ["--variant", "aws,gce"],
            "--variant aws,gce: expected one variant",
        ),
    ] {
        let words = [&["small.toml"][..], &words].concat();
        let said = refused(folder.path(), &words);
        assert!(said.contains(expected), "{expected} is not in\n{said}");
    }
}

/// A built image needs QEMU, which is not in the cache.
#[test]
fn a_node_of_another_image_is_refused_before_qemu_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let (image, node) = (folder.path().join("image"), folder.path().join("node"));
    for path in [&image, &node] {
        fs::create_dir(path).unwrap();
    }
    for (path, content) in [
        (image.join("disk.raw"), String::new()),
        (image.join("node.efi"), String::new()),
        (
            image.join("SHA256SUMS"),
            format!("{}  disk.raw\n", "a".repeat(64)),
        ),
        (node.join("system.raw"), String::new()),
        (node.join("image"), "b".repeat(64)),
    ] {
        fs::write(path, content).unwrap();
    }
    let said = refused(folder.path(), &["image", "--node", "node"]);
    assert!(
        said.contains("node is a node of another image than image: ")
            && said.contains("--fresh makes it anew"),
        "{said}"
    );
    assert!(node.join("system.raw").exists());
}

#[test]
fn a_demo_without_its_memory_is_refused_before_its_image_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let said = refused_by(folder.path(), "demo", &["--memory", "99999999"]);
    assert!(said.contains("--memory 99999999: this host has"), "{said}");
}
