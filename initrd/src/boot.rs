//! The boot line: one function of named steps, from the kernel to the handoff.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Result;
use apply::target::{Rules, Target};

use crate::context::{Boot, Early};
use crate::root::Root;
use crate::state::State;
use crate::var::Var;
use crate::{
    cmdline, config, config_drive, disks, etc, etcd, handoff, ignition, kernel_arguments, kubelet,
    manifest, metadata, modules, platform, provisioned, recovery, root, settle, spool, state, var,
    world,
};

/// Boots. Never returns: a boot that fails ends in [`recovery::end`].
pub(crate) fn run() -> Infallible {
    let early = Early::real();
    recovery::catch_panics(&early);
    match line(&early) {
        Ok(never) => never,
        Err(error) => recovery::end(&early, &error),
    }
}

/// The line. Each step is fatal unless its documentation says "best effort".
fn line(early: &Early) -> Result<Infallible> {
    let step = &early.timeline;
    step.step("world", || world::set_up(early))?;
    let cmdline = step.step("cmdline", || cmdline::read(early))?;
    let manifest = step.step("manifest", || manifest::read(early))?;
    let modules = step.step("modules", || modules::load(early, &cmdline))?;
    let mut boot = step.step("platform", || {
        platform::identify(early, cmdline, manifest, modules)
    })?;
    let root = step.step("root", || root::open(&boot))?;
    let mut state = step.step("state", || state::open(&boot, &root))?;
    if state.first_boot {
        boot.identity.platform = step.step("config_drive", || config_drive::decide(&boot))?;
    }
    let machine_id = match state.first_boot {
        true => first_boot(&boot, &root, &mut state)?,
        false => later_boot(&boot, &root, &mut state)?,
    };
    step.step("etcd", || etcd::mount(&boot, &root, &state, &machine_id))?;
    step.step("kubelet", || kubelet::install(&boot, &root))?;
    step.enter("handoff");
    handoff::hand_off(&boot, &root, &state, &machine_id)
}

/// A first boot: the config is fetched and checked before the first write; then the node is made. Returns the machine
/// id.
fn first_boot(boot: &Boot, root: &Root, state: &mut State) -> Result<String> {
    let step = &boot.timeline;
    let target = &target(boot, root);
    provisioned::begin(boot);
    let mut config = step.step("config", || config::obtain(boot, root))?;
    step.step("settle", || settle::wait(boot, root))?;
    step.step("kernel_arguments", || {
        kernel_arguments::apply(boot, root, &config.fetched.model)
    })?;
    let made = step.step("disks", || {
        disks::make(boot, root, target, &config.fetched, state)
    })?;
    let var = step.step("var", || var::mount(boot, root, state, made.var.clone()))?;
    let machine_id = step.step("etc", || etc::mount(boot, root, state, &var))?;
    step.step("spool", || spool::fill(boot, root, &mut config))?;
    step.step("ignition", || {
        ignition::apply(boot, root, target, state, &made, &config)
    })?;
    metadata::show(boot, state);
    step.step("provisioned", || provisioned::report(boot, state));
    Ok(machine_id)
}

/// A later boot: mounts the file systems of the first boot, and reports a changed config. It touches no network, unless the
/// vendor still waits for the first boot's report. Returns the machine id.
fn later_boot(boot: &Boot, root: &Root, state: &mut State) -> Result<String> {
    let step = &boot.timeline;
    let var: Var = step.step("var", || var::mount(boot, root, state, None))?;
    let machine_id = step.step("etc", || etc::mount(boot, root, state, &var))?;
    state.config_changed = step.step("config", || config::compare(boot, state));
    metadata::show(boot, state);
    step.step("provisioned", || provisioned::report(boot, state));
    Ok(machine_id)
}

/// The target of a config: this node's root.
fn target(boot: &Boot, root: &Root) -> Target {
    Target {
        root: root.programs.sysroot.clone(),
        programs: root.programs.clone(),
        modules: Arc::clone(&boot.modules),
        timeline: boot.timeline.clone(),
        rules: Rules::NODE,
    }
}
