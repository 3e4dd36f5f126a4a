//! Loading kernel modules: by alias, in dependency order, only for devices of this machine.
//!
//! The index of the initramfs has the dependencies. Loading sleeps in the kernel more than it computes (grace periods of
//! RCU), so independent modules are loaded by several threads.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use image::module_words::ModuleWords;
use image::modules::{BOND, Module, ModuleIndex, canonical};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use self::plan::Plan;
use crate::block;
use crate::kernel_call::{self, Stalled};
use crate::log;
use crate::module_process::Loader;
use crate::world::World;

/// Threads that load. More do not help: each loader holds the kernel's module mutex for most of its computing.
const LOADERS: usize = 4;
/// How long drivers may look for their devices without a sign. Controllers of RAID arrays start their firmware meanwhile:
/// the kernel waits 180 s for it (`MEGASAS_RESET_WAIT_TIME` in megaraid_sas.h, `startup_timeout` of aacraid).
const PROBING: Duration = Duration::from_secs(300);

/// How often a driver that takes longer is looked after.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Options that come before those of the command line. A bond that the module makes by itself would have the default mode
/// under the name that a configuration gives to its own.
const DEFAULTS: &[(&str, &str)] = &[(BOND, "max_bonds=0")];

/// The modules of the initramfs and which of them were loaded.
#[derive(Debug)]
pub struct Modules {
    world: Arc<World>,
    folder: PathBuf,
    index: ModuleIndex,
    /// What the kernel command line says of modules.
    words: ModuleWords,
    /// Loaded, or tried in vain: (name, error).
    tried: Mutex<BTreeMap<String, Option<String>>>,
    /// The disks that have stalled while a driver was loaded.
    stalled: Mutex<Stalled>,
    /// Those of them, by the kernel's names, because of which the kernel was not waited for any more.
    named: Mutex<BTreeSet<String>>,
}

/// Whether drivers of network cards and the network stack are loaded too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// No: only other modules.
    Without,
    /// Yes: a source needs the network.
    With,
}

impl Modules {
    /// Reads the index of the running kernel's modules.
    ///
    /// # Errors
    /// If the initramfs has none, or it is another kernel's.
    pub fn open(world: Arc<World>, release: &str) -> Result<Self> {
        let folder = world.in_initrd(image::paths::INITRD_MODULES).join(release);
        let path = folder.join(image::paths::INITRD_MODULES_INDEX);
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let index: ModuleIndex =
            serde_json::from_slice(&text).with_context(|| format!("parsing {}", path.display()))?;
        // A test's machine may have none.
        let cmdline = fs::read_to_string(world.proc.join("cmdline")).unwrap_or_default();
        Ok(Self {
            words: ModuleWords::parse(&cmdline),
            world,
            folder,
            index,
            tried: Mutex::default(),
            stalled: Mutex::default(),
            named: Mutex::default(),
        })
    }

    /// No modules at all: in an initramfs of another system, whose own programs load them.
    pub fn none(world: Arc<World>) -> Self {
        Self {
            folder: world.in_initrd(image::paths::INITRD_MODULES),
            world,
            index: ModuleIndex::default(),
            words: ModuleWords::default(),
            tried: Mutex::default(),
            stalled: Mutex::default(),
            named: Mutex::default(),
        }
    }

    /// The index of the initramfs's modules.
    pub const fn index(&self) -> &ModuleIndex {
        &self.index
    }

    /// Loads these modules (names) with all their dependencies. Built-in and loaded modules are skipped.
    ///
    /// # Errors
    /// Names each module that could not be loaded or does not exist, with the reason; the others are loaded.
    pub fn load(&self, names: &[&str]) -> Result<()> {
        let (requested, failures) = self.named(names);
        self.run(&requested);
        self.verdict(&requested, failures)
    }

