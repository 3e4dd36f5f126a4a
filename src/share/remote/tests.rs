//! Two caches and a store between them: what is sound is taken, what is not is refused, and a store that is away ends no build.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use fetch::{Credentials, Endpoints};

use super::*;
use crate::host::cache::Cache;
use crate::host::progress::Kind;
use crate::share::keys::SecretKey;

struct Bench {
    place: tempfile::TempDir,
    secret: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let secret = place.path().join("key");
        SecretKey::create("builders", &secret).unwrap();
        Self { place, secret }
    }

    fn url(&self) -> String {
        format!("file://{}/store", self.place.path().display())
    }

    /// A cache of its own, on a machine that signs or only reads.
    fn cache(&self, name: &str, url: &str, signs: bool) -> Cache {
        let mut cache = Cache::at(self.place.path().join(name)).unwrap();
        let secret = SecretKey::read(&self.secret).unwrap();
        let remote = Remote {
            url: url.to_owned(),
            trusted: vec![secret.public().unwrap()],
            secret: signs.then_some(secret),
        };
        let progress = Progress::new(Kind::Quiet);
        let options = fetch::Options::default();
        let interrupt = Interrupt::default();
        let shared = RemoteCache::open(remote, &options, &progress, cache.root(), &interrupt);
        cache.share(Some(Arc::new(shared.unwrap())));
        cache
    }

    /// Stores the results `a` and `b` of the step `test`.
    fn fill(&self) {
        let cache = self.cache("first", &self.url(), true);
        for name in ["a", "b"] {
            assert!(!made(&cache, name), "{name}");
        }
        cache.shared().unwrap().finish();
    }

    fn note(&self, name: &str) -> PathBuf {
        let note = statement::name("test", &key(name));
        self.place.path().join("store/notes").join(note)
    }

    /// The archives of the store.
    fn archives(&self) -> Vec<PathBuf> {
        let items = crate::host::tree::walk(&self.place.path().join("store")).unwrap();
        let files = items.into_iter().filter(|item| item.meta.is_file());
        let archives = files.filter(|item| !item.inside.starts_with("/notes/"));
        archives.map(|item| item.path).collect()
    }
}

fn key(name: &str) -> Key {
    Key::of_data("test", 1).text("name", name).finish()
}

/// Makes the result `name`; whether it was there.
fn made(cache: &Cache, name: &str) -> bool {
    let made = cache
        .step("test", &key(name), |folder| {
            Ok(fs::write(folder.join("x"), name)?)
        })
        .unwrap();
    assert_eq!(fs::read_to_string(made.path.join("x")).unwrap(), name);
    let left = fs::read_dir(&made.path).unwrap().count();
    assert_eq!(left, 2, "the result and the cache's own note");
    made.hit
}

#[test]
fn what_one_machine_made_the_other_takes() {
    let bench = Bench::new();
    bench.fill();
    let second = bench.cache("second", &bench.url(), false);
    assert!(made(&second, "a") && made(&second, "b"));
    // A machine without a key sends nothing.
    assert!(!made(&second, "c"));
    second.shared().unwrap().finish();
    assert!(!bench.note("c").exists());
    let file = bench.place.path().join("program");
    fs::write(&file, "program").unwrap();
    let sha256 = crate::format::digest::sha256(&file).unwrap();
    let first = bench.cache("first", &bench.url(), true);
    first.shared().unwrap().store_file(&sha256, 7, file);
    first.shared().unwrap().finish();
    let target = bench.place.path().join("new/program");
    let shared = second.shared().unwrap();
    assert!(!shared.fetch_file(&"0".repeat(64), 7, &target));
    assert!(shared.fetch_file(&sha256, 7, &target));
    assert_eq!(fs::read_to_string(&target).unwrap(), "program");
}

#[test]
fn what_is_not_signed_for_this_result_is_made_here() {
    type Harm = fn(&Bench);
    let harms: [(&str, Harm); 7] = [
        ("unsigned", |bench| {
            fs::write(bench.note("a"), "{}").unwrap();
        }),
        ("swapped", |bench| {
            fs::copy(bench.note("b"), bench.note("a")).unwrap();
        }),
        ("of another's key", |bench| {
            let text = fs::read_to_string(bench.note("a")).unwrap();
            let other = Bench::new();
            let secret = SecretKey::read(&other.secret).unwrap();
            let trusted = [SecretKey::read(&bench.secret).unwrap().public().unwrap()];
            let archive = statement::verify(text.as_bytes(), "test", &key("a"), &trusted);
            let note = statement::sign("test", &key("a"), &archive.unwrap(), &secret);
            fs::write(bench.note("a"), note.unwrap()).unwrap();
        }),
        ("changed", |bench| {
            for archive in bench.archives() {
                let mut bytes = fs::read(&archive).unwrap();
                let at = bytes.len() / 2;
                bytes[at] ^= 1;
                fs::write(archive, bytes).unwrap();
            }
        }),
        ("cut off", |bench| {
            for archive in bench.archives() {
                let bytes = fs::read(&archive).unwrap();
                fs::write(archive, &bytes[..bytes.len() - 9]).unwrap();
            }
        }),
        ("longer", |bench| {
            for archive in bench.archives() {
                let bytes = fs::read(&archive).unwrap();
                fs::write(archive, [bytes, vec![0; 9]].concat()).unwrap();
            }
        }),
        ("gone", |bench| {
            bench
                .archives()
                .iter()
                .for_each(|archive| fs::remove_file(archive).unwrap());
        }),
    ];
    for (name, harm) in harms {
        let bench = Bench::new();
        bench.fill();
        harm(&bench);
        let second = bench.cache("second", &bench.url(), false);
        assert!(!made(&second, "a"), "{name}");
    }
}

