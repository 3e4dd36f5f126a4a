//! The boots of a node whose `state` and `var` are on a loop device: made, mounted again, damaged, reset. They need root,
//! loop devices and e2fsprogs, and run in a mount namespace of their own.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::sync::Arc;

use anyhow::ensure;
use apply::fetched::{Fetched, Sources};
use image::cmdline::Cmdline;
use image::layout::{LABEL_STATE, LABEL_VAR, MIB};
use linux::block;
use linux::host::{LoopDisk, is_root};
use linux::ioctl;
use linux::programs::Programs;
use linux::samples;
use linux::world::World;

use super::*;
use crate::root::Search;
use crate::state;

const SIZE: u64 = 768 * MIB;

struct Node {
    _folder: tempfile::TempDir,
    world: Arc<World>,
    disk: LoopDisk,
    /// What the config puts at `/var`.
    own: Option<(VarFilesystem, PathBuf)>,
}

impl Node {
    /// A node with an image's disk.
    fn new() -> Option<Self> {
        let disk = LoopDisk::new(SIZE, 512)?;
        let folder = tempfile::tempdir().unwrap();
        // Without the host's consoles: nobody there waits for the lines of a test.
        let sys = folder.path().join("sys");
        mount::folder(&sys.join("class/tty/console"), 0o755).unwrap();
        fs::write(sys.join("class/tty/console/active"), "none\n").unwrap();
        symlink("/sys/block", sys.join("block")).unwrap();
        symlink("/sys/class/block", sys.join("class/block")).unwrap();
        let world = World {
            initrd: folder.path().to_owned(),
            run: folder.path().join("run"),
            // The host's root, with its programs. In this namespace our `/var` lies over the host's; nothing is bound below
            // the temporary folder, whose content is removed at the end.
            sysroot: "/".into(),
            sys,
            ..World::real()
        };
        // Another test may look at all disks before the table is there. The kernel keeps what it has read of a device that is
        // open, so the table is written through the device.
        assert_eq!(block::disk(&world, &disk.name).unwrap().table, None);
        let image = samples::table(512, SIZE);
        image.write(&disk.device).unwrap();
        // Not every kernel with loop devices reads a GPT.
        let known = block::disk(&world, &disk.name).unwrap().partitions;
        for (number, entry) in image.entries {
            if !known.iter().any(|part| part.number == number) {
                let (start, end) = (entry.first * 512, (entry.last + 1) * 512);
                ioctl::add_partition(&disk.device, number, start, end - start).unwrap();
            }
        }
        Some(Self {
            _folder: folder,
            world: Arc::new(world),
            disk,
            own: None,
        })
    }

    fn context(&self, reset: Option<&str>) -> Boot {
        let world = &self.world;
        Boot {
            cmdline: Cmdline {
                reset: reset.map(|word| word.parse().unwrap()),
                ..Cmdline::default()
            },
            ..Boot::of_tests(world)
        }
    }

    /// Boots as far as `/var`; gives whether it was a first boot. `/var` must be empty then, and else as it was left.
    fn boot(&self, reset: Option<&str>) -> Result<bool> {
        let boot = self.context(reset);
        let root = Root {
            programs: Programs::of_host(Arc::clone(&self.world)),
            disk: block::disk(&self.world, &self.disk.name),
            verity: None,
            search: Search::default(),
        };
        let done = self.line(&boot, &root);
        let state = self.world.in_sysroot(paths::STATE);
        let early = self.world.in_run(paths::RUN_STATE);
        for mounted in [state, self.world.sysroot.join("var"), early] {
            // Where a boot has failed not all of them are.
            mount::unmount(&mounted).unwrap_or_default();
        }
        done
    }

    fn line(&self, boot: &Boot, root: &Root) -> Result<bool> {
        let mut state = state::open(boot, root)?;
        let first = state.first_boot;
        if first {
            state.system(boot, root)?;
            state.make(boot, root)?;
        }
        let own = self.own.clone().filter(|_| first);
        mount(boot, root, &mut state, own)?;
        let kept = self.world.sysroot.join("var/kept");
        ensure!(
            kept.exists() != first,
            "first boot: {first}, kept: {kept:?}"
        );
        if first {
            fs::write(kept, "kept")?;
            let config = ignition::Config::empty();
            let fetched = Fetched {
                model: config.model().map_err(anyhow::Error::msg)?,
                config,
                files: Vec::new(),
                keys: Vec::new(),
                user_config: false,
                from_server: false,
                warnings: Vec::new(),
                sources: Sources::new(),
                spool: None,
            };
            state.mark_provisioned(boot, &fetched)?;
        }
        Ok(first)
    }

