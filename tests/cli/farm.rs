//! `farm render`: what the Jobs cannot have is refused, and nothing is printed.

use std::process::Command;

use super::{stderr, stdout};

#[test]
fn a_remote_cache_in_a_folder_of_this_machine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // 32 zeros, which no secret key is known of.
    let key = format!("ci:{}=", "A".repeat(43));
    let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(["farm", "render", "a.toml", "--claim", "out"])
        .args(["--image", "r.example/slipway:1"])
        .args(["--remote-cache", "file:///mnt/cache"])
        .current_dir(folder.path())
        .env("SLIPWAY_REMOTE_CACHE_KEYS", key)
        .env("SLIPWAY_SETTINGS", "/dev/null")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("which the Jobs do not have"), "{said}");
    assert_eq!(stdout(&output), "");
}