    /// Loads these modules (names) and at once the drivers of this machine's disks and watchdogs, so that independent
    /// modules load in parallel. The modules of all other devices can wait for [`Modules::load_for_devices`], or for
    /// udev.
    ///
    /// # Errors
    /// As [`Modules::load`]; a module that only a device requested is best effort.
    pub fn load_with_disks(&self, names: &[&str]) -> Result<()> {
        let (requested, failures) = self.named(names);
        let mut all = self.for_devices(is_early, &BTreeSet::new());
        all.extend(&requested);
        self.run(&all);
        self.uncover(is_early);
        self.verdict(&requested, failures)
    }

    /// The modules of these names, and a message for each name that is unknown.
    fn named(&self, names: &[&str]) -> (Vec<&Module>, Vec<String>) {
        let mut requested = Vec::new();
        let mut failures = Vec::new();
        for name in names {
            match self.index.module(name) {
                Some(module) => requested.push(module),
                None if self.index.is_builtin(name) => {}
                None => failures.push(format!(
                    "{name}: neither in the initramfs nor in the kernel"
                )),
            }
        }
        (requested, failures)
    }

    fn verdict(&self, requested: &[&Module], mut failures: Vec<String>) -> Result<()> {
        failures.extend(requested.iter().filter_map(|module| {
            let error = self.error(&module.name)?;
            Some(format!("{}: {error}", module.name))
        }));
        if failures.is_empty() {
            return Ok(());
        }
        bail!("loading kernel modules: {}", failures.join("; "))
    }

    /// Loads the modules of the devices that the machine has now, by the aliases in sysfs, repeatedly as long as
    /// drivers uncover new devices. Best effort: failures are logged.
    ///
    /// Returns the names of all modules that were requested.
    pub fn load_for_devices(&self, network: Network) -> BTreeSet<String> {
        self.uncover(|module| network == Network::With || !module.is_network())
    }

    /// Loads the drivers of disks that have appeared since: a SCSI bus shows its disks some time after its controller.
    pub fn load_for_disks(&self) {
        self.uncover(is_early);
    }

