//! Builds `slipway-init` (static, its own profile, its own target folder) and hands its path to the tool, which embeds it.
//!
//! Its own target folder, because the outer Cargo holds the lock of the shared one; its own command, because features
//! of shared dependencies are unified over all packages of one command and PID 1 would get every feature of the tool.
//! `SLIPWAY_INIT=FILE` embeds a program that was built elsewhere instead.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

#[allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a build script speaks to Cargo by stdout and starts Cargo itself"
)]
fn main() {
    println!("cargo::rerun-if-env-changed=SLIPWAY_INIT");
    let program = match env::var_os("SLIPWAY_INIT") {
        Some(given) => {
            let given = PathBuf::from(given);
            println!("cargo::rerun-if-changed={}", given.display());
            given
        }
        // Not watched itself: it is younger than this script's start, which would make every second build run it again.
        None => build(),
    };
    println!(
        "cargo::rustc-env=SLIPWAY_INIT_PROGRAM={}",
        program.display()
    );
}

#[allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a build script speaks to Cargo by stdout and starts Cargo itself"
)]
fn build() -> PathBuf {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets CARGO_MANIFEST_DIR"));
    for watched in [
        "Cargo.toml",
        "Cargo.lock",
        "initrd",
        "image",
        "ignition",
        "fetch",
        "platform",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }
    let target = env::var("TARGET").expect("Cargo sets TARGET");
    let folder = outer_target(&root).join("init");
    let status = Command::new(env::var_os("CARGO").expect("Cargo sets CARGO"))
        .args([
            "build",
            "--package",
            "initrd",
            "--bin",
            "slipway-init",
            "--profile",
            "init",
            "--locked",
        ])
        .args(["--target", &target, "--target-dir"])
        .arg(&folder)
        .current_dir(&root)
        // What the outer Cargo tells this script must not reach the inner one: clippy's wrapper and its flags above all.
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .env(
            "RUSTFLAGS",
            "-C target-feature=+crt-static -C relocation-model=static",
        )
        .status()
        .expect("cargo starts");
    assert!(status.success(), "building slipway-init failed: {status}");
    folder.join(&target).join("init").join("slipway-init")
}

/// The outer target folder: `OUT_DIR` is `<target>/[<triple>/]<profile>/build/<package>-<hash>/out`.
fn outer_target(root: &Path) -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    out.ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists())
        .map_or_else(|| root.join("target"), Path::to_path_buf)
}
