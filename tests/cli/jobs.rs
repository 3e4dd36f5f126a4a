//! `--jobs`: how many threads work on one thing.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use slipway::format::{gzip, threads};

use super::{slipway, stderr};

/// Set in the process that works: how many threads it may start.
const MAY_START: &str = "TEST_JOBS";
/// Bytes that it compresses: blocks for many more threads.
const BYTES: usize = 48 << 20;

#[test]
fn the_option_reaches_what_starts_threads() {
    for number in ["1", "3"] {
        let output = slipway(&["-vv", "--jobs", number, "schema"]);
        let expected = format!("{number} threads unpack, hash and compress");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
    assert_eq!(slipway(&["--jobs", "0", "schema"]).status.code(), Some(2));
}

/// The numbers of this process's threads.
fn alive() -> BTreeSet<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| task.unwrap().file_name();
    tasks
        .map(|task| name(task).into_string().unwrap())
        .collect()
}

/// Compresses, and prints how many threads there were at once beside those before.
fn work(number: usize) {
    threads::limit(Some(number));
    let ended = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let (before, mut most) = (alive(), 0);
            while !ended.load(Ordering::Acquire) {
                most = most.max(alive().difference(&before).count());
            }
            most
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut input = std::io::Read::take(std::io::repeat(b'x'), BYTES as u64);
        gzip::compress(&mut input, &mut std::io::sink()).unwrap();
        ended.store(true, Ordering::Release);
        looks.join().unwrap()
    });
    eprintln!("threads: {most}");
}

/// In processes with one test each: the limit is that of a whole process.
#[test]
fn no_more_threads_are_started_than_jobs() {
    if let Ok(number) = std::env::var(MAY_START) {
        return work(number.parse().unwrap());
    }
    for number in [1, 2, 5] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "jobs::no_more_threads_are_started_than_jobs",
                "--nocapture",
            ])
            .env(MAY_START, number.to_string())
            .output()
            .unwrap();
        let said = stderr(&output);
        assert!(
            said.contains(&format!("threads: {number}\n")),
            "{number}: {said}"
        );
    }
}
