//! The power is cut anywhere in the first boot of a root, or the boot fails, and whichever root boots next is complete.

use std::collections::BTreeMap;

use super::*;
use crate::var::cut::{CUT_AFTER, ON_SYNC};

mod full;

/// A tree's files, links and folders, by path: mode, and content or target.
type Found = BTreeMap<String, (u32, String)>;

/// An image of the node: fills its lists.
type Root = fn(&mut Image);

fn first(image: &mut Image) {
    version(image, "1");
    image.has("C", "/var/opt/file", 0o755, "1");
    image.has("C", "/var/opt/folder/deep/run", 0o755, "1");
    image.has("L", "/var/opt/link", 0, "/usr/lib/link");
    image.has("C", "/var/opt/changed", 0o755, "1");
    image.has("C", "/var/opt/deleted", 0o755, "1");
    image.has("C", "/var/lib/deleted", 0o644, "1");
}

fn second(image: &mut Image) {
    image.later();
    image.has("C", AGENT, 0o755, "2");
    image.has("L", LINK, 0, "2");
    image.has("C", "/var/opt/file/deep/run", 0o755, "2");
    image.has("L", "/var/opt/folder", 0, "/usr/lib/folder");
    image.has("d", "/var/opt/link", 0o750, "");
    image.has("C", "/var/opt/changed", 0o755, "2");
    image.has("C", "/var/opt/deleted", 0o755, "2");
    image.has("C", "/var/opt/new/run", 0o755, "2");
    image.has("C", "/var/lib/deleted", 0o644, "2");
    image.has("C", "/var/lib/new", 0o644, "2");
}

fn third(image: &mut Image) {
    image.later();
    image.has("C", AGENT, 0o700, "3");
    image.has("C", LINK, 0o755, "3");
    image.has("L", "/var/opt/file", 0, "/usr/lib/file");
    image.has("C", "/var/opt/folder", 0o755, "3");
    image.has("C", "/var/opt/link/run", 0o755, "3");
    image.has("C", "/var/opt/new/run", 0o755, "3");
}

/// What a power cut leaves of changes that no sync has waited for. The records are synced as they are written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    /// All of them.
    All,
    /// None.
    None,
    /// The names, without the content of files.
    Names,
}

const ROOTS: [(&str, Root); 3] = [("a", first), ("b", second), ("c", third)];

fn walk(folder: &Path, path: &str, found: &mut Found) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{path}/{}", entry.file_name().to_str().unwrap());
        let meta = entry.metadata().unwrap();
        let content = if meta.is_dir() {
            walk(&entry.path(), &path, found);
            String::new()
        } else if meta.is_symlink() {
            format!("-> {}", fs::read_link(entry.path()).unwrap().display())
        } else {
            fs::read_to_string(entry.path()).unwrap()
        };
        found.insert(path, (meta.mode(), content));
    }
}

fn tree(folder: &Path) -> Found {
    let mut found = Found::new();
    walk(folder, "", &mut found);
    found
}

/// Makes a folder's content that of a tree.
fn restore(folder: &Path, tree: &Found) {
    if folder.exists() {
        fs::remove_dir_all(folder).unwrap();
    }
    fs::create_dir_all(folder).unwrap();
    for (path, (mode, content)) in tree {
        let at = folder.join(path.trim_start_matches('/'));
        match (mode & 0o17_0000, content.strip_prefix("-> ")) {
            (0o12_0000, Some(target)) => symlink(target, &at).unwrap(),
            (0o4_0000, _) => fs::create_dir(&at).unwrap(),
            _ => fs::write(&at, content).unwrap(),
        }
        if mode & 0o17_0000 != 0o12_0000 {
            fs::set_permissions(&at, fs::Permissions::from_mode(mode & 0o7777)).unwrap();
        }
    }
}

/// A node that has booted the first image and was used, and what a power cut leaves of it.
struct Node {
    image: Image,
    /// What is on the disk.
    synced: std::rc::Rc<std::cell::RefCell<Found>>,
}

impl Node {
    fn of(tree: Option<&Found>) -> Self {
        let mut image = Image::new();
        // The boots write the records again and again.
        if Path::new("/dev/shm").is_dir() {
            image.folder = tempfile::tempdir_in("/dev/shm").unwrap();
            fs::create_dir_all(image.at("/usr/lib/slipway")).unwrap();
        }
        let var = image.at("/var");
        restore(&var, tree.unwrap_or(&Found::new()));
        let synced = std::rc::Rc::new(std::cell::RefCell::new(Found::new()));
        Self { image, synced }
    }

    /// After the first image's first boot, and a user's changes.
    fn used() -> Self {
        let mut node = Self::of(None);
        node.boots("a", first).unwrap();
        let image = &node.image;
        fs::write(image.at("/var/opt/changed"), "mine").unwrap();
        fs::write(image.at("/var/opt/agent/added"), "mine").unwrap();
        fs::remove_file(image.at("/var/opt/deleted")).unwrap();
        fs::remove_file(image.at("/var/lib/deleted")).unwrap();
        node
    }

    fn var(&self) -> Found {
        tree(&self.image.at("/var"))
    }

    fn boots(&mut self, hash: &str, root: Root) -> Result<Option<Done>> {
        root(&mut self.image);
        *self.synced.borrow_mut() = self.var();
        let (var, synced) = (self.image.at("/var"), std::rc::Rc::clone(&self.synced));
        ON_SYNC.set(Some(Box::new(move || *synced.borrow_mut() = tree(&var))));
        let done = first_boot(self.image.folder.path(), hash);
        ON_SYNC.set(None);
        done
    }

