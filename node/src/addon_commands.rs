//! `addons-up`, which a unit runs, and `addons`: the list, and applying by hand.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::manifests::record::Record;
use cluster::manifests::{Addon, Addons};
use image::paths::RUN_ADDONS;
use linux::atomic_file;
use linux::log;
use linux::world::World;

use crate::addon_files;
use crate::addon_requests::Server;
use crate::addon_states::{Found, Outcome, State, keep, last_reason, outcomes};
use crate::addons::{Options, Run, absent};
use crate::administrator::api;
use crate::apply;
use crate::console;
use crate::journal::Journal;
use crate::object::{self, Bootstrap};
use crate::waiting::{Limits, wait_with};
use api::Api;

/// The name of the commands for people.
pub(crate) const COMMAND: &str = "addons";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str =
    "[--json | apply [--dry-run] [--replace-newer]]: the cluster's addons on this control plane";
/// How long one run waits for the API server. systemd starts the unit anew afterwards, without limit.
const LIMITS: Limits = Limits {
    patience: Duration::from_secs(600),
    every: Duration::from_millis(500),
};

/// Addons that stay as they are until somebody changes their files, their objects or the node.
#[derive(Debug)]
pub(crate) struct Permanent(usize);

impl fmt::Display for Permanent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "addons that are refused: {}; slipway-node addons has the reasons",
            self.0
        )
    }
}

impl std::error::Error for Permanent {}

/// Applies the addons once the cluster's own objects are there, if this node is a control plane.
///
/// # Errors
/// If an addon is not applied or not ready, with the number of them: the unit tries again. [`Permanent`] if that is of no use.
pub(crate) fn up(world: &World) -> Result<()> {
    let Some(bootstrap) = control_plane(world)? else {
        tracing::info!("no addons to apply on this node");
        return Ok(());
    };
    let api = wait_with(world, RUN_ADDONS, LIMITS, "the API server", || {
        answering(world, &bootstrap)
    })?;
    let addons = addon_files::read(world)?;
    let mut run = run(world, &bootstrap, &api, Options::default())?;
    let applied = run.apply(&addons);
    for line in &run.lines {
        tracing::info!("{line}");
    }
    let applied = applied?;
    keep(world, &applied)?;
    atomic_file::remove(&world.in_run(RUN_ADDONS)).context("removing the line of the wait")?;
    judge(world, &applied)
}

/// The API server, once the bring-up has applied the cluster's own objects.
fn answering(world: &World, bootstrap: &Bootstrap) -> Result<Api> {
    let journal = Journal::read(world)?.unwrap_or_default();
    let further = bootstrap.object.further.is_some();
    if journal.authority.is_none() || (journal.applied.is_empty() && !further) {
        bail!("the cluster's own objects are not applied yet");
    }
    let api = api(world, bootstrap)?;
    api.healthy("/readyz")?;
    Ok(api)
}

/// Says on the console which addons are not as they should be.
fn judge(world: &World, outcomes: &[Outcome]) -> Result<()> {
    let of = |states: &[State]| {
        outcomes
            .iter()
            .filter(|one| states.contains(&one.state))
            .count()
    };
    for outcome in outcomes.iter().filter(|one| one.state != State::Applied) {
        console::warn(world, &outcome.line());
    }
    let later = of(&[State::Waiting, State::NotApplied, State::Unknown]);
    if later > 0 {
        bail!("addons that are not applied or not ready: {later}");
    }
    match of(&[State::Refused]) {
        0 => {
            let number = of(&[State::Applied]);
            if number > 0 {
                log::announce(
                    world,
                    &format!("slipway: addons that are applied: {number}"),
                );
            }
            Ok(())
        }
        refused => Err(Permanent(refused).into()),
    }
}

/// The cluster object of a control plane.
fn control_plane(world: &World) -> Result<Option<Bootstrap>> {
    let bootstrap = object::read(world, object::PATIENCE)?;
    Ok(bootstrap.filter(|bootstrap| bootstrap.object.join.is_none()))
}

fn run<'a>(
    world: &'a World,
    bootstrap: &Bootstrap,
    api: &'a Api,
    options: Options,
) -> Result<Run<'a>> {
    Ok(Run {
        world,
        server: Server::new(world, api),
        by: addon_files::applier(world, bootstrap)?,
        kubernetes: bootstrap.object.config.kubernetes.clone(),
        own: apply::objects(world, bootstrap)?,
        options,
        lines: Vec::new(),
    })
}

