//! The boot line: one function of named steps, from the kernel to the handoff.

use std::convert::Infallible;
use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result};
use image::cmdline::Cmdline;
use image::manifest::Manifest;
use image::modules as needed;
use image::paths;
use image::timeline::Span;

use crate::context::{Boot, Early};
use crate::failure;
use crate::machine;
use crate::root::Root;
use crate::state::{Begun, State};
use crate::{config, handoff, kernel_arguments, kubelet, root, settings, state};
use apply::disks::{self, Made};
use apply::fetched::Fetched;
use apply::journal;
use apply::journal::disks::Journal;
use apply::provision::{self, Brought};
use apply::target::{Rules, Target};
use image::fault::Fault;
use image::node::{EtcdGate, NodeSettings};
use linux::modules::Modules;
use linux::mount::{self, Flags};
use linux::world::World;
use linux::{firmware, log};

/// Boots. Never returns: a boot that fails ends in [`failure::end`].
pub(crate) fn run() -> Infallible {
    let early = Early::real();
    failure::catch_panics(&early);
    match line(&early) {
        Ok(never) => never,
        Err(error) => failure::end(&early, &error),
    }
}

/// The line. Every step is fatal unless its own comment says that it is best effort.
fn line(early: &Early) -> Result<Infallible> {
    let Early {
        world,
        timeline: step,
        network,
    } = early;
    step.add(before_init(world));
    let text = step.step("world", || set_up(world))?;
    let cmdline = step.step("cmdline", || read_cmdline(world, &text))?;
    network.ask(&cmdline.network);
    let manifest = read_manifest(world)?;
    raise_clock(&manifest);
    let modules = step.step("modules", || load_modules(world, &cmdline))?;
    arm_watchdog(world, &modules);
    let identity = step.step("platform", || machine::identify(world, &cmdline, &manifest));
    let boot = Boot {
        world: Arc::clone(world),
        cmdline,
        manifest,
        timeline: step.clone(),
        network: Arc::clone(network),
        identity,
        modules: Arc::new(modules),
    };
    tracing::info!(
        "{} {} on {}",
        boot.manifest.image.name,
        boot.manifest.image.version,
        boot.identity.platform
    );
    let root = step.step("root", || root::open(&boot))?;
    let begun = step.step("state", || state::begin(&boot, &root))?;
    let mut config_changed = false;
    let state = match begun.first_boot {
        true => provision(&boot, &root, begun)?,
        false => {
            let state = step.step("state", || state::open(&boot, &root, begun, None))?;
            config_changed = config::change::tell(&boot, state.sources().as_ref());
            state
        }
    };
    // Best effort: units that want the file say so themselves.
    if let Err(error) = machine::show(world, &state.dir) {
        tracing::warn!("{error:#}");
    }
    // Best effort: without it the network is the usual one.
    match machine::kept_network(&state.dir) {
        Ok(kept) => kept
            .iter()
            .for_each(|own| network.describe(platform::network::plan(&own.network))),
        Err(error) => tracing::warn!("net: {error:#}"),
    }
    let settings = settings::read(&root.programs.sysroot, &boot.manifest.node)?;
    step.step("etcd", || mount_etcd(&boot, &root, &settings, &state))?;
    for span in firmware::firmware_times(world) {
        step.add(span);
    }
    step.step("kubelet", || kubelet::install(&boot, &root))?;
    network.hand_over()?;
    step.enter("handoff");
    handoff::hand_off(&boot, &root, &state, config_changed)
}

/// The first boot: the config is fetched, checked and applied, and the node marked as provisioned. Its settings, its
/// disks and its files are checked before anything of it is written.
fn provision(boot: &Boot, root: &Root, mut begun: Begun) -> Result<State> {
    let step = &boot.timeline;
    let target = Target {
        root: root.programs.sysroot.clone(),
        programs: root.programs.clone(),
        modules: Arc::clone(&boot.modules),
        timeline: boot.timeline.clone(),
        rules: Rules::NODE,
    };
    let (fetched, metadata) = step.step("config", || config::obtain(boot, root))?;
    if let Some(text) = config::node_settings(&fetched) {
        settings::over(&boot.manifest.node, text)?;
    }
    step.step("kernel-arguments", || {
        kernel_arguments::apply(boot, root, &fetched.model)
    })?;
    let made = step.step("disks", || {
        make_disks(boot, root, &target, &fetched, &mut begun)
    })?;
    let early = begun.dir.as_deref().context("state is not mounted")?;
    let mut journal = journal::files::Journal::open(early)?;
    let first = state::First {
        var: made.var.clone(),
        journal: &mut journal,
    };
    let state = step.step("var", || state::open(boot, root, begun, Some(first)))?;
    journal.keep_in(&state.dir);
    let mut mounted = step.step("mount", || made.mount(&target, &mut journal))?;
    let applied = step.step("ignition", || {
        let brought = Brought {
            mounted: mounted.folders.clone(),
            volumes: made.volumes.clone(),
        };
        provision::apply(&target, &fetched, &brought, &mut journal)
    })?;
    for warning in &applied.warnings {
        tracing::warn!("ignition: {warning}");
    }
    tracing::info!(
        "ignition: {} files and folders, {} users and groups, {} units",
        applied.entries,
        applied.accounts,
        applied.units
    );
    let env = platform::env::render(boot.identity.platform, &metadata);
    machine::keep(&state.dir, &env)?;
    machine::keep_network(&state.dir, metadata.network.as_ref())?;
    // The marker must never be on the disk before what it vouches for.
    nix::unistd::sync();
    mounted.unmount()?;
    made.close(&root.programs)?;
    state.provisioned(boot, &fetched)?;
    Ok(state)
}

