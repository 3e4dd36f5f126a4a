//! The disk is full anywhere in the first boot of a root: the boot goes on, and whichever root boots next is complete once there is room.

use std::sync::Arc;

use anyhow::Error;
use image::cmdline::Cmdline;
use linux::programs::Programs;
use linux::world::{Clock, World};

use super::*;
use crate::context::Boot;
use crate::root;
use crate::var::cut::FULL_AFTER;
use crate::var::{is_full, seed_factory};

impl Node {
    /// Boots with a disk that is full after so many changes, for the next one or for all further ones; the error, if it was.
    fn fills(&mut self, (hash, root): (&str, Root), after: usize, stays: bool) -> Option<Error> {
        FULL_AFTER.set(Some((after, stays)));
        let done = self.boots(hash, root);
        FULL_AFTER.set(None);
        done.err()
    }

    /// The temporary files that are there, of records and of entries.
    fn temporary(&self) -> Vec<String> {
        let names = self.var().into_keys();
        let is_temporary = |path: &String| path.ends_with(".next") || path.ends_with(".slipway");
        names.filter(is_temporary).collect()
    }

    /// Nothing has changed, or no marker names a root.
    fn is_honest(&self, used: &Found, about: &str) {
        match self.image.text(&format!("/{VAR_SEEDED}")).as_deref() {
            Some("a\n") => assert_eq!(self.kept(), *used, "{about}"),
            found => assert_eq!(found, None, "{about}"),
        }
    }
}

#[test]
fn whichever_root_boots_after_the_disk_was_full_is_complete() {
    let used = Node::used().var();
    let expected = programs_of_each(&used);
    for stays in [false, true] {
        for (next, (hash, root)) in ROOTS.into_iter().enumerate() {
            for after in 0.. {
                let about = format!("full after {after} changes, stays: {stays}, {hash}");
                let mut node = Node::of(Some(&used));
                let Some(error) = node.fills(ROOTS[1], after, stays) else {
                    assert!(after > 30, "{about}");
                    break;
                };
                assert!(is_full(&error), "{about}: {error:#}");
                node.is_honest(&used, &about);
                if !stays {
                    // As soon as something can be removed, nothing is left that takes space.
                    assert_eq!(node.temporary(), [""; 0], "{about}");
                }
                // The next boot may have no room either.
                let again = after % 3 == 0 && node.fills((hash, root), after / 2, stays).is_some();
                if again {
                    node.is_honest(&used, &about);
                }
                node.boots(hash, root).unwrap();
                assert_eq!(node.programs(), expected[next], "{about}");
                node.boots("b", second).unwrap();
                assert_eq!(node.programs(), expected[1], "{about}, and the second");
                let image = &node.image;
                assert_eq!(image.text("/var/lib/new").as_deref(), Some("2"), "{about}");
                assert_eq!(image.text("/var/lib/deleted"), None, "{about}");
                assert_eq!(node.temporary(), [""; 0], "{about}");
            }
        }
    }
}

/// The context and the root of a boot of this node.
fn machine(node: &Node, hash: &str) -> (Boot, root::Root) {
    let folder = node.image.folder.path();
    let world = Arc::new(World {
        sysroot: folder.to_owned(),
        ..World::below(folder, Clock::Real)
    });
    let boot = Boot {
        cmdline: Cmdline::parse(&format!("roothash={hash}")).unwrap(),
        ..Boot::of_tests(&world)
    };
    let root = root::Root {
        programs: Programs::of_image(world),
        disk: None,
        verity: None,
        search: root::Search::default(),
    };
    (boot, root)
}

#[test]
fn a_boot_goes_on_though_var_is_full_and_a_later_one_brings_everything() {
    let used = Node::used().var();
    let expected = programs_of_each(&used)[1].clone();
    let hash = "b".repeat(64);
    ON_SYNC.set(Some(Box::new(|| ())));
    for after in 0.. {
        let mut node = Node::of(Some(&used));
        second(&mut node.image);
        let (boot, root) = machine(&node, &hash);
        let is_done = || {
            let marker = node.image.text(&format!("/{VAR_SEEDED}"));
            marker.is_some_and(|text| text.trim() == hash)
        };
        FULL_AFTER.set(Some((after, true)));
        let done = seed_factory(&boot, &root);
        FULL_AFTER.set(None);
        done.unwrap();
        if is_done() {
            assert!(after > 30, "full after {after} changes");
            break;
        }
        seed_factory(&boot, &root).unwrap();
        assert!(is_done(), "full after {after} changes");
        assert_eq!(node.programs(), expected, "full after {after} changes");
    }
    ON_SYNC.set(None);
}

#[test]
fn another_failure_than_a_full_disk_ends_the_boot() {
    let used = Node::used().var();
    let mut node = Node::of(Some(&used));
    second(&mut node.image);
    let (boot, root) = machine(&node, &"b".repeat(64));
    CUT_AFTER.set(Some(5));
    let done = seed_factory(&boot, &root);
    CUT_AFTER.set(None);
    let error = format!("{:#}", done.unwrap_err());
    assert!(error.contains("seeding /var from the factory"), "{error}");
}
