//! Locks from private mirrors: each server gets its login, and nothing that is written or said has one.

use std::path::Path;
use std::sync::Arc;

use data_encoding::BASE64;

use super::*;
use crate::host::logins::{HostLogins, Surroundings};
use crate::host::tree;

/// How every password here begins, plain, behind `joe:` and alone in base64.
const SECRETS: [&str; 3] = ["s3cr3t-", "am9lOnMzY3IzdC", "czNjcjN0L"];

fn assert_no_secret(what: &str, bytes: &[u8]) {
    for secret in SECRETS {
        let found = bytes
            .windows(secret.len())
            .any(|window| window == secret.as_bytes());
        assert!(!found, "{what} has {secret}");
    }
}

/// Looks into all files below a folder.
fn assert_no_secret_in(folder: &Path) {
    let mut files = 0;
    for item in tree::walk(folder).unwrap() {
        if item.meta.is_file() {
            files += 1;
            assert_no_secret(
                &item.path.display().to_string(),
                &fs::read(&item.path).unwrap(),
            );
        }
    }
    assert!(files > 5, "{files} files");
}

#[test]
fn a_lock_from_private_mirrors_has_no_login_anywhere() {
    for (secret, of) in SECRETS[1..]
        .iter()
        .zip(["joe:s3cr3t-debian", "s3cr3t-vendor"])
    {
        assert!(BASE64.encode(of.as_bytes()).starts_with(secret), "{secret}");
    }
    let bench = Bench::new(&["extra 1"]);
    let remote = bench.item("agent 7; Depends: engine; Architecture: all");
    let sum = vendor::sha256(&remote.file);
    let mut served = bench.vendors(&["extra 1"]);
    served.insert("/agent_7.deb".to_owned(), remote.file.clone());
    bench.vendor.replace(served);
    bench.debian.wants("joe", "s3cr3t-debian");
    bench.vendor.wants("ann", "s3cr3t-vendor");

    // The environment has the vendor's login, apt the mirror's.
    let secret = tempfile::tempdir().unwrap();
    let conf = secret.path().join("auth.conf.d/mirror.conf");
    fs::create_dir(conf.parent().unwrap()).unwrap();
    let session = |password: &str| {
        let line = format!(
            "machine {}/debian login joe password {password}",
            bench.debian.url
        );
        let security = format!(
            "machine {}/security login joe password {password}",
            bench.debian.url
        );
        fs::write(&conf, format!("{line}\n{security}\n")).unwrap();
        let text = format!(
            "machine {} login ann password s3cr3t-vendor",
            bench.vendor.url
        );
        let mut session = bench.session();
        session.logins = Arc::new(HostLogins::of(Surroundings::with_apt(&text, secret.path())));
        session
    };
    let recipe = || {
        let path = bench.recipe("'tool'", "packages = ['extra']").path;
        let debs = format!(
            "debs = [{{ url = '{}/agent_7.deb', sha256 = '{sum}' }}]",
            bench.vendor.url
        );
        let file = format!(
            "[files.'/usr/bin/tool']\nurl = '{}/agent_7.deb'\nsha256 = '{sum}'",
            bench.vendor.url
        );
        let text = fs::read_to_string(&path).unwrap();
        let text = text.replace(
            "[[debian.archives]]",
            &format!("{debs}\n[[debian.archives]]"),
        );
        fs::write(&path, format!("{text}{file}\n")).unwrap();
        recipe::load(&path).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)))
    };

    let wrong = session("s3cr3t-wrong");
    let error = bench.pin_in(&wrong, recipe(), Mode::Make, &[]).unwrap_err();
    let said = format!("{error:#} {error:?}");
    assert!(
        said.contains("401 Unauthorized") && said.contains(&conf.display().to_string()),
        "{said}"
    );
    assert_no_secret("the error", said.as_bytes());

    let session = session("s3cr3t-debian");
    let locked = bench.pin_in(&session, recipe(), Mode::Make, &[]).unwrap();
    let files = locked.fetch(&session, SET_ROOT).unwrap();
    assert!(files.len() > 3, "{files:?}");
    locked.fetch_files(&session).unwrap();
    assert_eq!(fs::read(session.cache.object(&sum)).unwrap(), remote.file);
    let shown = format!("{locked:?} {session:?} {:?}", session.fetch_options());
    assert_no_secret("what is shown of it", shown.as_bytes());
    // Recipe, lock, certificates, and both caches.
    assert_no_secret_in(bench.folder.path());
    let lock = fs::read_to_string(bench.folder.path().join("a.lock")).unwrap();
    assert!(lock.contains("agent"), "{lock}");
}

#[test]
fn a_mirror_that_wants_a_login_says_where_it_belongs() {
    let bench = Bench::new(&[]);
    bench.debian.wants("joe", "s3cr3t-debian");
    let nothing = tempfile::tempdir().unwrap();
    let mut session = bench.session();
    session.logins = Arc::new(HostLogins::of(Surroundings::with_apt("", nothing.path())));
    let recipe = bench.recipe("'tool'", "");
    let error = bench.pin_in(&session, recipe, Mode::Make, &[]).unwrap_err();
    let error = format!("{error:#}");
    let url = &bench.debian.url;
    let expected = format!("no login of {url} is known: `machine {url} login");
    assert!(
        error.contains("401 Unauthorized") && error.contains(&expected),
        "{error}"
    );
}
