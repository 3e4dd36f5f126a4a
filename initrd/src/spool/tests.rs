use super::*;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::config::tests::fetching::machine;
use crate::config::tests::{Server, config, reply, serve, sha256};
use apply::fetched::{Content, Fetched};
use apply::gather::{ConfigProblems, Gather, Settings};
use ignition::Config;
use platform::metadata::Metadata;

/// Bytes of a large file, more than the machine has for it.
const LARGE: usize = 3 << 20;

fn large() -> Vec<u8> {
    (0..=250).cycle().take(LARGE).collect()
}

/// A server with a large file, the same packed, and a small one. `changed` gives the number of answers with other content at
/// `/large`, from the second one on.
fn server(changed: usize) -> Server {
    let answers = AtomicUsize::new(0);
    let packed = ignition::contents::gzip(&large());
    serve(Box::new(move |_, path, stream| match path {
        "/large" => {
            let nth = answers.fetch_add(1, Ordering::SeqCst);
            let mut body = large();
            // The first two are the attempt into memory and the verification.
            if (2..2 + changed).contains(&nth) {
                body[LARGE / 2] ^= 1;
            }
            reply(stream, "200 OK", &body);
        }
        "/packed" => reply(stream, "200 OK", &packed),
        "/small" => reply(stream, "200 OK", b"small"),
        _ => reply(stream, "404 Not Found", b""),
    }))
}

/// A config with three files: the server's large and small ones, the packed one appended to the small one.
fn three(base: &str, hash: &str) -> String {
    config(&format!(
        r#", "storage": {{"files": [
            {{"path": "/var/large", "contents": {{"source": "{base}/large", "verification": {{"hash": "{hash}"}}}}}},
            {{"path": "/etc/small", "contents": {{"source": "{base}/small"}},
              "append": [{{"source": "{base}/packed", "compression": "gzip"}}]}}]}}"#
    ))
}

/// The config on a machine with 2 MiB of memory free, whose `/var` can have at most `space`.
fn obtain(folder: &Path, text: &str, space: Option<u64>) -> Result<Obtained, ConfigProblems> {
    let world = machine(folder);
    fs::write(world.proc.join("meminfo"), "MemAvailable: 4096 kB\n").unwrap();
    let settings = Settings {
        patience: fetch::Patience {
            first_wait: Duration::from_millis(5),
            ..Settings::default().patience
        },
        world: Arc::clone(&world),
        spool: space,
        ..Settings::default()
    };
    let mut gather = Gather::new(&settings, &|| Ok(()), fetch::Identity::Anonymous);
    let parsed = Config::parse(text.as_bytes(), "test");
    let parsed = gather.report(parsed)?;
    let fetched = gather.with_contents(parsed, true, true)?;
    Ok(Obtained {
        fetched,
        machine: Metadata::default(),
        refetch: gather.refetch(),
    })
}

fn hash() -> String {
    format!("sha256-{}", sha256(&large()))
}

/// The contents of all files, as far as they can be read.
fn read(fetched: &Fetched) -> Vec<Option<Vec<u8>>> {
    let parts = fetched.files.iter();
    let parts = parts.flat_map(|file| file.contents.iter().chain(&file.append));
    let read = parts.map(|part| match part {
        Content::Memory(bytes) => Some(bytes.clone()),
        Content::Spooled(large) => Some(fs::read(large.file.as_ref()?).unwrap()),
    });
    read.collect()
}

/// A machine whose pauses take no time.
fn hurried(folder: &Path) -> World {
    use std::sync::atomic::AtomicI64;
    let world = World::below(folder, linux::world::Clock::Fake(AtomicI64::new(0)));
    fs::create_dir_all(&world.dev).unwrap();
    world
}

#[test]
fn what_does_not_fit_into_memory_is_verified_and_fetched_again_onto_var() {
    let (folder, sysroot) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = server(0);
    let text = three(&server.base, &hash());
    let mut config = obtain(folder.path(), &text, Some(1 << 30)).unwrap();
    assert_eq!(config.fetched.spooled(), 2 * LARGE as u64);
    let small = Some(b"small".to_vec());
    assert_eq!(read(&config.fetched), [None, small.clone(), None]);
    // What a power cut left of an earlier attempt goes.
    let spool = sysroot.path().join("var/lib/slipway/spool");
    fs::create_dir_all(&spool).unwrap();
    fs::write(spool.join("17"), "half a file").unwrap();
    fill_below(&hurried(folder.path()), sysroot.path(), &mut config).unwrap();
    let whole = Some(large());
    assert!(read(&config.fetched) == [whole.clone(), small, whole]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&spool), 0o700);
    let mut names = linux::block::entries(&spool);
    names.sort();
    assert_eq!(names, ["0", "2"]);
    assert!(names.iter().all(|name| mode(&spool.join(name)) == 0o600));
    config.fetched.remove_spool().unwrap();
    assert!(!spool.exists());
}

