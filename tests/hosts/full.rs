//! Full disks: they are refused before any download, with the folder, what is free there, what is needed and what to do.

use nix::mount::MsFlags;

use super::host::{Host, NOWHERE, can_build};

/// A host that has one MiB at a folder of its own, of which a cache's own files take a page.
fn full(folder: &str) -> Host {
    let mut host = Host::new();
    host.add_file_system("tmpfs", folder, "size=1m", MsFlags::empty());
    // Who asked it would say so.
    host.set_mirror(NOWHERE);
    host
}

#[test]
fn a_cache_on_a_full_disk_is_refused_before_any_download() {
    if !can_build() {
        return;
    }
    let host = full("cache");
    let line = format!(
        "cache folder: {} (tmpfs) has 1020 KiB free, and 80.0 MiB are needed for lists of packages and unfinished work",
        host.path("cache").display()
    );
    let remedy = "→ set SLIPWAY_CACHE, or --cache, to a folder on a larger disk, or free some by `slipway cache prune`";
    for command in [&["build", "small.toml"][..], &["lock", "small.toml"]] {
        let answer = host.run(command);
        answer.refuses(&["this host cannot build yet", &line, remedy]);
        assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
    }
    let shown = host.run(&["doctor"]).text();
    assert!(
        shown.contains("has 1020 KiB free, and 80.0 MiB are needed"),
        "{shown}"
    );
}

#[test]
fn an_output_folder_on_a_full_disk_is_refused_before_any_download() {
    if !can_build() {
        return;
    }
    let host = full("images");
    let line = format!(
        "output folder: {}/out (tmpfs) has 1.0 MiB free, and 16.0 MiB are needed for an image",
        host.path("images").display()
    );
    let answer = host.run(&["build", "small.toml", "--output", "images/out"]);
    answer.refuses(&[&line, "→ give a folder on a larger disk with --output"]);
    assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
}
