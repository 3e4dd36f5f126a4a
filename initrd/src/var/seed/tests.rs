//! What a node has below `/var` after boots of several images.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use image::paths::{FACTORY, VAR_BROUGHT, VAR_FOLLOWS};

use super::*;

mod cuts;
mod fixed;
mod kinds;

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
        let done = bring(root, &lists, &mut brought, &mut follows, |_, _| Ok(())).unwrap();
        fs::create_dir_all(root.join(VAR_BROUGHT).parent().unwrap()).unwrap();
        brought.write(root).unwrap();
        follows.write(root).unwrap();
        done.made
    }

    /// The first boot of the root with this hash, as the init does it.
    fn seeds(&self, hash: &str) -> Done {
        let done = first_boot(self.folder.path(), hash);
        done.unwrap().unwrap()
    }

    /// Another root with nothing in its lists yet, of the same node.
    fn later(&mut self) {
        self.text.clear();
        let factory = self.at(FACTORY);
        if factory.exists() {
            fs::remove_dir_all(factory).unwrap();
        }
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
    let done = bring(root, &lists, &mut brought, &mut follows, |_, _| Ok(())).unwrap();
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
