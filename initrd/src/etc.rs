//! Etc: the overlay over the root's read-only `/etc`, and the machine id in it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use apply::journal::files::FileJournal;
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
        let mut journal = FileJournal::open(state.dir()?)?;
        discard_cut_off(&upper, &work, uuid, &mut journal)?;
    }
    overlay(&below("/etc"), &upper, &work)?;
    machine_id(boot, root, state.dir()?)
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

/// The id from `state`, or a new one; `/etc/machine-id` gets the same id, so that systemd sees no first boot.
fn machine_id(boot: &Boot, root: &Root, dir: &Path) -> Result<String> {
    let kept = dir.join(paths::STATE_MACHINE_ID);
    let id = match fs::read_to_string(&kept) {
        Ok(text) if is_machine_id(text.trim()) => text.trim().to_owned(),
        _ => {
            let id = boot.world.random_guid()?.to_string().replace('-', "");
            atomic_file::write_line(&kept, &id)?;
            id
        }
    };
    let shown = root.programs.sysroot.join("etc/machine-id");
    if fs::read_to_string(&shown).map_or(true, |text| text.trim() != id) {
        atomic_file::write_line(&shown, &id)?;
        fs::set_permissions(&shown, fs::Permissions::from_mode(0o444))?;
    }
    Ok(id)
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
    fn machine_ids_are_32_digits() {
        assert!(is_machine_id("0123456789abcdef0123456789abcdef"));
        assert!(!is_machine_id("uninitialized"));
        assert!(!is_machine_id(""));
    }
}