    /// A boot that ends with a fault.
    fn fault(&self) -> Fault {
        self.boot(None).unwrap_err().downcast().unwrap()
    }

    fn part(&self, label: &str) -> block::Partition {
        let disk = block::disk(&self.world, &self.disk.name).unwrap();
        table::labelled(&disk, label).unwrap().clone()
    }

    /// Zeroes these places of a partition's device.
    fn zero(&self, label: &str, places: &[u64]) {
        let device = File::options()
            .write(true)
            .open(self.part(label).path)
            .unwrap();
        for at in places {
            device.write_all_at(&[0; 1024], *at).unwrap();
        }
        device.sync_all().unwrap();
    }

    /// All superblocks of a file system.
    fn superblocks(&self, label: &str) -> Vec<u64> {
        let part = self.part(label);
        let backups = linux::filesystem::ext::backup::find(&part.path, part.size).unwrap();
        let places = backups
            .iter()
            .map(|found| found.at * found.superblock.block);
        [1024].into_iter().chain(places).collect()
    }

    /// Works in the folder of `state`, between two boots.
    fn in_state<T>(&self, work: impl FnOnce(&Path) -> T) -> T {
        let folder = tempfile::tempdir().unwrap();
        let device = self.part(LABEL_STATE).path;
        mount::mount(&device, folder.path(), "ext4", Flags::empty(), "").unwrap();
        let done = work(folder.path());
        mount::unmount(folder.path()).unwrap();
        done
    }

    /// The word that resets a partition.
    fn reset_of(&self, label: &str) -> String {
        self.part(label).guid.unwrap().to_string()[..8].to_owned()
    }

    fn uuids(&self) -> [Option<String>; 2] {
        [LABEL_STATE, LABEL_VAR].map(|label| {
            let found = ext::read(&self.part(label).path).unwrap();
            found.map(|found| found.uuid)
        })
    }
}

/// The word that a fault names for a reset, without its key.
fn word(fault: &Fault) -> String {
    let fix = fault.fix.as_ref().unwrap();
    let word = fix.split("slipway.reset=").nth(1).unwrap();
    word.split_whitespace().next().unwrap().to_owned()
}

/// Gives a node to a test, in a mount namespace that nothing gets out of.
fn with_node(test: impl FnOnce(Node) + Send + 'static) {
    if !is_root() {
        return;
    }
    let thread = std::thread::spawn(|| {
        mount::own_namespace().unwrap();
        if let Some(node) = Node::new() {
            test(node);
        }
    });
    thread.join().unwrap();
}

#[test]
fn damaged_file_systems_are_repaired_or_reported_and_reset_on_purpose() {
    with_node(|node| {
        assert!(node.boot(None).unwrap());
        let made = node.uuids();
        assert!(!node.boot(None).unwrap());

        for label in [LABEL_STATE, LABEL_VAR] {
            node.zero(label, &[1024, 2048]);
        }
        assert!(!node.boot(None).unwrap(), "repaired, and all is there");
        assert_eq!(node.uuids(), made);

        node.zero(LABEL_VAR, &node.superblocks(LABEL_VAR));
        let fault = node.fault();
        assert!(fault.what.contains("(var) is damaged"), "{fault}");
        assert_eq!(
            node.uuids(),
            [made[0].clone(), None],
            "nothing is formatted"
        );
        let reset = word(&fault);
        assert!(node.boot(Some(&reset)).unwrap());
        assert_eq!(node.uuids()[0], made[0], "state is not");
        assert!(!node.boot(Some(&reset)).unwrap(), "it acts once");

        let made = node.uuids();
        node.zero(LABEL_STATE, &node.superblocks(LABEL_STATE));
        let fault = node.fault();
        assert!(fault.what.contains("(state) is damaged"), "{fault}");
        assert_eq!(
            node.uuids(),
            [None, made[1].clone()],
            "nothing is formatted"
        );
        let reset = word(&fault);
        assert!(node.boot(Some(&reset)).unwrap());
        let anew = node.uuids();
        assert!(
            anew.iter()
                .flatten()
                .all(|uuid| !made.contains(&Some(uuid.clone())))
        );
        assert!(!node.boot(Some(&reset)).unwrap(), "it acts once");
    });
}

