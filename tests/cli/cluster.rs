//! `slipway cluster`: an object and its secrets, what nodes and the administrator get of them, and what is refused. No machine is started.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ::cluster::kubeconfigs;
use image::paths::{CLUSTER, HOSTNAME, NODE_SETTINGS};
use serde_json::{Value, json};
use slipway::cluster::secrets::{self, Secrets};
use slipway::cluster::state::Folder;
use tempfile::TempDir;

use super::{slipway, stderr, stdout};

/// The object of most tests, and its secrets.
const OBJECT: &str = "blue.toml";
const SECRETS: &str = "blue.secrets.age";
/// The identity of an administrator who names none.
const IDENTITY: &str = "config/slipway/age.key";
/// An API server: nothing listens there.
const CLOSED: &str = "https://127.0.0.1:9";
/// The modes of files with keys, and of all others.
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;

/// Starts a command in a folder that has the user's configuration and the cache as well.
fn answered(folder: &Path, words: &[&str], answers: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .arg("cluster")
        .args(words)
        .current_dir(folder)
        .env_remove("SLIPWAY_IDENTITY")
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .env("SLIPWAY_CACHE", folder.join("cache"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(answers.as_bytes()).unwrap();
    // The end of the answers.
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// What a command that succeeds prints.
fn done(folder: &Path, words: &[&str]) -> String {
    let output = answered(folder, words, "");
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    stdout(&output)
}

/// The error of a command that fails; it is printed once, and nothing else is.
fn refused(folder: &Path, words: &[&str]) -> String {
    refused_by(folder, words, 1)
}

/// The same, with this exit code.
fn refused_by(folder: &Path, words: &[&str], code: i32) -> String {
    let output = answered(folder, words, "");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    assert_eq!(stdout(&output), "", "{words:?}");
    assert_eq!(said.matches("error: ").count(), 1, "{words:?}: {said}");
    said
}

/// A new cluster in a folder of its own, with an endpoint as its administrator writes it.
fn with_endpoint() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    done(folder.path(), &["new", OBJECT]);
    let file = folder.path().join(OBJECT);
    let text = fs::read_to_string(&file).unwrap();
    let with = text.replace("# endpoint = ", "endpoint = ");
    assert_ne!(with, text);
    fs::write(&file, with).unwrap();
    folder
}

fn opened(folder: &Path) -> Secrets {
    let identity = secrets::identity(&folder.join(IDENTITY)).unwrap();
    Secrets::read(&folder.join(OBJECT), "blue", &identity).unwrap()
}

fn mode(file: &Path) -> u32 {
    file.metadata().unwrap().permissions().mode() & 0o777
}

/// The config of a node with this role, without findings by the rules of its version.
fn config(folder: &Path, role: &str) -> Value {
    let file = folder.join(format!("{role}.ign"));
    let path = file.to_str().unwrap();
    let own = ["--name=n1", "--address=10.0.0.9", "--output", path];
    let words = [&["join-config", OBJECT, "--role", role][..], &own].concat();
    assert_eq!(done(folder, &words), "");
    assert_eq!(mode(&file), SECRET);
    let checked = slipway(&["ignition", "validate", path]);
    assert!(checked.status.success(), "{}", stdout(&checked));
    assert_eq!(stdout(&checked), "");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The content and the mode of a file of a config.
fn file(config: &Value, path: &str) -> Option<(String, u32)> {
    let files = config["storage"]["files"].as_array().unwrap();
    let found = files.iter().find(|file| file["path"] == path)?;
    let source = found["contents"]["source"].as_str().unwrap();
    let text = percent_encoding::percent_decode_str(source.strip_prefix("data:,").unwrap());
    let mode = found["mode"].as_u64().unwrap().try_into().unwrap();
    Some((text.decode_utf8().unwrap().into_owned(), mode))
}

/// The cluster object of a config.
fn object(config: &Value) -> Value {
    let (text, mode) = file(config, CLUSTER).unwrap();
    assert_eq!(mode, SECRET);
    serde_json::from_str(&text).unwrap()
}

/// The object that a new cluster's nodes have in common, with these fields of their own.
fn common(own: &Value) -> Value {
    let mut all = json!({
        "name": "blue",
        "endpoint": "api.example.test:6443",
        "networks": { "pods": "10.244.0.0/16", "services": "10.96.0.0/12", "domain": "cluster.local" },
        "node": { "name": "n1", "address": "10.0.0.9" },
    });
    let fields = all.as_object_mut().unwrap();
    fields.extend(own.as_object().unwrap().clone());
    all
}

#[test]
fn a_new_cluster_has_encrypted_secrets_and_a_second_new_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let said = done(folder.path(), &["new", OBJECT]);
    for words in ["blue.toml: the cluster \"blue\"\n", SECRETS, IDENTITY] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let read = || [OBJECT, SECRETS, IDENTITY].map(|name| fs::read(at(name)).unwrap());
    let before = read();
    let [text, encrypted, _] = before
        .clone()
        .map(|file| String::from_utf8_lossy(&file).into_owned());
    assert!(text.contains("\nname = \"blue\"\n") && text.contains("\n# endpoint = "));
    assert_eq!((mode(&at(SECRETS)), mode(&at(IDENTITY))), (SECRET, SECRET));
    let secrets = opened(folder.path());
    assert!(secrets.pki["ca.key"].contains("PRIVATE KEY"));
    assert!(encrypted.starts_with("age-encryption.org/v1\n"));
    for word in ["PRIVATE KEY", secrets.token.as_str()] {
        assert!(!encrypted.contains(word), "{word}");
    }

    let error = refused(folder.path(), &["new", OBJECT]);
    let expected = "blue.secrets.age is there already, with the keys of a cluster";
    assert!(error.contains(expected), "{error}");
    assert!(read() == before, "a file was changed");
    // Without its secrets the object is one that somebody wrote.
    fs::remove_file(at(SECRETS)).unwrap();
    let error = refused(folder.path(), &["new", OBJECT]);
    assert!(error.contains("blue.toml is there already"), "{error}");
    assert!(!at(SECRETS).exists());

    let error = refused(folder.path(), &["new", "Blue_1.toml"]);
    assert!(error.contains("\"Blue_1\" is not a name"), "{error}");
    assert!(!at("Blue_1.toml").exists());
    let said = done(folder.path(), &["--json", "new", "b.toml", "--name=red"]);
    let files: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(files["secrets"], "b.secrets.age");
    let text = fs::read_to_string(at("b.toml")).unwrap();
    assert!(text.contains("\nname = \"red\"\n"), "{text}");
}

#[test]
fn the_wizard_asks_again_after_a_wrong_answer_and_writes_nothing_when_the_answers_end() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["new", OBJECT, "--wizard"];
    let output = answered(folder.path(), &words, "api.example.test\n");
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(
        said.contains("the answers ended; nothing is written"),
        "{said}"
    );
    for name in [OBJECT, SECRETS] {
        assert!(!folder.path().join(name).exists(), "{name}");
    }
    let answers = "api.example.test\n\nflanel\nnone\n10.0.0.0/33\n10.1.0.0/16\n\nblue.test\n";
    let output = answered(folder.path(), &words, answers);
    let asked = stderr(&output);
    assert!(output.status.success(), "{asked}");
    // Six questions, of which two are asked again.
    assert_eq!(asked.matches("]: ").count(), 8, "{asked}");
    for wrong in [
        "cni: expected \"bridge\", \"flannel\" or \"none\"",
        "10.0.0.0/33",
    ] {
        assert!(asked.contains(wrong), "{asked}");
    }
    assert!(stdout(&output).starts_with("blue.toml: the cluster \"blue\"\n"));
    let text = fs::read_to_string(folder.path().join(OBJECT)).unwrap();
    for line in [
        "endpoint = \"api.example.test\"",
        "# version = \"1.36.3\"",
        "cni = \"none\"",
        "pods = \"10.1.0.0/16\"",
        "services = \"10.96.0.0/12\"",
        "domain = \"blue.test\"",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert_eq!(opened(folder.path()).cluster, "blue");
}

#[test]
fn a_workers_config_has_the_token_and_the_pin_and_no_key() {
    let folder = with_endpoint();
    let config = config(folder.path(), "worker");
    let secrets = opened(folder.path());
    let pin = secrets.pin().unwrap();
    assert!(pin.starts_with("sha256:"), "{pin}");
    let join = json!({ "join": { "token": secrets.token, "ca-hashes": [pin] } });
    assert_eq!(object(&config), common(&join));
    let settings = file(&config, NODE_SETTINGS).unwrap();
    assert_eq!(settings, ("role = \"worker\"\n".to_owned(), PUBLIC));
    assert_eq!(
        file(&config, HOSTNAME).unwrap(),
        ("n1\n".to_owned(), PUBLIC)
    );
    let text = config.to_string();
    assert!(
        !text.contains("PRIVATE") && !text.contains("/pki/"),
        "{text}"
    );
}

#[test]
fn control_planes_configs_have_the_authorities_and_the_first_alone_the_token() {
    let folder = with_endpoint();
    let secrets = opened(folder.path());
    // The dot between its halves is escaped.
    let (_, secret) = secrets.token.split_once('.').unwrap();
    for (role, own, has_token) in [
        ("control-plane", json!({ "tokens": [secrets.token] }), true),
        ("further-control-plane", json!({ "join": {} }), false),
    ] {
        let config = config(folder.path(), role);
        assert_eq!(object(&config), common(&own), "{role}");
        assert_eq!(config.to_string().contains(secret), has_token, "{role}");
        let (settings, _) = file(&config, NODE_SETTINGS).unwrap();
        let expected = "role = \"control-plane\"\n\n[etcd]\ncluster = \"blue\"\n";
        assert_eq!(settings, expected, "{role}");
        for (path, text) in &secrets.pki {
            let mode = if path.ends_with(".key") {
                SECRET
            } else {
                PUBLIC
            };
            let found = file(&config, &format!("/etc/kubernetes/pki/{path}"));
            assert_eq!(found, Some((text.clone(), mode)), "{role}: {path}");
        }
    }
}

#[test]
fn a_config_needs_a_known_role_an_endpoint_and_for_a_fresh_token_the_api_server() {
    let folder = tempfile::tempdir().unwrap();
    done(folder.path(), &["new", OBJECT]);
    let of = |role: &'static str| ["join-config", OBJECT, "--role", role];
    for role in ["worker", "further-control-plane"] {
        let error = refused(folder.path(), &of(role));
        assert!(error.contains("blue.toml names no endpoint"), "{error}");
    }
    done(folder.path(), &of("control-plane"));
    let output = answered(folder.path(), &of("master"), "");
    assert_eq!(output.status.code(), Some(2));
    let known = "control-plane, further-control-plane, worker";
    assert!(stderr(&output).contains(known), "{}", stderr(&output));

    let folder = with_endpoint();
    let server = ["--server", CLOSED];
    let without = answered(folder.path(), &[&of("worker")[..], &server].concat(), "");
    assert_eq!(without.status.code(), Some(2), "{}", stderr(&without));
    let words = [
        &of("worker")[..],
        &server,
        &["--fresh-token", "-o", "w.ign"],
    ]
    .concat();
    let error = refused(folder.path(), &words);
    assert!(error.contains("making a bootstrap token: "), "{error}");
    assert!(!folder.path().join("w.ign").exists());
    let words = [&of("further-control-plane")[..], &["--fresh-token"]].concat();
    let error = refused(folder.path(), &words);
    let expected = "a bootstrap token, which a further control plane does not have";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_kubeconfig_leads_to_the_endpoint_by_the_clusters_authority() {
    let folder = with_endpoint();
    let secrets = opened(folder.path());
    let text = done(folder.path(), &["kubeconfig", OBJECT]);
    let given = kubeconfigs::read(&text).unwrap();
    assert_eq!(given.server, "https://api.example.test:6443");
    assert_eq!(given.authority.as_ref(), secrets.pki.get("ca.crt"));
    assert!(given.certificate.is_some() && given.key.is_some());
    assert!(given.key.as_ref() != secrets.pki.get("ca.key"));
    assert!(text.contains("kubernetes-admin@blue"), "{text}");

    let to = ["kubeconfig", OBJECT, "--server", CLOSED, "-o", "admin.conf"];
    assert_eq!(done(folder.path(), &to), "");
    let file = folder.path().join("admin.conf");
    assert_eq!(mode(&file), SECRET);
    let given = kubeconfigs::read(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(given.server, CLOSED);

    let error = refused(folder.path(), &["kubeconfig", OBJECT, "--identity=nobody"]);
    assert!(
        error.contains("nobody does not exist: name the age identity"),
        "{error}"
    );
    assert!(!folder.path().join("nobody").exists());
    done(folder.path(), &["new", "red.toml", "--identity=stranger"]);
    let error = refused(
        folder.path(),
        &["kubeconfig", OBJECT, "--identity=stranger"],
    );
    let expected = "reading the secrets of the cluster \"blue\", blue.secrets.age: ";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_cluster_whose_api_server_does_not_answer_is_not_valid_and_the_reason_is_said() {
    let folder = with_endpoint();
    let words = ["validate", OBJECT, "--nodes=2", "--server", CLOSED];
    let output = answered(folder.path(), &words, "");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = stdout(&output);
    let lines: Vec<&str> = said.lines().collect();
    let [reason, missing] = lines[..] else {
        panic!("{said}");
    };
    let expected = format!("the API server: GET {CLOSED}/readyz: Connection refused");
    assert!(reason.starts_with(&expected), "{said}");
    assert_eq!(missing, "missing nodes: 2");

    // What is waited for is said at once where nothing is a terminal, too.
    let output = answered(folder.path(), &[&words[..], &["--wait=1"]].concat(), "");
    let waited = stderr(&output);
    let line = format!("\nvalidate: {expected}");
    assert_eq!(waited.matches(&line).count(), 1, "{waited}");

    let output = answered(folder.path(), &[&words[..], &["--json"]].concat(), "");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["valid"], &report["missing"]),
        (&json!(false), &json!(2))
    );
    let reason = report["apiServer"].as_str().unwrap();
    assert!(reason.contains("Connection refused"), "{reason}");
}

#[test]
fn all_mistakes_of_a_cluster_object_are_named_at_once_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        "name = \"blue\"\nendpiont = \"a\"\ncni = \"flanel\"\n[networks]\npods = \"10.0.0.0/33\"\n";
    fs::write(folder.path().join(OBJECT), text).unwrap();
    for words in [
        &["join-config", OBJECT, "--role=worker"][..],
        &["kubeconfig", OBJECT],
        &["validate", OBJECT],
        &["up", OBJECT],
    ] {
        let error = refused_by(folder.path(), words, 2);
        for expected in [
            "blue.toml is refused:\n",
            "  endpiont: unknown field; did you mean \"endpoint\"? (line 2, column 12)\n",
            "  cni: expected \"bridge\", \"flannel\" or \"none\" (line 3, column 7)\n",
            "  networks.pods: \"10.0.0.0/33\" is not a subnet",
            "(line 5, column 8)\n",
        ] {
            assert_eq!(error.matches(expected).count(), 1, "{words:?}: {error}");
        }
    }
}

#[test]
fn a_cluster_without_machines_has_no_status_and_nothing_to_end() {
    let folder = with_endpoint();
    let error = refused(folder.path(), &["status", OBJECT]);
    assert!(
        error.contains("no machines of blue.toml run on this host"),
        "{error}"
    );
    let output = answered(folder.path(), &["down", OBJECT], "");
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(
        said.contains("blue.toml has no machines on this host: "),
        "{said}"
    );
    assert!(!folder.path().join("blue.machines").exists());
}

/// Nothing is built for machines that this host cannot run.
#[test]
fn machines_that_cannot_start_are_refused_before_their_image_is_built() {
    let folder = with_endpoint();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let in_use = format!("taking port {port} of this host for the API server");
    for (words, expected) in [
        (["--memory", "99999999"], "--memory 99999999: this host has"),
        (["--port", &port], in_use.as_str()),
        (["--workers", "20"], "21 machines are too many for one host"),
        (
            ["--control-planes", "0"],
            "a cluster has a control plane at least",
        ),
    ] {
        for foreground in [&[][..], &["--foreground"]] {
            let words = [&["up", OBJECT][..], &words, foreground].concat();
            let said = refused(folder.path(), &words);
            assert!(said.contains(expected), "{expected} is not in\n{said}");
        }
    }
    assert!(!folder.path().join("out").exists());
    assert!(!folder.path().join("blue.machines").exists());
}

/// The port is the running machines' own, and so is the memory that is missing.
#[test]
fn machines_that_run_already_are_named_before_what_they_use() {
    let folder = with_endpoint();
    let machines = Folder::of(&folder.path().join(OBJECT));
    let _held = machines.hold().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    for more in [&["--port", &port][..], &["--memory", "99999999"], &[]] {
        for foreground in [&[][..], &["--foreground"]] {
            let said = refused(
                folder.path(),
                &[&["up", OBJECT][..], more, foreground].concat(),
            );
            let expected = "blue.machines are running; `slipway cluster down` ends them";
            assert!(said.contains(expected), "{said}");
        }
    }
    assert!(!folder.path().join("out").exists());
}

/// Other commands find the build of the machines' image: it would start them after a `down`, and be begun twice.
#[test]
fn a_build_for_machines_is_named_and_ended() {
    let folder = with_endpoint();
    let recipe = folder.path().join("small.toml");
    fs::copy("src/recipe/tests/small.toml", recipe).unwrap();
    // A mirror that takes requests and does not answer them.
    let mirror = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/debian", mirror.local_addr().unwrap());
    let image = ["--foreground", "--image", "small.toml", "--memory", "512"];
    let mut building = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(["cluster", "up", OBJECT])
        .args(image)
        .current_dir(folder.path())
        .env_remove("SLIPWAY_IDENTITY")
        .env("XDG_CONFIG_HOME", folder.path().join("config"))
        .env("SLIPWAY_CACHE", folder.path().join("cache"))
        .env("SLIPWAY_DEBIAN_MIRROR", url)
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let machines = Folder::of(&folder.path().join(OBJECT));
    let until = Instant::now() + Duration::from_secs(60);
    let state = loop {
        if let Some(state) = machines.state().unwrap() {
            break state;
        }
        assert!(Instant::now() < until, "the folder has no state");
        assert_eq!(building.try_wait().unwrap(), None, "it ended");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(state.building && !state.ready, "{state:?}");
    let said = refused(folder.path(), &["up", OBJECT]);
    let expected = format!(
        "(process {}); `slipway cluster down` ends it",
        state.process
    );
    assert!(said.contains(&expected), "{said}");
    done(folder.path(), &["down", OBJECT]);
    assert!(!building.wait().unwrap().success());
    assert!(!machines.path().exists());
}
