//! The cache on a folder of the test.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

fn cache() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache")).unwrap();
    (folder, cache)
}

#[test]
fn a_step_is_made_once() {
    let (_folder, cache) = cache();
    let key = Key::of_data("test", 1).text("a", "b").finish();
    let first = cache
        .step("test", &key, |at| Ok(fs::write(at.join("x"), "1")?))
        .unwrap();
    let second = cache.step("test", &key, |_| panic!("made twice")).unwrap();
    assert!(!first.hit && second.hit);
    assert_eq!(fs::read_to_string(second.path.join("x")).unwrap(), "1");
}

#[test]
fn a_failed_step_leaves_nothing() {
    let (_folder, cache) = cache();
    let key = Key::of_data("test", 1).finish();
    let failed = cache.step("test", &key, |at| {
        fs::write(at.join("x"), "half")?;
        bail!("on purpose")
    });
    assert!(failed.is_err());
    assert_eq!(fs::read_dir(cache.root.join("tmp")).unwrap().count(), 0);
    let made = cache.step("test", &key, |at| {
        assert_eq!(fs::read_dir(at)?.count(), 0);
        Ok(())
    });
    assert!(!made.unwrap().hit);
}

#[test]
fn two_builds_make_a_step_once() {
    let (_folder, cache) = cache();
    let key = Key::of_data("test", 1).finish();
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let other = Cache::at(cache.root.clone()).unwrap();
                other
                    .step("test", &key, |at| {
                        count.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(20));
                        Ok(fs::write(at.join("x"), "1")?)
                    })
                    .unwrap();
            });
        }
    });
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn what_a_killed_build_left_is_removed_and_what_lives_stays() {
    let (_folder, cache) = cache();
    let dead = cache.root.join("tmp/test-dead");
    fs::create_dir(&dead).unwrap();
    fs::write(cache.root.join("locks/test-dead"), "").unwrap();
    let alive = cache.scratch().unwrap();
    let again = Cache::at(cache.root.clone()).unwrap();
    assert!(!dead.exists());
    assert!(alive.path().exists());
    drop(alive);
    assert_eq!(fs::read_dir(again.root.join("tmp")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(again.root.join("locks")).unwrap().count(), 0);
}

#[test]
fn remains_that_cannot_be_removed_stop_nothing() {
    let (_folder, cache) = cache();
    let dead = |name: &str| {
        let path = cache.root.join("tmp").join(name);
        fs::create_dir(&path).unwrap();
        fs::write(cache.root.join("locks").join(name), "").unwrap();
        path
    };
    let [first, stuck, last] = ["a", "stuck", "z"].map(dead);
    let locked = cache.root.join("tmp/locked");
    fs::create_dir(&locked).unwrap();
    // A lock that not even root can open.
    let lock = cache.root.join("locks/locked");
    fs::create_dir(&lock).unwrap();
    let refuse = |path: &Path| match path.ends_with("stuck") {
        true => bail!("Permission denied"),
        false => remove(path),
    };
    cache.sweep(refuse).unwrap();
    assert!(!first.exists() && !last.exists());
    assert!(stuck.exists() && cache.root.join("locks/stuck").exists());
    // As a program that only looks at the cache opens it.
    let again = Cache::at(cache.root.clone()).unwrap();
    assert!(!stuck.exists() && locked.exists());
    fs::remove_dir(lock).unwrap();
    fs::write(cache.root.join("locks/locked"), "").unwrap();
    again.sweep(remove).unwrap();
    assert!(!locked.exists());
}

#[test]
fn the_lock_of_the_cache_is_open_for_both_kinds_of_locks() {
    let (_folder, cache) = cache();
    let path = cache.root.join("lock");
    let lock = lock_file(&path, true).unwrap();
    // NFS refuses a shared lock of a file that is not open for reading.
    assert_eq!(io::read_to_string(&lock).unwrap(), "");
    io::Write::write_all(&mut &lock, b"x").unwrap();
    // What is in it stays.
    drop(lock_file(&path, true).unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), "x");
}

#[test]
fn another_boot_trusts_only_what_was_synced() {
    let (_folder, mut cache) = cache();
    let [torn, kept] = ["torn", "kept"].map(|name| Key::of_data(name, 1).finish());
    cache.step("test", &kept, |_| Ok(())).unwrap();
    cache.settle().unwrap();
    cache.step("test", &torn, |_| Ok(())).unwrap();
    cache.boot = "the next boot".into();
    assert!(cache.step("test", &kept, |_| Ok(())).unwrap().hit);
    assert!(!cache.step("test", &torn, |_| Ok(())).unwrap().hit);
}

#[test]
fn a_cache_that_is_only_looked_at_makes_nothing() {
    let (_folder, cache) = cache();
    let key = Key::of_data("test", 1).finish();
    let cache = cache.look_only();
    let absent = cache.step("test", &key, |_| panic!("made"));
    assert!(absent.unwrap_err().is::<Absent>());
    let cache = Cache::at(cache.root.clone()).unwrap();
    cache.step("test", &key, |_| Ok(())).unwrap();
    let cache = cache.look_only();
    assert!(cache.step("test", &key, |_| panic!("made")).unwrap().hit);
}

#[test]
fn inputs_do_not_run_together() {
    let one = Key::of_data("s", 1).text("a", "bc").finish();
    let two = Key::of_data("s", 1).text("ab", "c").finish();
    assert_ne!(one, two);
    assert_ne!(one, Key::of_data("s", 2).text("a", "bc").finish());
}

/// A large file that was changed long ago, so that its digest is stored.
fn old_file(folder: &Path) -> PathBuf {
    let path = folder.join("big");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let old = File::open(&path).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000))
        .unwrap();
    path
}

#[test]
fn a_changed_file_has_another_digest() {
    let (folder, cache) = cache();
    let path = old_file(folder.path());
    let first = cache.digest(&path).unwrap();
    assert_eq!(first, cache.digest(&path).unwrap());
    assert_eq!(fs::read_dir(cache.root.join("digests")).unwrap().count(), 1);
    fs::write(&path, vec![2; 1 << 20]).unwrap();
    assert_ne!(first, cache.digest(&path).unwrap());
    assert_eq!(first.len(), 64);
}

#[test]
fn a_file_that_is_not_what_was_stored_of_it_is_not_read() {
    let (folder, cache) = cache();
    let path = old_file(folder.path());
    let first = cache.hashed(&path).unwrap();
    let memo = folder.path().join("cache/digests");
    let memo = fs::read_dir(memo).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(&memo).unwrap(), first.text());
    assert_eq!(cache.hashed(&path).unwrap(), first);
    // As after a change that left no trace in the file's times.
    let stale = first.text().replace(['a', '1'], "0");
    fs::write(&memo, &stale).unwrap();
    let error = cache.hashed(&path).unwrap().read().unwrap_err();
    assert!(format!("{error:#}").contains("changed during the build"));
}
