//! State: the partitions that the first boot makes and every boot grows; the `/etc` overlay; the machine id.

mod begun;
mod disk;
mod identity;
mod seed;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::{layout, paths, timeline};

use crate::context::Boot;
use crate::root::Root;
use apply::fetched::{Fetched, Sources};
use apply::journal::files::Journal;
use apply::var::Var;
use apply::var::layers;
pub(crate) use begun::{Begun, begin};
use disk::Scope;
use identity::Identity;
use image::fault::Fault;
use linux::atomic_file;
use linux::block::{Disk, Partition};
use linux::ext4;
use linux::mount;
use linux::mount::Flags;
use linux::programs;
use linux::{block, ioctl};

/// An empty file at the root of `state` that tells it from the folder in the read-only root.
pub(crate) const MARK: &str = ".slipway-state";
/// The marker below `/var` of the root whose factory files were copied last.
const SEEDED: &str = "lib/slipway/seeded";
/// Where the kernel's own growth of ext4 is worth its time: a whole block group.
const WORTH_GROWING: u64 = 128 * layout::MIB;

/// Where `state` is mounted until `var` is, below `/run`.
pub(crate) const EARLY: &str = "/run/slipway/state";

/// What the node keeps: `state` and `var` are mounted below the root, and `/etc` is writable.
#[derive(Debug)]
pub(crate) struct State {
    /// Where `state` is mounted: [`image::paths::STATE`] below the root.
    pub(crate) dir: PathBuf,
    /// The machine id, 32 hexadecimal digits.
    pub(crate) machine_id: String,
    identity: Identity,
}

/// What only a first boot has.
#[derive(Debug)]
pub(crate) struct First<'a> {
    /// The file system that the config brings for `/var`, with its device.
    pub(crate) var: Option<(Var, PathBuf)>,
    /// What earlier attempts wrote.
    pub(crate) journal: &'a mut Journal,
}

/// Makes what is missing, grows and mounts `var`, and lays the writable `/etc` over the root's.
///
/// # Errors
/// If a file system cannot be made, checked or mounted, each with the command or device.
pub(crate) fn open(
    boot: &Boot,
    root: &Root,
    begun: Begun,
    first: Option<First<'_>>,
) -> Result<State> {
    let early = begun.dir.context("state is not mounted")?;
    let (brought, journal) = match first {
        Some(First { var, journal }) => {
            remember(&early, var.as_ref().map(|(var, _)| var))?;
            (var, Some(journal))
        }
        None => match remembered(&early)? {
            Some(var) => {
                let step = &boot.timeline;
                let device = step.step("state.find", || {
                    var.find(&boot.modules, &root.programs, &early)
                })?;
                (Some((var, device)), None)
            }
            None => (None, None),
        },
    };
    // The file system at /var, as far as it outlives this boot.
    let mut uuid = None;
    let target = root.programs.sysroot.join("var");
    match (&root.disk, brought) {
        (disk, Some((var, device))) => {
            if let Some(disk) = disk {
                partitions(boot, disk, Scope::Own)?;
            }
            let unclean = ext4::probe(&device)?.is_some_and(|found| !found.clean);
            if unclean {
                check(root, &device, layout::LABEL_VAR)?;
            }
            boot.timeline
                .step("state.var", || var.mount(&root.programs, &device, &target))?;
            uuid = Some(var.uuid);
        }
        (Some(disk), None) => {
            partitions(boot, disk, Scope::WithVar)?;
            let part = labelled(boot, disk, layout::LABEL_VAR)?;
            if begun.copied {
                format(root, &part)?;
            }
            boot.timeline.step("state.var", || {
                mount_ext4(root, &part, &target, Flags::empty())?;
                grow(&part, &target)
            })?;
            uuid = ext4::probe(&part.path)?.map(|found| found.uuid);
        }
        (None, None) => {
            let options = "mode=0755,size=75%";
            mount::mount("var", &target, "tmpfs", Flags::empty(), options)?;
        }
    }
    if begun.copied {
        identity::forget(&early)?;
    }
    let dir = root
        .programs
        .sysroot
        .join(paths::STATE.trim_start_matches('/'));
    mount::folder(&dir, 0o755)?;
    mount::move_mount(&early, &dir)?;
    // An empty folder that stays costs nothing.
    fs::remove_dir(&early).unwrap_or_default();
    boot.timeline.step("state.seed", || seed_var(boot, root))?;
    if let (Some(journal), Some(uuid)) = (journal, &uuid) {
        journal.keep_in(&dir);
        let layer = |path: &str| root.programs.sysroot.join(path.trim_start_matches('/'));
        fresh_etc(
            &layer(paths::ETC_UPPER),
            &layer(paths::ETC_WORK),
            uuid,
            journal,
        )?;
    }
    overlay_etc(root)?;
    let machine_id = machine_id(boot, root, &dir)?;
    Ok(State {
        dir,
        machine_id,
        identity: begun.identity,
    })
}

