//! Builds the embedded programs `slipway-init`, `slipway-node` and `ignition` (static, in a separate profile and target
//! folder) and passes their paths to the tool's compilation.
//!
//! The separate target folder is necessary because the outer Cargo holds the lock of the shared one, the separate
//! command because Cargo unifies features of shared dependencies over all packages of one command and PID 1 would get
//! every feature of the tool. `SLIPWAY_PROGRAMS=FOLDER` embeds the programs of this folder instead; a file in place of
//! the folder is embedded as each of them, for checks that run none.

#[path = "build/code.rs"]
mod code;
#[path = "build/crates.rs"]
mod crates;
#[path = "build/mirror.rs"]
mod mirror;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Package and program.
const PROGRAMS: [(&str, &str); 3] = [
    ("initrd", "slipway-init"),
    ("node", "slipway-node"),
    ("dropin", "ignition"),
];

#[allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a build script speaks to Cargo by stdout and starts Cargo itself"
)]
fn main() {
    println!("cargo::rerun-if-env-changed=SLIPWAY_PROGRAMS");
    default_mirror();
    hash_code();
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets CARGO_MANIFEST_DIR"));
    crates::write(&root, &PROGRAMS.map(|(package, _)| package));
    println!("cargo::rustc-env=SLIPWAY_RUST={}", crates::rust());
    let c_library = crates::c_library();
    if let Some(archive) = c_library.archive {
        println!("cargo::rerun-if-changed={}", archive.display());
    }
    let glibc = c_library.glibc.unwrap_or_default();
    println!("cargo::rustc-env=SLIPWAY_GLIBC={glibc}");
    another_day(&root);
    let folder = match env::var_os("SLIPWAY_PROGRAMS") {
        Some(given) => PathBuf::from(given),
        // The folder is not watched: it is newer than this script's start, so every second build would run the script
        // again.
        None => build(&glibc),
    };
    for (package, program) in PROGRAMS {
        let path = match folder.is_dir() {
            true => folder.join(program),
            false => folder.clone(),
        };
        if env::var_os("SLIPWAY_PROGRAMS").is_some() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        let variable = format!("SLIPWAY_{}_PROGRAM", package.to_uppercase());
        println!("cargo::rustc-env={variable}={}", path.display());
    }
}

/// Refuses a distributor's mirror that no build could use: `SLIPWAY_DEFAULT_MIRROR`, which `src/debian/mirror.rs` reads when it is compiled.
#[allow(
    clippy::print_stdout,
    reason = "a build script speaks to Cargo by stdout"
)]
fn default_mirror() {
    const NAME: &str = "SLIPWAY_DEFAULT_MIRROR";
    println!("cargo::rerun-if-env-changed={NAME}");
    let url = env::var(NAME).unwrap_or_default();
    assert!(
        url.is_empty() || mirror::is_usable(&url),
        "{NAME}={url:?} is not an http or https URL of a folder with `dists` and `pool`"
    );
}

/// Compiles the library of `src/host/sandbox/clock.rs`. Without a C library, since the functions that it calls are those of the
/// program that loads it; bound when they are called, since some programs have a C library without all of them. The compiler is
/// the one of `CC_<target>` or `CC`, as for the crates in C.
#[allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a build script speaks to Cargo by stdout and starts the C compiler itself"
)]
fn another_day(root: &Path) {
    let target = env::var("TARGET").expect("Cargo sets TARGET");
    let names = [format!("CC_{}", target.replace('-', "_")), "CC".to_owned()];
    for name in &names {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // It may have arguments, or a cache before it.
    let given = names.iter().find_map(|name| env::var(name).ok());
    let given = given.unwrap_or_default();
    let mut words = given.split_whitespace();
    let compiler = words.next().unwrap_or("cc");
    let library =
        PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR")).join("another-day.so");
    let status = Command::new(compiler)
        .args(words)
        .args(["-shared", "-nostdlib", "-fPIC", "-O1", "-s"])
        .args(["-fno-stack-protector", "-U_FORTIFY_SOURCE"])
        .args(["-Wl,--build-id=none", "-Wl,-z,lazy", "-o"])
        .arg(&library)
        .arg("src/host/sandbox/clock.c")
        .current_dir(root)
        .status()
        .expect("the C compiler starts");
    assert!(status.success(), "compiling clock.c failed: {status}");
    let library = library.display();
    println!("cargo::rustc-env=SLIPWAY_ANOTHER_DAY={library}");
}

/// Passes the hash of each step's code to the compilation of `src/code.rs`.
#[allow(
    clippy::print_stdout,
    reason = "a build script speaks to Cargo by stdout"
)]
fn hash_code() {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets CARGO_MANIFEST_DIR"));
    for watched in ["build", "build.rs", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }
    for step in code::STEPS {
        for path in step.paths {
            println!("cargo::rerun-if-changed={}", root.join(path).display());
        }
        let hash = code::hash(&root, step)
            .unwrap_or_else(|error| panic!("hashing the code of {}: {error}", step.name));
        println!("cargo::rustc-env=SLIPWAY_CODE_{}={hash}", step.name);
    }
}