    fn uncover(&self, choose: impl Fn(&Module) -> bool) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        loop {
            let wanted = self.for_devices(&choose, &seen);
            if wanted.is_empty() {
                return seen;
            }
            self.run(&wanted);
            seen.extend(wanted.iter().map(|module| module.name.clone()));
        }
    }

    /// The modules of the present devices, except for the devices in `seen`.
    fn for_devices(
        &self,
        choose: impl Fn(&Module) -> bool,
        seen: &BTreeSet<String>,
    ) -> Vec<&Module> {
        let aliases = aliases(&self.world);
        self.index
            .modules
            .iter()
            .filter(|module| choose(module) && !seen.contains(&module.name))
            // As modprobe does it: only what an alias would load, never what is named or what another one needs.
            .filter(|module| !module.blacklisted && !self.words.is_blacklisted(&module.name))
            .filter(|module| {
                module.aliases.iter().any(|pattern| {
                    aliases
                        .iter()
                        .any(|alias| image::modules::matches(pattern, alias))
                })
            })
            .collect()
    }

    fn error(&self, name: &str) -> Option<String> {
        self.tried.lock().ok()?.get(name)?.clone()
    }

    /// Loads `wanted` and their dependencies.
    fn run(&self, wanted: &[&Module]) {
        let tried: BTreeSet<String> = self
            .tried
            .lock()
            .map(|tried| tried.keys().cloned().collect())
            .unwrap_or_default();
        let plan = Plan::new(&self.index, wanted, &tried);
        if plan.modules.is_empty() {
            return;
        }
        // Those that are being loaded: a line names the driver that hangs.
        let loading = Mutex::new(BTreeSet::new());
        let set = || loading.lock().unwrap_or_else(PoisonError::into_inner);
        let loaders = Mutex::new(Vec::new());
        let load = |module: &Module| {
            set().insert(module.name.clone());
            let result = self.insert(module, &loaders);
            set().remove(&module.name);
            if let Err(error) = &result {
                tracing::warn!("module {}: {error:#}", module.name);
            }
            if let Ok(mut tried) = self.tried.lock() {
                let error = result.err().map(|error| format!("{error:#}"));
                tried.insert(module.name.clone(), error);
            }
            if module.path.starts_with("kernel/drivers/watchdog/") {
                arm_watchdog(&self.world);
            }
        };
        let what = || {
            let names: Vec<String> = set().iter().cloned().collect();
            format!("the kernel to load {}", names.join(", "))
        };
        kernel_call::with_silence(&self.world, &what, PROBING, || {
            plan.run(LOADERS, load);
        });
        let loaders = loaders.into_inner();
        for loader in loaders.unwrap_or_else(PoisonError::into_inner) {
            self.leave(loader);
        }
    }

    /// Loads a module by one of the idle `loaders`, or by another one, which is idle then.
    fn insert(&self, module: &Module, loaders: &Mutex<Vec<Loader>>) -> Result<()> {
        let start = self.world.micros();
        let path = self.folder.join(&module.path);
        fs::metadata(&path).with_context(|| format!("opening {}", path.display()))?;
        let options = self.options(&module.name);
        let text = CString::new(options.as_str()).context("reading its options")?;
        match self.load_file(module, &path, &text, loaders)? {
            Ok(()) | Err(Errno::EEXIST) => {}
            // A driver that finds none of its devices, or hardware that lacks the instructions which it uses.
            Err(Errno::ENODEV) => tracing::debug!("module {}: no device for it", module.name),
            Err(Errno::EPERM) if self.words.is_refused(&module.name) => {
                bail!("the kernel refuses it: module_blacklist= on the command line names it")
            }
            Err(error) if let Some(why) = unsigned(error, self.index.signed) => {
                return Err(error).context(why);
            }
            Err(error) if !options.is_empty() => {
                return Err(error).with_context(|| format!("loading it with {options}"));
            }
            Err(error) => return Err(error.into()),
        }
        tracing::debug!(
            "module {}: {} µs {options}",
            module.name,
            self.world.micros() - start
        );
        Ok(())
    }

    /// What the kernel answers. While a disk has stalled, a driver that has started is not waited for any more: what is left is the
    /// end of all probing in the background. Nor is one that takes as long as a disk may: the disk is its own.
    ///
    /// # Errors
    /// If the process that loads has ended.
    fn load_file(
        &self,
        module: &Module,
        path: &Path,
        options: &CString,
        loaders: &Mutex<Vec<Loader>>,
    ) -> Result<Result<(), Errno>> {
        let idle = || loaders.lock().unwrap_or_else(PoisonError::into_inner);
        let free = idle().pop();
        let mut loader = match free.map_or_else(Loader::start, Ok) {
            Ok(loader) => loader,
            // Without the process the module is loaded as well, only without an end while a disk hangs.
            Err(error) => {
                tracing::warn!("{error:#}");
                let file = File::open(path)?;
                return Ok(finit_module(file, options, ModuleInitFlags::empty()));
            }
        };
        let file = CString::new(path.as_os_str().as_bytes()).context("naming its file")?;
        loader.begin(&file, options)?;
        let (began, patience) = (self.world.micros(), self.world.readers.patience);
        loop {
            if let Some(answer) = loader.answer(LOOK_EVERY)? {
                idle().push(loader);
                return Ok(answer);
            }
            let mut stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
            let disks = stalled.look(&self.world, patience);
            drop(stalled);
            let waited = u128::try_from(self.world.micros() - began).unwrap_or(0);
            if !disks.is_empty() && (self.has_started(module) || waited >= patience.as_micros()) {
                self.go_on_without(disks);
                self.leave(loader);
                return Ok(Ok(()));
            }
        }
    }

    /// Whether a module's own start is over, by its state (`/sys/module/MODULE/initstate`).
    fn has_started(&self, module: &Module) -> bool {
        let folder = self.world.sys.join("module").join(canonical(&module.name));
        fs::read_to_string(folder.join("initstate")).is_ok_and(|state| state.trim() == "live")
    }

    /// Has the kernel wait for no disk when it loads modules from now on, if one has stalled: udev's loads would hang
    /// (`module.async_probe`, <https://docs.kernel.org/admin-guide/kernel-parameters.html>; since Linux 6.3). Not before the handoff: a
    /// driver that this program loads has found its device when the kernel answers. Best effort.
    pub fn hand_over(&self) {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let parameter = self.world.sys.join("module/module/parameters/async_probe");
        if !named.is_empty()
            && let Err(error) = fs::write(&parameter, "Y")
        {
            tracing::warn!("{}: {error}", parameter.display());
        }
    }

    /// Names the disks that have stalled, each once.
    fn go_on_without(&self, disks: Vec<String>) {
        let mut known = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        for disk in disks {
            if known.insert(disk.clone()) {
                let shown = block::shown(&self.world, &disk);
                let seconds = self.world.readers.patience.as_secs();
                log::announce(
                    &self.world,
                    &format!(
                        "slipway: {shown} has not answered the kernel for {seconds} s: its driver is not waited for"
                    ),
                );
            }
        }
    }

    /// Lets a process end by itself, which it does as soon as the kernel lets it.
    fn leave(&self, loader: Loader) {
        let process = loader.process();
        drop(loader);
        self.world.readers.asked().leave(process);
    }

    /// A module's options: the last of a repeated one wins.
    fn options(&self, name: &str) -> String {
        let own = DEFAULTS.iter().filter(|(module, _)| *module == name);
        let own = own.map(|(_, options)| *options);
        let of_recipe = self.index.module(name).map_or("", |module| &module.options);
        let given = [of_recipe, self.words.options(name)];
        let given = given.into_iter().filter(|options| !options.is_empty());
        own.chain(given).collect::<Vec<_>>().join(" ")
    }
}