#[test]
fn a_host_that_cannot_write_neither_blames_the_archive_nor_the_store() {
    let full_disk = std::io::Error::from_raw_os_error(nix::errno::Errno::ENOSPC as i32);
    let refusal = Refusal::of_unpacking(Error::from(full_disk).context("unpacking usr/bin/su"));
    assert!(matches!(refusal, Refusal::Host(_)));
    let refusal = Refusal::of_unpacking(anyhow::anyhow!("the archive is empty"));
    assert!(matches!(refusal, Refusal::Untrusted(_)));
    // Files that cannot be written, more often than a store may fail.
    let bench = Bench::new();
    bench.fill();
    let second = bench.cache("second", &bench.url(), false);
    let file = bench.place.path().join("file");
    fs::write(&file, "").unwrap();
    let shared = second.shared().unwrap();
    for _ in 0..4 {
        assert!(!shared.fetch_file(&"0".repeat(64), 7, &file.join("below/program")));
    }
    assert!(made(&second, "a"), "the store is still asked");
}

#[test]
fn a_store_that_fails_is_left_out_after_three_failures() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            drop(connection);
        }
    });
    let bench = Bench::new();
    let cache = bench.cache("first", &format!("oci://{address}/cache"), true);
    for name in ["a", "b", "c", "d", "e"] {
        assert!(!made(&cache, name));
    }
    cache.shared().unwrap().finish();
    let asked = asked.load(Ordering::SeqCst);
    assert!((1..=12).contains(&asked), "{asked}");
}

#[test]
fn a_silent_store_costs_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let bench = Bench::new();
    let cache = bench.cache("first", &format!("oci://{address}/cache"), false);
    let began = Instant::now();
    assert!(!made(&cache, "a"));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(9), "{took:?}");
    drop(listener);
}

#[test]
fn results_cannot_be_sent_to_what_is_only_read() {
    let bench = Bench::new();
    let secret = SecretKey::read(&bench.secret).unwrap();
    let remote = Remote {
        url: "https://mirror.example/cache".to_owned(),
        trusted: vec![secret.public().unwrap()],
        secret: Some(secret),
    };
    let progress = Progress::new(Kind::Quiet);
    let place = bench.place.path();
    let (options, interrupt) = (fetch::Options::default(), Interrupt::default());
    let error = RemoteCache::open(remote, &options, &progress, place, &interrupt);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is only read"), "{error}");
}

/// As by `slipway lock`, which compiles programs and is no build.
#[test]
fn what_is_made_is_sent_before_the_cache_is_closed() {
    let bench = Bench::new();
    let cache = bench.cache("first", &bench.url(), true);
    // Of the size that takes a while to pack.
    let mut random = 1_u32;
    let bytes = std::iter::repeat_with(|| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random.to_le_bytes()[3]
    });
    let content: Vec<u8> = bytes.take(16 << 20).collect();
    let made = cache.step("test", &key("a"), |folder| {
        Ok(fs::write(folder.join("x"), &content)?)
    });
    made.unwrap();
    drop(cache);
    assert!(bench.note("a").exists());
}

/// A server of S3's protocol that begins uploads in parts, and takes no part.
fn bucket_that_takes_no_part() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || answer(&connection.unwrap(), &seen));
        }
    });
    (url, asked)
}

/// Answers the requests of a connection, each of which has no content but that of a part.
fn answer(connection: &TcpStream, seen: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        let method = first.split(' ').next().unwrap_or_default().to_owned();
        seen.lock().unwrap().push(first);
        let (status, body) = match method.as_str() {
            "HEAD" => ("404 Not Found", ""),
            "POST" => ("200 OK", "<R><UploadId>u</UploadId></R>"),
            "DELETE" => ("204 No Content", ""),
            // The content of the part is not read.
            _ => loop {
                std::thread::park();
            },
        };
        while lines.next().is_some_and(|line| !line.is_empty()) {}
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        let mut to = connection;
        to.write_all(head.as_bytes()).unwrap();
    }
}

#[test]
fn a_large_upload_that_is_interrupted_is_waited_for_and_taken_back() {
    let (url, asked) = bucket_that_takes_no_part();
    let bench = Bench::new();
    let remote = Remote {
        url: "s3://bucket/cache".to_owned(),
        trusted: Vec::new(),
        secret: Some(SecretKey::read(&bench.secret).unwrap()),
    };
    let options = fetch::Options {
        credentials: Some(Credentials {
            key: "K".to_owned(),
            secret: "S".to_owned(),
            token: None,
        }),
        endpoints: Endpoints {
            s3: Some(url),
            s3_region: Some("eu-test-1".to_owned()),
            ..Endpoints::default()
        },
        ..fetch::Options::default()
    };
    let (progress, interrupt) = (Progress::new(Kind::Quiet), Interrupt::default());
    let shared = RemoteCache::open(remote, &options, &progress, bench.place.path(), &interrupt);
    let shared = shared.unwrap();
    let file = bench.place.path().join("large");
    // More than what goes in one request.
    let size = (512 << 20) + 1;
    fs::File::create(&file).unwrap().set_len(size).unwrap();
    shared.store_file(&"0".repeat(64), size, file);
    let has = |method: &str| {
        let asked = asked.lock().unwrap();
        asked.iter().any(|line| line.starts_with(method))
    };
    let until = Instant::now() + Duration::from_secs(120);
    while !has("PUT ") {
        assert!(Instant::now() < until, "{asked:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(interrupt.guarded() && !has("DELETE "));
    interrupt.request();
    shared.finish();
    assert!(has("DELETE "), "{asked:?}");
    assert!(!interrupt.guarded());
}
