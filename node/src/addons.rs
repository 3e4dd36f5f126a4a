//! Addons of the cluster: applied in their order, what an earlier version had and the current one has not is deleted, and what is
//! applied is waited for. A second run sends nothing.
//!
//! Before the first object of an addon is sent its record in the cluster names all that may be there, so that a cut leaves nothing
//! that a later run does not know.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Error, Result};
use cluster::manifests::record::{Applier, Record, Reference, is_of};
use cluster::manifests::{Addon, Addons, HASH, LEFT, identity, unready, vanishes};
use cluster::release::Version;
use image::paths::RUN_ADDONS;
use linux::world::World;
use serde_json::Value;

use crate::addon_requests::{Server, is_down, is_refused, shown};
use crate::addon_states::{Found, Outcome, State, outcomes};
use crate::waiting::{Limits, wait_with};

/// How often an addon is asked whether it is ready.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What a person asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// Only says what would be sent.
    pub(crate) dry_run: bool,
    /// This node's addons count more than those of a newer image or of another node's config.
    pub(crate) replace_newer: bool,
}

/// A run over the addons of this node.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) world: &'a World,
    pub(crate) server: Server<'a>,
    pub(crate) by: Applier,
    pub(crate) kubernetes: Version,
    /// The objects that the bring-up of the cluster applies itself.
    pub(crate) own: Vec<Value>,
    pub(crate) options: Options,
    /// What was, or would be, applied and deleted.
    pub(crate) lines: Vec<String>,
}

/// An addon that was sent, and not yet cleared of what an earlier version had.
struct Sent {
    record: Record,
    objects: Vec<Reference>,
}

