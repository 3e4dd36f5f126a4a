//! The stages.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow};
use fetch::Patience;
use ignition::Config;
use ignition::model::Storage;
use image::modules::FW_CFG;
use platform::config_source::{self, Source};
use platform::machine::{LOOK_EVERY, MEDIA_WAIT, Machine};
use platform::medium::Medium;

use apply::config_source::ConfigSource;
use apply::journal::files::FileJournal;
use apply::provision::{self, DiskResults};
use apply::target::{Rules, Target};
use linux::media::Media;
use linux::modules::Modules;
use linux::programs::Programs;
use linux::timeline::Timeline;
use linux::tools::load_module;
use linux::world::World;

use crate::environment::Surroundings;
use crate::fetcher::{Fetcher, Outcome};
use crate::flags::{Flags, Stage};
use crate::state::{State, replace};
use crate::{disks, kernel_arguments};

/// Exit code when what the stage needs before it begins is not there.
pub(crate) const NOT_READY: u8 = 3;

/// Why a stage ended, with its exit code.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The exit code.
    pub(crate) code: u8,
    /// The reason.
    pub(crate) why: anyhow::Error,
}

impl From<anyhow::Error> for Failed {
    fn from(why: anyhow::Error) -> Self {
        Self { code: 1, why }
    }
}

