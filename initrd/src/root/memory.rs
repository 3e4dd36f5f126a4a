//! The root of a PXE boot, fetched into memory. One file holds the file system and, behind it, the hash tree.
//!
//! The download needs no digest, since the root hash of the command line verifies every block that is read. A server that cannot
//! be reached is asked without end: after a power failure it may come up later than its nodes.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use fetch::{Failure, Options, Pace, Patience, Want};
use image::layout::MIB;
use image::verity::BLOCK;

use super::Halves;
use crate::context::Boot;
use image::fault::Fault;
use linux::ioctl;
use linux::log::announce;
use linux::mount;
use linux::mount::Flags;
use linux::waiter::Waiter;
use linux::world::World;

/// Mount point of the file's tmpfs, which is detached once both loop devices hold the file.
const FOLDER: &str = "/run/slipway-root";
/// The share of the memory that the file may have.
const SHARE: &str = "80%";
/// The time without a new byte after which the download begins anew, with a lease that still holds and new connections.
const WITHOUT_BYTES: Duration = Duration::from_secs(600);
/// An answer that comes slower is broken off and asked for anew, as one of a config.
const SLOWEST: Pace = Pace {
    bytes: 960,
    within: Duration::from_secs(60),
};

/// Fetches `url` and attaches two loop devices: the file system and its hash tree.
pub(super) fn fetch(boot: &Boot, url: &str) -> Result<Halves> {
    let world = &boot.world;
    let network = || boot.network.up(&boot.modules);
    boot.timeline.step("root.network", network)?;
    let folder = world.in_run(FOLDER);
    mount::folder(&folder, 0o700)?;
    mount::mount(
        "root",
        &folder,
        "tmpfs",
        Flags::empty(),
        &format!("mode=0700,size={SHARE}"),
    )?;
    let path = folder.join("root");
    let fetched = || until_fetched(boot, url, &path, WITHOUT_BYTES, &network);
    boot.timeline
        .step("root.fetch", fetched)
        .map_err(|error| not_fetched(error, url, largest(boot), size_of(&folder)))?;
    let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    let size = file.metadata()?.len();
    let data = data_size(&file, size).map_err(|found| {
        Fault::new("the fetched root is damaged or incomplete")
            .expected("an EROFS with its hash tree behind it")
            .found(found)
            .fix("copy the root file of the build's pxe folder to the server again")
    })?;
    let halves = Halves {
        data: attach(world, &file, 0, data)?,
        tree: attach(world, &file, data, size - data)?,
    };
    mount::detach(&folder)?;
    std::fs::remove_dir(&folder).with_context(|| format!("removing {}", folder.display()))?;
    Ok(halves)
}

/// The most bytes that the image's root file can have.
fn largest(boot: &Boot) -> u64 {
    boot.manifest.sizes.root + boot.manifest.sizes.verity
}

/// Bytes of the file system of a folder, used or not; none if they cannot be read.
fn size_of(folder: &Path) -> Option<u64> {
    let found = nix::sys::statvfs::statvfs(folder).ok()?;
    Some(found.blocks() * found.fragment_size())
}

/// Why there is no root from `url`, whose file has at most `largest` bytes; `room` is what the tmpfs has.
fn not_fetched(error: Error, url: &str, largest: u64, room: Option<u64>) -> Error {
    let full = match error.downcast_ref::<Failure>() {
        Some(Failure::Disk { source, .. }) => source.kind() == ErrorKind::StorageFull,
        _ => false,
    };
    let fault = match full {
        true => Fault::new("the root does not fit into the memory of this machine")
            .expected(format!(
                "room for {url}, at most {} MiB",
                largest.div_ceil(MIB)
            ))
            .found(match room {
                Some(room) => format!("a tmpfs of {} MiB, {SHARE} of the memory", room / MIB),
                None => format!("a full tmpfs of {SHARE} of the memory"),
            })
            .fix("give the machine more memory, or boot the image from a disk"),
        false => Fault::new("the root could not be fetched")
            .expected(format!("{url} answering with the image's root file"))
            .fix("check slipway.root= in the boot script, and that the server runs"),
    };
    error.context(fault)
}

