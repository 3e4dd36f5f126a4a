//! Kubelet: its unit, and through it the commands that prepare and start its container; and the units that bring a
//! node of a cluster up, once the kubelet runs, apply the cluster's addons, and act when the clock is set. Where no kubelet starts, the
//! unit that blesses the boot entry in its place.
//!
//! The unit is in `/run`, so that of another boot or another image cannot be used by mistake; drop-ins and masks in
//! `/etc` work as with any unit. The container's files are a folder of the verified root; its bundle is written before
//! each start ([`PREPARE_COMMAND`]).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use image::kubelet::{
    ADDONS_COMMAND, ADDONS_UNIT, AHEAD_COMMAND, BLESS_COMMAND, BLESS_UNIT, CLOCK_COMMAND,
    CLOCK_PATH, CLOCK_TIMER, CLOCK_UNIT, CLUSTER_COMMAND, CLUSTER_UNIT, CONTAINER, GATE_COMMAND,
    INIT_UNITS, PERMANENT, PREPARE_COMMAND, REQUESTS_UNIT, ROUTES_UNIT, STATE, TIMELINE_COMMAND,
    TIMELINE_UNIT, UNIT,
};
use image::paths::{
    BLESS_BOOT_COMMAND, BLESS_BOOT_UNIT, CLUSTER, NODE_PROGRAM, RUN_KUBELET_BUNDLE,
    TIME_SYNCHRONIZED, UNSET_CLOCK,
};
use linux::mount::folder;
use linux::world::World;

use crate::context::Boot;
use crate::root::Root;

/// Units of this boot.
const UNITS: &str = "/run/systemd/system";
/// The texts of [`INIT_UNITS`].
const TEXTS: [&str; INIT_UNITS.len()] = [
    include_str!("kubelet/kubelet.service"),
    include_str!("kubelet/slipway-cluster.service"),
    include_str!("kubelet/slipway-addons.service"),
    include_str!("kubelet/slipway-timeline.service"),
    include_str!("kubelet/slipway-bless.service"),
    include_str!("kubelet/slipway-clock.service"),
    include_str!("kubelet/slipway-clock.path"),
    include_str!("kubelet/slipway-clock.timer"),
];
/// Those that other units start: the kubelet's, and those that look at the clock.
const STARTED: [&str; 2] = [BLESS_UNIT, CLOCK_UNIT];
/// The text of [`BLESS_BOOT_UNIT`].
const BLESS_BOOT: &str = include_str!("kubelet/slipway-bless-boot.service");
/// The target that starts it.
const TARGET: &str = "multi-user.target";
/// The target that the boot is complete with, whatever the image or the config calls it. systemd starts what wants it by this name.
const DEFAULT_TARGET: &str = "default.target";

/// Installs the unit, if the image has a kubelet; without one that starts, the unit that blesses the boot entry.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn install(boot: &Boot, root: &Root) -> Result<()> {
    let kubernetes = boot.manifest.kubernetes.as_ref();
    let enabled = install_units(&boot.world, &root.programs.sysroot, kubernetes.is_some())?;
    match kubernetes {
        Some(kubernetes) => {
            let state = match enabled {
                true => "its unit is in place",
                false => "the config does not enable it",
            };
            tracing::info!("kubelet {}: {state}", kubernetes.version);
        }
        None => tracing::debug!("this image has no kubelet"),
    }
    Ok(())
}

/// Writes the units of an image with or without a kubelet. Returns whether the kubelet starts.
fn install_units(world: &World, sysroot: &Path, has_kubelet: bool) -> Result<bool> {
    let starts = has_kubelet && install_unit(world, sysroot)?;
    if !starts {
        install_blessing(world)?;
    }
    Ok(starts)
}

