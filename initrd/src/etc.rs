//! Etc: the overlay over the root's read-only `/etc`, and the machine id in it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use apply::journal::files::FileJournal;
use image::fault::Fault;
use image::paths;
use linux::mount::{self, Flags};
use linux::{atomic_file, block};

use crate::context::Boot;
use crate::root::Root;
use crate::state::State;
use crate::var::Var;

/// Mounts the writable layer over `/etc`; returns the machine id, 32 hexadecimal digits. First it empties the layer of
/// an interrupted first boot.
pub(crate) fn mount(boot: &Boot, root: &Root, state: &State, var: &Var) -> Result<String> {
    let below = |path: &str| root.programs.sysroot.join(path.trim_start_matches('/'));
    let (upper, work) = (below(paths::ETC_UPPER), below(paths::ETC_WORK));
    if let Some(uuid) = var.uuid.as_ref().filter(|_| state.first_boot) {
        let journal = FileJournal::open(state.dir()?);
        let mut journal = journal.map_err(|error| state.with_reset(error))?;
        discard_cut_off(&upper, &work, uuid, &mut journal)?;
    }
    overlay(&below("/etc"), &upper, &work)?;
    machine_id(boot, root, state)
}

/// A first boot begins with the `/etc` of the root: the files that an interrupted attempt wrote over it are removed. A
/// layer from before the first attempt stays.
fn discard_cut_off(upper: &Path, work: &Path, var: &str, journal: &mut FileJournal) -> Result<()> {
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

fn overlay(lower: &Path, upper: &Path, work: &Path) -> Result<()> {
    mount::folder(upper, 0o755)?;
    mount::folder(work, 0o700)?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    mount::mount("etc", lower, "overlay", Flags::empty(), &options)
}

/// The id from `state`, or a new one; `/etc/machine-id` says the same, so that systemd sees no first boot.
fn machine_id(boot: &Boot, root: &Root, state: &State) -> Result<String> {
    let kept = state.dir()?.join(paths::STATE_MACHINE_ID);
    let shown = root.programs.sysroot.join("etc/machine-id");
    let id = match known_id(&kept, &shown, state.first_boot) {
        Ok(Some(id)) => id,
        Ok(None) => boot.world.random_guid()?.to_string().replace('-', ""),
        Err(error) => return Err(state.with_reset(error)),
    };
    for (path, mode) in [(&kept, 0o644), (&shown, 0o444)] {
        if read_id(path)?.as_ref() != Some(&id) {
            atomic_file::write_line(path, &id)?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(id)
}

/// The id that this node has; none on a first boot without one.
fn known_id(kept: &Path, shown: &Path, first_boot: bool) -> Result<Option<String>> {
    if let Some(id) = read_id(kept)? {
        return Ok(Some(id));
    }
    if first_boot {
        return Ok(None);
    }
    // A provisioned node has the id of its first boot, which others know it by: never another one. `/etc` has the same.
    let name = paths::STATE_MACHINE_ID;
    if let Some(id) = read_id(shown)? {
        tracing::warn!("{name} in the partition state is damaged; restored from /etc/machine-id");
        return Ok(Some(id));
    }
    Err(Fault::new(format!(
        "the machine id, {name} in the partition state, is damaged"
    ))
    .expected("32 hexadecimal digits there or in /etc/machine-id")
    .found("them in neither")
    .into())
}

/// The machine id in a file; none if there is no file, or something else in it.
fn read_id(path: &Path) -> Result<Option<String>> {
    let text = atomic_file::read(path).with_context(|| format!("reading {}", path.display()))?;
    let text = String::from_utf8(text.unwrap_or_default()).unwrap_or_default();
    let id = text.trim();
    Ok(is_machine_id(id).then(|| id.to_owned()))
}

fn is_machine_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_boot_begins_with_the_roots_etc_and_keeps_a_layer_that_it_did_not_make() {
        let folder = tempfile::tempdir().unwrap();
        let (upper, work) = (folder.path().join("upper"), folder.path().join("work"));
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let boot = |var: &str, write: bool| {
            let mut journal = FileJournal::open(&state).unwrap();
            discard_cut_off(&upper, &work, var, &mut journal).unwrap();
            fs::create_dir_all(&upper).unwrap();
            if write {
                fs::write(upper.join("file"), "").unwrap();
            }
            upper.join("file").exists()
        };
        // An attempt writes and is interrupted; the next one does not see its files.
        assert!(boot("one", true));
        assert!(!boot("one", false));
        // The files of a layer from before the first attempt stay, at each attempt.
        fs::write(upper.join("file"), "").unwrap();
        assert!(boot("two", false));
        assert!(boot("two", false));
    }

    #[test]
    fn a_provisioned_node_never_gets_another_machine_id() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, shown) = (folder.path().join("kept"), folder.path().join("shown"));
        let (one, two) = ("1".repeat(32), "2".repeat(32));
        let known = |first_boot| known_id(&kept, &shown, first_boot);
        assert_eq!(known(true).unwrap(), None);
        fs::write(&shown, format!("{two}\n")).unwrap();
        assert_eq!(known(true).unwrap(), None, "it may be the image's");
        fs::write(&kept, format!("{one}\n")).unwrap();
        assert_eq!(known(false).unwrap(), Some(one));
        for damaged in ["", "111", "uninitialized\n"] {
            fs::write(&kept, damaged).unwrap();
            assert_eq!(known(true).unwrap(), None);
            assert_eq!(known(false).unwrap().as_ref(), Some(&two));
        }
        fs::write(&shown, "uninitialized\n").unwrap();
        let error = known(false).unwrap_err();
        assert!(
            error
                .downcast_ref::<Fault>()
                .unwrap()
                .what
                .contains("machine-id")
        );
    }

    #[test]
    fn machine_ids_are_32_digits() {
        assert!(is_machine_id("0123456789abcdef0123456789abcdef"));
        assert!(!is_machine_id("uninitialized"));
        assert!(!is_machine_id(""));
    }
}
