//! `slipway run` of a recipe: what it needs is in the cache after the first time, and no server is asked.

use std::fs;
use std::process::{Command, Output, Stdio};

use super::{Place, reference};

/// An address where nothing listens: a request is an error that names it.
const DEAD: &str = "127.0.0.1:9";

/// Runs the recipe with the mirrors of this host, or with dead ones.
fn run(place: &Place, offline: bool) -> Output {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command
        .args(["run", "recipes/small.toml", "-o", "out", "--node", "node"])
        .args(["--memory", "512"])
        .current_dir(&place.folder)
        .env("SLIPWAY_CACHE", place.folder.join("cache"))
        .stdin(Stdio::null());
    if offline {
        for name in ["SLIPWAY_DEBIAN_MIRROR", "SLIPWAY_DEBIAN_SECURITY_MIRROR"] {
            command.env(name, format!("http://{DEAD}/debian"));
        }
    }
    command.output().unwrap()
}

/// The folder has the node of another image, which is known once this one is built and QEMU is there: no machine starts.
#[test]
fn a_run_asks_no_server_once_its_image_and_qemu_are_in_the_cache() {
    let place = Place::new("run", Some(&reference().lock));
    let node = place.folder.join("node");
    fs::create_dir(&node).unwrap();
    fs::write(node.join("system.raw"), "").unwrap();
    fs::write(node.join("image"), "b".repeat(64)).unwrap();
    let refused = |offline| {
        let output = run(&place, offline);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let expected = "node is a node of another image than ";
        assert!(said.contains(expected) && !said.contains(DEAD), "{said}");
    };
    refused(false);
    refused(true);
    // The packages alone.
    let trees = place.folder.join("cache/steps/tools");
    fs::rename(&trees, place.folder.join("trees")).unwrap();
    refused(true);
    assert!(trees.is_dir());
}
