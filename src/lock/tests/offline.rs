//! Locks and their files without any request, and from the lock's own folder.

use data_encoding::HEXLOWER;
use sha2::Digest as _;

use super::*;
use crate::lock::objects::{self, Wanted};
use crate::lock::vendor;

impl Bench {
    /// A session that makes no request, with the cache of another one.
    fn offline(&self, of: &Session) -> Session {
        let cache = Cache::at(of.cache.root().to_owned()).unwrap();
        let mut session = Session::new(cache, Progress::new(Kind::Quiet));
        session.offline = true;
        session
    }

    fn asked(&self) -> usize {
        self.debian.asked().len() + self.vendor.asked().len()
    }
}

#[test]
fn a_lock_is_made_offline_of_what_was_read_before_and_all_that_is_missing_is_named() {
    let bench = Bench::new(&["extra 1"]);
    let archive = "packages = ['extra']";
    let recipe = |packages| bench.recipe(packages, archive);
    let online = bench.session();
    let offline = bench.offline(&online);
    let error = bench.pin_in(&offline, recipe("'tool'"), Mode::Make, &[]);
    let error = format!("{:#}", error.unwrap_err());
    for suite in [
        "trixie/InRelease",
        "trixie-updates",
        "trixie-security",
        "archive vendor",
    ] {
        assert!(error.contains(suite), "{error}");
    }
    assert!(error.contains("no request is made offline"), "{error}");
    assert_eq!(bench.asked(), 0);

    let made = bench
        .pin_in(&online, recipe("'tool'"), Mode::Make, &[])
        .unwrap();
    let before = bench.asked();
    let wider = bench.pin_in(
        &offline,
        recipe("'tool', 'extra', 'engine'"),
        Mode::Make,
        &[],
    );
    assert_eq!(
        named(&wider.unwrap(), SET_ROOT),
        [
            "engine 1.5 debian",
            "extra 1 vendor",
            "lib 1 debian",
            "tool 1 debian"
        ]
    );
    let again = bench
        .pin_in(&offline, recipe("'tool'"), Mode::Renew, &[])
        .unwrap();
    assert_eq!(again.lock, made.lock);

    // The indexes of two suites are gone: both are named.
    let downloads = online.cache.root().join("downloads");
    fs::remove_dir_all(&downloads).unwrap();
    let error = bench.pin_in(&offline, recipe("'tool'"), Mode::Renew, &[]);
    let error = format!("{:#}", error.unwrap_err());
    assert!(error.contains("reading trixie from the mirror"), "{error}");
    assert!(
        error.contains("reading trixie of archive vendor"),
        "{error}"
    );
    assert_eq!(bench.asked(), before);
}

#[test]
fn a_build_offline_names_every_missing_file_of_every_set() {
    let bench = Bench::new(&[]);
    let session = bench.session();
    let locked = bench
        .pin_in(&session, bench.recipe("'tool'", ""), Mode::Make, &[])
        .unwrap();
    let offline = bench.offline(&session);
    locked.check_offline(&session, Wanted::Build).unwrap();
    locked.fetch(&session, SET_ROOT).unwrap();
    let asked = bench.asked();
    let error = format!(
        "{:#}",
        locked.check_offline(&offline, Wanted::Build).unwrap_err()
    );
    for missing in [
        "linux-image-amd64 6.12, ",
        "erofs-utils 1, ",
        "qemu-utils 1, ",
    ] {
        assert!(error.contains(missing), "{error}");
    }
    assert!(!error.contains("\n  tool 1"), "{error}");
    // A build runs no image.
    assert!(!error.contains("qemu-system-x86"), "{error}");
    let all = format!(
        "{:#}",
        locked.check_offline(&offline, Wanted::All).unwrap_err()
    );
    assert!(all.contains("qemu-system-x86"), "{all}");
    let error = format!("{:#}", locked.fetch(&offline, "kernel").unwrap_err());
    assert!(error.contains("no request is made offline"), "{error}");
    locked.fetch(&offline, SET_ROOT).unwrap();
    assert_eq!(bench.asked(), asked);
    for set in ["kernel", SET_TOOLS_BUILD] {
        locked.fetch(&session, set).unwrap();
    }
    locked.check_offline(&offline, Wanted::Build).unwrap();
}

