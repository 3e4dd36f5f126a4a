//! The images of one run are made from one state of each suite, and take their programs from the same sources.

use super::*;
use crate::host::sandbox::c_program;
use crate::layer::Entry;
use crate::oci;

/// A day after the first state of the suites.
const LATER: &str = "Date: Sat, 21 Nov 2026 02:11:10 UTC\n";
/// The first state's time, and that of [`LATER`].
const EPOCHS: [u64; 2] = [1_795_140_670, 1_795_227_070];

/// A server that is down as far as it does not have a file: 503 is no answer, and asked for again.
const DOWN: &str = "503 Service Unavailable";

impl Bench {
    fn renewed(&self, session: &Session) -> Result<Lock> {
        let recipe = self.recipe("'engine', 'tool'", "");
        Ok(self.pin_in(session, recipe, Mode::Renew, &[])?.lock)
    }

    /// Another run with the cache of this one.
    fn of_cache(&self, session: &Session, offline: bool) -> Session {
        let cache = Cache::at(session.cache.root().to_owned()).unwrap();
        let mut session = Session::new(cache, Progress::new(Kind::Quiet));
        session.offline = offline;
        session
    }

    /// Serves the first state, or the later one, whose index is another file of the same name.
    fn serve(&self, is_later: bool, apart: bool) {
        self.debian.replace(self.state(is_later, apart));
    }

    fn state(&self, is_later: bool, apart: bool) -> Served {
        let (fields, tool) = match is_later {
            false => ("", "tool 1.1"),
            true => (LATER, "tool 1.2"),
        };
        let updates = Suite {
            fields,
            apart,
            ..suite("/debian", "trixie-updates", "main")
        };
        self.debians(&updates, &[tool])
    }
}

fn tool(lock: &Lock) -> &str {
    let mut root = lock.sets[SET_ROOT].iter();
    &root.find(|package| package.name == "tool").unwrap().version
}

#[test]
fn all_images_of_a_run_have_one_state_of_the_mirror() {
    let bench = Bench::new(&[]);
    for (first, then) in [(false, false), (false, true), (true, false), (true, true)] {
        bench.serve(false, first);
        fs::remove_file(bench.folder.path().join("a.lock")).ok();
        let session = bench.session();
        let before = bench.renewed(&session).unwrap();
        assert_eq!((before.epoch, tool(&before)), (EPOCHS[0], "1.1"));
        // The mirror does not have the first state's index any more.
        bench.serve(true, then);
        let again = bench.renewed(&session).unwrap();
        assert_eq!(again, before, "apart: {first}, then {then}");
        let other = bench.renewed(&bench.session()).unwrap();
        assert_eq!((other.epoch, tool(&other)), (EPOCHS[1], "1.2"));
        assert_ne!(other.sources, before.sources);
    }
}

/// Also without requests, where another program may put a later state into the cache meanwhile.
#[test]
fn an_offline_run_has_one_state_too() {
    let bench = Bench::new(&[]);
    bench.serve(false, false);
    let online = bench.session();
    let before = bench.renewed(&online).unwrap();
    let of_cache = |offline| bench.of_cache(&online, offline);
    let offline = of_cache(true);
    assert_eq!(bench.renewed(&offline).unwrap(), before);
    bench.serve(true, false);
    let later = bench.renewed(&of_cache(false)).unwrap();
    assert_eq!(later.epoch, EPOCHS[1]);
    fs::remove_file(bench.folder.path().join("a.lock")).unwrap();
    assert_eq!(bench.renewed(&offline).unwrap().epoch, EPOCHS[0]);
    assert_eq!(bench.renewed(&of_cache(true)).unwrap().epoch, EPOCHS[1]);
}

/// A suite that has its signature apart now: the list that it had before would be read first.
#[test]
fn an_offline_run_has_the_newest_state_whatever_files_it_has() {
    let bench = Bench::new(&[]);
    for (first, then) in [(false, true), (true, false)] {
        fs::remove_file(bench.folder.path().join("a.lock")).ok();
        bench.serve(false, first);
        let session = bench.session();
        bench.renewed(&session).unwrap();
        bench.serve(true, then);
        bench.renewed(&bench.of_cache(&session, false)).unwrap();
        fs::remove_file(bench.folder.path().join("a.lock")).unwrap();
        let offline = bench.of_cache(&session, true);
        let epoch = bench.renewed(&offline).unwrap().epoch;
        assert_eq!(epoch, EPOCHS[1], "apart: {first}, then {then}");
    }
}