/// `addons` with these arguments; none if they are not its own.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Option<ExitCode> {
    let world = World::real();
    let done = match arguments {
        [] => listed(&world, false),
        ["--json"] => listed(&world, true),
        ["apply", options @ ..] => {
            let mut given = Options::default();
            for option in options {
                match *option {
                    "--dry-run" => given.dry_run = true,
                    "--replace-newer" => given.replace_newer = true,
                    _ => return None,
                }
            }
            applied(&world, given)
        }
        _ => return None,
    };
    Some(
        match done.and_then(|(text, well)| Ok((print(&text)?, well))) {
            Ok(((), true)) => ExitCode::SUCCESS,
            Ok(((), false)) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{program}: {COMMAND}: {error:#}");
                ExitCode::FAILURE
            }
        },
    )
}

fn print(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.context("writing to stdout")
}

/// Applies now; returns what is printed, and whether all is well.
fn applied(world: &World, options: Options) -> Result<(String, bool)> {
    let bootstrap =
        control_plane(world)?.context("this node is not a control plane with a cluster object")?;
    let api = api(world, &bootstrap)?;
    api.healthy("/readyz")?;
    let addons = addon_files::read(world)?;
    let mut run = run(world, &bootstrap, &api, options)?;
    let outcomes = run.apply(&addons)?;
    let mut text: String = run.lines.iter().map(|line| format!("{line}\n")).collect();
    if text.is_empty() {
        text = "nothing to apply\n".to_owned();
    }
    let bad: Vec<&Outcome> = outcomes
        .iter()
        .filter(|one| one.state != State::Applied)
        .collect();
    text.extend(bad.iter().map(|outcome| format!("{}\n", outcome.line())));
    if !options.dry_run {
        keep(world, &outcomes)?;
        atomic_file::remove(&world.in_run(RUN_ADDONS)).context("removing the line of the wait")?;
    }
    Ok((text, bad.is_empty()))
}

fn listed(world: &World, json: bool) -> Result<(String, bool)> {
    let bootstrap =
        control_plane(world)?.context("this node is not a control plane with a cluster object")?;
    let addons = addon_files::read(world)?;
    let seen = api(world, &bootstrap).and_then(|api| {
        api.healthy("/readyz")?;
        seen(
            &mut run(world, &bootstrap, &api, Options::default())?,
            &addons,
        )
    });
    let all = seen.unwrap_or_else(|error| {
        let found = (State::Unknown, Some(format!("{error:#}")));
        let states = addons
            .valid
            .iter()
            .map(|addon| (addon.name.clone(), found.clone()));
        outcomes(&addons, &states.collect(), Vec::new())
    });
    let text = match json {
        true => serde_json::to_string_pretty(&all).context("writing the addons as JSON")? + "\n",
        false => table(&all),
    };
    Ok((text, true))
}

/// How the addons are now; nothing is changed.
pub(crate) fn seen(run: &mut Run<'_>, addons: &Addons) -> Result<Vec<Outcome>> {
    let records = run.server.records()?;
    let mut states = std::collections::BTreeMap::new();
    for addon in &addons.valid {
        let found = found(run, addon, records.get(&addon.name))?;
        states.insert(addon.name.clone(), found);
    }
    let gone = absent(addons, &records).map(|record| match record.is_gone(&run.by) {
        Ok(()) => {
            let reason =
                "this node has it no more: its objects are deleted when the addons are applied";
            Outcome::gone(record, State::NotApplied, reason.to_owned())
        }
        Err(reason) => Outcome::gone(record, State::Kept, reason),
    });
    Ok(outcomes(addons, &states, gone.collect()))
}

fn found(run: &mut Run<'_>, addon: &Addon, record: Option<&Record>) -> Result<Found> {
    if let Some(found) = run.hindrance(addon, record) {
        return Ok(found);
    }
    let there = match record {
        Some(record) => run.is_there(addon, record)?,
        None => addon.objects.is_empty(),
    };
    if !there {
        let last = last_reason(run.world, &addon.name, &addon.hash);
        let (state, reason) = last.unwrap_or((
            State::NotApplied,
            "not all of its objects are there".to_owned(),
        ));
        return Ok((state, Some(reason)));
    }
    Ok(match run.unready(addon)? {
        Some(reason) if addon.settings.wait => (State::Waiting, Some(reason)),
        _ => (State::Applied, None),
    })
}