fn partitions(boot: &Boot, disk: &Disk, scope: Scope) -> Result<()> {
    let plan = disk::plan(&boot.world, disk, &boot.manifest, scope)?;
    complete(boot, disk, &plan)
}

fn complete(boot: &Boot, disk: &Disk, plan: &disk::Plan) -> Result<()> {
    let step = &boot.timeline;
    let changes = step.step("state.partitions", || disk::complete(disk, plan))?;
    if !changes.made.is_empty() {
        tracing::info!(
            "made the partitions {} on {}",
            changes.made.join(", "),
            disk.name
        );
    }
    if changes.grown {
        tracing::info!("grew {} to the end of {}", layout::LABEL_VAR, disk.name);
    }
    Ok(())
}

/// A partition of the system disk as it is now.
fn labelled(boot: &Boot, disk: &Disk, label: &str) -> Result<Partition> {
    let now = block::disk(&boot.world, &disk.name);
    let now = now.with_context(|| format!("{} has gone away", disk.name))?;
    disk::labelled(&now, label).cloned()
}

/// Keeps in `state` which file system is at `/var`, so that later boots, which read no config, mount it.
fn remember(state: &Path, var: Option<&Var>) -> Result<()> {
    let path = state.join(paths::STATE_VAR);
    match var {
        Some(var) => {
            var.keep_keys(state)?;
            replace(&path, &serde_json::to_string(var)?)?;
        }
        None => atomic_file::remove(&path).context("forgetting an earlier /var")?,
    }
    let layers = var.map(|var| var.layers.as_slice());
    layers::forget_keys(state, layers.unwrap_or_default())
}

fn remembered(state: &Path) -> Result<Option<Var>> {
    let path = state.join(paths::STATE_VAR);
    let text = atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let Some(text) = text else {
        return Ok(None);
    };
    let var =
        serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
    Ok(Some(var))
}

fn mark(dir: &Path) -> Result<()> {
    let path = dir.join(MARK);
    if !path.exists() {
        File::create(&path).with_context(|| format!("making {}", path.display()))?;
    }
    Ok(())
}

/// Makes an ext4 if there is none, checks it if it was not unmounted in order, mounts it.
fn mount_ext4(root: &Root, part: &Partition, target: &Path, flags: Flags) -> Result<()> {
    match ext4::probe(&part.path)? {
        // One that was never mounted holds nothing, and may be half made.
        None => format(root, part)?,
        Some(found) if !found.mounted => format(root, part)?,
        Some(found) if !found.clean => check(root, &part.path, &part.label)?,
        Some(_) => {}
    }
    // The path is the one inside the root too, so that mountinfo shows the same there.
    mount::mount(&part.path, target, "ext4", flags, "").context(
        Fault::new(format!(
            "the file system on {} ({}) does not mount",
            part.name, part.label
        ))
        .expected("an ext4 file system of this node")
        .fix("look at the disk; wipe the partition to have it made anew"),
    )
}

/// This partition was made by the init, which wiped its begin: what is not ext4 there is nothing, or a half-made one.
fn format(root: &Root, part: &Partition) -> Result<()> {
    tracing::info!("formatting {} as {}", part.name, part.label);
    let device = part.path.to_string_lossy();
    // Nothing is discarded and no inode table zeroed here: the kernel does it later, in the background.
    let later = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
    let (features, extended) = match part.label == layout::LABEL_VAR {
        true => (
            "orphan_file",
            format!("{later},{}", ext4::SHORT_ORPHAN_FILE),
        ),
        false => (ext4::NO_ORPHAN_FILE, later.to_owned()),
    };
    let args = [
        "-q",
        "-F",
        "-m",
        "1",
        "-L",
        &part.label,
        "-O",
        features,
        "-E",
        &extended,
        &device,
    ];
    programs::succeed(&root.programs, "/usr/sbin/mkfs.ext4", &args)?;
    Ok(())
}