#[test]
fn a_state_counts_for_the_run_once_its_indexes_are_here_and_is_verified_for_each_image() {
    let bench = Bench::new(&[]);
    let session = bench.session();
    // In the middle of the mirror's update: the list is there before the index.
    let mut half = bench.state(false, false);
    half.retain(|path, _| !path.ends_with("trixie-updates/main/binary-amd64/Packages"));
    bench.debian.replace(half.clone());
    let error = format!("{:#}", bench.renewed(&session).unwrap_err());
    assert!(error.contains("404 Not Found"), "{error}");
    assert!(!error.contains("another image of this run"), "{error}");
    bench.serve(true, false);
    assert_eq!(bench.renewed(&session).unwrap().epoch, EPOCHS[1]);
    // Nor are later runs without requests bound to it.
    bench.debian.replace(half);
    bench.renewed(&bench.of_cache(&session, false)).unwrap_err();
    let offline = bench.of_cache(&session, true);
    fs::remove_file(bench.folder.path().join("a.lock")).unwrap();
    assert_eq!(bench.renewed(&offline).unwrap().epoch, EPOCHS[1]);

    let wish = Wish {
        mode: Mode::Renew,
        renewed: &[],
        older: false,
    };
    let recipe = || bench.recipe("'engine', 'tool'", "");
    let others = Signer::new().keyring();
    let error = pin_signed(&session, recipe(), wish, &others).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("InRelease is not to be trusted"), "{error}");

    // An index that only a later image needs, and the mirror has no more.
    fs::remove_dir_all(session.cache.root().join("downloads")).unwrap();
    bench.serve(false, false);
    let error = format!("{:#}", bench.renewed(&session).unwrap_err());
    assert!(
        error.contains("another image of this run is made from") && error.contains("run it again"),
        "{error}"
    );
}

/// A program that says that it is this kubelet.
fn kubelet(bench: &Bench, version: &str) -> Vec<u8> {
    let path = bench.folder.path().join("kubelet");
    let source = format!("#include <stdio.h>\nint main() {{ puts(\"Kubernetes {version}\"); }}\n");
    c_program::compile(&source, &path);
    fs::read(path).unwrap()
}

/// The lock of a recipe with a kubelet from the first of these sources that has one.
fn with_kubelet(bench: &Bench, session: &Session, of_kubernetes: &str) -> Result<Lock> {
    let path = bench.recipe("'tool'", "").path;
    let text = fs::read_to_string(&path)?;
    let text = format!("{text}[kubernetes]\nversion = '1.36'\n{of_kubernetes}\n");
    fs::write(&path, text)?;
    let recipe = recipe::load(&path)?;
    Ok(bench.pin_in(session, recipe, Mode::Renew, &[])?.lock)
}

fn source(lock: &Lock) -> &LockedFrom {
    &lock.kubelet.as_ref().unwrap().source
}

/// A release server with a kubelet, which is down when that is taken from it.
fn release_server(program: &[u8]) -> (Loopback, Served) {
    let path = "/v1.36.3/kubelet";
    let files = Served::from([
        (path.to_owned(), program.to_vec()),
        (format!("{path}.sha256"), vendor::sha256(program).into()),
    ]);
    (Loopback::serve(Served::new()).without(DOWN), files)
}

#[test]
fn an_unreachable_release_server_is_asked_once_in_a_run() {
    if !linux::host::is_root() {
        return linux::host::skipped("a sandbox needs root");
    }
    let bench = Bench::new(&[]);
    let (server, files) = release_server(&kubelet(&bench, "v1.36.3"));
    let sources = format!(
        "kubelet = [{{ release = '{}/{{version}}/{{program}}' }}, {{ file = 'kubelet' }}]",
        server.url
    );
    let session = bench.session();
    let first = with_kubelet(&bench, &session, &sources).unwrap();
    assert!(matches!(source(&first), LockedFrom::File { .. }));
    let asked = server.asked().len();
    assert!(asked > 0);
    server.replace(files);
    let second = with_kubelet(&bench, &session, &sources).unwrap();
    assert_eq!(second.kubelet, first.kubelet);
    assert_eq!(server.asked().len(), asked);
    let other = with_kubelet(&bench, &bench.session(), &sources).unwrap();
    assert!(matches!(source(&other), LockedFrom::Release { .. }));
}

#[test]
fn a_release_server_that_gave_a_kubelet_is_not_replaced_in_the_same_run() {
    if !linux::host::is_root() {
        return linux::host::skipped("a sandbox needs root");
    }
    let bench = Bench::new(&[]);
    let (server, files) = release_server(&kubelet(&bench, "v1.36.3"));
    server.replace(files);
    let sources = format!(
        "kubelet = [{{ release = '{}/{{version}}/{{program}}' }}, {{ file = 'kubelet' }}]",
        server.url
    );
    let session = bench.session();
    let first = with_kubelet(&bench, &session, &sources).unwrap();
    assert!(matches!(source(&first), LockedFrom::Release { .. }));
    server.replace(Served::new());
    let error = with_kubelet(&bench, &session, &sources).unwrap_err();
    let error = format!("{error:#}");
    for words in [
        &*server.url,
        "503",
        "another image of this run has this program from there",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    let other = with_kubelet(&bench, &bench.session(), &sources).unwrap();
    assert!(matches!(source(&other), LockedFrom::File { .. }));
    // Of another version no image has anything from there.
    let path = bench.recipe("'tool'", "").path;
    kubelet(&bench, "v1.35.4");
    let earlier = format!("version = '1.35'\n{sources}");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}[kubernetes]\n{earlier}\n")).unwrap();
    let recipe = recipe::load(&path).unwrap();
    let earlier = bench.pin_in(&session, recipe, Mode::Renew, &[]).unwrap();
    assert!(matches!(source(&earlier.lock), LockedFrom::File { .. }));
}