/// A line for each addon, and its reason below.
fn table(outcomes: &[Outcome]) -> String {
    if outcomes.is_empty() {
        return "no addons\n".to_owned();
    }
    let mut rows = vec![["NAME", "SOURCE", "HASH", "KUBERNETES", "STATE"].map(str::to_owned)];
    rows.extend(outcomes.iter().map(|one| {
        [
            one.name.clone(),
            one.source.to_string(),
            one.hash
                .as_deref()
                .map_or("-", |hash| &hash[..12])
                .to_owned(),
            one.kubernetes.clone().unwrap_or_else(|| "any".to_owned()),
            one.state.word().to_owned(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let reasons = outcomes.iter().map(|one| one.reason.as_deref());
    let mut text = String::new();
    for (row, reason) in rows.iter().zip(std::iter::once(None).chain(reasons)) {
        for (cell, width) in row.iter().zip(widths) {
            text += &format!("{cell:width$}  ");
        }
        text += &format!("{}\n", row[4]);
        for line in reason.into_iter().flat_map(str::lines) {
            text += &format!("  {line}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use cluster::manifests::Source;
    use linux::world::Clock;

    use super::*;
    use crate::samples::{ControlPlane, machine, put, worker};

    fn outcome(name: &str, state: State, reason: &str) -> Outcome {
        Outcome {
            name: name.to_owned(),
            source: Source::Image,
            hash: Some("0123456789abcdef".to_owned()),
            kubernetes: None,
            state,
            reason: (!reason.is_empty()).then(|| reason.to_owned()),
        }
    }

    #[test]
    fn only_what_may_still_change_is_tried_again_and_the_console_has_each_reason() {
        let root = tempfile::tempdir().unwrap();
        let world = World::below(root.path(), Clock::Real);
        put(&world.dev.join("console"), "");
        let applied = || outcome("a", State::Applied, "");
        let kept = outcome("k", State::Kept, "a newer image has it");
        judge(&world, &[applied(), kept]).unwrap();
        let refused = || outcome("r", State::Refused, "/r/1.yaml:1:2: expected a name");
        let error = judge(&world, &[applied(), refused()]).unwrap_err();
        assert!(error.is::<Permanent>(), "{error}");
        let waiting = outcome("w", State::Waiting, "0 of 1 pods");
        let error = judge(&world, &[refused(), waiting]).unwrap_err();
        assert!(!error.is::<Permanent>(), "{error}");
        let console = std::fs::read_to_string(world.dev.join("console")).unwrap();
        for line in [
            "slipway: addon r is refused: /r/1.yaml:1:2: expected a name",
            "slipway: addon w is waiting: 0 of 1 pods",
            "slipway: addon k is kept: a newer image has it",
            "slipway: addons that are applied: 1",
        ] {
            assert!(console.contains(line), "{line}: {console}");
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_addon_and_its_reasons_below() {
        let found = table(&[
            outcome("metrics-server", State::Applied, ""),
            outcome("r", State::Refused, "one\ntwo"),
        ]);
        let expected = "NAME            SOURCE  HASH          KUBERNETES  STATE\n\
                        metrics-server  image   0123456789ab  any         applied\n\
                        r               image   0123456789ab  any         refused\n  one\n  two\n";
        assert_eq!(found, expected);
        assert_eq!(table(&[]), "no addons\n");
    }

    #[test]
    fn only_a_control_plane_applies_addons_and_only_after_the_clusters_own_objects() {
        let root = tempfile::tempdir().unwrap();
        up(&worker(root.path(), &ControlPlane::new().worker())).unwrap();
        let root = tempfile::tempdir().unwrap();
        let world = machine(root.path(), "[node]\naddress = \"10.0.0.7\"\n");
        let bootstrap = control_plane(&world).unwrap().unwrap();
        let refused = |expected: &str| {
            let error = format!("{:#}", answering(&world, &bootstrap).unwrap_err());
            assert!(error.contains(expected), "{error}");
        };
        refused("objects are not applied yet");
        let mut journal = Journal::new("kubernetes");
        journal.authority = Some("a".to_owned());
        journal.write(&world).unwrap();
        refused("objects are not applied yet");
        journal
            .applied
            .insert("/api/v1/x".to_owned(), "h".to_owned());
        journal.write(&world).unwrap();
        refused("admin.conf exists");
    }
}
