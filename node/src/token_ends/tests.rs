//! Ends that move, at an API server on loopback that keeps its objects.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use cluster::shared_keys;
use image::paths::{TIME_SYNCHRONIZED, UNSET_CLOCK};

use super::*;
use crate::journal::Journal;
use crate::samples::{Request, machine, put, server};
use crate::{apply, control_plane};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const TOKEN: &str = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";
/// A clock that is behind, and by how much.
const WRONG: i64 = 1_790_000_000;
const MONTHS: i64 = 100 * DAY;
const DAY: i64 = 24 * HOUR;
const HOUR: i64 = 3600;

/// The objects of a cluster by their paths.
#[derive(Clone, Default)]
struct Cluster(Arc<Mutex<BTreeMap<String, Value>>>);

impl Cluster {
    fn serve(&self) -> (Api, Receiver<Request>) {
        let cluster = self.clone();
        let (url, requests) = server(move |request| cluster.answer(request));
        (Api::plain(&url).unwrap(), requests)
    }

    fn answer(&self, request: &Request) -> (u16, String) {
        let mut all = self.0.lock().unwrap();
        let (method, path) = request.line.split_once(' ').unwrap();
        let mut path = path.split('?').next().unwrap().to_owned();
        let mut object: Value = serde_json::from_str(&request.body).unwrap_or_default();
        match (method, all.get(&path)) {
            ("GET", None) => return (404, "{\"message\": \"not found\"}".to_owned()),
            ("GET", Some(there)) => return (200, there.to_string()),
            ("PATCH", Some(there)) if request.kind.contains("merge-patch") => {
                let (change, version) = (object, &there["metadata"]["resourceVersion"]);
                assert_eq!(change["metadata"]["resourceVersion"], *version);
                object = there.clone();
                object["data"]["expiration"] = change["data"]["expiration"].clone();
            }
            ("POST", _) => {
                let name = object["metadata"]["name"].as_str().unwrap();
                path = format!("{path}/{name}");
                object["metadata"]["uid"] = format!("uid-{}", all.len()).into();
            }
            _ => {}
        }
        object["metadata"]["resourceVersion"] = "1".into();
        let text = object.to_string();
        all.insert(path, object);
        (200, text)
    }

    fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().insert(path.to_owned(), object);
    }

    fn get(&self, path: &str) -> Value {
        self.0
            .lock()
            .unwrap()
            .get(path)
            .cloned()
            .unwrap_or_default()
    }

    /// The end of a token in seconds since 1970; none if it is not there.
    fn end(&self, path: &str) -> Option<i64> {
        seconds(&self.get(path))
    }
}

fn seconds(secret: &Value) -> Option<i64> {
    let text = BASE64.decode(secret["data"]["expiration"].as_str()?.as_bytes());
    let time = cluster::duration::time(str::from_utf8(&text.unwrap()).unwrap()).unwrap();
    let since = time.duration_since(UNIX_EPOCH).unwrap();
    Some(i64::try_from(since.as_secs()).unwrap())
}

fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap())
}

/// A control plane of the boot `one`, whose clock is not synchronised.
fn plane(root: &Path) -> (World, Bootstrap) {
    let object = format!(
        "name = \"blue\"\ntokens = [\"abcdef.0123456789abcdef\"]\ncertificate-key = \"{KEY}\"\n[node]\naddress = \"10.0.0.7\"\n"
    );
    let world = machine(root, &object);
    put(&world.proc.join("sys/kernel/random/boot_id"), "one\n");
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
    (world, bootstrap)
}

fn token(secret: &str, end: i64) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system", "resourceVersion": "1"},
        "data": {"token-secret": secret, "expiration": encoded(end)},
    })
}

/// The requests other than reads since the last call.
fn changes(requests: &Receiver<Request>) -> usize {
    let all = requests.try_iter();
    all.filter(|request| !request.line.starts_with("GET "))
        .count()
}

#[test]
fn a_token_is_kept_before_it_is_sent_by_a_clock_that_is_not_set_and_moves_with_that() {
    for synchronised in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (world, bootstrap) = plane(folder.path());
        if synchronised {
            put(&world.in_run(TIME_SYNCHRONIZED), "");
        }
        let file = world.in_initrd(UNSET_CLOCK);
        let (cluster, kept) = (Cluster::default(), Arc::new(Mutex::new(None)));
        let (inner, seen, kept_at) = (cluster.clone(), Arc::clone(&kept), file.clone());
        let (url, requests) = server(move |request| {
            if request.line.starts_with(&format!("PATCH {TOKEN}?")) {
                *seen.lock().unwrap() = Some(kept_at.exists());
            }
            inner.answer(request)
        });
        let api = Api::plain(&url).unwrap();
        let mut journal = Journal::read(&world).unwrap().unwrap();
        apply::run(&world, &api, &bootstrap, &mut journal, false).unwrap();
        assert_eq!(*kept.lock().unwrap(), Some(!synchronised));
        let end = cluster.end(TOKEN).unwrap();
        changes(&requests);
        // Nothing has set the clock so far.
        let now = SystemTime::now();
        move_all(&world, &api, &bootstrap, &Reading::at(&world, now)).unwrap();
        assert_eq!((file.exists(), changes(&requests)), (!synchronised, 0));
        let months = Duration::from_secs(u64::try_from(MONTHS).unwrap());
        let now = Reading::at(&world, now + months);
        move_all(&world, &api, &bootstrap, &now).unwrap();
        assert!(!file.exists());
        let moved = cluster.end(TOKEN).unwrap() - end;
        match synchronised {
            true => assert_eq!(moved, 0),
            // Both readings are cut to whole seconds.
            false => assert!((moved - MONTHS).abs() <= 2, "{moved}"),
        }
        changes(&requests);
        move_all(&world, &api, &bootstrap, &now).unwrap();
        assert_eq!(requests.try_iter().count(), 0);
    }
}

