//! Tests of the removal of entries: what goes, what stays, two programs at once.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::host::cache::{Key, Limit};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Bytes of each step's file.
const PART: usize = 64 << 10;

fn age(path: &Path, age: Duration) {
    let file = File::open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

fn open(place: &tempfile::TempDir) -> Cache {
    Cache::at(place.path().join("cache")).unwrap()
}

fn key(name: &str) -> Key {
    Key::of_data(name, 1).finish()
}

/// Makes, or takes, a step of one file.
fn step(cache: &Cache, name: &str) -> super::super::Made {
    let made = cache.step("test", &key(name), |at| {
        Ok(fs::write(at.join("x"), vec![1; PART])?)
    });
    made.unwrap()
}

#[test]
fn only_what_is_long_unused_goes_and_a_hit_is_a_use() {
    let place = tempfile::tempdir().unwrap();
    let before = open(&place);
    for name in ["old", "hit"] {
        let made = step(&before, name);
        age(&made.path.join(MADE), DAY * 30);
    }
    let object = before.object(&"ab".repeat(32));
    fs::create_dir_all(object.parent().unwrap()).unwrap();
    fs::write(&object, "download").unwrap();
    age(&object, DAY * 8);
    drop(before);

    let cache = open(&place);
    assert!(step(&cache, "hit").hit);
    let would = cache.prune(DAY * 7, true).unwrap();
    assert_eq!(would.len(), 2, "{would:?}");
    assert!(would[0].size > 0 && would[0].kind == "test");
    assert!(object.exists());
    let gone = cache.prune(DAY * 7, false).unwrap();
    assert_eq!(gone.len(), 2);
    assert!(!object.exists());
    let left = cache.entries().unwrap();
    assert_eq!(left.len(), 1);
    assert!(left[0].path.ends_with(key("hit").as_str()));
    assert_eq!(folder(&cache.root.join("tmp")).unwrap().len(), 0);
}

#[test]
fn what_another_program_uses_stays_until_it_ends() {
    let place = tempfile::tempdir().unwrap();
    let other = open(&place);
    let made = step(&other, "other");
    age(&made.path.join(MADE), DAY * 30);
    let cache = open(&place);
    assert!(cache.prune(DAY, false).unwrap().is_empty());
    assert!(made.path.join("x").exists());
    drop(other);
    assert_eq!(cache.prune(DAY, false).unwrap().len(), 1);
    assert!(!made.path.exists());
}

#[test]
fn above_its_limit_the_longest_unused_goes_and_this_builds_entries_stay() {
    let place = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c", "d", "e"];
    let before = open(&place);
    for (number, name) in (1..).zip(names) {
        let made = step(&before, name);
        age(&made.path.join(MADE), DAY * (10 - number));
    }
    before.settle().unwrap();
    let each = before.entries().unwrap()[0].size;
    drop(before);
    let cache = open(&place).with_limit(Limit(Some(each * 3)));
    // The longest unused of all is what this build uses.
    assert!(step(&cache, "a").hit);
    let gone = cache.bound().unwrap();
    let gone: Vec<&Path> = gone.iter().map(|entry| entry.path.as_path()).collect();
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(gone[0].ends_with(key("b").as_str()) && gone[1].ends_with(key("c").as_str()));
    assert!(cache.bound().unwrap().is_empty());
    // A limit that is less than this build uses leaves what it uses.
    let cache = cache.with_limit(Limit(Some(0)));
    assert_eq!(cache.bound().unwrap().len(), 2);
    assert_eq!(cache.entries().unwrap().len(), 1);
    let cache = cache.with_limit(Limit(None));
    assert!(cache.bound().unwrap().is_empty());
}

/// Builds that use overlapping entries while another one removes all that it can, again and again: none of them ever loses a file.
#[test]
fn a_running_build_never_loses_what_it_uses() {
    let place = tempfile::tempdir().unwrap();
    let over = AtomicBool::new(false);
    let build = |first: usize| {
        for round in 0..20 {
            let cache = open(&place);
            let made = (0..3).map(|number| {
                let name = ((first + round + number) % 8).to_string();
                step(&cache, &name).path
            });
            for path in made.collect::<Vec<_>>() {
                assert_eq!(fs::read(path.join("x")).unwrap().len(), PART);
            }
        }
    };
    // Once more when all of them ended: nothing is in use then.
    let remove = || {
        let mut removed = 0;
        loop {
            let last = over.load(Ordering::Relaxed);
            let cache = open(&place).with_limit(Limit(Some(0)));
            removed += cache.bound().unwrap().len();
            if last {
                return removed;
            }
        }
    };
    std::thread::scope(|scope| {
        let builds: Vec<_> = (0..3)
            .map(|first| scope.spawn(move || build(first)))
            .collect();
        let removed = scope.spawn(remove);
        let ended: Vec<_> = builds.into_iter().map(|build| build.join()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(removed.join().unwrap() > 0);
        assert!(ended.iter().all(Result::is_ok));
    });
    let cache = open(&place);
    assert!(cache.entries().unwrap().is_empty());
    assert_eq!(folder(&cache.root.join("tmp")).unwrap().len(), 0);
    assert_eq!(folder(&cache.root.join("locks")).unwrap().len(), 0);
}

/// Until it is complete, a download has a name that its program does not record.
#[test]
fn a_download_under_way_stays_and_one_that_a_killed_program_left_goes() {
    let place = tempfile::tempdir().unwrap();
    let cache = open(&place).with_limit(Limit(Some(0)));
    let folder = cache.root.join("downloads/ab");
    fs::create_dir_all(&folder).unwrap();
    let [fetched, copied, left] = [".fetch-a", ".tmpb", ".fetch-c"].map(|name| {
        let path = folder.join(name);
        fs::write(&path, vec![1; PART]).unwrap();
        age(&path, Duration::ZERO);
        path
    });
    age(&left, DAY);
    let gone = cache.bound().unwrap();
    assert_eq!(gone.len(), 1, "{gone:?}");
    assert!(gone[0].path == left && !left.exists());
    assert!(cache.prune(Duration::ZERO, false).unwrap().is_empty());
    assert!(fetched.exists() && copied.exists());
}

#[test]
fn the_size_of_a_step_is_noted_once_it_is_on_the_disk() {
    let place = tempfile::tempdir().unwrap();
    let cache = open(&place);
    let made = step(&cache, "a");
    cache.settle().unwrap();
    let mark = made.path.join(SYNCED);
    let noted: u64 = fs::read_to_string(&mark).unwrap().parse().unwrap();
    assert!(noted >= PART as u64);
    // A mark of an earlier version has no size.
    fs::write(&mark, "").unwrap();
    assert!(cache.entries().unwrap()[0].size >= PART as u64);
    assert!(!fs::read_to_string(&mark).unwrap().is_empty());
}

#[test]
fn a_folder_that_is_a_link_belongs_to_another_cache() {
    let place = tempfile::tempdir().unwrap();
    let cache = open(&place);
    let other = place.path().join("other");
    fs::create_dir_all(other.join("ab")).unwrap();
    fs::write(other.join("ab/abcd"), "download").unwrap();
    fs::remove_dir(cache.root.join("downloads")).unwrap();
    std::os::unix::fs::symlink(&other, cache.root.join("downloads")).unwrap();
    assert!(cache.entries().unwrap().is_empty());
    assert!(cache.prune(Duration::ZERO, false).unwrap().is_empty());
    assert!(other.join("ab/abcd").exists());
}
