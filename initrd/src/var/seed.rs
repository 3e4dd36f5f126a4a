//! Brings what an image has for `/var` to the node, by its lists: each path once, with owner, mode and a file's time.
//!
//! A path that is there stays as it is, unless it follows the image ([`super::follow`]). One that was brought before and is not there any more was deleted on the node, and stays
//! away, also from a later image. Each entry is made under a temporary name and renamed when all of it is on the disk: after a power
//! cut a half-made entry does not count as there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use image::paths::{FACTORY, VAR_BROUGHT};
use image::var_list::{Content, LISTS, Rights, parse};
use linux::atomic_file;

use super::follow::{Follows, Lists, Look};

/// The folder that all paths of the lists are in.
const VAR: &str = "/var";
/// Of a folder that no list has: a package's own line of tmpfiles.d(5) has its mode and owner.
const FOLDER: Rights = Rights {
    mode: 0o755,
    uid: 0,
    gid: 0,
};

/// Reads the lists of a root. An image without one has nothing for `/var`.
pub(super) fn lists(sysroot: &Path) -> Result<Lists> {
    let mut found = Lists::new();
    for list in LISTS {
        let path = sysroot.join(list.trim_start_matches('/'));
        let about = || format!("reading {list}");
        let text = atomic_file::read(&path).with_context(about)?;
        let text = String::from_utf8(text.unwrap_or_default()).with_context(about)?;
        for line in text.lines() {
            let line = parse(line).map_err(|error| anyhow!("{error}"));
            found.extend(line.with_context(about)?);
        }
    }
    Ok(found)
}

/// The paths that were brought to this node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Brought(BTreeSet<String>);

impl Brought {
    /// Reads the record; it is empty on a node that none was written on.
    pub(super) fn read(sysroot: &Path) -> Result<Self> {
        let path = sysroot.join(VAR_BROUGHT);
        let text =
            atomic_file::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        Ok(Self(text.lines().map(str::to_owned).collect()))
    }

    /// Writes the record, whose folder is there.
    pub(super) fn write(&self, sysroot: &Path) -> Result<()> {
        let path = sysroot.join(VAR_BROUGHT);
        let text: String = self.0.iter().map(|path| format!("{path}\n")).collect();
        atomic_file::write(&path, text.as_bytes(), 0o644)
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// What the first boot of a root did below `/var`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// How many entries were made or replaced.
    pub(super) made: usize,
    /// What the root has no more and nobody has changed: it is to be removed once the records are written. Cut off in between, it
    /// stays, and counts as the node's own.
    pub(super) gone: Vec<PathBuf>,
}

/// Makes the entries of `lists` that were not brought before and that are not there, and adds all to `brought` that are there then. What
/// is there is changed only where it follows the image.
pub(super) fn bring(
    sysroot: &Path,
    lists: &Lists,
    brought: &mut Brought,
    follows: &mut Follows,
) -> Result<Done> {
    let mut bringing = Bringing {
        sysroot,
        lists,
        count: 0,
        folders: BTreeMap::from([(VAR.to_owned(), Some((sysroot.join("var"), true)))]),
        waiting: Vec::new(),
    };
    let (mut there, mut looked_at) = (Vec::new(), Vec::new());
    for (path, content) in lists {
        let about = || format!("bringing {path}");
        if !brought.0.contains(path) {
            if !bringing.one(path).with_context(about)? {
                continue;
            }
            there.push(path.clone());
        } else {
            match follows.look(sysroot, path, content).with_context(about)? {
                Look::Stays => continue,
                Look::Same(_) => {}
                Look::Behind => bringing.replace(path).with_context(about)?,
            }
        }
        looked_at.push((path, content));
    }
    if !bringing.waiting.is_empty() {
        sync(&sysroot.join("var"))?;
    }
    for (beside, place) in &bringing.waiting {
        fs::rename(beside, place).with_context(|| format!("renaming to {}", place.display()))?;
    }
    // What is as in the image by now, whoever put it there: a boot that was cut off, too.
    for (path, content) in looked_at {
        if let Look::Same(hash) = follows.look(sysroot, path, content)? {
            follows.note(path, hash);
        }
    }
    brought.0.extend(there);
    let gone = follows.gone(sysroot, lists)?;
    brought.0.retain(|path| !gone.contains_key(path));
    Ok(Done {
        made: bringing.count,
        gone: gone.into_values().collect(),
    })
}

/// Waits until the file system of a folder is on its disk.
pub(super) fn sync(folder: &Path) -> Result<()> {
    let open = File::open(folder).with_context(|| format!("opening {}", folder.display()))?;
    nix::unistd::syncfs(open).context("waiting for the disk")
}

#[derive(Debug)]
struct Bringing<'a> {
    sysroot: &'a Path,
    lists: &'a Lists,
    count: usize,
    /// Where the content of a folder goes, and whether others see it there; none where something else is in the folder's place.
    folders: BTreeMap<String, Option<(PathBuf, bool)>>,
    /// Complete entries that wait for their rename.
    waiting: Vec<(PathBuf, PathBuf)>,
}

