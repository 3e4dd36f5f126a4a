//! Builds of a node's disk from the same packages and files, by Slipway and by mkosi in turns.

use anyhow::{Result, ensure};

use crate::mkosi::{Mkosi, Run};
use crate::ours::{Ours, Timed};
use crate::packages;
use crate::session::Session;
use crate::table::{Goal, Row, Table, Unit, median};

/// Runs of an unchanged build: it is short, so more runs are affordable.
const UNCHANGED: usize = 9;
/// The package that a recipe has more; with its libraries it is 1 MB, which the first run fetches.
const PACKAGE: &str = "jq";
/// Variants of one recipe.
const VARIANTS: u16 = 30;

/// Measures `repeats` builds of each kind.
pub(crate) fn measure(session: &mut Session, repeats: usize, table: &mut Table) -> Result<()> {
    let ours = session.ours()?;
    let mkosi = session.mkosi()?;
    compare(&ours, &mkosi.installed()?, table);
    let cold = cold(session, &ours, &mkosi, repeats)?;
    // It also writes the incremental image, so its time is none of a cold build.
    mkosi.build(Run::Prime)?;
    // Back to the recipe as it is.
    ours.build()?;
    let mut overlay = (Vec::new(), Vec::new());
    let mut changed = None;
    for run in 1..=repeats {
        ours.change(&format!("change {run}"))?;
        let built = ours.build()?;
        session.say(&format!(
            "overlay {run} of {repeats}: ours {:.2} s",
            built.seconds
        ));
        let peer = mkosi.build(Run::Overlay)?;
        session.say(&format!("overlay {run} of {repeats}: mkosi {peer:.1} s"));
        overlay.0.push(built.seconds);
        overlay.1.push(peer);
        changed = Some(built);
    }
    let mut variants = Vec::new();
    for run in 1..=repeats {
        let built = ours.variant(run)?;
        session.say(&format!(
            "variant {run} of {repeats}: ours {:.2} s",
            built.seconds
        ));
        variants.push(built.seconds);
    }
    // Back to the recipe as it is.
    ours.build()?;
    let mut unchanged = (Vec::new(), Vec::new());
    for run in 0..UNCHANGED {
        unchanged.0.push(ours.build()?.seconds);
        if run < repeats {
            unchanged.1.push(mkosi.build(Run::Unchanged)?);
        }
    }
    session.say(&format!(
        "nothing changed: ours {:.3} s, mkosi {:.3} s",
        median(&unchanged.0),
        median(&unchanged.1)
    ));
    own_rows(table, &cold, variants);
    rows(table, (cold.ours, cold.peer), overlay, unchanged);
    for (what, built) in [("cold", cold.last), ("overlay", changed)] {
        if let Some(built) = built {
            table.notes.push(steps(what, &built));
        }
    }
    Ok(())
}

/// Cold builds, and what is built of the cache that each leaves.
#[derive(Debug, Default)]
struct Cold {
    ours: Vec<f64>,
    peer: Vec<f64>,
    /// Seconds of a build with a package more.
    package: Vec<f64>,
    /// Seconds of one variant, when all are built in one run.
    variant: Vec<f64>,
    /// Our last cold build.
    last: Option<Timed>,
}

fn cold(session: &Session, ours: &Ours, mkosi: &Mkosi, repeats: usize) -> Result<Cold> {
    let mut all = Cold::default();
    for run in 1..=repeats {
        ours.make_cold()?;
        let built = ours.build()?;
        session.say(&format!(
            "cold {run} of {repeats}: ours {:.1} s",
            built.seconds
        ));
        let more = ours.with_package(PACKAGE)?;
        ensure!(
            more.steps.iter().any(|(name, _)| name == "rootfs"),
            "a package more made no other root: {:?}",
            more.steps
        );
        let variants = ours.variants(VARIANTS)? / f64::from(VARIANTS);
        session.say(&format!(
            "from that cache: a package more {:.1} s, each of {VARIANTS} variants {variants:.2} s",
            more.seconds
        ));
        let peer = mkosi.build(Run::Cold)?;
        session.say(&format!("cold {run} of {repeats}: mkosi {peer:.1} s"));
        all.ours.push(built.seconds);
        all.peer.push(peer);
        all.package.push(more.seconds);
        all.variant.push(variants);
        all.last = Some(built);
    }
    Ok(all)
}

/// What mkosi has no equivalent of.
fn own_rows(table: &mut Table, cold: &Cold, variants: Vec<f64>) {
    let fifth = || vec![Goal::AtMost(median(&cold.ours) / 5.0)];
    for (what, ours, goals) in [
        (
            "build, a package more, from the recipe to the image, the lock included".to_owned(),
            cold.package.clone(),
            vec![Goal::AtMost(15.0)],
        ),
        ("build, a further variant".to_owned(), variants, fifth()),
        (
            "build, thirty variants in one run, per further variant".to_owned(),
            cold.variant.clone(),
            fifth(),
        ),
    ] {
        table.rows.push(Row {
            group: "builds",
            what,
            unit: Unit::Seconds,
            goals,
            ours,
            peer: None,
        });
    }
}

type Runs = (Vec<f64>, Vec<f64>);

fn rows(table: &mut Table, cold: Runs, overlay: Runs, unchanged: Runs) {
    let mut row = |what: &str, runs: Runs, goals: Vec<Goal>| {
        table.rows.push(Row {
            group: "builds",
            what: what.to_owned(),
            unit: Unit::Seconds,
            ours: runs.0,
            peer: Some(("mkosi", runs.1)),
            goals,
        });
    };
    row(
        "build, cold, packages fetched",
        cold,
        vec![Goal::Times(6.5)],
    );
    row(
        "build, one overlay file changed",
        overlay,
        vec![Goal::Times(10.0), Goal::AtMost(1.0)],
    );
    row("build, nothing changed", unchanged, vec![Goal::AtMost(0.2)]);
}

/// Adds notes: the differences of the two images, and the content of both caches.
fn compare(ours: &Ours, theirs: &packages::Installed, table: &mut Table) {
    let sets = ["root", "kernel"];
    let locked = sets
        .iter()
        .filter_map(|set| ours.locked.lock.sets.get(*set));
    let own = packages::of_lock(locked.flatten());
    let same = own
        .iter()
        .filter(|(name, version)| theirs.get(*name) == Some(*version));
    table.notes.push(format!(
        "packages: ours {}, mkosi's {}, the same in both {}",
        own.len(),
        theirs.len(),
        same.count()
    ));
    table
        .notes
        .extend(packages::difference(&own, theirs, "mkosi"));
    table.notes.push(
        "cached before a cold build, both: the .deb files and the archive's indexes; ours has no lock, so that it fetches the \
         signed files of the suites and chooses the packages, and unpacks its tools; mkosi's tools are there, and it uses no \
         network"
            .into(),
    );
}

fn steps(what: &str, built: &Timed) -> String {
    let steps: Vec<String> = built
        .steps
        .iter()
        .filter(|(_, seconds)| *seconds >= 0.05)
        .map(|(name, seconds)| format!("{name} {seconds:.1}"))
        .collect();
    format!(
        "our last build, {what}, by steps in seconds: {}",
        steps.join(", ")
    )
}
