//! The stages that change disks, on loop devices and in the test's own mount namespace: they need root.

use linux::host::{self, LoopDisk};
use linux::world::World;

use super::*;

/// A loop device, by its path.
struct Loop {
    path: String,
    _disk: LoopDisk,
}

impl Loop {
    fn new(size: u64) -> Option<Self> {
        // The stages start this host's programs.
        host::programs(World::real(), &["/usr/sbin/mkfs.ext4", "/usr/sbin/wipefs"])?;
        let disk = LoopDisk::new(size, 512)?;
        Some(Self {
            path: disk.path().display().to_string(),
            _disk: disk,
        })
    }
}

/// Runs in a private mount namespace, from which no mount propagates. It belongs to this thread and the programs that
/// it starts.
fn apart(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        use nix::mount::MsFlags;
        use nix::sched::{CloneFlags, unshare};
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).unwrap();
        work();
    });
    thread.join().unwrap();
}

fn mounts() -> String {
    // The thread's mounts, not those of the process.
    fs::read_to_string("/proc/thread-self/mountinfo").unwrap()
}

#[test]
fn disks_are_made_mounted_filled_and_unmounted() {
    let Some(disk) = Loop::new(64 << 20) else {
        return;
    };
    apart(move || {
        let device = &disk.path;
        let place = Place::new(&config(&format!(
            r#", "storage": {{
                "disks": [{{"device": "{device}", "wipeTable": true, "partitions": [
                    {{"number": 1, "label": "one", "sizeMiB": 24}}, {{"number": 2, "label": "two"}}]}}],
                "filesystems": [
                    {{"device": "{device}p1", "format": "ext4", "label": "ONE", "path": "/srv", "wipeFilesystem": true}},
                    {{"device": "{device}p2", "format": "ext4", "path": "/srv/deep/er", "mountOptions": ["noatime"]}}],
                "files": [
                    {{"path": "/srv/a", "contents": {{"source": "data:,one"}}}},
                    {{"path": "/srv/deep/er/b", "contents": {{"source": "data:,two"}}}}]}}"#
        )));
        let root = fs::canonicalize(&place.root).unwrap().display().to_string();
        for stage in ["fetch-offline", "fetch", "kargs", "disks"] {
            place.succeeds(stage);
        }
        assert!(!mounts().contains(&root));
        place.succeeds("mount");
        let table = mounts();
        assert!(table.contains(&format!(" {root}/srv ")), "{table}");
        let deep = table
            .lines()
            .find(|line| line.contains(&format!(" {root}/srv/deep/er ")));
        assert!(deep.unwrap().contains("noatime"), "{table}");
        place.succeeds("files");
        assert_eq!(place.read("root/srv/deep/er/b"), "two");
        place.succeeds("umount");
        assert!(!mounts().contains(&format!("{root}/srv")), "{}", mounts());
        assert!(
            !place.path("root/srv/a").exists(),
            "it is on the disk, which is not mounted"
        );
        // Nothing is mounted: a second run has no effect.
        place.succeeds("umount");
        place.succeeds("mount");
        assert_eq!(place.read("root/srv/a"), "one");
        place.succeeds("umount");
    });
}

#[test]
fn a_volume_on_something_else_is_refused_before_any_disk_changes() {
    let (Some(used), Some(blank)) = (Loop::new(32 << 20), Loop::new(32 << 20)) else {
        return;
    };
    apart(move || {
        let (used, blank) = (&used.path, &blank.path);
        let first = Place::new(&config(&format!(
            r#", "storage": {{"filesystems": [{{"device": "{used}", "format": "ext4"}}]}}"#
        )));
        first.succeeds("fetch");
        first.succeeds("disks");
        let before = [fs::read(used).unwrap(), fs::read(blank).unwrap()];
        let place = Place::new("");
        std::os::unix::fs::symlink(used, place.path("disk")).unwrap();
        let link = place.path("disk").display().to_string();
        let volume = config(&format!(
            r#", "storage": {{
                "disks": [{{"device": "{blank}", "partitions": [{{"label": "first"}}]}}],
                "luks": [{{"name": "vault", "device": "{link}", "keyFile": {{"source": "data:,SECRET"}}}}],
                "filesystems": [{{"device": "/dev/mapper/vault", "format": "ext4", "path": "/srv"}}]}}"#
        ));
        place.write("config.ign", &volume);
        place.succeeds("fetch-offline");
        assert!(!place.path("neednet").exists());
        place.succeeds("fetch");
        let text = place.fails("disks", 1);
        for word in ["$.storage.luks.0", "wipeVolume", "found ext4"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("SECRET"), "{text}");
        let after = [fs::read(used).unwrap(), fs::read(blank).unwrap()];
        assert!(before == after, "a disk was changed");
        assert!(!place.read("state").contains("vault"));
    });
}

#[test]
fn a_disk_with_something_else_on_it_is_refused_and_left_alone() {
    let Some(disk) = Loop::new(32 << 20) else {
        return;
    };
    apart(move || {
        let device = disk.path.clone();
        let wants = |body: &str| {
            config(&format!(
                r#", "storage": {{"filesystems": [{{"device": "{device}", "format": "ext4", {body}}}]}}"#
            ))
        };
        let first = Place::new(&wants(r#""label": "first""#));
        first.succeeds("fetch");
        first.succeeds("disks");
        let before = fs::read(&device).unwrap();
        let other = Place::new(&wants(r#""label": "other""#));
        other.succeeds("fetch");
        let text = other.fails("disks", 1);
        assert!(
            text.contains("$.storage.filesystems.0") && text.contains("wipeFilesystem"),
            "{text}"
        );
        assert!(
            fs::read(&device).unwrap() == before,
            "a refused disk was changed"
        );
        // By a link outside `/dev`, as Ignition's own tests name their disks; and now the disk may be wiped.
        let link = Place::new("");
        std::os::unix::fs::symlink(&device, link.path("disk")).unwrap();
        let name = link.path("disk").display().to_string();
        let wiped = wants(r#""label": "other", "wipeFilesystem": true"#).replace(&device, &name);
        link.write("config.ign", &wiped);
        link.succeeds("fetch");
        link.succeeds("disks");
        let after = fs::read(&device).unwrap();
        // The label is at byte 120 of the superblock, which begins at 1,024.
        assert_eq!(&after[1144..1149], b"other");
    });
}
