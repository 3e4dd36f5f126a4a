//! Both programs in one tree of Debian packages: ours, embedded in the tool, and Debian's `ignition`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use slipway::IGNITION_PROGRAM;
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use tempfile::TempDir;

use crate::peers;
use crate::servers::systemd;

/// The recipe, beside this package's manifest.
const RECIPE: &str = "ignition.toml";
/// Path of Debian's program, from which dracut takes it.
const THEIRS: &str = "usr/lib/dracut/modules.d/30ignition/ignition";
/// Paths in the sandbox: the folder of a run; our program and the driver.
const WORK: &str = "/work";
const BENCH: &str = "/bench";
/// The script that runs the stages.
const DRIVER: &str = "stages.py";
/// Programs that are replaced by `true`, in the first folder of `PATH`.
const NOTHING: &[&str] = &["udevadm", "setfiles"];
const STUBS: &str = "/stubs";
/// Wrapper of sgdisk: a kernel without `CONFIG_EFI_PARTITION` does not read a GPT, so partx adds the partitions.
const SGDISK: &str = r#"#!/bin/sh
/usr/sbin/sgdisk "$@" || exit
for device; do :; done
/usr/bin/partx --update "$device"
exit 0
"#;

/// Which of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Our program `ignition`.
    Ours,
    /// Debian's.
    Theirs,
}

/// The quantity that a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Seconds.
    Time,
    /// Peak memory, which makes the run slower.
    Memory,
}

/// One stage of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stage {
    /// Name of the stage.
    pub(crate) name: String,
    /// Wall-clock time from its start to its end.
    pub(crate) seconds: f64,
    /// Peak memory of its largest process, KiB; 0 if only time was measured.
    pub(crate) kib: u32,
}

/// The tree, and the folders bound into it.
#[derive(Debug)]
pub(crate) struct Programs {
    tools: Tools,
    /// Version of Debian's package.
    pub(crate) version: String,
    folder: PathBuf,
    // Not in `folder`: the path of a socket is limited to 108 bytes.
    systemd: TempDir,
}

impl Programs {
    /// Locks, fetches and unpacks the packages, unless they are in the cache. The lock is written to `kept`; files to
    /// bind into the tree are written to `folder`.
    pub(crate) fn open(session: &Session, kept: &Path, folder: &Path) -> Result<Self> {
        let (_, debs) = peers::fetch(session, RECIPE, kept)?;
        let version = debs
            .iter()
            .find(|deb| deb.package.name == "ignition")
            .map(|deb| deb.package.version.clone())
            .context("the lock has no package ignition")?;
        let tools = tools::install(session, "tools-ignition", &debs)?;
        let bench = folder.join("bench");
        fs::create_dir_all(&bench)?;
        program(&bench.join("ignition"), IGNITION_PROGRAM)?;
        fs::write(bench.join(DRIVER), include_str!("stages.py"))?;
        let stubs = folder.join("stubs");
        fs::create_dir_all(&stubs)?;
        for name in NOTHING {
            symlink("/usr/bin/true", stubs.join(name))?;
        }
        program(&stubs.join("sgdisk"), SGDISK.as_bytes())?;
        let socket = tempfile::tempdir()?;
        systemd::serve(socket.path()).context("starting systemd's private socket")?;
        Ok(Self {
            tools,
            version,
            folder: folder.to_owned(),
            systemd: socket,
        })
    }

    /// The tree.
    pub(crate) fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Bytes of a program.
    ///
    /// # Errors
    /// If Debian's is not in its package.
    pub(crate) fn size(&self, side: Side) -> Result<u64> {
        Ok(match side {
            Side::Ours => u64::try_from(IGNITION_PROGRAM.len())?,
            Side::Theirs => fs::metadata(self.tools.root.join(THEIRS))?.len(),
        })
    }

    /// Runs all stages on a folder that has `config.ign` and `root/`.
    ///
    /// # Errors
    /// If a stage fails; the error has its output.
    pub(crate) fn stages(&self, side: Side, folder: &Path, measure: Measure) -> Result<Vec<Stage>> {
        let program = match side {
            Side::Ours => format!("{BENCH}/ignition"),
            Side::Theirs => format!("/{THEIRS}"),
        };
        let measure = match measure {
            Measure::Time => "time",
            Measure::Memory => "memory",
        };
        let nowhere = format!("{WORK}/nowhere");
        let said = self
            .tools
            .sandbox()
            // For the server on the host's loopback.
            .network(true)
            .bind(Path::new("/dev"), "/dev")
            .bind_read_only(Path::new("/sys"), "/sys")
            .bind_read_only(self.systemd.path(), "/run/systemd")
            .bind_read_only(&self.folder.join("stubs"), STUBS)
            .bind_read_only(&self.folder.join("bench"), BENCH)
            .bind(folder, WORK)
            .env("PATH", format!("{STUBS}:/usr/sbin:/usr/bin"))
            .env("IGNITION_SYSTEM_CONFIG_DIR", &nowhere)
            .env("IGNITION_SYSTEM_LOCAL_CONFIG_DIR", &nowhere)
            .env("IGNITION_SYSTEM_RUNTIME_CONFIG_DIR", &nowhere)
            .command("/usr/bin/python3")
            .args([&format!("{BENCH}/{DRIVER}"), &program, WORK, measure])
            .run()?;
        read(&String::from_utf8(said)?)
    }
}

/// Writes a program.
fn program(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .with_context(|| format!("writing {}", path.display()))
}

/// Parses the driver's output: name, seconds and KiB, a line a stage.
fn read(text: &str) -> Result<Vec<Stage>> {
    let stages = text
        .lines()
        .map(|line| {
            let wrong = || format!("reading the line {line:?} of the driver");
            let [name, seconds, kib] = line.split(' ').collect::<Vec<_>>()[..] else {
                anyhow::bail!(wrong());
            };
            Ok(Stage {
                name: name.to_owned(),
                seconds: seconds.parse().with_context(wrong)?,
                kib: kib.parse().with_context(wrong)?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    ensure!(!stages.is_empty(), "no stage was run");
    Ok(stages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_lines_are_read() {
        let stages = read("fetch 0.012500 5632\numount 0.001000 0\n").unwrap();
        assert_eq!(stages.len(), 2);
        assert_eq!(
            stages[0],
            Stage {
                name: "fetch".into(),
                seconds: 0.0125,
                kib: 5632
            }
        );
        for text in ["", "fetch 0.1\n", "fetch a 1\n", "fetch 0.1 -1\n"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