/// Writes and enables the unit that blesses the boot entry without a kubelet: otherwise each boot would use up a try of an entry
/// that is well.
fn install_blessing(world: &World) -> Result<()> {
    let units = world.in_run(UNITS);
    let wants = units.join(format!("{DEFAULT_TARGET}.wants"));
    folder(&wants, 0o755)?;
    let file = units.join(BLESS_BOOT_UNIT);
    fs::write(&file, filled(BLESS_BOOT)).with_context(|| format!("writing {}", file.display()))?;
    enable(&wants, BLESS_BOOT_UNIT)
}

/// Writes the units, and enables them unless the config disables the kubelet. Returns whether they are enabled.
fn install_unit(world: &World, sysroot: &Path) -> Result<bool> {
    let units = world.in_run(UNITS);
    let wants = units.join(format!("{TARGET}.wants"));
    folder(&wants, 0o755)?;
    let enabled = !is_disabled(sysroot) && !is_masked(sysroot);
    for (name, text) in INIT_UNITS.into_iter().zip(TEXTS) {
        let file = units.join(name);
        fs::write(&file, filled(text)).with_context(|| format!("writing {}", file.display()))?;
        if enabled && !STARTED.contains(&name) {
            enable(&wants, name)?;
        }
    }
    Ok(enabled)
}

/// Makes the link of a unit in a target's folder.
fn enable(wants: &Path, name: &str) -> Result<()> {
    let link = wants.join(name);
    if link.symlink_metadata().is_err() {
        symlink(Path::new("..").join(name), &link)
            .with_context(|| format!("making the link {}", link.display()))?;
    }
    Ok(())
}

/// Whether a preset of the node has `disable kubelet.service`: Ignition writes `enabled: false` so.
fn is_disabled(sysroot: &Path) -> bool {
    let Ok(presets) = fs::read_dir(sysroot.join("etc/systemd/system-preset")) else {
        return false;
    };
    let mut presets: Vec<_> = presets.flatten().map(|entry| entry.path()).collect();
    presets.sort();
    // The first preset that names a unit decides, as in systemd.preset(5).
    presets
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .find_map(|line| {
            let mut words = line.split_whitespace();
            let verb = words.next()?;
            (words.next() == Some(UNIT)).then_some(verb == "disable")
        })
        .unwrap_or(false)
}

/// Whether the unit is masked on the node: an empty file or a link to /dev/null (systemd.unit(5)). Ignition writes `mask: true` so.
fn is_masked(sysroot: &Path) -> bool {
    let unit = sysroot.join("etc/systemd/system").join(UNIT);
    match fs::read_link(&unit) {
        Ok(target) => target == Path::new("/dev/null"),
        Err(_) => unit.metadata().is_ok_and(|file| file.len() == 0),
    }
}

