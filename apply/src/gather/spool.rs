//! Files that do not fit into memory: fetched and verified before the first write, dropped, and fetched once more onto
//! `/var` when that is there.
//!
//! Nothing is written before everything is verified, and where the disks are to be made there is no place for what the memory
//! does not hold. So it comes twice, and the second time it must be the same.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use fetch::Room;
use ignition::model::{self, Resource};
use ignition::source::shown;

use super::memory::Refusal;
use super::sink::Destination;
use super::transfer::Transfer;
use super::{ConfigProblems, Gather, Settings, amount, download, failed, file_resources};
use crate::fetched::{Content, Contents, Fetched, Spooled};

/// The mount point whose file system has the spool.
const VAR: &str = "/var";

/// What is said of contents that fit neither into memory nor onto `/var`.
fn too_large(room: &Room, space: u64) -> String {
    format!(
        "together with the others it does not fit into {} of memory, half of what is free, nor into the {} that /var can have; \
         give the machine a larger disk",
        amount::text(room.size()),
        amount::text(space)
    )
}

impl Gather<'_> {
    /// The contents of files: in memory, or verified and to be fetched again onto `/var` where they do not fit.
    pub(super) fn large(
        &mut self,
        model: &model::Config,
        wanted: &[(String, &Resource)],
        mut answers: Vec<Result<Content, Refusal>>,
    ) -> Result<Vec<Content>, ConfigProblems> {
        let space = self.space(model);
        let too_large_for_memory =
            |answer: &Result<Content, Refusal>| answer.as_ref().is_err_and(|why| why.of_memory);
        let large: Vec<usize> = (0..wanted.len())
            .filter(|i| too_large_for_memory(&answers[*i]))
            .collect();
        let all_large = answers.iter().all(|a| a.is_ok() || too_large_for_memory(a));
        if space > 0 && !large.is_empty() && all_large {
            for (i, answer) in self.measured(wanted, &large, space)? {
                answers[i] = answer;
            }
            self.check_space(&mut answers, space);
        }
        self.all(wanted, answers)
    }

    /// The bytes that `/var` can have at most; 0 where nothing is spooled.
    fn space(&self, model: &model::Config) -> u64 {
        let storage = model.storage.as_ref();
        let filesystems = storage.and_then(|storage| storage.filesystems.as_deref());
        let own_var = |one: &model::Filesystem| one.path.as_deref() == Some(VAR);
        let has_own = filesystems.unwrap_or_default().iter().any(own_var);
        match self.settings.spool {
            // The size of the config's own file system is known when it is made.
            Some(_) if has_own => u64::MAX,
            space => space.unwrap_or(0),
        }
    }

    /// Fetches and verifies resources of which nothing is kept but what is small.
    fn measured(
        &self,
        wanted: &[(String, &Resource)],
        which: &[usize],
        space: u64,
    ) -> Result<Vec<download::Answer<Content>>, ConfigProblems> {
        let resources: Vec<(usize, &Resource)> = which.iter().map(|i| (*i, wanted[*i].1)).collect();
        let to = |_| Destination {
            limit: space,
            file: None,
        };
        let mut answers = self.round()?.spool(&resources, &to).map_err(failed)?;
        for (_, answer) in &mut answers {
            if let Err(why) = answer
                && why.of_memory
            {
                why.why = too_large(&self.room, space);
            }
        }
        Ok(answers)
    }

    /// Refuses all contents that are to be spooled, if `/var` cannot have them all.
    fn check_space(&self, answers: &mut [Result<Content, Refusal>], space: u64) {
        let large = |answer: &&mut Result<Content, Refusal>| matches!(answer, Ok(content) if content.in_memory().is_none());
        let bytes = |answer: &Result<Content, Refusal>| answer.as_ref().map_or(0, Content::length);
        let spooled = answers.iter_mut().filter(large);
        let sum = spooled.fold(0_u64, |sum, answer| sum.saturating_add(bytes(answer)));
        if sum <= space {
            return;
        }
        for answer in answers.iter_mut().filter(large) {
            let size = amount::text(bytes(answer));
            let why = too_large(&self.room, space);
            *answer = Err(Refusal::source(format!("it has {size}; {why}")));
        }
    }

    /// What fetches again, onto `/var`, what does not fit into memory.
    pub fn refetch(&self) -> Refetch {
        Refetch {
            settings: self.settings.clone(),
            transfer: self.transfer.clone(),
        }
    }
}

/// Fetches again, onto `/var`, what does not fit into memory.
pub struct Refetch {
    settings: Settings,
    transfer: Transfer,
}

/// What configs say about downloads may be secret.
impl fmt::Debug for Refetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refetch").finish_non_exhaustive()
    }
}

impl Refetch {
    /// Fetches into `folder`, which exists, what was verified and is not there yet. Each must be what was verified.
    ///
    /// # Errors
    /// All that failed; what came meanwhile is not fetched again by another call.
    pub fn fill(&self, fetched: &mut Fetched, folder: &Path) -> Result<(), ConfigProblems> {
        let wanted = file_resources(&fetched.model);
        let parts = fetched.files.iter_mut().flat_map(Contents::parts_mut);
        let mut missing: Vec<(usize, &mut Spooled)> = parts
            .enumerate()
            .filter_map(|(i, part)| match part {
                Content::Spooled(spooled) if spooled.file.is_none() => Some((i, spooled)),
                _ => None,
            })
            .collect();
        fetched.spool = Some(folder.to_owned());
        let resources: Vec<(usize, &Resource)> = missing
            .iter()
            .enumerate()
            .map(|(nth, (i, _))| (nth, wanted[*i].1))
            .collect();
        let to = |nth: usize| Destination {
            limit: missing[nth].1.bytes,
            file: Some(folder.join(missing[nth].0.to_string())),
        };
        let room = Arc::new(Room::new(0));
        let client = self.transfer.client(&self.settings).map_err(failed)?;
        let round = download::Round {
            client,
            settings: &self.settings,
            patience: self.transfer.patience,
            room: &room,
        };
        let answers = round.spool(&resources, &to).map_err(failed)?;
        let mut lines = Vec::new();
        for (nth, answer) in answers {
            let (i, spooled) = &mut missing[nth];
            let url = shown(wanted[*i].1.source.as_deref().unwrap_or_default());
            match answer {
                Ok(Content::Spooled(got)) if got.sha256 == spooled.sha256 => **spooled = got,
                Ok(_) => lines.push(other_content(&wanted[*i].0, &url)),
                Err(why) if why.of_memory => lines.push(other_content(&wanted[*i].0, &url)),
                Err(why) => lines.push(format!("{}{}: {why}", wanted[*i].0, why.field)),
            }
        }
        match lines.is_empty() {
            true => Ok(()),
            false => Err(ConfigProblems {
                lines,
                remote: true,
            }),
        }
    }
}

fn other_content(path: &str, url: &str) -> String {
    format!("{path}.source: fetching {url}: it is not what was verified before the first write")
}