#[test]
fn a_lock_s_own_folder_has_all_of_it_when_every_server_is_gone() {
    let bench = Bench::new(&["extra 1"]);
    let session = bench.session();
    let recipe = || bench.recipe("'tool', 'extra'", "packages = ['extra']");
    let mut locked = bench.pin_in(&session, recipe(), Mode::Make, &[]).unwrap();
    let folder = bench.folder.path().join("vendor");
    let (count, size) = vendor::write(&session, &mut locked, &folder).unwrap();
    let packages: usize = locked.lock.sets.values().map(Vec::len).sum();
    assert!(
        count > 10 && count <= packages && size > 1000,
        "{count} of {packages}"
    );
    let kept = read(&locked.recipe.lock_path()).unwrap();
    assert_eq!(kept.vendor.as_deref(), Some("vendor"));
    // Twice is the same.
    assert_eq!(
        vendor::write(&session, &mut locked, &folder).unwrap(),
        (count, size)
    );

    bench.debian.replace(Served::new());
    bench.vendor.replace(Served::new());
    let before = bench.asked();
    let other = bench.session();
    let offline = bench.offline(&other);
    let fresh = bench.pin_in(&offline, recipe(), Mode::Locked, &[]).unwrap();
    fresh.check_offline(&offline, Wanted::All).unwrap();
    for set in fresh.lock.sets.keys() {
        for deb in fresh.fetch(&offline, set).unwrap() {
            let found = crate::format::digest::sha256(&deb.path).unwrap();
            assert_eq!(found, deb.package.sha256);
        }
    }
    // Not only offline.
    let third = bench.session();
    fresh.fetch(&third, SET_ROOT).unwrap();
    assert_eq!(bench.asked(), before);

    // Other bytes in it are an error, and never taken from elsewhere in silence.
    let tool = kept.sets[SET_ROOT]
        .iter()
        .find(|package| package.name == "tool")
        .unwrap();
    let file = folder.join(&tool.sha256[..2]).join(&tool.sha256);
    let mut bytes = fs::read(&file).unwrap();
    bytes[9] ^= 1;
    fs::write(&file, bytes).unwrap();
    let error = format!("{:#}", fresh.fetch(&bench.session(), SET_ROOT).unwrap_err());
    assert!(
        error.contains("tool 1: ") && error.contains("digest mismatch"),
        "{error}"
    );
    // The next writing mends it.
    vendor::write(&session, &mut locked, &folder).unwrap();
    fresh.fetch(&bench.session(), SET_ROOT).unwrap();
    // A new lock keeps the word of its folder.
    fs::remove_file(&file).unwrap();
    let error = fresh.check_offline(&bench.offline(&bench.session()), Wanted::All);
    assert!(format!("{:#}", error.unwrap_err()).contains("1 files of "));
}

/// The same files behind a web server, a bucket for one, whose URL the user writes into the lock.
#[test]
fn the_folder_may_be_behind_a_url() {
    let bench = Bench::new(&[]);
    let session = bench.session();
    let recipe = || bench.recipe("'tool'", "");
    let mut locked = bench.pin_in(&session, recipe(), Mode::Make, &[]).unwrap();
    let folder = bench.folder.path().join("vendor");
    vendor::write(&session, &mut locked, &folder).unwrap();
    let mut served = Served::new();
    for item in crate::host::tree::walk(&folder).unwrap() {
        if item.meta.is_file() {
            served.insert(
                format!("/bucket{}", item.inside),
                fs::read(&item.path).unwrap(),
            );
        }
    }
    fs::remove_dir_all(&folder).unwrap();
    let bucket = Loopback::serve(served);
    let path = locked.recipe.lock_path();
    let text = fs::read_to_string(&path).unwrap();
    let url = format!("'{}/bucket/'", bucket.url);
    fs::write(&path, text.replace("\"vendor\"", &url)).unwrap();
    let before = bench.asked();
    let fresh = bench.pin(recipe(), Mode::Make, &[]).unwrap();
    fresh.fetch(&bench.session(), SET_ROOT).unwrap();
    assert_eq!(bench.asked(), before);
    assert_eq!(bucket.asked().len(), fresh.lock.sets[SET_ROOT].len());
}