#[test]
fn a_boot_whose_config_fits_into_memory_leaves_no_spool_of_an_earlier_one() {
    let (folder, sysroot) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut config = obtain(folder.path(), &self::config(""), Some(1 << 30)).unwrap();
    let spool = sysroot.path().join("var/lib/slipway/spool");
    fs::create_dir_all(&spool).unwrap();
    fill_below(&hurried(folder.path()), sysroot.path(), &mut config).unwrap();
    assert!(!spool.exists() && config.fetched.spool.is_none());
    config.fetched.remove_spool().unwrap();
}

#[test]
fn a_source_that_changes_after_it_was_verified_is_asked_again_and_then_refused() {
    for (changed, comes) in [(1, true), (usize::MAX - 2, false)] {
        let (folder, sysroot) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = server(changed);
        // Without a hash in the config too.
        let text = three(&server.base, &hash()).replace(
            &format!(r#", "verification": {{"hash": "{}"}}"#, hash()),
            "",
        );
        let mut config = obtain(folder.path(), &text, Some(1 << 30)).unwrap();
        let done = fill_below(&hurried(folder.path()), sysroot.path(), &mut config);
        assert_eq!(done.is_ok(), comes);
        match done {
            Ok(()) => assert!(read(&config.fetched)[0] == Some(large())),
            Err(error) => {
                let text = error.to_string();
                let url = format!(
                    "$.storage.files.0.contents.source: fetching {}/large: ",
                    server.base
                );
                assert!(
                    text.contains(&url) && text.contains("not what was verified"),
                    "{text}"
                );
            }
        }
        // What had come was not fetched again.
        let log = server.log.lock().unwrap();
        let packed = log.iter().filter(|(path, _)| path == "/packed").count();
        assert_eq!(packed, 3);
    }
}

#[test]
fn what_var_cannot_have_and_a_wrong_hash_are_refused_before_the_first_write() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(0);
    let refused = |space, hash: &str| {
        let text = three(&server.base, hash);
        let wrong = obtain(folder.path(), &text, space).unwrap_err();
        assert!(wrong.remote);
        wrong.to_string()
    };
    for space in [None, Some(0)] {
        let text = refused(space, &hash());
        assert!(
            text.contains("/large: what the config names may have 2 MiB together"),
            "{text}"
        );
    }
    // Each alone would fit.
    let text = refused(Some(5 << 20), &hash());
    let both = "it has 3 MiB; together with the others it does not fit into 2 MiB of memory, half of what is free, nor into the \
                5 MiB that /var can have";
    assert!(
        text.contains(&format!("$.storage.files.0.contents.source: {both}")),
        "{text}"
    );
    assert!(
        text.contains(&format!("$.storage.files.1.append.0.source: {both}")),
        "{text}"
    );
    // Neither does.
    let text = refused(Some(2 << 20), &hash());
    assert_eq!(
        text.matches("nor into the 2 MiB that /var can have")
            .count(),
        2,
        "{text}"
    );
    let text = refused(Some(1 << 30), &format!("sha256-{}", "0".repeat(64)));
    assert!(
        text.contains("do not have the hash that the config gives"),
        "{text}"
    );
    // A file system of the config's own at `/var` has its own size.
    let own = three(&server.base, &hash()).replace(
        r#""storage": {"#,
        r#""storage": {"filesystems": [{"path": "/var", "device": "/dev/vdb", "format": "ext4"}], "#,
    );
    let config = obtain(folder.path(), &own, Some(0)).unwrap();
    assert_eq!(config.fetched.spooled(), 2 * LARGE as u64);
}

#[test]
fn too_little_space_on_var_is_refused_with_both_sizes() {
    check_space(5 << 30, 5 << 30).unwrap();
    let error = check_space(5 << 30, 3 << 30).unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("5120 MiB") && text.contains("3072 MiB"),
        "{text}"
    );
    let free = free(Path::new("/")).unwrap();
    assert!(free < u64::MAX / 2);
}
