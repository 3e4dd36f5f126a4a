//! A program's path is a file in one image, a link in the next and a folder in a third.

use super::*;

const PLACE: &str = "/var/opt/agent";
const INSIDE: &str = "/var/opt/agent/bin/run";
const ADDED: &str = "/var/opt/agent/bin/added";

/// What an image has at [`PLACE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Link,
    /// With [`INSIDE`].
    Folder,
    /// The same, and the image's list has the folder too.
    Listed,
    /// Alone.
    Empty,
}

use Kind::{Empty, File, Folder, Link, Listed};

const ALL: [Kind; 5] = [File, Link, Folder, Listed, Empty];

impl Kind {
    fn is_folder(self) -> bool {
        !matches!(self, File | Link)
    }

    /// Lets the image be another one, with this at the path.
    fn put(self, image: &mut Image) {
        image.later();
        // Something that all of them have.
        image.has("C", TOOL, 0o755, "1");
        match self {
            File => image.has("C", PLACE, 0o755, "file"),
            Link => image.has("L", PLACE, 0, "/usr/lib/agent"),
            Folder => image.has("C", INSIDE, 0o755, "inside"),
            Listed => {
                image.has("d", PLACE, 0o750, "");
                image.has("C", INSIDE, 0o755, "inside");
            }
            Empty => image.has("d", PLACE, 0o750, ""),
        }
    }

    #[track_caller]
    fn is_there(self, image: &Image, about: &str) {
        let meta = image.at(PLACE).symlink_metadata().unwrap();
        match self {
            File => assert_eq!(image.text(PLACE).as_deref(), Some("file"), "{about}"),
            Link => {
                let target = fs::read_link(image.at(PLACE)).unwrap();
                assert_eq!(target, Path::new("/usr/lib/agent"), "{about}");
            }
            Folder | Listed => assert_eq!(image.text(INSIDE).as_deref(), Some("inside"), "{about}"),
            Empty => assert!(meta.is_dir() && image.text(INSIDE).is_none(), "{about}"),
        }
        if matches!(self, Listed | Empty) {
            assert!(meta.is_dir(), "{about}");
        }
        assert_eq!(image.text(TOOL).as_deref(), Some("1"), "{about}");
    }
}

/// Each change of kind, with a node that has booted the first of both.
fn each_change(test: impl Fn(&mut Image, Kind, Kind, &str)) {
    for from in ALL {
        for to in ALL {
            if from == to || from.is_folder() && to.is_folder() {
                continue;
            }
            let mut image = Image::new();
            from.put(&mut image);
            image.seeds("a");
            test(&mut image, from, to, &format!("from {from:?} to {to:?}"));
        }
    }
}

#[test]
fn a_program_becomes_another_kind_of_entry_and_again_the_first() {
    each_change(|image, from, to, about| {
        from.is_there(image, about);
        to.put(image);
        assert_eq!(image.seeds("b").own, [""; 0], "{about}");
        to.is_there(image, about);
        from.put(image);
        assert_eq!(image.seeds("a").own, [""; 0], "{about}");
        from.is_there(image, about);
        // Without it at all, and from there to either.
        image.later();
        image.has("C", TOOL, 0o755, "1");
        image.seeds("c");
        for kind in [to, from] {
            kind.put(image);
            image.seeds(&format!("{kind:?}"));
            kind.is_there(image, about);
        }
    });
}

#[test]
fn a_folder_of_before_the_record_had_folders_is_an_images_too() {
    let mut image = Image::new();
    Folder.put(&mut image);
    image.seeds("a");
    let record = image.at(VAR_FOLLOWS);
    let text = fs::read_to_string(&record).unwrap();
    let files: Vec<&str> = text.lines().filter(|line| line.len() > 64).collect();
    fs::write(&record, files.join("\n")).unwrap();
    Link.put(&mut image);
    image.seeds("b");
    Link.is_there(&image, "from a folder");
}