/// What to do if the kernel refuses modules that have no signatures: it answers the first of these in lockdown, which Secure
/// Boot puts it into, the other one with `module.sig_enforce` (`module_sig_check` in `kernel/module/signing.c`).
fn unsigned(error: Errno, are_signed: bool) -> Option<&'static str> {
    let is_refused = matches!(error, Errno::EPERM | Errno::EKEYREJECTED);
    (is_refused && !are_signed).then_some(
        "the kernel wants modules with a signature (Secure Boot or lockdown), and this image's have none: build it with \
         `module-signatures = true` in [kernel] of the recipe",
    )
}

/// Arms the watchdog, if it is there by now. Best effort.
fn arm_watchdog(world: &World) {
    match world.watchdog.arm(&world.dev, &world.sys) {
        Ok(Some(name)) => tracing::info!("watchdog: {name}"),
        Ok(None) => {}
        Err(error) => tracing::warn!("the watchdog is not armed: {error:#}"),
    }
}

/// Whether a module drives disks that a root is usually on, the bus of such disks, or a watchdog. SATA is not among
/// them: probing its ports takes longer than the rest of the boot, and cloud machines have ports without disks.
fn is_early(module: &Module) -> bool {
    const EARLY: [&str; 8] = [
        "block/",
        "hv/",
        "nvme/",
        "pci/",
        "scsi/",
        "virtio/",
        "watchdog/",
        "xen/",
    ];
    module
        .path
        .strip_prefix("kernel/drivers/")
        .is_some_and(|path| EARLY.iter().any(|early| path.starts_with(early)))
}

/// The aliases of all devices in sysfs, each once.
fn aliases(world: &World) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let buses = crate::block::entries(&world.sys.join("bus"));
    // A processor's aliases match every accelerated cipher that it could run.
    for bus in buses.into_iter().filter(|bus| bus != "cpu") {
        let devices = world.sys.join("bus").join(bus).join("devices");
        for device in crate::block::entries(&devices) {
            if let Ok(alias) = fs::read_to_string(devices.join(device).join("modalias")) {
                out.insert(alias.trim().to_owned());
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
