//! Compiles the program: static, and without the paths of this machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The names of this machine's folders inside the program, in its messages of panics and in the C libraries' assertions.
const NAMES: [(&str, &str); 2] = [("repository", "/slipway"), ("crates", "/crates")];

/// The compiled program.
pub(crate) fn program(repository: &Path) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let folder = repository.join("target/dist");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let crates = crates_folder()?;
    let status = command(&cargo)
        .args([
            "build",
            "--release",
            "--locked",
            "--package=slipway",
            "--bin=slipway",
        ])
        .args(["--target", &target, "--target-dir"])
        .arg(&folder)
        .current_dir(repository)
        .env("RUSTFLAGS", flags(repository, &crates))
        .env("CFLAGS", c_flags(repository, &crates))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "compiling the program: {status}");
    Ok(folder.join(target).join("release/slipway"))
}

/// The compiler's own words on its version, commit and host, which decide about the program's bytes.
pub(crate) fn compiler(repository: &Path) -> Result<Vec<u8>> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = command(&rustc)
        .arg("-vV")
        .current_dir(repository)
        .output()
        .context("starting rustc")?;
    ensure!(output.status.success(), "rustc -vV: {}", output.status);
    ensure!(!output.stdout.is_empty(), "rustc -vV: it printed nothing");
    Ok(output.stdout)
}

#[allow(
    clippy::disallowed_methods,
    reason = "the compiler is the host's, as for the program itself"
)]
fn command(program: &std::ffi::OsStr) -> Command {
    Command::new(program)
}

/// The folder with the sources of all crates.
fn crates_folder() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    home.context("neither CARGO_HOME nor HOME is set")
}

fn flags(repository: &Path, crates: &Path) -> String {
    let mut flags = "-C target-feature=+crt-static -C strip=symbols".to_owned();
    for (from, (_, to)) in [repository, crates].iter().zip(NAMES) {
        flags += &format!(" --remap-path-prefix={}={to}", from.display());
    }
    flags
}

fn c_flags(repository: &Path, crates: &Path) -> String {
    let maps = [repository, crates].into_iter().zip(NAMES);
    let maps = maps.map(|(from, (_, to))| format!("-ffile-prefix-map={}={to}", from.display()));
    maps.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_of_this_machine_has_another_name() {
        let (repository, crates) = (Path::new("/home/me/slipway"), Path::new("/home/me/.cargo"));
        for flags in [flags(repository, crates), c_flags(repository, crates)] {
            assert!(flags.contains("/home/me/slipway=/slipway"), "{flags}");
            assert!(flags.contains("/home/me/.cargo=/crates"), "{flags}");
        }
        assert!(flags(repository, crates).contains("+crt-static"));
    }

    #[test]
    fn the_compiler_says_its_version_commit_and_host() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let said = String::from_utf8(compiler(repository).unwrap()).unwrap();
        assert!(said.starts_with("rustc "), "{said}");
        for key in ["release: ", "commit-hash: ", "host: "] {
            assert!(said.lines().any(|line| line.starts_with(key)), "{said}");
        }
    }
}