#[test]
fn what_the_node_has_changed_outlives_a_change_of_kind() {
    each_change(|image, from, to, about| {
        let at = image.at(if from.is_folder() { INSIDE } else { PLACE });
        if from == Empty {
            return;
        }
        fs::remove_file(&at).unwrap();
        fs::write(&at, "mine").unwrap();
        to.put(image);
        let own = image.seeds("b").own;
        assert_eq!(fs::read_to_string(&at).unwrap(), "mine", "{about}");
        // A folder alone is no program.
        let expected: &[&str] = match to {
            Empty => &[],
            _ if to.is_folder() => &[INSIDE],
            _ => &[PLACE],
        };
        assert_eq!(own, expected, "{about}");
    });
}

#[test]
fn what_the_node_has_added_outlives_a_change_of_kind_and_keeps_it_away_while_it_is_there() {
    each_change(|image, from, to, about| {
        if !from.is_folder() || to.is_folder() {
            return;
        }
        fs::create_dir_all(image.at(ADDED).parent().unwrap()).unwrap();
        fs::write(image.at(ADDED), "mine").unwrap();
        for root in ["b", "c"] {
            to.put(image);
            assert_eq!(image.seeds(root).own, [PLACE], "{about}");
            assert_eq!(image.text(ADDED).as_deref(), Some("mine"), "{about}");
            assert_eq!(image.text(INSIDE), None, "{about}");
        }
        fs::remove_file(image.at(ADDED)).unwrap();
        if from == Empty {
            // It is empty, and the node's own.
            to.put(image);
            assert_eq!(image.seeds("mine").own, [PLACE], "{about}");
            fs::remove_dir(image.at(ADDED).parent().unwrap()).unwrap();
        }
        to.put(image);
        assert_eq!(image.seeds("d").own, [""; 0], "{about}");
        to.is_there(image, about);
    });
}

#[test]
fn what_the_node_has_deleted_stays_so_as_another_kind() {
    for (from, to) in [(File, Link), (Link, File)] {
        let mut image = Image::new();
        from.put(&mut image);
        image.seeds("a");
        fs::remove_file(image.at(PLACE)).unwrap();
        to.put(&mut image);
        assert_eq!(image.seeds("b").own, [PLACE]);
        assert!(image.at(PLACE).symlink_metadata().is_err());
    }
}

#[test]
fn a_folder_of_the_nodes_stays_though_it_is_empty() {
    for kind in [File, Link] {
        let mut image = Image::new();
        fs::create_dir_all(image.at(PLACE)).unwrap();
        for root in ["a", "b"] {
            kind.put(&mut image);
            assert_eq!(image.seeds(root).own, [PLACE]);
            assert!(image.at(PLACE).is_dir());
        }
    }
}

#[test]
fn the_names_of_what_the_node_has_of_its_own_are_given_once_a_root_has_something_new() {
    let mut image = Image::new();
    fs::create_dir_all(image.at("/var/opt")).unwrap();
    fs::write(image.at("/var/opt/earlier"), "mine").unwrap();
    let paths = ["/var/opt/changed", "/var/opt/deleted", "/var/opt/earlier"];
    for (root, expected) in [("a", &paths[2..]), ("b", &paths)] {
        image.later();
        for path in paths.iter().chain(&["/var/opt/kept", "/var/lib/data"]) {
            image.has("C", path, 0o644, root);
        }
        assert_eq!(image.seeds(root).own, expected);
        fs::write(image.at("/var/opt/changed"), "mine").unwrap();
        fs::write(image.at("/var/lib/data"), "mine").unwrap();
        if root == "a" {
            fs::remove_file(image.at("/var/opt/deleted")).unwrap();
        }
    }
    assert_eq!(image.text("/var/opt/kept").as_deref(), Some("b"));
}

#[test]
fn a_link_of_the_nodes_in_place_of_a_folder_that_each_node_has_stays() {
    let image = Image::new();
    symlink("/var/lib/large/home", image.at("/var/home")).unwrap();
    assert_eq!(image.seeds("a"), Done::default());
    assert!(image.at("/var/home").is_symlink());
    assert!(image.at("/var/srv").is_dir());
}