#[allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a build script speaks to Cargo by stdout and starts Cargo itself"
)]
fn build(glibc: &str) -> PathBuf {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets CARGO_MANIFEST_DIR"));
    for watched in [
        "Cargo.toml",
        "Cargo.lock",
        "image",
        "cluster",
        "api",
        "fetch",
        "ignition",
        "linux",
        "net",
        "apply",
        "platform",
        "etcd",
        "initrd",
        "dropin",
        "node",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }
    let target = env::var("TARGET").expect("Cargo sets TARGET");
    let folder = outer_target(&root).join("init");
    let status = Command::new(env::var_os("CARGO").expect("Cargo sets CARGO"))
        .args(["build", "--profile", "init", "--locked"])
        .args(PROGRAMS.map(|(package, _)| format!("--package={package}")))
        .args(["--bins", "--target", &target, "--target-dir"])
        .arg(&folder)
        .current_dir(&root)
        // The outer Cargo's variables must not reach the inner one, above all clippy's wrapper and its flags.
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .env("RUSTFLAGS", flags(&target, &folder, glibc))
        .status()
        .expect("cargo starts");
    assert!(
        status.success(),
        "building the programs of the node failed: {status}"
    );
    folder.join(&target).join("init")
}

/// Flags of the compiler for the embedded programs: static, and without the index of the unwinding tables, since they abort
/// and nothing unwinds. Where Rust's linker is LLVM's, equal functions are there once, which saves a hundredth, and the
/// tables themselves are dropped, which saves a tenth; the script's path is relative to the workspace, where Cargo runs the
/// compiler, since a flag's text is part of each crate's hash. The folders of this machine have other names in messages of
/// panics, so that the same sources are the same image wherever they were compiled; not that of the sources, which Cargo
/// names by paths relative to it, so that a second clone with the same target folder compiles no crate of a registry again.
/// The version of the C library, which no crate reads, makes Cargo link anew when the host's changes: it does not look at
/// that archive.
fn flags(target: &str, compiled: &Path, glibc: &str) -> String {
    let mut flags = "-C target-feature=+crt-static -C relocation-model=static -C link-arg=-Wl,--no-eh-frame-hdr".to_owned();
    if target == "x86_64-unknown-linux-gnu" {
        flags += " -C link-arg=-Wl,--icf=all -C link-arg=-Wl,-T,build/no-unwinding.ld";
    }
    if !glibc.is_empty() {
        flags += &format!(" --cfg=glibc=\"{glibc}\"");
    }
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let folders = [
        // What build scripts generate is there.
        (Some(compiled.to_owned()), "/slipway/target/init"),
        (home, "/crates"),
    ];
    for (from, to) in folders {
        if let Some(from) = from {
            flags += &format!(" --remap-path-prefix={}={to}", from.display());
        }
    }
    flags
}

/// The outer target folder: `OUT_DIR` is `<target>/[<triple>/]<profile>/build/<package>-<hash>/out`.
fn outer_target(root: &Path) -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    out.ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists())
        .map_or_else(|| root.join("target"), Path::to_path_buf)
}