impl Bringing<'_> {
    /// Makes an entry if nothing is at its path; whether something is there then.
    fn one(&mut self, path: &str) -> Result<bool> {
        let Some((folder, seen)) = self.parent(path)? else {
            return Ok(false);
        };
        let place = folder.join(name(path));
        if place.symlink_metadata().is_ok() || self.folders.contains_key(path) {
            return Ok(true);
        }
        match &self.lists[path] {
            Content::Folder(_) => self.folder(path).map(|made| made.is_some()),
            content => self.make(path, content, &place, seen),
        }
    }

    /// Makes an entry anew that is there.
    fn replace(&mut self, path: &str) -> Result<()> {
        if let Some((folder, seen)) = self.parent(path)? {
            self.make(path, &self.lists[path], &folder.join(name(path)), seen)?;
        }
        Ok(())
    }

    /// Makes a file or a link; whether the image has it.
    fn make(&mut self, path: &str, content: &Content, place: &Path, seen: bool) -> Result<bool> {
        match content {
            Content::Folder(_) => Ok(false),
            Content::Link(target) => {
                let made = self.target(place, seen)?;
                symlink(target, made).context("making the link")?;
                Ok(true)
            }
            Content::File(rights) => {
                let from = self
                    .sysroot
                    .join(format!("{FACTORY}{path}").trim_start_matches('/'));
                let Ok(time) = from.metadata().and_then(|meta| meta.modified()) else {
                    tracing::warn!("the image has no {}, which its list names", from.display());
                    return Ok(false);
                };
                let made = self.target(place, seen)?;
                fs::copy(&from, &made)?;
                settle(&made, *rights)?;
                File::open(&made)?.set_times(FileTimes::new().set_modified(time))?;
                Ok(true)
            }
        }
    }

    /// The folder that an entry is made in.
    fn parent(&mut self, path: &str) -> Result<Option<(PathBuf, bool)>> {
        let (parent, _) = path.rsplit_once('/').context("a path below /var")?;
        self.folder(parent)
    }

    /// Where the content of a folder goes. The folder is made if nothing is there: it is listed or above what is.
    fn folder(&mut self, path: &str) -> Result<Option<(PathBuf, bool)>> {
        if let Some(known) = self.folders.get(path) {
            return Ok(known.clone());
        }
        let found = match self.parent(path)? {
            Some((parent, seen)) => self.folder_in(&parent.join(name(path)), path, seen)?,
            None => None,
        };
        self.folders.insert(path.to_owned(), found.clone());
        Ok(found)
    }

    fn folder_in(
        &mut self,
        place: &Path,
        path: &str,
        seen: bool,
    ) -> Result<Option<(PathBuf, bool)>> {
        match place.symlink_metadata() {
            Ok(meta) if meta.is_dir() => return Ok(Some((place.to_owned(), seen))),
            // A link leads elsewhere here than on the running node.
            Ok(_) => return Ok(None),
            Err(_) => {}
        }
        let rights = match self.lists.get(path) {
            Some(Content::Folder(rights)) => *rights,
            _ => FOLDER,
        };
        let made = self.target(place, seen)?;
        fs::create_dir(&made).context("making the folder")?;
        settle(&made, rights)?;
        Ok(Some((made, false)))
    }

    /// The path under which an entry is made: a temporary one where others see its place.
    fn target(&mut self, place: &Path, seen: bool) -> Result<PathBuf> {
        self.count += 1;
        if !seen {
            return Ok(place.to_owned());
        }
        let beside = beside(place)?;
        self.waiting.push((beside.clone(), place.to_owned()));
        Ok(beside)
    }
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// A path beside `to` that does not exist.
fn beside(to: &Path) -> Result<PathBuf> {
    let name = to.file_name().context("an entry has a name")?;
    let path = to.with_file_name(format!(".{}.slipway", name.to_string_lossy()));
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path)?,
        Ok(_) => fs::remove_file(&path)?,
        Err(_) => {}
    }
    Ok(path)
}

