//! Ignition's stages: a config applied by the drop-in and by Debian's Ignition in turns, to equal roots. Five processes
//! each, `fetch` to `umount`; measured from each one's start to its end.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::loop_device::LoopDevice;
use crate::servers::delayed_http;
use crate::session::Session;
use crate::stages::cases::{Case, Root};
use crate::stages::programs::{Measure, Programs, Side, Stage};
use crate::table::{Goal, Row, Table, Unit, Unmeasured, mebibytes, median};

const GROUP: &str = "ignition";
/// How long the server waits before each file.
const DELAY: Duration = Duration::from_millis(200);
/// Size of the disk that is partitioned, sparse, bytes.
const DISK: u64 = 512 << 20;
/// The peer's name in the table: after a run, and with the figure of an earlier measurement.
const PEER: &str = "ignition";
const EARLIER: &str = "ignition, NOT run here: an earlier figure";
/// Peak memory of Ignition 2.26 on two processors with the same kind of config, measured when the goals were set, MiB.
const EARLIER_MEMORY: f64 = 17.0;

/// A case with its goal and an earlier figure of the peer.
struct Measurement {
    case: Case,
    what: &'static str,
    /// Seconds.
    most: f64,
    /// Seconds.
    earlier: f64,
}

const MEASUREMENTS: [Measurement; 3] = [
    Measurement {
        case: Case::Disks,
        what: "disks config: GPT, two ext4, files",
        most: 0.25,
        earlier: 2.3,
    },
    Measurement {
        case: Case::Files,
        what: "files config",
        most: 0.025,
        earlier: 0.117,
    },
    Measurement {
        case: Case::Remote,
        what: "20 files, the server waits 200 ms for each",
        most: 0.6,
        earlier: 4.9,
    },
];

/// All runs of one program.
#[derive(Default)]
struct Runs {
    timed: Vec<Vec<Stage>>,
    /// The run with measured memory.
    memory_run: Vec<Stage>,
}

/// The result of a case.
struct Outcome {
    ours: Runs,
    /// Or the error of Debian's program.
    theirs: Result<Runs>,
}

/// The state that all runs share.
struct Setup<'a> {
    session: &'a Session,
    programs: Programs,
    server: SocketAddr,
    folder: PathBuf,
}

/// Measures each config `repeats` times.
///
/// # Errors
/// If the packages cannot be fetched, or our stages fail or do not apply the config.
pub(crate) fn measure(session: &Session, repeats: usize, table: &mut Table) -> Result<()> {
    let folder = session.scratch().join(GROUP);
    fs::create_dir_all(&folder)?;
    let setup = Setup {
        programs: Programs::open(session.tool(), session.folder(), &folder)?,
        server: delayed_http::serve(DELAY).context("serving files")?,
        session,
        folder,
    };
    table.notes.push(format!(
        "ignition: Debian's {} in a tree of Debian's packages; there is neither systemd nor udev: systemd's socket says \
         at once that a device is there, `udevadm` and `setfiles` do nothing, so what they take is not counted against \
         it, and `partx` tells the kernel of what sgdisk wrote; each run begins with a new root and an empty disk",
        setup.programs.version
    ));
    let mut peaks = Peaks::default();
    for measurement in &MEASUREMENTS {
        if measurement.case == Case::Disks
            && let Err(error) = setup.disk()
        {
            table.unmeasured.push(Unmeasured {
                what: measurement.what.to_owned(),
                why: format!("{error:#}"),
                peer: format!("{:.2} s ({EARLIER})", measurement.earlier),
            });
            continue;
        }
        let outcome = setup
            .compare(measurement.case, repeats)
            .with_context(|| format!("measuring the {}", measurement.what))?;
        peaks.add(measurement, &outcome);
        outcome.report(measurement, table);
    }
    peaks.report(table);
    sizes(&setup.programs, table)
}

impl Setup<'_> {
    fn disk(&self) -> Result<LoopDevice> {
        LoopDevice::attach(self.programs.tools(), &self.folder, DISK)
    }

    /// Runs both programs in turns. The first turn measures memory and brings both into the page cache.
    fn compare(&self, case: Case, repeats: usize) -> Result<Outcome> {
        let mut ours = Runs::default();
        let mut theirs = Ok(Runs::default());
        for turn in 0..=repeats {
            let measure = if turn == 0 {
                Measure::Memory
            } else {
                Measure::Time
            };
            ours.add(measure, self.once(Side::Ours, case, measure)?);
            if let Ok(runs) = &mut theirs {
                match self.once(Side::Theirs, case, measure) {
                    Ok(stages) => runs.add(measure, stages),
                    Err(error) => theirs = Err(error),
                }
            }
        }
        let peer = theirs.as_ref().map_or(0.0, |runs| median(&runs.totals()));
        self.session.say(&format!(
            "{case:?}: ours {:.3} s, ignition {peer:.3} s",
            median(&ours.totals())
        ));
        Ok(Outcome { ours, theirs })
    }

    /// One run, with a new root and a new disk.
    fn once(&self, side: Side, case: Case, measure: Measure) -> Result<Vec<Stage>> {
        let disk = match case {
            Case::Disks => Some(self.disk()?),
            Case::Files | Case::Remote => None,
        };
        let config = case.config(disk.as_ref(), self.server);
        let root = Root::make(&self.folder.join("run"), &config)?;
        let stages = self.programs.stages(side, root.folder(), measure)?;
        case.expect(&root, disk.as_ref())
            .with_context(|| format!("checking the result of {side:?}"))?;
        Ok(stages)
    }
}