/// What was got of an image that has no kubelet in it is in no image of the run.
#[test]
fn a_source_that_gave_no_kubelet_may_be_replaced() {
    if !linux::host::is_root() {
        return linux::host::skipped("a sandbox needs root");
    }
    let bench = Bench::new(&[]);
    kubelet(&bench, "v1.36.3");
    let registry = Loopback::serve(image_of(&bench, "/usr/bin/other", "v1.36.3")).without(DOWN);
    let host = registry.url.trim_start_matches("http://");
    let sources = format!("kubelet = [{{ oci = '{host}/k:v1' }}, {{ file = 'kubelet' }}]");
    let session = bench.session();
    let first = with_kubelet(&bench, &session, &sources).unwrap();
    assert!(matches!(source(&first), LockedFrom::File { .. }));
    registry.replace(Served::new());
    let second = with_kubelet(&bench, &session, &sources).unwrap();
    assert_eq!(second.kubelet, first.kubelet);
}

#[test]
fn an_unreachable_server_of_archives_is_asked_once_in_a_run() {
    if !linux::host::is_root() {
        return linux::host::skipped("a sandbox needs root");
    }
    let bench = Bench::new(&[]);
    let (server, files) = release_server(&kubelet(&bench, "v1.36.3"));
    server.replace(files);
    let github = Loopback::serve(Served::new()).without(DOWN);
    let fields = format!(
        "kubelet = [{{ release = '{}/{{version}}/{{program}}' }}]\ntools = ['crictl']\ngithub = '{}'",
        server.url, github.url
    );
    let session = bench.session();
    let pin = || format!("{:#}", with_kubelet(&bench, &session, &fields).unwrap_err());
    let first = pin();
    assert!(
        first.contains(&github.url) && first.contains("503"),
        "{first}"
    );
    let asked = github.asked().len();
    assert!(asked > 0);
    assert_eq!(pin(), first);
    assert_eq!(github.asked().len(), asked);
}

/// A registry's files of an image with this kubelet, whose tag is `v1`.
fn image(bench: &Bench, version: &str) -> Served {
    image_of(bench, "/usr/bin/kubelet", version)
}

/// The same with the program at another path.
fn image_of(bench: &Bench, path: &str, version: &str) -> Served {
    let folder = tempfile::tempdir_in(bench.folder.path()).unwrap();
    let entries = [
        Entry::directory("/usr", 0o755),
        Entry::directory("/usr/bin", 0o755),
        Entry::file(path, 0o755, kubelet(bench, version)),
    ];
    let image = oci::Image {
        name: "r.example/k:v1".to_owned(),
        architecture: "amd64".to_owned(),
        run: oci::RunConfig::default(),
        layers: vec![oci::layer(&entries, 7, &folder.path().join("layer")).unwrap()],
    };
    let layout = folder.path().join("layout");
    oci::write_layout(&layout, &[image], 7).unwrap();
    let index = fs::read(layout.join("index.json")).unwrap();
    let mut files = Served::from([("/v2/k/manifests/v1".to_owned(), index)]);
    for blob in fs::read_dir(layout.join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap();
        let digest = format!("sha256:{}", blob.file_name().to_str().unwrap());
        let bytes = fs::read(blob.path()).unwrap();
        files.insert(format!("/v2/k/manifests/{digest}"), bytes.clone());
        files.insert(format!("/v2/k/blobs/{digest}"), bytes);
    }
    files
}

#[test]
fn a_tag_is_one_image_for_all_images_of_a_run() {
    if !linux::host::is_root() {
        return linux::host::skipped("a sandbox needs root");
    }
    let bench = Bench::new(&[]);
    let mut files = image(&bench, "v1.36.3");
    let registry = Loopback::serve(files.clone());
    let host = registry.url.trim_start_matches("http://");
    let source = format!("kubelet = [{{ oci = '{host}/k:v1' }}]");
    let session = bench.session();
    let first = with_kubelet(&bench, &session, &source).unwrap();
    files.extend(image(&bench, "v1.36.4"));
    registry.replace(files);
    let second = with_kubelet(&bench, &session, &source).unwrap();
    assert_eq!(second.kubelet, first.kubelet);
    let other = with_kubelet(&bench, &bench.session(), &source).unwrap();
    assert_eq!(other.kubelet.unwrap().version, "v1.36.4");
}