/// The owner before the mode, since a change of owner clears the set-user-id bit.
fn settle(path: &Path, rights: Rights) -> Result<()> {
    let Rights { mode, uid, gid } = rights;
    lchown(path, Some(uid), Some(gid)).context("setting the owner")?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).context("setting the mode")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use image::paths::VAR_FOLLOWS;

    use super::*;

    fn records(root: &Path) -> (Brought, Follows) {
        (Brought::read(root).unwrap(), Follows::read(root).unwrap())
    }

    /// A root and its lists, owned by whoever runs the test.
    struct Image {
        folder: tempfile::TempDir,
        text: String,
    }

    impl Image {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("var")).unwrap();
            fs::create_dir_all(folder.path().join("usr/lib/slipway")).unwrap();
            Self {
                folder,
                text: String::new(),
            }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.folder.path().join(path.trim_start_matches('/'))
        }

        /// Adds a line, and a file's content.
        fn has(&mut self, kind: &str, path: &str, mode: u32, content: &str) {
            let meta = self.folder.path().metadata().unwrap();
            let (uid, gid) = (meta.uid(), meta.gid());
            self.text += &match kind {
                "L" => format!("L {path} - - - - {content}\n"),
                "d" => format!("d {path} {mode:04o} {uid} {gid} -\n"),
                _ => format!("C {path} {mode:04o} {uid} {gid} - {FACTORY}{path}\n"),
            };
            if kind == "C" {
                let kept = self.at(&format!("{FACTORY}{path}"));
                fs::create_dir_all(kept.parent().unwrap()).unwrap();
                fs::write(kept, content).unwrap();
            }
            fs::write(self.at(LISTS[1]), &self.text).unwrap();
        }

        /// The first boot of this root.
        fn boots(&self) -> usize {
            let root = self.folder.path();
            let (mut brought, mut follows) = records(root);
            let lists = lists(root).unwrap();
            let done = bring(root, &lists, &mut brought, &mut follows).unwrap();
            fs::create_dir_all(root.join(VAR_BROUGHT).parent().unwrap()).unwrap();
            brought.write(root).unwrap();
            follows.write(root).unwrap();
            for place in done.gone {
                fs::remove_file(place).unwrap();
            }
            done.made
        }

        /// Another root with nothing in its lists yet, of the same node.
        fn later(&mut self) {
            self.text.clear();
            fs::write(self.at(LISTS[1]), "").unwrap();
        }

        fn mode(&self, path: &str) -> u32 {
            fs::metadata(self.at(path)).unwrap().mode() & 0o7777
        }

        fn text(&self, path: &str) -> Option<String> {
            fs::read_to_string(self.at(path)).ok()
        }
    }

    #[test]
    fn what_is_there_stays_and_what_is_missing_comes() {
        let mut image = Image::new();
        fs::create_dir_all(image.at("/var/lib/there")).unwrap();
        fs::write(image.at("/var/lib/there/kept"), "mine").unwrap();
        let mode = image.mode("/var/lib/there");
        image.has("d", "/var/lib/a", 0o1730, "");
        image.has("C", "/var/lib/a/new", 0o600, "new");
        image.has("d", "/var/lib/a/empty", 0o700, "");
        image.has("C", "/var/other/deep/file", 0o644, "deep");
        image.has("d", "/var/lib/there", 0o700, "");
        image.has("C", "/var/lib/there/kept", 0o600, "image");
        image.has("L", "/var/run", 0, "/run");
        // Two folders above the deep file are in no list.
        assert_eq!(image.boots(), 7);
        assert_eq!(image.text("/var/lib/there/kept").as_deref(), Some("mine"));
        assert_eq!(image.mode("/var/lib/there"), mode);
        assert_eq!(image.text("/var/lib/a/new").as_deref(), Some("new"));
        assert_eq!(
            [
                "/var/lib/a",
                "/var/lib/a/new",
                "/var/lib/a/empty",
                "/var/other"
            ]
            .map(|path| image.mode(path)),
            [0o1730, 0o600, 0o700, 0o755]
        );
        let link = fs::read_link(image.at("/var/run")).unwrap();
        assert_eq!(link, Path::new("/run"));
        assert_eq!(image.boots(), 0);
        // An image without lists.
        assert_eq!(Image::new().boots(), 0);
    }

    #[test]
    fn what_was_deleted_or_changed_on_the_node_stays_so_and_a_later_images_own_comes() {
        let mut image = Image::new();
        image.has("d", "/var/lib/app", 0o755, "");
        image.has("C", "/var/lib/app/deleted", 0o644, "image");
        image.has("C", "/var/lib/app/changed", 0o644, "image");
        image.has("d", "/var/lib/gone", 0o750, "");
        image.boots();
        fs::remove_file(image.at("/var/lib/app/deleted")).unwrap();
        fs::write(image.at("/var/lib/app/changed"), "mine").unwrap();
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(image.at("/var/lib/app"), private).unwrap();
        fs::remove_dir(image.at("/var/lib/gone")).unwrap();
        // A later root has them too, and files that are new to the node, also in a folder that was deleted.
        image.has("C", "/var/lib/app/later", 0o644, "later");
        assert_eq!(image.boots(), 1);
        assert_eq!(image.text("/var/lib/app/deleted"), None);
        assert_eq!(image.text("/var/lib/app/changed").as_deref(), Some("mine"));
        assert_eq!(image.text("/var/lib/app/later").as_deref(), Some("later"));
        assert_eq!(image.mode("/var/lib/app"), 0o700);
        assert!(!image.at("/var/lib/gone").exists());
        image.has("C", "/var/lib/gone/later", 0o644, "later");
        assert_eq!(image.boots(), 2);
        assert_eq!(image.mode("/var/lib/gone"), 0o750);
        // An earlier slot, and the later one again.
        fs::remove_file(image.at("/var/lib/gone/later")).unwrap();
        assert_eq!(image.boots(), 0);
    }

    #[test]
    fn nothing_is_made_behind_a_link() {
        let mut image = Image::new();
        image.has("C", "/var/lib/app/file", 0o644, "image");
        fs::create_dir_all(image.at("/elsewhere")).unwrap();
        fs::create_dir_all(image.at("/var/lib")).unwrap();
        symlink("../../elsewhere", image.at("/var/lib/app")).unwrap();
        assert_eq!(image.boots(), 0);
        assert!(!image.at("/elsewhere/file").exists());
    }

    #[test]
    fn what_was_cut_off_beside_its_place_is_made_anew() {
        let mut image = Image::new();
        image.has("C", "/var/lib/file", 0o644, "whole");
        image.has("C", "/var/log", 0o644, "whole");
        // A temporary folder with an extra file, and a file that was not on the disk yet.
        fs::create_dir_all(image.at("/var/.lib.slipway")).unwrap();
        fs::write(image.at("/var/.lib.slipway/other"), "").unwrap();
        fs::write(image.at("/var/.log.slipway"), "").unwrap();
        let root = image.folder.path();
        let (mut brought, mut follows) = records(root);
        let lists = lists(root).unwrap();
        let done = bring(root, &lists, &mut brought, &mut follows).unwrap();
        assert_eq!(done.made, 3);
        assert_eq!(image.text("/var/lib/file").as_deref(), Some("whole"));
        assert_eq!(image.text("/var/log").as_deref(), Some("whole"));
        assert_eq!(fs::read_dir(image.at("/var")).unwrap().count(), 2);
        assert_eq!(fs::read_dir(image.at("/var/lib")).unwrap().count(), 1);
    }

    const AGENT: &str = "/var/opt/agent/run";
    const TOOL: &str = "/var/usrlocal/bin/tool";
    const LINK: &str = "/var/opt/agent/current";

    /// An image with this version of each.
    fn version(image: &mut Image, version: &str) {
        image.later();
        image.has("d", "/var/opt/agent", 0o755, "");
        image.has("C", AGENT, 0o755, version);
        image.has("L", LINK, 0, version);
        image.has("C", TOOL, 0o755, version);
        // Data, beside them.
        image.has("C", "/var/lib/app", 0o644, version);
    }

    fn link(image: &Image) -> PathBuf {
        fs::read_link(image.at(LINK)).unwrap()
    }

    #[test]
    fn programs_follow_the_image_until_they_are_changed_on_the_node() {
        let mut image = Image::new();
        version(&mut image, "1");
        // Four folders are in no list.
        assert_eq!(image.boots(), 9);
        version(&mut image, "2");
        assert_eq!(image.boots(), 3);
        assert_eq!(image.text(AGENT).as_deref(), Some("2"));
        assert_eq!(image.text(TOOL).as_deref(), Some("2"));
        assert_eq!(link(&image), Path::new("2"));
        assert_eq!(image.text("/var/lib/app").as_deref(), Some("1"));
        // The earlier root again, and the same once more.
        version(&mut image, "1");
        assert_eq!((image.boots(), image.boots()), (3, 0));
        assert_eq!(image.text(AGENT).as_deref(), Some("1"));

        // Content, mode, deleted: all of them are the node's own then, for good.
        fs::write(image.at(AGENT), "mine").unwrap();
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(image.at(TOOL), mode).unwrap();
        fs::remove_file(image.at(LINK)).unwrap();
        version(&mut image, "3");
        assert_eq!(image.boots(), 0);
        assert_eq!(image.text(AGENT).as_deref(), Some("mine"));
        assert_eq!(image.text(TOOL).as_deref(), Some("1"));
        assert!(image.at(LINK).symlink_metadata().is_err());
        image.later();
        assert_eq!(image.boots(), 0);
        assert!(image.at(AGENT).exists() && image.at(TOOL).exists());
    }

    #[test]
    fn a_mode_of_a_later_root_comes_and_a_folder_of_the_nodes_stays() {
        let mut image = Image::new();
        image.has("C", AGENT, 0o755, "1");
        image.has("C", TOOL, 0o755, "1");
        image.boots();
        fs::remove_file(image.at(TOOL)).unwrap();
        fs::create_dir(image.at(TOOL)).unwrap();
        image.later();
        image.has("C", AGENT, 0o700, "1");
        image.has("C", TOOL, 0o700, "1");
        assert_eq!(image.boots(), 1);
        assert_eq!(image.mode(AGENT), 0o700);
        assert!(image.at(TOOL).is_dir());
    }

    #[test]
    fn what_a_later_root_has_no_more_goes_and_comes_again_with_the_earlier_one() {
        let mut image = Image::new();
        version(&mut image, "1");
        image.boots();
        image.later();
        assert_eq!(image.boots(), 0);
        for path in [AGENT, TOOL, LINK] {
            assert!(image.at(path).symlink_metadata().is_err(), "{path}");
        }
        assert!(image.at("/var/lib/app").exists() && image.at("/var/opt/agent").exists());
        version(&mut image, "1");
        assert_eq!(image.boots(), 3);
        assert_eq!(image.text(AGENT).as_deref(), Some("1"));
    }

    #[test]
    fn what_was_cut_off_before_its_record_follows_and_so_does_what_an_earlier_version_brought() {
        let mut image = Image::new();
        version(&mut image, "1");
        image.boots();
        let record = image.at(VAR_FOLLOWS);
        let first = fs::read_to_string(&record).unwrap();
        version(&mut image, "2");
        image.boots();
        // Replaced, and the record is the one of before.
        fs::write(&record, first).unwrap();
        assert_eq!(image.boots(), 0);
        version(&mut image, "3");
        assert_eq!(image.boots(), 3);
        // No record was written yet, and the root has what is there.
        fs::remove_file(&record).unwrap();
        assert_eq!(image.boots(), 0);
        version(&mut image, "4");
        assert_eq!(image.boots(), 3);
        // It has something else: nobody knows whose it is.
        fs::remove_file(&record).unwrap();
        version(&mut image, "5");
        assert_eq!(image.boots(), 0);
        assert_eq!(image.text(AGENT).as_deref(), Some("4"));
    }

    #[test]
    fn nothing_is_replaced_or_removed_behind_a_link() {
        let mut image = Image::new();
        version(&mut image, "1");
        image.boots();
        fs::rename(image.at("/var/opt/agent"), image.at("/elsewhere")).unwrap();
        symlink("../../elsewhere", image.at("/var/opt/agent")).unwrap();
        version(&mut image, "2");
        // The tool.
        assert_eq!(image.boots(), 1);
        image.later();
        image.boots();
        assert_eq!(image.text("/elsewhere/run").as_deref(), Some("1"));
    }
}
