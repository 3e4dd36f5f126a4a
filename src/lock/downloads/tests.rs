//! Files from a server on loopback: intact, cut off, missing, with wrong content, and not asked for again.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use data_encoding::HEXLOWER;
use sha2::Digest as _;

use super::*;
use crate::debian::loopback::Loopback;
use crate::host::cache::Cache;
use crate::host::progress::{Kind, Progress};
use crate::lock::objects::Wanted;
use crate::lock::{Lock, vendor};
use crate::recipe::{self, Mistakes};

fn sum(content: &[u8]) -> String {
    HEXLOWER.encode(&sha2::Sha256::digest(content))
}

/// A recipe with a file of each of these URLs and hashes.
fn locked(folder: &Path, files: &[(&str, &str)]) -> LockedRecipe {
    let mut text = "image = { name = 'a', version = '1' }\n\
                    kernel = { package = 'linux-image-amd64', platforms = ['qemu'] }\n"
        .to_owned();
    for (number, (url, sha256)) in files.iter().enumerate() {
        text += &format!("[files.'/usr/bin/tool{number}']\nurl = '{url}'\nsha256 = '{sha256}'\n");
    }
    let path = folder.join("a.toml");
    fs::write(&path, text).unwrap();
    let recipe = recipe::load(&path).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    LockedRecipe {
        recipe,
        lock: Lock::default(),
    }
}

fn session(folder: &Path) -> Session {
    let cache = Cache::at(folder.join("cache")).unwrap();
    Session::new(cache, Progress::new(Kind::Quiet))
}

/// Cuts the first answer off in its middle, as a lost connection does, and gives the whole to a later request.
fn cutting(body: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/tool", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (number, connection) in listener.incoming().enumerate() {
            let mut connection = connection.unwrap();
            let mut request = [0; 4096];
            let _read = connection.read(&mut request).unwrap();
            let size = body.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n");
            connection.write_all(head.as_bytes()).unwrap();
            let sent = if number == 0 { &body[..size / 2] } else { body };
            connection.write_all(sent).unwrap();
        }
    });
    url
}

#[test]
fn files_are_fetched_once_and_a_cut_transfer_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let served = HashMap::from([("/x/tool?v=1".to_owned(), b"tool".to_vec())]);
    let server = Loopback::serve(served);
    let cut = cutting(b"a longer program");
    let locked = locked(
        folder.path(),
        &[
            (&format!("{}/x/tool?v=1", server.url), &sum(b"tool")),
            (&cut, &sum(b"a longer program")),
        ],
    );
    locked.fetch_files(&session).unwrap();
    let read = |content: &[u8]| fs::read(session.cache.object(&sum(content))).unwrap();
    assert_eq!(read(b"tool"), b"tool");
    assert_eq!(read(b"a longer program"), b"a longer program");
    server.replace(HashMap::new());
    locked.fetch_files(&session).unwrap();
    assert_eq!(server.asked(), ["/x/tool?v=1"]);
}

#[test]
fn a_missing_file_and_a_wrong_one_are_mistakes_of_the_recipe_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let server = Loopback::serve(HashMap::from([("/lie".to_owned(), b"other".to_vec())]));
    let (lie, gone) = (
        format!("{}/lie", server.url),
        format!("{}/gone", server.url),
    );
    let locked = locked(
        folder.path(),
        &[(&lie, &sum(b"tool")), (&gone, &sum(b"more"))],
    );
    let error = locked.fetch_files(&session).unwrap_err();
    let report = error.downcast_ref::<Mistakes>().unwrap().render(false);
    for expected in [
        "a.toml:5:10",
        &lie,
        &sum(b"tool"),
        &sum(b"other"),
        "a.toml:8:10",
        &gone,
        "404",
        "2 mistakes",
    ] {
        assert!(report.contains(expected), "{expected}\n{report}");
    }
    for content in [&b"tool"[..], b"more", b"other"] {
        assert!(!session.cache.object(&sum(content)).exists());
    }
}

#[test]
fn the_locks_own_folder_has_them_before_any_server_and_offline() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = session(folder.path());
    let server = Loopback::serve(HashMap::from([("/tool".to_owned(), b"tool".to_vec())]));
    let url = format!("{}/tool", server.url);
    let mut locked = locked(folder.path(), &[(&url, &sum(b"tool"))]);
    session.offline = true;
    let error = locked.check_offline(&session, Wanted::Build).unwrap_err();
    assert!(format!("{error:#}").contains(&url), "{error:#}");
    let kept = folder.path().join("kept");
    session.offline = false;
    let (count, size) = vendor::write(&session, &mut locked, &kept).unwrap();
    assert_eq!((count, size), (1, 4));
    fs::remove_file(session.cache.object(&sum(b"tool"))).unwrap();
    server.replace(HashMap::new());
    session.offline = true;
    locked.check_offline(&session, Wanted::Build).unwrap();
    locked.fetch_files(&session).unwrap();
    assert_eq!(
        fs::read(session.cache.object(&sum(b"tool"))).unwrap(),
        b"tool"
    );
    assert_eq!(server.asked().len(), 1);
}