/// The cluster's token cleaner removes what has ended by the clock that is set; everything else was done by somebody.
#[test]
fn what_the_token_cleaner_removed_is_made_again_and_what_somebody_did_stays() {
    let end = WRONG + DAY;
    for (there, set_by, expected) in [
        (Some(token("s", end)), MONTHS, Some(end + MONTHS)),
        (Some(token("s", end)), HOUR, Some(end + HOUR)),
        (None, MONTHS, Some(end + MONTHS)),
        (None, HOUR, None),
        (Some(token("s", end + HOUR)), MONTHS, Some(end + HOUR)),
        (Some(token("other", end)), MONTHS, Some(end)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (world, bootstrap) = plane(folder.path());
        let cluster = Cluster::default();
        let about = format!("{there:?} {set_by}");
        if let Some(there) = there {
            cluster.put(TOKEN, there);
        }
        let (api, _requests) = cluster.serve();
        let by = Reading::at(&world, at(WRONG));
        unset_clock::note(&world, &by, TOKEN, &token("s", end), None).unwrap();
        let now = Reading::at(&world, at(WRONG + set_by));
        move_all(&world, &api, &bootstrap, &now).unwrap();
        let found = cluster.end(TOKEN);
        let is_near = match (found, expected) {
            // The machine runs on meanwhile.
            (Some(found), Some(expected)) => (found - expected).abs() <= 2,
            (found, expected) => found == expected,
        };
        assert!(is_near, "{about}: {found:?}, expected {expected:?}");
        assert!(!world.in_initrd(UNSET_CLOCK).exists(), "{about}");
    }
}

#[test]
fn after_a_restart_a_token_lasts_as_long_as_it_was_to_once_the_clock_is_set_and_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = plane(folder.path());
    let cluster = Cluster::default();
    let (api, requests) = cluster.serve();
    // A machine that has been running for as long as the token lasts would know that it has lasted.
    let life = 10 * 365 * DAY;
    let by = Reading::at(&world, at(WRONG));
    unset_clock::note(&world, &by, TOKEN, &token("s", WRONG + life), None).unwrap();
    cluster.put(TOKEN, token("s", WRONG + life));
    put(&world.proc.join("sys/kernel/random/boot_id"), "two\n");
    let moved = |now: i64| {
        let now = Reading::at(&world, at(now));
        move_all(&world, &api, &bootstrap, &now).unwrap();
        (cluster.end(TOKEN).unwrap(), changes(&requests))
    };
    assert_eq!(moved(WRONG + MONTHS), (WRONG + life, 0));
    put(&world.in_run(TIME_SYNCHRONIZED), "");
    assert_eq!(moved(WRONG + MONTHS), (WRONG + MONTHS + life, 1));
    assert_eq!(moved(WRONG + 2 * MONTHS), (WRONG + MONTHS + life, 0));
}

/// How the upload is found when the clock is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upload {
    There,
    Cleaned,
    Replaced,
    OfAnotherKey,
}

#[test]
fn an_upload_of_the_shared_keys_moves_with_its_token_or_is_made_again() {
    for case in [
        Upload::There,
        Upload::Cleaned,
        Upload::Replaced,
        Upload::OfAnotherKey,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (world, bootstrap) = plane(folder.path());
        let cluster = Cluster::default();
        let (api, requests) = cluster.serve();
        let texts = key_upload::shared(&world, &bootstrap.object).unwrap();
        let key = match case {
            Upload::OfAnotherKey => CertificateKey::random(),
            _ => CertificateKey::parse(KEY),
        };
        let by = Reading::at(&world, at(WRONG));
        key_upload::upload_by(&world, &api, &texts, &key.unwrap(), &by).unwrap();
        let owner = |secret: &Value| secret["metadata"]["ownerReferences"][0]["name"].clone();
        let own = owner(&cluster.get(SHARED));
        let path = format!("{}/{}", key_upload::SECRETS, own.as_str().unwrap());
        assert_eq!(cluster.end(&path), Some(WRONG + 2 * HOUR));
        if case != Upload::There {
            cluster
                .0
                .lock()
                .unwrap()
                .retain(|at, _| *at != path && at != SHARED);
        }
        let other = json!({"metadata": {"ownerReferences": [{"name": "other"}]}});
        if case == Upload::Replaced {
            cluster.put(SHARED, other);
        }
        changes(&requests);
        let now = Reading::at(&world, at(WRONG + MONTHS));
        move_all(&world, &api, &bootstrap, &now).unwrap();
        assert!(!world.in_initrd(UNSET_CLOCK).exists(), "{case:?}");
        let sent = changes(&requests);
        if matches!(case, Upload::Replaced | Upload::OfAnotherKey) {
            assert_eq!(sent, 0, "{case:?}");
            continue;
        }
        let shared = cluster.get(SHARED);
        assert_eq!(owner(&shared) == own, case == Upload::There);
        let path = format!(
            "{}/{}",
            key_upload::SECRETS,
            owner(&shared).as_str().unwrap()
        );
        let end = cluster.end(&path).unwrap();
        let expected = WRONG + MONTHS + 2 * HOUR;
        assert!((end - expected).abs() <= 2, "{case:?}: {end}");
        let key = CertificateKey::parse(KEY).unwrap();
        let opened = shared_keys::open(&shared, &key).unwrap();
        assert!(opened.into_iter().map(|(_, text)| text).eq(texts));
    }
}