/// Runs one stage.
pub(crate) fn run(flags: &Flags, surroundings: &Surroundings) -> Result<(), Failed> {
    let mut state = State::read(&flags.state_file).map_err(|why| Failed {
        code: NOT_READY,
        why,
    })?;
    let base = surroundings.base(flags.platform)?;
    let stage = Run {
        flags,
        surroundings,
        base,
        fetcher: Fetcher::new(
            flags.platform.storage_identity,
            flags.stage != Stage::FetchOffline,
        ),
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

struct Run<'a> {
    flags: &'a Flags,
    surroundings: &'a Surroundings,
    base: Vec<ConfigSource>,
    fetcher: Fetcher,
}

/// A place of the user's config, or that it is not to be had without the network.
enum Found {
    Source(Option<ConfigSource>),
    NeedsNetwork,
}

impl Run<'_> {
    fn fetch(&self, state: &mut State) -> Result<()> {
        let outcome = match self.user()? {
            Found::NeedsNetwork => Outcome::NeedsNetwork,
            Found::Source(user) => {
                let timeout = self.flags.fetch_timeout;
                self.fetcher.obtain(&self.base, user.as_ref(), timeout)?
            }
        };
        let config = match outcome {
            Outcome::NeedsNetwork => {
                tracing::info!("the config needs the network");
                return replace(&self.flags.neednet, b"", 0o644);
            }
            Outcome::Done(config) => config,
        };
        state.user_config = config.is_some();
        if config.is_none() {
            tracing::info!("there is no config, or an empty one");
        }
        let config = config.map_or_else(Config::empty, |config| *config);
        let text = config.to_json().to_string();
        replace(&self.flags.config_cache, text.as_bytes(), 0o640)
    }

    /// Where the user's config is: what the kernel's command line names, else a file of this system's, else the platform.
    fn user(&self) -> Result<Found> {
        let named = self.surroundings.named()?;
        if let Some(source) = self.ask(|machine| Ok(named.find(machine)?))? {
            return Ok(Found::Source(Some(match source {
                Source::Url(url) => ConfigSource::Url(url),
                Source::Text(config) => ConfigSource::Text(config.text, config.name),
            })));
        }
        if let Some(place) = self.surroundings.user()? {
            return Ok(Found::Source(Some(place)));
        }
        if self.flags.stage == Stage::FetchOffline && self.flags.platform.needs_network {
            return Ok(Found::NeedsNetwork);
        }
        let found = self.ask(|machine| Ok(config_source::obtain(self.flags.platform, machine)?))?;
        for note in &found.notes {
            tracing::warn!("{note}");
        }
        let place = found
            .config
            .map(|config| ConfigSource::Text(config.text, config.name));
        Ok(Found::Source(place))
    }

    /// Does something with the machine as providers see it.
    fn ask<T>(&self, work: impl FnOnce(&Machine<'_>) -> Result<T>) -> Result<T> {
        let world = Arc::new(World::real());
        // Of the modules that a platform may need only fw_cfg's is missing here: udev has loaded those of devices. Built in, it
        // is there already; a machine without the device has none.
        let load_modules = |names: &[&str]| {
            if names.contains(&FW_CFG)
                && !world.sys.join("firmware/qemu_fw_cfg").exists()
                && let Err(error) = load_module(&Programs::of_host(Arc::clone(&world)), FW_CFG)
            {
                tracing::warn!("{error:#}");
            }
        };
        let modules = Modules::none(Arc::clone(&world));
        let media = Media::new(&world, &modules);
        let timeout = self.flags.fetch_timeout;
        let offline = self.flags.stage == Stage::FetchOffline;
        let network = move |_: &AtomicBool| match offline {
            true => Err(anyhow!("this needs the network, which is not there yet")),
            false => Ok(()),
        };
        work(&Machine {
            service: None,
            sys: &world.sys,
            dev: &world.dev,
            file: &self.surroundings.config_file,
            patience: Patience {
                attempts: None,
                total: (!timeout.is_zero()).then_some(timeout),
                ..Patience::default()
            },
            look_every: LOOK_EVERY,
            media_wait: MEDIA_WAIT,
            load_modules: &load_modules,
            network: &network,
            mount: &|medium: &Medium<'_>| {
                media.mount(match medium {
                    Medium::Labels(labels) => linux::media::Medium::Labels(labels),
                    Medium::Disc => linux::media::Medium::Disc,
                })
            },
            say: &|text: &str| tracing::warn!("{text}"),
        })
    }

    /// The config that the fetch stage has kept.
    fn kept(&self) -> Result<Config> {
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
        let config = self.fetcher.config(&self.base, &self.kept()?)?;
        Ok(disks::by_nodes(config.storage.unwrap_or_default()))
    }

    /// The root of the system that is started next, and the programs of this initrd.
    fn target(&self) -> Target {
        let world = Arc::new(World::real());
        Target {
            root: self.flags.root.clone(),
            programs: Programs::of_host(Arc::clone(&world)),
            // This initrd's own programs load modules.
            modules: Arc::new(Modules::none(Arc::clone(&world))),
            timeline: Timeline::new(world),
            rules: Rules::ignition(self.surroundings.key_fragment),
        }
    }

    fn kargs(&self) -> Result<()> {
        let config = self.fetcher.config(&self.base, &self.kept()?)?;
        kernel_arguments::apply(&self.target().programs, config.kernel_arguments.as_ref())
    }

    fn disks(&self, state: &mut State) -> Result<()> {
        let (storage, keys) = self.fetcher.storage(&self.base, &self.kept()?)?;
        let storage = disks::by_nodes(storage);
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
        let fetched = self
            .fetcher
            .contents(&self.base, &self.kept()?, state.user_config)?;
        for warning in &fetched.warnings {
            tracing::warn!("{warning}");
        }
        let brought = DiskResults {
            mounted: state.folders.clone(),
            volumes: state.volumes.clone(),
        };
        // Another system has no `state`: a stage that was cut off is not undone, as with Ignition.
        let mut journal = FileJournal::default();
        let applied = provision::apply(&self.target(), &fetched, &brought, &mut journal)?;
        for warning in &applied.warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!(
            "{} files and folders, {} users and groups, {} units, {} encrypted volumes",
            applied.entries,
            applied.accounts,
            applied.units,
            brought.volumes.len()
        );
        // Where the file is, the system that is started next sees it too.
        state.volumes.clear();
        Ok(())
    }
}