/// The journal is replayed and, where the superblock asks for it, all of the file system checked.
fn check(root: &Root, device: &Path, label: &str) -> Result<()> {
    let device = device.to_string_lossy();
    tracing::info!("checking {device} ({label}), which was not unmounted in order");
    let output = programs::run(&root.programs, "/usr/sbin/e2fsck", &["-p", &device])?;
    // e2fsck(8): 1 and 2 say that errors were corrected; a reboot (2) is for mounted file systems only.
    match output.status.code() {
        Some(0..=2) => Ok(()),
        code => Err(Fault::new(format!(
            "the file system on {device} ({label}) is damaged"
        ))
        .expected("a file system that e2fsck -p can put in order")
        .found(format!(
            "e2fsck ended with {}: {}",
            code.map_or("a signal".to_owned(), |code| code.to_string()),
            output.stdout.trim().replace('\n', " | ")
        ))
        .fix("boot a rescue system and repair it, or wipe the partition to have it made anew")
        .into()),
    }
}

fn grow(part: &Partition, target: &Path) -> Result<()> {
    let Some(found) = ext4::probe(&part.path)? else {
        return Ok(());
    };
    let blocks = part.size / found.block;
    if (blocks.saturating_sub(found.blocks)) * found.block < WORTH_GROWING {
        return Ok(());
    }
    tracing::info!(
        "growing {} from {} to {blocks} blocks",
        part.label,
        found.blocks
    );
    let folder = File::open(target).with_context(|| format!("opening {}", target.display()))?;
    ioctl::grow_ext4(&folder, blocks)
}

/// Copies what the root's factory has for `/var` and the node has not: on the first boot of each root.
fn seed_var(boot: &Boot, root: &Root) -> Result<()> {
    let marker = root.programs.sysroot.join("var").join(SEEDED);
    let hash = boot.cmdline.roothash.map(|hash| hash.to_string());
    let hash = hash.unwrap_or_default();
    if fs::read_to_string(&marker).is_ok_and(|text| text.trim() == hash) {
        return Ok(());
    }
    let factory = root
        .programs
        .sysroot
        .join(paths::FACTORY.trim_start_matches('/'));
    let count = seed::copy(&factory.join("var"), &root.programs.sysroot.join("var"))
        .context("seeding /var from the factory")?;
    for (_, target) in paths::VAR_LINKS {
        let below = target.trim_start_matches("../");
        mount::folder(&root.programs.sysroot.join(below), 0o755)?;
    }
    tracing::info!("seeded /var with {count} files");
    mount::folder(marker.parent().unwrap_or(&marker), 0o755)?;
    // Its sync brings the renames before it to the disk too.
    replace(&marker, &hash)
}

/// A first boot begins with the `/etc` of the root: what an attempt that was cut off has written over it goes. A layer that
/// was there before the first attempt stays.
fn fresh_etc(upper: &Path, work: &Path, var: &str, journal: &mut Journal) -> Result<()> {
    if journal.etc_is_ours(var) {
        for folder in [upper, work] {
            match fs::remove_dir_all(folder) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("removing {}", folder.display()));
                }
                _ => {}
            }
        }
        return Ok(());
    }
    match block::entries(upper).is_empty() {
        true => journal.note_etc(var),
        false => Ok(()),
    }
}

fn overlay_etc(root: &Root) -> Result<()> {
    let below = |path: &str| root.programs.sysroot.join(path.trim_start_matches('/'));
    let (lower, upper, work) = (
        below("/etc"),
        below(paths::ETC_UPPER),
        below(paths::ETC_WORK),
    );
    mount::folder(&upper, 0o755)?;
    mount::folder(&work, 0o700)?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    mount::mount("etc", &lower, "overlay", Flags::empty(), &options)
}