    /// Boots with the power cut after so many changes; whether it was.
    fn is_cut(&mut self, (hash, root): (&str, Root), cut: usize, left: Left) -> bool {
        CUT_AFTER.set(Some(cut));
        let done = self.boots(hash, root);
        CUT_AFTER.set(None);
        if done.is_ok() || left == Left::All {
            return done.is_err();
        }
        let (mut now, synced) = (self.var(), self.synced.borrow());
        let is_record = |path: &String| path.starts_with("/lib/slipway/");
        let known: Vec<_> = synced.values().collect();
        for (_, found) in now.iter_mut().filter(|(path, _)| !is_record(path)) {
            if found.0 & 0o17_0000 == 0o10_0000 && !known.contains(&&*found) {
                found.1.clear();
            }
        }
        if left == Left::None {
            now.retain(|path, _| is_record(path));
            let rest = synced.iter().filter(|(path, _)| !is_record(path));
            now.extend(rest.map(|(path, found)| (path.clone(), found.clone())));
        }
        restore(&self.image.at("/var"), &now);
        true
    }

    /// What is there, without temporary files of records.
    fn kept(&self) -> Found {
        let mut found = self.var();
        found.retain(|path, _| !path.ends_with(".next"));
        found
    }

    /// The programs that are there, and the record of what follows.
    fn programs(&self) -> (Found, String) {
        let mut found = self.var();
        // Folders that no image has any more may stay.
        let following = |path: &str| path.starts_with("/opt/") || path.starts_with("/usrlocal/");
        found.retain(|path, (mode, _)| following(path) && *mode & 0o17_0000 != 0o4_0000);
        let record = self.image.text(&format!("/{VAR_FOLLOWS}")).unwrap();
        let files = record.lines().filter(|line| !line.starts_with("folder "));
        (found, files.collect::<Vec<_>>().join("\n"))
    }
}

/// The programs of a used node after a boot of each root.
fn programs_of_each(used: &Found) -> [(Found, String); 3] {
    ROOTS.map(|(hash, root)| {
        let mut node = Node::of(Some(used));
        node.boots(hash, root).unwrap();
        node.programs()
    })
}

#[test]
fn whichever_root_boots_after_a_power_cut_is_complete() {
    let used = Node::used().var();
    let expected = programs_of_each(&used);
    assert_ne!(expected[0], expected[1]);
    for left in [Left::All, Left::None, Left::Names] {
        for (next, (hash, root)) in ROOTS.into_iter().enumerate() {
            for cut in 0.. {
                // Some boots are cut off twice, each at another change.
                let twice = cut % 3 == 0;
                let about =
                    format!("cut after {cut} changes, left: {left:?}, twice: {twice}, {hash}");
                let mut node = Node::of(Some(&used));
                let was_cut = node.is_cut(ROOTS[1], cut, left);
                if twice {
                    node.is_cut((hash, root), cut / 2 + cut % 5, left);
                }
                node.boots(hash, root).unwrap();
                assert_eq!(node.programs(), expected[next], "{about}");
                node.boots("b", second).unwrap();
                assert_eq!(
                    node.programs(),
                    expected[1],
                    "{about}, and the second again"
                );
                let image = &node.image;
                assert_eq!(image.text("/var/lib/new").as_deref(), Some("2"), "{about}");
                assert_eq!(image.text("/var/lib/deleted"), None, "{about}");
                if !was_cut {
                    assert!(cut > 30, "{about}");
                    break;
                }
            }
        }
    }
}

#[test]
fn what_fails_leaves_no_temporary_entries_and_the_next_root_is_complete() {
    let used = Node::used().var();
    let mut node = Node::of(Some(&used));
    let expected = node.programs();
    let broken: Root = |image| {
        second(image);
        image.has("C", "/var/srv/last", 0o644, "");
        // No folder is copied as a file is.
        let kept = image.at(&format!("{FACTORY}/var/srv/last"));
        fs::remove_file(&kept).unwrap();
        fs::create_dir(&kept).unwrap();
    };
    let error = node.boots("b", broken).unwrap_err();
    assert!(format!("{error:#}").contains("/var/srv/last"), "{error:#}");
    let left = node.var().into_keys();
    let left: Vec<String> = left.filter(|path| path.ends_with(".slipway")).collect();
    assert_eq!(left, [""; 0]);
    node.boots("a", first).unwrap();
    assert_eq!(node.programs(), expected);
}

#[test]
fn the_marker_names_no_root_while_another_one_is_seeded() {
    let used = Node::used().var();
    let marker = format!("/{VAR_SEEDED}");
    // The two records are written first, beside the ones that are there.
    let before = 3;
    for cut in 0.. {
        let mut node = Node::of(Some(&used));
        let was_cut = node.is_cut(ROOTS[1], cut, Left::All);
        let found = node.image.text(&marker);
        let expected = match was_cut {
            false => Some("b\n"),
            true if cut < before => Some("a\n"),
            true => None,
        };
        assert_eq!(found.as_deref(), expected, "cut after {cut} changes");
        if cut < before {
            assert_eq!(node.kept(), used, "cut after {cut} changes");
        }
        if !was_cut {
            break;
        }
    }
}