/// Fetches the root, and begins anew as long as nothing but the way to the server is at fault: no link, no lease, no name, no
/// answer, an answer that is cut off or says that the server is overloaded.
///
/// # Errors
/// What another attempt does not change: an answer that refuses (404), a file that is too large, no room.
fn until_fetched(
    boot: &Boot,
    url: &str,
    path: &Path,
    without_bytes: Duration,
    network: &dyn Fn() -> Result<()>,
) -> Result<()> {
    loop {
        let error = match download(boot, url, path, without_bytes) {
            Err(error) if is_temporary(&error) => error,
            done => return done,
        };
        announce(
            &boot.world,
            &format!("slipway: {error:#}; the download of the root begins anew"),
        );
        network()?;
    }
}

/// Whether the patience ended, and nothing else: `fetch` tries again by itself whatever another attempt may change.
fn is_temporary(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::Unreachable { .. }))
}

fn download(boot: &Boot, url: &str, path: &Path, without_bytes: Duration) -> Result<()> {
    let world = &boot.world;
    let client = fetch::blocking::Client::new(&Options {
        ca_bundle: linux::certificates::ca_bundle(world, &world.sysroot),
        links: boot.links(),
        ..Options::default()
    })?;
    let mut want = Want::new(url, largest(boot));
    want.patience = Patience {
        attempts: None,
        without_bytes: Some(without_bytes),
        slowest: Some(SLOWEST),
        ..Patience::default()
    };
    // What an earlier attempt has left goes.
    let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    let watch = Mutex::new((0_u64, Waiter::for_ever(world)));
    // Progress even without an answer: `fetch` calls this before each attempt and every five seconds of silence, which
    // its own deadlines end.
    let on_wait = |line: &str| {
        if let Ok(mut watch) = watch.lock() {
            watch.1.attempted();
        }
        linux::log::say(world, &format!("slipway: waiting for the root: {line}"));
    };
    client.verified_elsewhere(&want, file, &on_wait, &|bytes| {
        let Ok(mut watch) = watch.lock() else {
            return;
        };
        let (received, waiter) = &mut *watch;
        *received += bytes;
        waiter.received(bytes);
        waiter.say(&format!("the root: {} MiB received", *received / MIB));
    })?;
    Ok(())
}

/// Bytes of the EROFS at the begin of `file`: the offset of its hash tree.
///
/// On-disk format: the kernel's `fs/erofs/erofs_fs.h`; the superblock is at byte 1024.
fn data_size(file: &File, size: u64) -> Result<u64, String> {
    let mut superblock = [0; 128];
    file.read_exact_at(&mut superblock, 1024)
        .map_err(|error| format!("{size} bytes ({error})"))?;
    let magic = [0xe2, 0xe1, 0xf5, 0xe0];
    if superblock[..4] != magic {
        return Err(format!(
            "a file that begins otherwise, {:02x?}",
            &superblock[..4]
        ));
    }
    let blocks: [u8; 4] = [36, 37, 38, 39].map(|at| superblock[at]);
    let data = u64::from(u32::from_le_bytes(blocks)) << (superblock[12] & 31);
    let data = data.next_multiple_of(BLOCK);
    if data + BLOCK > size {
        return Err(format!(
            "{size} bytes where the file system alone has {data}"
        ));
    }
    Ok(data)
}