/// A registry with one image, and a program, at one server; the image's reference and the program's lock.
fn served() -> (Loopback, String, LockedProgram) {
    let sum = |bytes: &[u8]| HEXLOWER.encode(&sha2::Sha256::digest(bytes));
    let (program, config, layer) = ("a program", "{}", "a layer");
    let described = |text: &str, kind: &str| {
        let (digest, size) = (sum(text.as_bytes()), text.len());
        format!(r#"{{"mediaType":"{kind}","digest":"sha256:{digest}","size":{size}}}"#)
    };
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{},"layers":[{}]}}"#,
        described(config, "application/vnd.oci.image.config.v1+json"),
        described(layer, "application/vnd.oci.image.layer.v1.tar")
    );
    let digest = sum(manifest.as_bytes());
    let mut files = Served::new();
    files.insert("/kubelet".to_owned(), program.into());
    files.insert(
        format!("/v2/agent/manifests/sha256:{digest}"),
        manifest.into(),
    );
    for blob in [config, layer] {
        let path = format!("/v2/agent/blobs/sha256:{}", sum(blob.as_bytes()));
        files.insert(path, blob.into());
    }
    let server = Loopback::serve(files);
    let host = server.url.trim_start_matches("http://");
    let reference = format!("{host}/agent:v1@sha256:{digest}");
    let locked = LockedProgram {
        version: "v1.36.3".to_owned(),
        sha256: sum(program.as_bytes()),
        size: program.len() as u64,
        source: LockedFrom::Release {
            url: format!("{}/kubelet", server.url),
        },
    };
    (server, reference, locked)
}

#[test]
fn the_folder_has_programs_and_images_too() {
    let bench = Bench::new(&[]);
    let (server, reference, program) = served();
    let session = bench.session();
    let recipe = || {
        let path = bench.recipe("'tool'", "").path;
        let text = fs::read_to_string(&path).unwrap();
        let image = format!("[[overlay.images]]\noci = '{reference}'\nto = '/usr/lib/agent'\n");
        fs::write(&path, format!("{text}{image}")).unwrap();
        recipe::load(&path).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)))
    };
    let mut locked = bench.pin_in(&session, recipe(), Mode::Make, &[]).unwrap();
    locked.lock.kubelet = Some(program.clone());
    let folder = bench.folder.path().join("vendor");
    vendor::write(&session, &mut locked, &folder).unwrap();
    assert_eq!(server.asked().len(), 4, "{:?}", server.asked());

    server.replace(Served::new());
    bench.debian.replace(Served::new());
    let offline = bench.offline(&bench.session());
    let fresh = bench.pin_in(&offline, recipe(), Mode::Locked, &[]).unwrap();
    fresh.check_offline(&offline, Wanted::All).unwrap();
    let obtained = kubelet::obtain(&offline, &fresh).unwrap().unwrap();
    assert_eq!(fs::read(&obtained.kubelet.path).unwrap(), b"a program");
    let references = objects::references(&fresh);
    assert_eq!(references, [reference.as_str()]);
    objects::bring_image(&offline, &fresh, &reference, &|_| ()).unwrap();
    let reference = reference.parse().unwrap();
    let step = offline.progress.step("pull");
    let pulled = crate::oci::pull(&offline, &reference, "amd64", &step).unwrap();
    assert_eq!(fs::read(&pulled.layers[0].1).unwrap(), b"a layer");
    assert_eq!(server.asked().len(), 4);

    // Another program in it is seen, and none is taken from elsewhere in silence.
    let path = folder.join(&program.sha256[..2]).join(&program.sha256);
    fs::write(&path, "a pr0gram").unwrap();
    let other = bench.offline(&bench.session());
    let error = format!("{:#}", kubelet::obtain(&other, &fresh).unwrap_err());
    assert!(
        error.contains("kubelet v1.36.3") && error.contains("digest mismatch"),
        "{error}"
    );
}

/// A change of the recipe keeps a pin whose file only the lock's own folder has.
#[test]
fn what_is_gone_is_taken_from_the_lock_s_own_folder() {
    let bench = Bench::new(&["extra 1"]);
    let session = bench.session();
    let recipe = |packages: &str| bench.recipe(packages, "packages = ['extra']");
    let mut locked = bench
        .pin_in(&session, recipe("'extra'"), Mode::Make, &[])
        .unwrap();
    let folder = bench.folder.path().join("vendor");
    vendor::write(&session, &mut locked, &folder).unwrap();
    bench.vendor.replace(bench.vendors(&["extra 2"]));
    let root = |packages: &str| {
        let locked = bench.pin(recipe(packages), Mode::Make, &[]).unwrap();
        assert_eq!(locked.lock.vendor.as_deref(), Some("vendor"));
        named(&locked, SET_ROOT)
    };
    let kept = ["extra 1 vendor", "tool 1 debian"];
    assert_eq!(root("'extra', 'tool'"), kept);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(root("'extra'"), ["extra 2 vendor"]);
}