#[test]
fn what_is_missing_or_another_is_reported_and_never_made_anew() {
    with_node(|node| {
        assert!(node.boot(None).unwrap());
        let (disk, before) = {
            let disk = block::disk(&node.world, &node.disk.name).unwrap();
            (disk.path, disk.table.unwrap())
        };
        let write = |table: &linux::gpt::Table| {
            let disk = File::options().read(true).write(true).open(&disk);
            table.write(&disk.unwrap()).unwrap();
        };
        for (label, step) in [
            (LABEL_STATE, "the partition state is missing"),
            (LABEL_VAR, "the partition var is missing"),
        ] {
            let mut table = before.clone();
            table.entries.retain(|_, entry| entry.label != label);
            write(&table);
            let fault = node.fault();
            assert!(fault.what.contains(step), "{fault}");
            assert!(fault.fix.unwrap().contains("slipway.reset="));
            write(&before);
            assert!(!node.boot(None).unwrap(), "with its table again");
        }
        // Another ext4 in the place of var, as somebody might make it by hand.
        let var = node.part(LABEL_VAR);
        let options = linux::ext4::Options {
            label: LABEL_VAR,
            uuid: None,
            orphan_file: false,
            overwrite: true,
        };
        let programs = Programs::of_host(Arc::clone(&node.world));
        linux::ext4::make(&programs, &var.path, options).unwrap();
        let fault = node.fault();
        assert!(
            fault
                .what
                .contains("not the one that this node was provisioned with")
        );
        assert!(node.boot(Some(&word(&fault))).unwrap());
    });
}

#[test]
fn a_reset_of_var_keeps_the_record_of_the_etcd_volume() {
    with_node(|node| {
        assert!(node.boot(None).unwrap());
        node.in_state(|state| fs::write(state.join(paths::STATE_ETCD), "record").unwrap());
        // Whoever has the device open keeps what the kernel has read of it, the superblock.
        let device = File::open(node.part(LABEL_VAR).path).unwrap();
        assert_eq!(device.read_at(&mut [0; 4096], 0).unwrap(), 4096);
        assert!(node.boot(Some(&node.reset_of(LABEL_VAR))).unwrap());
        let kept = node.in_state(|state| fs::read_to_string(state.join(paths::STATE_ETCD)));
        assert_eq!(kept.unwrap(), "record");
    });
}

/// The partition is wiped and noted as unformatted, and the config's file system is on another disk, so nothing formats it.
#[test]
fn after_a_reset_a_node_whose_config_has_its_own_var_is_provisioned_once() {
    with_node(|mut node| {
        assert!(node.boot(None).unwrap());
        let other = LoopDisk::new(64 * MIB, 512).unwrap();
        let uuid = node.world.random_guid().unwrap().to_string();
        let options = linux::ext4::Options {
            label: "data",
            uuid: Some(&uuid),
            orphan_file: false,
            overwrite: true,
        };
        let programs = Programs::of_host(Arc::clone(&node.world));
        linux::ext4::make(&programs, &other.path(), options).unwrap();
        let own = VarFilesystem {
            format: "ext4".to_owned(),
            uuid,
            options: Vec::new(),
            layers: Vec::new(),
        };
        node.own = Some((own, other.path()));
        assert!(node.boot(Some(&node.reset_of(LABEL_STATE))).unwrap());
        assert!(!node.boot(None).unwrap());
        let attributes = node.part(LABEL_VAR).attributes;
        assert_eq!(attributes & layout::ATTRIBUTE_UNFORMATTED, 0);
    });
}

#[test]
fn a_full_disk_is_told_from_other_failures() {
    let io = |kind: io::ErrorKind| Error::from(io::Error::from(kind)).context("copying the file");
    for full in [
        io(io::ErrorKind::StorageFull),
        io(io::ErrorKind::QuotaExceeded),
        io::Error::from(Errno::EDQUOT).into(),
        Error::from(Errno::ENOSPC).context("waiting for the disk"),
    ] {
        assert!(is_full(&full), "{full:#}");
    }
    for other in [
        io(io::ErrorKind::ReadOnlyFilesystem),
        Error::from(Errno::EIO).context("waiting for the disk"),
        anyhow::anyhow!("a list with a wrong line"),
    ] {
        assert!(!is_full(&other), "{other:#}");
    }
}

#[test]
fn a_log_line_has_few_paths() {
    let paths: Vec<String> = (0..12).map(|number| format!("/var/opt/{number}")).collect();
    assert_eq!(listed(&paths[..1]), "/var/opt/0");
    let ten = listed(&paths[..10]);
    assert!(ten.ends_with(", /var/opt/9"), "{ten}");
    assert_eq!(listed(&paths), format!("{ten} and 2 more"));
}