fn attach(world: &World, file: &File, offset: u64, size: u64) -> Result<String> {
    let open = |name: &str| {
        File::options()
            .read(true)
            .write(true)
            .open(world.dev.join(name))
            .with_context(|| format!("opening {name}"))
    };
    ensure!(size > 0, "nothing to attach");
    let name = format!("loop{}", ioctl::free_loop(&open("loop-control")?)?);
    ioctl::attach_loop(&open(&name)?, file, offset, size)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use linux::world::Clock;

    use super::*;
    use crate::config::tests::{reply, serve};

    fn boot(folder: &Path) -> Boot {
        let world = Arc::new(World::below(folder, Clock::Real));
        std::fs::create_dir_all(&world.dev).unwrap();
        std::fs::write(world.dev.join("console"), "").unwrap();
        Boot::of_tests(&world)
    }

    #[test]
    fn a_server_that_comes_later_than_the_node_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (boot, path) = (boot(folder.path()), folder.path().join("root"));
        // A port on which nobody listens yet.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1500));
            let listener = TcpListener::bind(address).unwrap();
            for mut stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while reader.read_line(&mut head).unwrap_or(0) > 2 {}
                // A slow machine's client may have begun anew.
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ncontent";
                stream.write_all(answer).unwrap_or_default();
            }
        });
        let looked = AtomicUsize::new(0);
        let network = || -> Result<()> {
            looked.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let (url, limit) = (format!("http://{address}/root"), Duration::from_millis(400));
        until_fetched(&boot, &url, &path, limit, &network).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        // Each time the limit is over, the network is brought up again, if it is not up.
        assert!(looked.load(Ordering::SeqCst) > 0);
        let console = std::fs::read_to_string(boot.world.dev.join("console")).unwrap();
        for words in [
            format!("slipway: waiting for the root: {url}: "),
            "; the download of the root begins anew\n".to_owned(),
        ] {
            assert!(console.contains(&words), "{words}: {console}");
        }
    }

    #[test]
    fn an_overloaded_server_is_asked_again_and_one_that_refuses_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (boot, path) = (boot(folder.path()), folder.path().join("root"));
        let server = serve(Box::new(|count, path, stream| match (path, count) {
            ("/gone", _) => reply(stream, "404 Not Found", b""),
            (_, 0) => reply(stream, "503 Service Unavailable", b""),
            (_, 1) => reply(stream, "429 Too Many Requests", b""),
            // Cut off.
            (_, 2) => stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ncon")
                .unwrap(),
            _ => reply(stream, "200 OK", b"content"),
        }));
        let never = || -> Result<()> { unreachable!("the limit is not over") };
        let fetched = |name: &str| {
            let url = format!("{}/{name}", server.base);
            until_fetched(&boot, &url, &path, Duration::from_secs(60), &never)
        };
        fetched("root").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        let error = fetched("gone").unwrap_err();
        assert!(!is_temporary(&error), "{error:#}");
        assert!(error.to_string().contains("404"), "{error:#}");
    }

    #[test]
    fn the_tree_begins_where_the_file_system_ends() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * BLOCK).unwrap();
        assert!(data_size(&file, 64 * BLOCK).is_err());
        file.write_all_at(&[0xe2, 0xe1, 0xf5, 0xe0], 1024).unwrap();
        file.write_all_at(&[12], 1024 + 12).unwrap();
        file.write_all_at(&60_u32.to_le_bytes(), 1024 + 36).unwrap();
        assert_eq!(data_size(&file, 64 * BLOCK), Ok(60 * BLOCK));
        // The file ends before the tree's superblock.
        let error = data_size(&file, 60 * BLOCK).unwrap_err();
        assert!(error.contains("alone has"), "{error}");
    }

    #[test]
    fn a_root_that_does_not_fit_is_no_servers_mistake() {
        let url = "http://a.example/root";
        let fault = |error: Error, room: Option<u64>| {
            let error = not_fetched(error, url, 300 * MIB + 1, room);
            error.downcast_ref::<Fault>().unwrap().clone()
        };
        let disk = |kind: ErrorKind| -> Error {
            let failure = Failure::Disk {
                path: "the open file".into(),
                source: kind.into(),
            };
            failure.into()
        };
        let full = fault(disk(ErrorKind::StorageFull), Some(200 * MIB));
        assert!(full.what.contains("does not fit"), "{full}");
        assert!(full.expected.unwrap().contains("301 MiB"));
        assert_eq!(full.found.unwrap(), "a tmpfs of 200 MiB, 80% of the memory");
        assert!(full.fix.unwrap().contains("more memory"));
        assert!(fault(disk(ErrorKind::StorageFull), None).found.is_some());
        for other in [disk(ErrorKind::Other), anyhow::anyhow!("no answer")] {
            let other = fault(other, Some(200 * MIB));
            assert!(other.fix.unwrap().contains("server runs"));
        }
        assert!(size_of(Path::new("/")).is_some_and(|size| size > MIB));
    }
}
