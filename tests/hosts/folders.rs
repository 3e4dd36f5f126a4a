//! File systems of the cache and of the output that a build could not use.

use linux::host::is_root;
use nix::mount::MsFlags;

use crate::host::{Host, NOWHERE, can_build};

/// A file system without extended attributes, as NFS is on many hosts.
#[test]
fn a_cache_without_file_capabilities_is_refused_by_the_kind_of_its_file_system() {
    if !is_root() {
        return;
    }
    let mut host = Host::new();
    host.add_file_system("ramfs", "cache", "", MsFlags::empty());
    let words = [
        "(ramfs) cannot keep file capabilities",
        "set SLIPWAY_CACHE, or --cache",
    ];
    host.refuses_in_the_first_second(&["build", "small.toml"], &words);
    host.run(&["doctor"])
        .refuses(&["missing  cache folder", "(ramfs)"]);
}

#[test]
fn a_cache_whose_mount_executes_nothing_is_refused() {
    if !is_root() {
        return;
    }
    let mut host = Host::new();
    host.add_file_system("tmpfs", "cache", "size=1m", MsFlags::MS_NOEXEC);
    host.run(&["build", "small.toml"])
        .refuses(&["(tmpfs) cannot execute programs (mounted with noexec)"]);
}

#[test]
fn folders_that_cannot_be_written_are_named_together() {
    if !is_root() {
        return;
    }
    let mut host = Host::new();
    for folder in ["out", "cache"] {
        host.add_file_system("tmpfs", folder, "size=1m", MsFlags::MS_RDONLY);
    }
    host.run(&["build", "small.toml"]).refuses(&[
        "cache folder: making the cache folder",
        "output folder: ",
        "Read-only file system",
        "--output",
    ]);
}

/// A home that is not there, as of a service's user.
#[test]
fn doctor_looks_at_the_cache_of_its_option() {
    if !can_build() {
        return;
    }
    let mut host = Host::new();
    host.set_mirror(NOWHERE);
    host.set("SLIPWAY_CACHE", "/proc/nowhere");
    host.run(&["doctor"])
        .refuses(&["missing  cache folder", "/proc/nowhere"]);
    let other = host.path("other").display().to_string();
    let said = host.run(&["doctor", "--cache", &other]);
    said.refuses(&[&format!("free in {other}")]);
    assert!(!said.text().contains("/proc/nowhere"), "{}", said.text());
}