impl Run<'_> {
    /// Applies the addons, deletes what is gone, and waits.
    ///
    /// # Errors
    /// If the API server does not answer. What it refuses is the outcome of one addon.
    pub(crate) fn apply(&mut self, addons: &Addons) -> Result<Vec<Outcome>> {
        let records = self.server.records()?;
        let mut states: BTreeMap<String, Found> = BTreeMap::new();
        let mut sent = Vec::new();
        for addon in &addons.valid {
            let before = records.get(&addon.name);
            let found = match self.hindrance(addon, before) {
                Some(found) => found,
                None => match self.await_needs(addon, addons, &mut states) {
                    Some(reason) => (State::NotApplied, Some(reason)),
                    None => state(self.send(addon, before, &mut sent))?,
                },
            };
            states.insert(addon.name.clone(), found);
        }
        for sent in sent {
            let name = sent.record.addon.clone();
            // What was waited for already keeps its state.
            if let found @ (_, Some(_)) = state(self.clear(sent))? {
                states.insert(name, found);
            }
        }
        let gone = self.delete_gone(addons, &records)?;
        for addon in &addons.valid {
            self.await_ready(addon, &mut states);
        }
        Ok(outcomes(addons, &states, gone))
    }

    /// Why an addon is not applied by this node, whatever the API server says.
    pub(crate) fn hindrance(&self, addon: &Addon, before: Option<&Record>) -> Option<Found> {
        if let Some(reason) = addon.outside(&self.kubernetes) {
            return Some((State::OutOfRange, Some(reason)));
        }
        let own = |object: &&Value| self.own.iter().any(|own| identity(own) == identity(object));
        if let Some(object) = addon.objects.iter().find(own) {
            let reason = format!(
                "{} is one of the cluster's own objects; expected another name, or that part left out of the cluster object",
                shown(object)
            );
            return Some((State::Refused, Some(reason)));
        }
        let refused = before.map(|record| record.yields(addon.source, &self.by));
        match refused {
            Some(Err(reason)) if !self.options.replace_newer => Some((State::Kept, Some(reason))),
            _ => None,
        }
    }

    /// Waits for what the addon depends on; the reason if that is not there.
    fn await_needs(
        &mut self,
        addon: &Addon,
        addons: &Addons,
        states: &mut BTreeMap<String, Found>,
    ) -> Option<String> {
        for need in &addon.settings.depends {
            let found = addons.valid.iter().find(|other| other.name == *need);
            if let Some(found) = found {
                self.await_ready(found, states);
            }
            let state = states.get(need).map_or(State::Refused, |(state, _)| *state);
            if state != State::Applied {
                return Some(format!("it depends on {need}, which is {}", state.word()));
            }
        }
        None
    }

    /// Waits until an addon that is applied is ready, if it is to be waited for.
    fn await_ready(&mut self, addon: &Addon, states: &mut BTreeMap<String, Found>) {
        let applied = states
            .get(&addon.name)
            .is_some_and(|(state, _)| *state == State::Applied);
        if !applied || !addon.settings.wait || self.options.dry_run {
            return;
        }
        if let Err(error) = self.ready(addon, addon.settings.deadline) {
            let reason = format!("{error:#}");
            states.insert(addon.name.clone(), (State::Waiting, Some(reason)));
        }
    }

    /// Waits so long until all objects of an addon are ready.
    ///
    /// # Errors
    /// The last reason why one is not.
    fn ready(&mut self, addon: &Addon, patience: Duration) -> Result<()> {
        let waited_for = self.with_readiness(addon)?;
        let limits = Limits {
            patience,
            every: ASK_EVERY,
        };
        let what = format!("addon {}", addon.name);
        wait_with(self.world, RUN_ADDONS, limits, &what, || {
            match reason(&self.server, &waited_for)? {
                None => Ok(()),
                Some(reason) => Err(Error::msg(reason)),
            }
        })
    }

    /// Why an addon is not ready now; none if it is.
    pub(crate) fn unready(&mut self, addon: &Addon) -> Result<Option<String>> {
        let waited_for = self.with_readiness(addon)?;
        reason(&self.server, &waited_for)
    }

    /// The objects whose kinds have a readiness: without a status they are not ready.
    fn with_readiness<'a>(&mut self, addon: &'a Addon) -> Result<Vec<(Reference, &'a Value)>> {
        let objects = addon
            .objects
            .iter()
            .filter(|object| unready(object).is_some());
        objects
            .map(|object| Ok((self.server.place(object)?, object)))
            .collect()
    }

    /// Whether everything of this version is there. What an administrator changed is not looked at, what is gone is.
    pub(crate) fn is_there(&mut self, addon: &Addon, record: &Record) -> Result<bool> {
        if !record.complete || record.hash != addon.hash {
            return Ok(false);
        }
        for object in &addon.objects {
            let Some(reference) = self.server.known(object)? else {
                return Ok(false);
            };
            let found = match self.server.get(&reference.path)? {
                // It has run: applied again it would run again, at each boot and as often as another addon is waited for.
                None if vanishes(object) => continue,
                found => found.unwrap_or_default(),
            };
            if !is_of(&found, &addon.name) || found["metadata"]["labels"][HASH] != addon.hash {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn send(&mut self, addon: &Addon, before: Option<&Record>, sent: &mut Vec<Sent>) -> Result<()> {
        match before {
            None if addon.objects.is_empty() => return Ok(()),
            Some(record) if self.is_there(addon, record)? => return Ok(()),
            _ => {}
        }
        let earlier = before.map_or_else(Vec::new, |record| record.objects.clone());
        let mut record = Record::begun(addon, &self.by, earlier, before);
        let mut objects = Vec::new();
        for (number, object) in addon.objects.iter().enumerate() {
            if self.options.dry_run {
                self.lines.push(format!("apply {}", shown(object)));
                objects.extend(self.server.known(object)?);
                continue;
            }
            let reference = self.server.place(object)?;
            if number == 0 || !record.objects.contains(&reference) {
                self.announce(&mut record, &addon.objects[number..])?;
            }
            self.server.apply(&reference, object)?;
            self.lines.push(format!("applied {}", shown(object)));
            objects.push(reference);
        }
        sent.push(Sent { record, objects });
        Ok(())
    }

    /// Writes down what is sent next, as far as the API server serves its kinds.
    fn announce(&mut self, record: &mut Record, objects: &[Value]) -> Result<()> {
        for object in objects {
            let known = self.server.known(object)?;
            let new = known.filter(|reference| !record.objects.contains(reference));
            record.objects.extend(new);
        }
        self.server.write(record)
    }

    /// Deletes what an earlier version of an addon had, and completes its record.
    fn clear(&mut self, sent: Sent) -> Result<()> {
        let Sent {
            mut record,
            objects,
        } = sent;
        let earlier = std::mem::take(&mut record.objects);
        for reference in earlier.iter().rev() {
            if !objects.contains(reference) {
                self.delete(&record.addon, Some(&record.hash), reference)?;
            }
        }
        record.objects = objects;
        record.complete = true;
        match self.options.dry_run {
            true => Ok(()),
            false => self.server.write(&mut record),
        }
    }

    /// Deletes the objects of addons that this node has no more; what another one has is an outcome.
    fn delete_gone(
        &mut self,
        addons: &Addons,
        records: &BTreeMap<String, Record>,
    ) -> Result<Vec<Outcome>> {
        let mut left = Vec::new();
        for record in absent(addons, records) {
            if let Err(reason) = record.is_gone(&self.by) {
                left.push(Outcome::gone(record, State::Kept, reason));
            } else if let (state, Some(reason)) = state(self.delete_all(record))? {
                left.push(Outcome::gone(record, state, reason));
            }
        }
        Ok(left)
    }

    fn delete_all(&mut self, record: &Record) -> Result<()> {
        for reference in record.objects.iter().rev() {
            self.delete(&record.addon, None, reference)?;
        }
        match self.options.dry_run {
            true => Ok(()),
            false => self.server.remove(record),
        }
    }

    /// Deletes an object if it is the addon's, and not of the version with this hash: an object may be served at two paths.
    fn delete(&mut self, addon: &str, hash: Option<&str>, reference: &Reference) -> Result<()> {
        let Some(object) = self.server.get(&reference.path)? else {
            return Ok(());
        };
        let current = hash.is_some_and(|hash| object["metadata"]["labels"][HASH] == hash);
        if current || !is_of(&object, addon) {
            return Ok(());
        }
        let shown = shown(&object);
        if LEFT.contains(&reference.kind.as_str()) {
            let line = format!(
                "left {shown}: addon {addon} has it no more; what is in it would go with it"
            );
            tracing::warn!("{line}");
            self.lines.push(line);
            return Ok(());
        }
        if self.options.dry_run {
            self.lines.push(format!("delete {shown}"));
            return Ok(());
        }
        self.server.delete(&reference.path, &object)?;
        self.lines.push(format!("deleted {shown}"));
        Ok(())
    }
}

/// The records of addons that this node does not have, not even with mistakes.
pub(crate) fn absent<'a>(
    addons: &Addons,
    records: &'a BTreeMap<String, Record>,
) -> impl Iterator<Item = &'a Record> {
    let valid = addons.valid.iter().map(|addon| addon.name.clone());
    let refused = addons.refused.iter().map(|refused| refused.name.clone());
    let known: Vec<String> = valid.chain(refused).collect();
    records
        .values()
        .filter(move |record| !known.contains(&record.addon))
}

/// Why the first object that is not ready is not.
fn reason(server: &Server<'_>, objects: &[(Reference, &Value)]) -> Result<Option<String>> {
    for (reference, object) in objects {
        let reason = match server.get_once(&reference.path)? {
            Some(found) => unready(&found),
            None if vanishes(object) => None,
            None => Some("it is gone".to_owned()),
        };
        if let Some(reason) = reason {
            return Ok(Some(format!("{}: {reason}", shown(object))));
        }
    }
    Ok(None)
}

/// The state by what the API server answered.
///
/// # Errors
/// If it does not answer at all.
fn state(result: Result<()>) -> Result<Found> {
    match result {
        Ok(()) => Ok((State::Applied, None)),
        Err(error) if is_down(&error) => Err(error),
        Err(error) => {
            let state = match is_refused(&error) {
                true => State::Refused,
                false => State::NotApplied,
            };
            Ok((state, Some(format!("{error:#}"))))
        }
    }
}
