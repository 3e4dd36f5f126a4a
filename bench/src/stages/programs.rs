//! Both programs in one tree of Debian packages: ours as the tool carries it, and Debian's `ignition`.

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
/// Debian's program, which dracut would take from there.
const THEIRS: &str = "usr/lib/dracut/modules.d/30ignition/ignition";
/// Where the stages find the folder of a run, and where they find ours and what starts them.
const WORK: &str = "/work";
const BENCH: &str = "/bench";
/// Runs the stages.
const DRIVER: &str = "stages.py";
/// Programs that do nothing here, in the folder where programs are looked for first.
const NOTHING: &[&str] = &["udevadm", "setfiles"];
const STUBS: &str = "/stubs";
/// A kernel that reads no GPT (`CONFIG_EFI_PARTITION`) makes no node of what sgdisk wrote; it can be told.
const SGDISK: &str = r#"#!/bin/sh
/usr/sbin/sgdisk "$@" || exit
for device; do :; done
/usr/bin/partx --update "$device"
exit 0
"#;

/// Whose stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Our program `ignition`.
    Ours,
    /// Debian's.
    Theirs,
}

/// What is asked of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Seconds.
    Time,
    /// Memory; takes time itself.
    Memory,
}

/// One stage of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stage {
    /// Its name.
    pub(crate) name: String,
    /// From its start to its end, by the wall.
    pub(crate) seconds: f64,
    /// The most memory that its largest process took, KiB; 0 where only time was measured.
    pub(crate) kib: u32,
}

/// The tree, and what is bound into it.
#[derive(Debug)]
pub(crate) struct Programs {
    tools: Tools,
    /// Version of Debian's package.
    pub(crate) version: String,
    folder: PathBuf,
    // A socket's path is short.
    systemd: TempDir,
}

impl Programs {
    /// Locks, fetches and unpacks the packages, as far as the cache has them not. The lock is made in `kept`; what is
    /// bound into the tree is written to `folder`.
    ///
    /// # Errors
    /// If a package cannot be had.
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
        systemd::serve(socket.path()).context("answering for systemd")?;
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
    pub(crate) fn size(&self, whose: Whose) -> Result<u64> {
        Ok(match whose {
            Whose::Ours => u64::try_from(IGNITION_PROGRAM.len())?,
            Whose::Theirs => fs::metadata(self.tools.root.join(THEIRS))?.len(),
        })
    }

    /// Runs all stages on a folder that has `config.ign` and `root/`.
    ///
    /// # Errors
    /// If a stage fails; says what it said at the end.
    pub(crate) fn stages(
        &self,
        whose: Whose,
        folder: &Path,
        measure: Measure,
    ) -> Result<Vec<Stage>> {
        let program = match whose {
            Whose::Ours => format!("{BENCH}/ignition"),
            Whose::Theirs => format!("/{THEIRS}"),
        };
        let measure = match measure {
            Measure::Time => "time",
            Measure::Memory => "memory",
        };
        let nowhere = format!("{WORK}/nowhere");
        let said = self
            .tools
            .sandbox()
            // Loopback is the host's.
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

/// What the driver prints: name, seconds and KiB, a line a stage.
fn read(text: &str) -> Result<Vec<Stage>> {
    let stages = text
        .lines()
        .map(|line| {
            let wrong = || format!("reading what the stages took: {line:?}");
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
    fn the_driver_s_lines_are_read() {
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
