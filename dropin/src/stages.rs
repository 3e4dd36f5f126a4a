//! The stages of Ignition, in the order in which an initrd runs them.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use ignition::Config;
use ignition::model::Storage;

use apply::config_source::ConfigSource;
use apply::journal::files::FileJournal;
use apply::provision::{self, DiskResults};
use apply::target::{Rules, Target};
use linux::modules::Modules;
use linux::programs::Programs;
use linux::timeline::Timeline;
use linux::world::World;

use crate::environment::Environment;
use crate::fetcher::{Fetcher, Outcome};
use crate::flags::{Flags, Stage};
use crate::state::{State, write_file};
use crate::user_config::{self, UserConfig};
use crate::{disks, kernel_arguments};

/// Exit code of a stage whose state file or environment cannot be used.
pub(crate) const NOT_READY: u8 = 3;
/// Exit code of a stage that failed.
const FAILED: u8 = 1;

/// Why a stage ended, with its exit code.
#[derive(Debug)]
pub(crate) struct StageError {
    /// The exit code.
    pub(crate) code: u8,
    /// The reason.
    pub(crate) why: anyhow::Error,
}

impl From<anyhow::Error> for StageError {
    fn from(why: anyhow::Error) -> Self {
        Self { code: FAILED, why }
    }
}

/// Runs one stage.
pub(crate) fn run(flags: &Flags, environment: &Environment) -> Result<(), StageError> {
    let mut state = State::read(&flags.state_file).map_err(|why| StageError {
        code: NOT_READY,
        why,
    })?;
    let identity = flags.platform.storage_identity;
    let stage = StageRun {
        flags,
        environment,
        base: environment.base_configs(flags.platform)?,
        fetcher: Fetcher::new(identity, flags.stage != Stage::FetchOffline),
    };
    match flags.stage {
        Stage::FetchOffline | Stage::Fetch => stage.fetch(&mut state)?,
        Stage::Kargs => stage.kargs()?,
        Stage::Disks => stage.disks(&mut state)?,
        Stage::Mount => stage.mount(&mut state)?,
        Stage::Files => stage.files(&mut state)?,
        Stage::Umount => stage.umount()?,
    }
    state.write(&flags.state_file)?;
    Ok(())
}

/// One run of a stage.
struct StageRun<'a> {
    flags: &'a Flags,
    environment: &'a Environment,
    base: Vec<ConfigSource>,
    fetcher: Fetcher,
}

impl StageRun<'_> {
    /// `fetch-offline` and `fetch`: writes the user's config to the cache, or asks for the network.
    fn fetch(&self, state: &mut State) -> Result<()> {
        let outcome = match user_config::find(self.flags, self.environment)? {
            UserConfig::NeedsNetwork => Outcome::NeedsNetwork,
            UserConfig::Source(user) => {
                let timeout = self.flags.fetch_timeout;
                self.fetcher.fetch(&self.base, user.as_ref(), timeout)?
            }
        };
        let config = match outcome {
            Outcome::NeedsNetwork => {
                let neednet = &self.flags.neednet;
                tracing::info!("the config needs the network: making {}", neednet.display());
                return write_file(neednet, b"", 0o644);
            }
            Outcome::Done(config) => config,
        };
        state.user_config = config.is_some();
        if config.is_none() {
            tracing::info!("no user config, or an empty one");
        }
        let config = config.map_or_else(Config::empty, |config| *config);
        let text = config.to_json().to_string();
        write_file(&self.flags.config_cache, text.as_bytes(), 0o640)
    }

    /// The config that the fetch stage wrote to the cache.
    fn cached(&self) -> Result<Config> {
        let path = &self.flags.config_cache;
        let text = std::fs::read(path)
            .with_context(|| format!("reading the fetched config, {}", path.display()))?;
        let read = Config::read(&text, &path.display().to_string());
        let (config, _) = read.map_err(|report| {
            let lines: Vec<String> = report.entries.iter().map(ToString::to_string).collect();
            anyhow!("{}", lines.join("\n"))
        })?;
        Ok(config)
    }

    fn storage(&self) -> Result<Storage> {
        let config = self.fetcher.config(&self.base, &self.cached()?)?;
        Ok(disks::resolve_links(config.storage.unwrap_or_default()))
    }

    /// The root that is provisioned, and the programs of this initrd.
    fn target(&self) -> Target {
        let world = Arc::new(World::real());
        Target {
            root: self.flags.root.clone(),
            programs: Programs::of_host(Arc::clone(&world)),
            // The initrd's modprobe loads modules.
            modules: Arc::new(Modules::none(Arc::clone(&world))),
            timeline: Timeline::new(world),
            rules: Rules::ignition(self.environment.key_fragment),
        }
    }

    fn kargs(&self) -> Result<()> {
        let config = self.fetcher.config(&self.base, &self.cached()?)?;
        kernel_arguments::apply(&self.target().programs, config.kernel_arguments.as_ref())
    }

    fn disks(&self, state: &mut State) -> Result<()> {
        let (storage, keys) = self.fetcher.with_keys(&self.base, &self.cached()?)?;
        let storage = disks::resolve_links(storage);
        state.volumes = disks::make(&self.target(), &storage, &keys)?;
        Ok(())
    }

    fn mount(&self, state: &mut State) -> Result<()> {
        let mounted = disks::mount(&self.target(), &self.storage()?)?;
        for folder in mounted.folders {
            if !state.folders.contains(&folder) {
                state.folders.push(folder);
            }
        }
        Ok(())
    }

    fn umount(&self) -> Result<()> {
        disks::unmount(&self.target(), &self.storage()?)
    }

    fn files(&self, state: &mut State) -> Result<()> {
        let cached = self.cached()?;
        let fetched = self
            .fetcher
            .with_contents(&self.base, &cached, state.user_config)?;
        for warning in &fetched.warnings {
            tracing::warn!("{warning}");
        }
        let disks = DiskResults {
            mounted: state.folders.clone(),
            volumes: state.volumes.clone(),
        };
        // The journal is not kept: an interrupted stage is not undone, as with Ignition.
        let mut journal = FileJournal::default();
        let applied = provision::apply(&self.target(), &fetched, &disks, &mut journal)?;
        for warning in &applied.warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!(
            "{} files and folders, {} users and groups, {} units, {} encrypted volumes",
            applied.entries,
            applied.accounts,
            applied.units,
            disks.volumes.len()
        );
        // The keys are in the root now. The provisioned system can read the state file too: none stays there.
        state.volumes.clear();
        Ok(())
    }
}