/// A unit with its names. `crun` must not see `NOTIFY_SOCKET` (it would mount below `/run`, which is bound); the kubelet has it in
/// its own environment. With control groups left to systemd its message comes from the unit's own group and is
/// accepted. After READY the unit starts that of the blessing, which waits for the static pods: `--no-block`, since those of a
/// control plane wait for units behind the kubelet's.
fn filled(text: &str) -> String {
    text.replace("@UNIT@", UNIT)
        .replace("@CLUSTER_UNIT@", CLUSTER_UNIT)
        .replace("@CLUSTER_COMMAND@", CLUSTER_COMMAND)
        .replace("@ROUTES_UNIT@", ROUTES_UNIT)
        .replace("@REQUESTS_UNIT@", REQUESTS_UNIT)
        .replace("@ADDONS_UNIT@", ADDONS_UNIT)
        .replace("@ADDONS_COMMAND@", ADDONS_COMMAND)
        .replace("@CLOCK_UNIT@", CLOCK_UNIT)
        .replace("@CLOCK_PATH@", CLOCK_PATH)
        .replace("@CLOCK_TIMER@", CLOCK_TIMER)
        .replace("@CLOCK_COMMAND@", CLOCK_COMMAND)
        .replace("@UNSET_CLOCK@", UNSET_CLOCK)
        .replace("@TIME_SYNCHRONIZED@", TIME_SYNCHRONIZED)
        .replace("@TIMELINE_UNIT@", TIMELINE_UNIT)
        .replace("@TIMELINE_COMMAND@", TIMELINE_COMMAND)
        .replace("@PERMANENT@", &PERMANENT.to_string())
        .replace("@CLUSTER@", CLUSTER)
        .replace("@STATE@", STATE)
        .replace("@NODE_PROGRAM@", NODE_PROGRAM)
        .replace("@GATE_COMMAND@", GATE_COMMAND)
        .replace("@PREPARE_COMMAND@", PREPARE_COMMAND)
        .replace("@AHEAD_COMMAND@", AHEAD_COMMAND)
        .replace("@BLESS_UNIT@", BLESS_UNIT)
        .replace("@BLESS_COMMAND@", BLESS_COMMAND)
        .replace("@BLESS_BOOT_UNIT@", BLESS_BOOT_UNIT)
        .replace("@BLESS_BOOT_COMMAND@", BLESS_BOOT_COMMAND)
        .replace("@CONTAINER@", CONTAINER)
        .replace("@BUNDLE@", RUN_KUBELET_BUNDLE)
        .replace("@TARGET@", TARGET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::world::Clock;

    #[test]
    fn the_unit_is_enabled_unless_the_config_says_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert!(install_unit(&world, &world.sysroot).unwrap());
        let link = folder
            .path()
            .join("run/systemd/system/multi-user.target.wants/kubelet.service");
        let unit = fs::read_to_string(&link).unwrap();
        let gate = unit.find("slipway-node kubelet-gate").unwrap();
        assert!(gate < unit.find("ExecStart=").unwrap());
        let stop = format!("TimeoutStopSec={}\n", image::kubelet::STOP_SECONDS);
        assert!(unit.contains(&stop));
        let start = "ExecStartPost=-/usr/bin/systemctl start --no-block slipway-bless.service\n";
        assert!(unit.contains(start));
        assert!(!unit.contains('@'), "{unit}");
        let cluster = link.with_file_name("slipway-cluster.service");
        let unit = fs::read_to_string(&cluster).unwrap();
        assert!(unit.contains("ConditionPathExists=/etc/slipway/cluster.toml\n"));
        assert!(unit.contains("After=kubelet.service\n"));
        // A worker's bootstrap credentials are removed by it.
        let writable = unit
            .lines()
            .find(|line| line.starts_with("ReadWritePaths="));
        assert!(writable.is_some_and(|line| line.ends_with(" /etc/kubernetes")));
        assert!(unit.contains("ExecStart=/usr/lib/slipway/slipway-node cluster-up\n"));
        assert_eq!(
            unit.matches('@').count(),
            unit.matches("@system-service").count()
        );
        let addons = fs::read_to_string(link.with_file_name("slipway-addons.service")).unwrap();
        // Neither waits for the other: a node without a network of pods becomes Ready by an addon.
        assert!(addons.contains("ExecStart=/usr/lib/slipway/slipway-node addons-up\n"));
        assert!(addons.contains("RestartPreventExitStatus=3\n"));
        assert!(!addons.contains("slipway-cluster") && !unit.contains("slipway-addons"));
        assert_eq!(addons.matches('@').count(), 1);
        let timeline = fs::read_to_string(link.with_file_name("slipway-timeline.service")).unwrap();
        assert!(timeline.contains("ExecStart=/usr/lib/slipway/slipway-node timeline\n"));
        assert!(timeline.contains("After=kubelet.service slipway-cluster.service\n"));
        assert_eq!(timeline.matches('@').count(), 1);
        let units = folder.path().join("run/systemd/system");
        let bless = fs::read_to_string(units.join("slipway-bless.service")).unwrap();
        assert!(bless.contains("ExecStart=/usr/lib/slipway/slipway-node bless\n"));
        assert!(
            bless.contains("After=kubelet.service\n") && !bless.contains('@'),
            "{bless}"
        );
        assert!(!link.with_file_name("slipway-bless.service").exists());
        fs::remove_file(&link).unwrap();
        let presets = world.in_sysroot("/etc/systemd/system-preset");
        fs::create_dir_all(&presets).unwrap();
        fs::write(
            presets.join("20-ignition.preset"),
            "disable kubelet.service\n",
        )
        .unwrap();
        assert!(!install_unit(&world, &world.sysroot).unwrap());
        assert!(link.symlink_metadata().is_err());
        fs::write(presets.join("10-mine.preset"), "enable kubelet.service\n").unwrap();
        assert!(install_unit(&world, &world.sysroot).unwrap());
        let masked = world.in_sysroot("/etc/systemd/system/kubelet.service");
        fs::create_dir_all(masked.parent().unwrap()).unwrap();
        symlink("/dev/null", &masked).unwrap();
        assert!(!install_unit(&world, &world.sysroot).unwrap());
        fs::remove_file(&masked).unwrap();
        fs::write(&masked, "").unwrap();
        assert!(!install_unit(&world, &world.sysroot).unwrap());
        fs::write(&masked, "[Unit]\n").unwrap();
        assert!(install_unit(&world, &world.sysroot).unwrap());
    }

    /// Nothing of it runs where nothing was made before the clock was set.
    #[test]
    fn the_clock_is_looked_at_when_it_is_set_and_once_a_time_server_has_answered() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert!(install_unit(&world, &world.sysroot).unwrap());
        let units = folder.path().join("run/systemd/system");
        let wants = units.join("multi-user.target.wants");
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let path = read(&wants.join("slipway-clock.path"));
        assert!(path.contains("PathChanged=/run/systemd/timesync/synchronized\n"));
        let timer = read(&wants.join("slipway-clock.timer"));
        assert!(timer.contains("OnClockChange=yes\n"));
        let unit = read(&units.join("slipway-clock.service"));
        assert!(unit.contains("ConditionPathExists=/var/lib/slipway/unset-clock.json\n"));
        assert!(unit.contains("ExecStart=/usr/lib/slipway/slipway-node clock-set\n"));
        assert!(unit.contains("ReadWritePaths=/var/lib/slipway /run/slipway\n"));
        assert!(!wants.join("slipway-clock.service").exists());
        let unit = unit.replace("@system-service", "");
        assert!(![path, timer, unit].concat().contains('@'));
    }

    #[test]
    fn without_a_kubelet_the_complete_boot_is_blessed() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let units = folder.path().join("run/systemd/system");
        let link = units.join("default.target.wants/slipway-bless-boot.service");
        assert!(!install_units(&world, &world.sysroot, false).unwrap());
        let unit = fs::read_to_string(&link).unwrap();
        assert!(unit.contains("ExecStart=/usr/lib/slipway/slipway-node bless-boot\n"));
        // A target that was not reached, or a check that did not pass, keeps the counter.
        for word in ["Requires=", "After="] {
            let line = format!("{word}default.target boot-complete.target\n");
            assert!(unit.contains(&line), "{unit}");
        }
        assert!(!unit.contains('@'), "{unit}");
        assert!(!units.join("kubelet.service").exists());

        // The kubelet's own unit does it where the kubelet starts, and no other.
        fs::remove_dir_all(&units).unwrap();
        assert!(install_units(&world, &world.sysroot, true).unwrap());
        assert!(units.join("slipway-bless.service").exists());
        assert!(link.symlink_metadata().is_err());
        let mask = world.in_sysroot("/etc/systemd/system/kubelet.service");
        fs::create_dir_all(mask.parent().unwrap()).unwrap();
        symlink("/dev/null", mask).unwrap();
        fs::remove_dir_all(&units).unwrap();
        assert!(!install_units(&world, &world.sysroot, true).unwrap());
        assert!(link.exists());
    }
}