/// Everything about the disks is decided, then `state` made, where the journal is, and then the rest.
fn make_disks(
    boot: &Boot,
    root: &Root,
    target: &Target,
    fetched: &Fetched,
    begun: &mut Begun,
) -> Result<Made> {
    let mut journal = Journal::open(begun.dir.as_deref(), &fetched.hash())?;
    let system = begun.system(boot, root)?;
    let plan = disks::plan(
        target,
        fetched.model.storage.as_ref(),
        &fetched.keys,
        system.as_ref(),
        &journal,
    )?;
    provision::check(target, fetched)?;
    journal.keep_in(&begun.make(boot, root)?);
    disks::apply(target, &plan, &mut journal)
}

fn mount_etcd(
    boot: &Boot,
    root: &Root,
    settings: &NodeSettings,
    state: &State,
) -> Result<EtcdGate> {
    let node = etcd::volume::Node {
        programs: &root.programs,
        system_disk: root.disk.as_ref(),
        modules: &boot.modules,
        timeline: &boot.timeline,
        state: &state.dir,
        machine_id: &state.machine_id,
    };
    etcd::volume::mount(node, settings)
}

/// The kernel's own time, from its start until it started this program.
fn before_init(world: &World) -> Span {
    Span {
        source: "kernel".to_owned(),
        name: "kernel".to_owned(),
        start: 0,
        end: Some(world.micros()),
        note: None,
    }
}

/// Mounts the kernel's file systems and gives the text of the command line.
fn set_up(world: &World) -> Result<String> {
    let quiet = Flags::MS_NOSUID | Flags::MS_NOEXEC | Flags::MS_NODEV;
    for (kind, path, flags, options) in [
        ("proc", &world.proc, quiet, ""),
        ("sysfs", &world.sys, quiet, ""),
        ("devtmpfs", &world.dev, Flags::MS_NOSUID, "mode=0755"),
        (
            "tmpfs",
            &world.run,
            Flags::MS_NOSUID | Flags::MS_NODEV,
            "mode=0755,size=20%",
        ),
    ] {
        mount::folder(path, 0o755)?;
        mount::mount(kind, path, kind, flags, options)?;
    }
    expedite(world, true);
    let path = world.proc.join("cmdline");
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// While modules load, the kernel waits for RCU dozens of times; each wait is milliseconds shorter when expedited.
/// Best effort.
pub(crate) fn expedite(world: &World, on: bool) {
    let path = world.sys.join("kernel/rcu_expedited");
    if let Err(error) = fs::write(&path, if on { "1\n" } else { "0\n" }) {
        tracing::warn!("{}: {error}", path.display());
    }
}

fn read_cmdline(world: &World, text: &str) -> Result<Cmdline> {
    let parsed = Cmdline::parse(text);
    log::start(world, parsed.as_ref().is_ok_and(|cmdline| cmdline.debug))?;
    parsed.map_err(|wrong| {
        Fault::new("the kernel command line is wrong")
            .found(wrong.join("; "))
            .fix("correct these words in the boot loader's entry or the PXE script")
            .into()
    })
}

fn read_manifest(world: &World) -> Result<Manifest> {
    let path = world.in_initrd(paths::INITRD_MANIFEST);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Manifest::parse(&text).map_err(|found| {
        Fault::new("the image's manifest cannot be used")
            .found(found)
            .fix("build the image with the version of slipway that this init belongs to")
            .into()
    })
}

/// A clock behind the image's own time would refuse every certificate. Best effort.
fn raise_clock(manifest: &Manifest) {
    use nix::sys::time::TimeSpec;
    use nix::time::{ClockId, clock_gettime, clock_settime};

    let Ok(epoch) = i64::try_from(manifest.epoch) else {
        return;
    };
    let clock = ClockId::CLOCK_REALTIME;
    let raised = clock_gettime(clock).and_then(|now| {
        if now.tv_sec() >= epoch {
            return Ok(false);
        }
        clock_settime(clock, TimeSpec::new(epoch, 0)).map(|()| true)
    });
    match raised {
        Ok(true) => tracing::warn!("the clock was behind the image's time and has been raised"),
        Ok(false) => {}
        Err(error) => tracing::warn!("raising the clock: {error}"),
    }
}

/// What opens the root, at once with the drivers of this machine's disks; the network's drivers wait until a source
/// needs them.
fn load_modules(world: &Arc<World>, cmdline: &Cmdline) -> Result<Modules> {
    let release = nix::sys::utsname::uname().context("asking for the kernel's release")?;
    let release = release.release().to_string_lossy();
    let modules = Modules::open(Arc::clone(world), &release)?;
    let there = |name: &&str| modules.index().module(name).is_some();
    let mut names: Vec<&str> = needed::ROOT.to_vec();
    let optional = needed::OPTIONAL.iter().copied().filter(there);
    names.extend(optional.filter(|name| *name != needed::LOOP));
    if cmdline.root_url.is_some() {
        names.push(needed::LOOP);
    }
    modules.load_with_disks(&names).context(
        Fault::new("a kernel module that the root needs does not load")
            .fix("build the image again; its initramfs and its kernel do not fit"),
    )?;
    Ok(modules)
}

/// The machine's own watchdog, else the kernel's. Best effort.
fn arm_watchdog(world: &World, modules: &Modules) {
    if !world.dev.join("watchdog0").exists()
        && let Err(error) = modules.load(&[needed::SOFT_WATCHDOG])
    {
        tracing::warn!("{error:#}");
    }
    match world.watchdog.arm(&world.dev, &world.sys) {
        Ok(Some(name)) => tracing::info!("watchdog: {name}"),
        Ok(None) => tracing::warn!("this machine has no watchdog"),
        Err(error) => tracing::warn!("the watchdog is not armed: {error:#}"),
    }
}