/// The id from `state`, or a new one; `/etc/machine-id` says the same, so that systemd sees no first boot.
fn machine_id(boot: &Boot, root: &Root, dir: &Path) -> Result<String> {
    let kept = dir.join(paths::STATE_MACHINE_ID);
    let id = match fs::read_to_string(&kept) {
        Ok(text) if is_machine_id(text.trim()) => text.trim().to_owned(),
        _ => {
            let random = boot.world.proc.join("sys/kernel/random/uuid");
            let id = fs::read_to_string(&random)
                .with_context(|| format!("reading {}", random.display()))?
                .trim()
                .replace('-', "");
            replace(&kept, &id)?;
            id
        }
    };
    let shown = root.programs.sysroot.join("etc/machine-id");
    if fs::read_to_string(&shown).map_or(true, |text| text.trim() != id) {
        replace(&shown, &id)?;
        fs::set_permissions(&shown, fs::Permissions::from_mode(0o444))?;
    }
    Ok(id)
}

fn is_machine_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Puts a line into a file.
fn replace(path: &Path, line: &str) -> Result<()> {
    atomic_file::write(path, format!("{line}\n").as_bytes(), 0o644)
        .with_context(|| format!("writing {}", path.display()))
}

impl State {
    /// Marks the node as provisioned: later boots apply no config. `fetched` is what was applied.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub(crate) fn provisioned(&self, boot: &Boot, fetched: &Fetched) -> Result<()> {
        let image = &boot.manifest.image;
        let sources = fetched.sources.clone();
        identity::write(&self.dir, &self.identity, image, fetched.hash(), sources)
    }

    /// The texts that the config was made of with which this node was provisioned, if its marker says so.
    pub(crate) fn sources(&self) -> Option<Sources> {
        identity::read(&self.dir).ok().flatten()?.sources
    }

    /// Keeps this boot's timeline beside those of the boots before, the last [`timeline::KEPT`] of them.
    ///
    /// # Errors
    /// If `state` cannot be written.
    pub(crate) fn keep_timeline(&self, lines: &str) -> Result<()> {
        let folder = self.dir.join(paths::STATE_TIMELINES);
        mount::folder(&folder, 0o755)?;
        let mut kept: Vec<u64> = block::entries(&folder)
            .iter()
            .filter_map(|name| name.strip_suffix(".jsonl")?.parse().ok())
            .collect();
        kept.sort_unstable();
        let next = kept.last().map_or(1, |last| last + 1);
        fs::write(folder.join(format!("{next:06}.jsonl")), lines)
            .context("writing the timeline")?;
        let surplus = (kept.len() + 1).saturating_sub(timeline::KEPT);
        for old in &kept[..surplus.min(kept.len())] {
            fs::remove_file(folder.join(format!("{old:06}.jsonl")))
                .context("removing an old timeline")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_timelines_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let state = State {
            dir: folder.path().to_owned(),
            machine_id: String::new(),
            identity: Identity::default(),
        };
        for boot in 1..=timeline::KEPT + 3 {
            state.keep_timeline(&format!("{boot}\n")).unwrap();
        }
        let mut names = block::entries(&folder.path().join(paths::STATE_TIMELINES));
        names.sort();
        assert_eq!(names.len(), timeline::KEPT);
        assert_eq!(names[0], "000004.jsonl");
        let last = folder
            .path()
            .join(paths::STATE_TIMELINES)
            .join("000019.jsonl");
        assert_eq!(fs::read_to_string(last).unwrap(), "19\n");
    }

    #[test]
    fn a_first_boot_begins_with_the_roots_etc_and_keeps_a_layer_that_it_did_not_make() {
        let folder = tempfile::tempdir().unwrap();
        let (upper, work) = (folder.path().join("upper"), folder.path().join("work"));
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let boot = |var: &str, write: bool| {
            let mut journal = Journal::open(&state).unwrap();
            fresh_etc(&upper, &work, var, &mut journal).unwrap();
            fs::create_dir_all(&upper).unwrap();
            if write {
                fs::write(upper.join("file"), "").unwrap();
            }
            upper.join("file").exists()
        };
        // An attempt writes and is cut off; the next one does not see it.
        assert!(boot("one", true));
        assert!(!boot("one", false));
        // What stands in the layer of a file system that was used before stays, at each attempt.
        fs::write(upper.join("file"), "").unwrap();
        assert!(boot("two", false));
        assert!(boot("two", false));
    }

    #[test]
    fn machine_ids_are_32_digits() {
        assert!(is_machine_id("0123456789abcdef0123456789abcdef"));
        assert!(!is_machine_id("uninitialized"));
        assert!(!is_machine_id(""));
    }
}