impl Runs {
    fn add(&mut self, measure: Measure, stages: Vec<Stage>) {
        match measure {
            Measure::Time => self.timed.push(stages),
            Measure::Memory => self.memory_run = stages,
        }
    }

    /// Seconds of each run.
    fn totals(&self) -> Vec<f64> {
        let total = |stages: &Vec<Stage>| stages.iter().map(|stage| stage.seconds).sum();
        self.timed.iter().map(total).collect()
    }

    /// Each stage with its median time, as text.
    fn by_stage(&self) -> String {
        let stages = self.memory_run.iter().enumerate().map(|(at, stage)| {
            let runs: Vec<f64> = self.timed.iter().map(|run| run[at].seconds).collect();
            format!("{} {:.1}", stage.name, median(&runs) * 1e3)
        });
        stages.collect::<Vec<_>>().join(", ")
    }

    /// The stage with the highest peak memory.
    fn largest(&self) -> Option<&Stage> {
        self.memory_run.iter().max_by_key(|stage| stage.kib)
    }
}

impl Outcome {
    fn report(&self, measurement: &Measurement, table: &mut Table) {
        let peer = match &self.theirs {
            Ok(runs) => (PEER, runs.totals()),
            Err(error) => {
                table.notes.push(format!(
                    "ignition failed with the {}: {error:#}",
                    measurement.what
                ));
                (EARLIER, vec![measurement.earlier])
            }
        };
        table.rows.push(Row {
            group: GROUP,
            what: measurement.what.to_owned(),
            unit: Unit::Seconds,
            ours: self.ours.totals(),
            peer: Some(peer),
            goals: vec![Goal::AtMost(measurement.most)],
        });
        let theirs = match &self.theirs {
            Ok(runs) => format!("; ignition: {}", runs.by_stage()),
            Err(_) => String::new(),
        };
        table.notes.push(format!(
            "{}, by stages in milliseconds: ours: {}{theirs}",
            measurement.what,
            self.ours.by_stage()
        ));
    }
}

/// The highest peak memory of any stage, KiB, and that stage.
#[derive(Default)]
struct Peaks {
    ours: (u32, String),
    theirs: (u32, String),
}

impl Peaks {
    fn add(&mut self, measurement: &Measurement, outcome: &Outcome) {
        let raise = |peak: &mut (u32, String), runs: &Runs| {
            if let Some(stage) = runs.largest()
                && stage.kib > peak.0
            {
                *peak = (stage.kib, format!("{} ({})", stage.name, measurement.what));
            }
        };
        raise(&mut self.ours, &outcome.ours);
        if let Ok(runs) = &outcome.theirs {
            raise(&mut self.theirs, runs);
        }
    }

    fn report(&self, table: &mut Table) {
        let mebibytes = |kib: u32| f64::from(kib) / 1024.0;
        let peer = match self.theirs.0 {
            0 => (EARLIER, vec![EARLIER_MEMORY]),
            kib => (PEER, vec![mebibytes(kib)]),
        };
        table.rows.push(Row {
            group: GROUP,
            what: "memory at its peak, largest process of any stage".to_owned(),
            unit: Unit::Mebibytes,
            ours: vec![mebibytes(self.ours.0)],
            peer: Some(peer),
            goals: vec![Goal::AtMost(10.0)],
        });
        let side = [("ours", &self.ours), ("ignition's", &self.theirs)];
        let stages = side
            .into_iter()
            .filter(|(_, (kib, _))| *kib > 0)
            .map(|(name, (_, stage))| format!("{name} in the stage {stage}"));
        table.notes.push(format!(
            "memory at its peak, what a stage starts included: {}",
            stages.collect::<Vec<_>>().join(", ")
        ));
    }
}

fn sizes(programs: &Programs, table: &mut Table) -> Result<()> {
    table.rows.push(Row {
        group: GROUP,
        what: "the program, stripped".to_owned(),
        unit: Unit::Mebibytes,
        ours: vec![mebibytes(programs.size(Side::Ours)?)],
        peer: Some((PEER, vec![mebibytes(programs.size(Side::Theirs)?)])),
        goals: vec![Goal::AtMost(6.0)],
    });
    Ok(())
}
