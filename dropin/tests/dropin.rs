//! The program `ignition` as an initrd of another system runs it: a process for each stage.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::disallowed_methods,
    reason = "the program under test is started here, and mounted below in a namespace of the test's own"
)]

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

#[path = "dropin/disks.rs"]
mod disks;
#[path = "dropin/stack.rs"]
mod stack;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ignition");

/// The folders and files of one run of the stages: the working folder, the root, the shared files.
struct Place {
    folder: tempfile::TempDir,
    root: PathBuf,
    variables: Vec<(&'static str, String)>,
}

impl Place {
    /// A place with this config as `config.ign` in the working folder.
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let place = Self {
            root,
            variables: Vec::new(),
            folder,
        };
        place.write("config.ign", config);
        // Nothing is read from the machine that the test runs on.
        place.write("cmdline", "quiet\n");
        let path = |name: &str| place.path(name).display().to_string();
        let variables = vec![
            ("IGNITION_SYSTEM_CONFIG_DIR", path("usr")),
            ("IGNITION_SYSTEM_LOCAL_CONFIG_DIR", path("etc")),
            ("IGNITION_SYSTEM_RUNTIME_CONFIG_DIR", path("run")),
            ("IGNITION_KERNEL_CMDLINE_PATH", path("cmdline")),
        ];
        Self { variables, ..place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// One stage, with the flags of Ignition's own test suite.
    fn stage(&self, stage: &str) -> Output {
        let path = |name: &str| self.path(name).display().to_string();
        let root = self.root.display().to_string();
        let (cache, state, neednet) = (path("ignition.json"), path("state"), path("neednet"));
        Command::new(PROGRAM)
            .args(["-platform", "file", "-stage", stage])
            .args(["-root", &root, "-log-to-stdout"])
            .args(["-config-cache", &cache, "-state-file", &state])
            .args(["-neednet", &neednet])
            .current_dir(self.folder.path())
            .envs(self.variables.iter().map(|(name, value)| (*name, value)))
            .output()
            .unwrap()
    }

    fn succeeds(&self, stage: &str) -> String {
        let output = self.stage(stage);
        let said = said(&output);
        assert!(output.status.success(), "{stage}: {said}");
        assert!(
            !said.contains("CRITICAL") && !said.contains("panic"),
            "{said}"
        );
        said
    }

    fn fails(&self, stage: &str, code: i32) -> String {
        let output = self.stage(stage);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{stage}: {said}");
        said
    }
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(text).unwrap()
}

fn config(body: &str) -> String {
    format!(r#"{{"ignition": {{"version": "3.4.0"}}{body}}}"#)
}

/// A server on loopback that answers each request by its path; returns its address and the requests' heads.
fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = log.clone();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut head = Vec::new();
            let mut piece = [0; 1024];
            while !head.ends_with(b"\r\n\r\n") {
                let n = connection.read(&mut piece).unwrap();
                if n == 0 {
                    break;
                }
                head.extend_from_slice(&piece[..n]);
            }
            let head = String::from_utf8(head).unwrap();
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            seen.lock().unwrap().push(head);
            drop(connection.write_all(answer(&path).as_bytes()));
        }
    });
    (base, log)
}

fn ok(body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}")
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

#[test]
fn the_command_line_is_ignition_s() {
    let run = |program: &Path, args: &[&str]| Command::new(program).args(args).output().unwrap();
    let program = Path::new(PROGRAM);
    for flag in ["-version", "--version", "-version=true"] {
        let output = run(program, &[flag]);
        assert!(output.status.success());
        assert!(said(&output).starts_with("Ignition "), "{}", said(&output));
    }
    assert!(said(&run(program, &["-help"])).contains("-config-cache"));
    for (args, why) in [
        (
            &["-platform", "file", "-stage", "files", "-oem", "x"][..],
            "unknown flag -oem",
        ),
        (&["--stage=files"], "-platform is required"),
        (&["--platform=file", "--stage=bake"], "is not a stage"),
        (
            &["--platform=file", "--stage=files", "more"],
            "unexpected argument",
        ),
    ] {
        let output = run(program, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said(&output).contains(why), "{}", said(&output));
    }
}

#[test]
fn a_config_is_fetched_and_applied_to_a_root() {
    let (base, log) = serve(|path| match path {
        "/file" => ok("from the server"),
        _ => "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned(),
    });
    let place = Place::new(&config(&format!(
        r#", "storage": {{
            "directories": [{{"path": "/opt/tool", "mode": 448}}],
            "files": [
                {{"path": "/usr/lib/tool/a", "mode": 420, "contents": {{"source": "{base}/file"}}}},
                {{"path": "/home/b", "contents": {{"source": "data:,b%0A"}}}}],
            "links": [{{"path": "/opt/tool/link", "target": "../../home/b"}}]}},
        "systemd": {{"units": [
            {{"name": "a.service", "enabled": true, "contents": "[Service]\nType=oneshot\n[Install]\nWantedBy=multi-user.target"}},
            {{"name": "elsewhere.service", "enabled": true}}]}},
        "passwd": {{"users": [{{"name": "core", "sshAuthorizedKeys": ["ssh-ed25519 AAAA k"]}}]}}"#
    )));
    for (name, text) in [
        ("root/etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("root/etc/group", "root:x:0:\n"),
    ] {
        place.write(name, text);
    }
    place.succeeds("fetch-offline");
    assert!(
        place.path("neednet").exists(),
        "the file is only to be had by the network"
    );
    assert!(!place.path("ignition.json").exists());
    place.succeeds("fetch");
    assert!(
        log.lock().unwrap().is_empty(),
        "files are fetched when they are written"
    );
    for stage in ["kargs", "disks", "mount", "files", "umount"] {
        place.succeeds(stage);
    }
    assert_eq!(place.read("root/usr/lib/tool/a"), "from the server");
    assert_eq!(place.read("root/opt/tool/link"), "b\n");
    assert!(
        place
            .read("root/etc/systemd/system/a.service")
            .starts_with("[Service]")
    );
    let preset = place.read("root/etc/systemd/system-preset/20-ignition.preset");
    assert_eq!(preset, "enable a.service\nenable elsewhere.service\n");
    assert!(place.read("root/etc/passwd").contains("core:x:1000:1000:"));
    let keys = place.read("root/home/core/.ssh/authorized_keys.d/ignition");
    assert_eq!(keys, "ssh-ed25519 AAAA k\n");
    let report = place.read("root/etc/.ignition-result.json");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["userConfigProvided"], true);
    assert!(report["provisioningBootID"].is_string() && report["provisioningDate"].is_string());
    // A second run changes nothing and succeeds.
    place.succeeds("fetch");
    place.succeeds("files");
    assert_eq!(place.read("root/usr/lib/tool/a"), "from the server");
}

#[test]
fn requests_have_ignition_s_headers_and_lose_the_config_s_when_they_are_redirected() {
    let (there, there_log) = serve(|_| ok("x"));
    let (here, here_log) = serve(move |_| {
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {there}/y\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
    });
    let place = Place::new(&config(&format!(
        r#", "storage": {{"files": [{{"path": "/a", "contents": {{"source": "{here}/x",
            "httpHeaders": [{{"name": "X-Auth", "value": "t0ken"}}, {{"name": "Keep-Alive", "value": "1000"}}]}}}}]}}"#
    )));
    place.succeeds("fetch");
    place.succeeds("files");
    let first = here_log.lock().unwrap()[0].clone();
    let accept = "application/vnd.coreos.ignition+json;version=3.6.0, */*;q=0.1";
    assert!(
        header(&first, "user-agent")
            .unwrap()
            .starts_with("Ignition/"),
        "{first}"
    );
    assert_eq!(header(&first, "accept"), Some(accept));
    assert_eq!(header(&first, "accept-encoding"), Some("identity"));
    assert_eq!(header(&first, "x-auth"), Some("t0ken"));
    assert_eq!(header(&first, "keep-alive"), Some("1000"));
    let second = there_log.lock().unwrap()[0].clone();
    assert_eq!(header(&second, "x-auth"), None);
    assert_eq!(header(&second, "keep-alive"), None);
    assert!(
        header(&second, "user-agent")
            .unwrap()
            .starts_with("Ignition/")
    );
}

#[test]
fn the_config_comes_from_the_first_place_that_has_one() {
    let file = |text: &str| {
        config(&format!(
            r#", "storage": {{"files": [{{"path": "/from", "contents": {{"source": "data:,{text}"}}}}]}}"#
        ))
    };
    let served = file("cmdline");
    let (base, log) = serve(move |_| ok(&served));
    let place = Place::new(&file("platform"));
    place.write(
        "usr/base.d/10-base.ign",
        &file("base").replace("/from", "/base"),
    );
    place.write(
        "etc/base.platform.d/file/10.ign",
        &file("base-platform").replace("/from", "/base-platform"),
    );
    let from = |place: &Place| {
        drop(fs::remove_file(place.path("root/from")));
        for stage in ["fetch-offline", "fetch", "files"] {
            place.succeeds(stage);
        }
        place.read("root/from")
    };
    assert_eq!(from(&place), "platform");
    assert_eq!(place.read("root/base"), "base");
    assert_eq!(place.read("root/base-platform"), "base-platform");
    assert!(!place.path("neednet").exists());
    place.write("usr/user.ign", &file("user"));
    assert_eq!(from(&place), "user");
    let mut cmdline = "quiet".to_owned();
    write!(cmdline, " ignition.config.url={base}/c").unwrap();
    place.write("cmdline", &cmdline);
    assert_eq!(from(&place), "cmdline");
    assert!(place.path("neednet").exists());
    let head = log.lock().unwrap()[0].clone();
    assert!(
        header(&head, "accept")
            .unwrap()
            .starts_with("application/vnd.coreos.ignition+json")
    );
}

#[test]
fn without_a_config_there_is_an_empty_one() {
    let place = Place::new("");
    fs::remove_file(place.path("config.ign")).unwrap();
    for stage in [
        "fetch-offline",
        "fetch",
        "disks",
        "mount",
        "files",
        "umount",
    ] {
        place.succeeds(stage);
    }
    let report = place.read("root/etc/.ignition-result.json");
    assert!(report.contains("\"userConfigProvided\": false"), "{report}");
    // Certificates that the variable names, from another folder.
    let mut place = Place::new("");
    place.write(
        "other.ign",
        &config(r#", "storage": {"files": [{"path": "/x"}]}"#),
    );
    let path = place.path("other.ign").display().to_string();
    place.variables.push(("IGNITION_CONFIG_FILE", path));
    place.succeeds("fetch");
    place.succeeds("files");
    assert_eq!(place.read("root/x"), "");
}

#[test]
fn what_is_wrong_ends_its_stage_and_tells_no_secret() {
    let secret = r#""storage": {"files": [{"path": "relative", "contents": {"source": "data:,SECRET"}}]},
        "passwd": {"users": [{"name": "core", "passwordHash": "SECRET"}]}"#;
    let place = Place::new(&config(&format!(", {secret}")));
    let said = place.fails("fetch", 1);
    assert!(
        said.contains("$.storage.files.0.path") && !said.contains("SECRET"),
        "{said}"
    );
    assert!(!place.path("ignition.json").exists());
    // Later stages have no cached config.
    for stage in ["kargs", "disks", "mount", "files", "umount"] {
        assert!(place.fails(stage, 1).contains("reading the fetched config"));
    }
    for (text, why) in [
        (
            r#"{"ignition": {"version": "3.8.0-experimental"}}"#,
            "expected 3.0.0",
        ),
        (
            r#"{"ignition": {"version": "2.5.0-experimental"}}"#,
            "expected 3.0.0",
        ),
        ("{", "config.ign"),
    ] {
        let place = Place::new(text);
        let said = place.fails("fetch", 1);
        assert!(said.contains(why), "{text}: {said}");
    }
    // A file that does not exist, and one whose contents do not match its hash.
    let (base, _) = serve(|path| match path {
        "/x" => ok("SECRET"),
        _ => "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned(),
    });
    let hash = format!("sha256-{}", "0".repeat(64));
    for source in [
        format!(r#"{{"source": "{base}/none"}}"#),
        format!(r#"{{"source": "{base}/x", "verification": {{"hash": "{hash}"}}}}"#),
    ] {
        let files = format!(
            r#", "storage": {{"files": [{{"path": "/first", "contents": {{"source": "data:,1"}}}},
                {{"path": "/second", "contents": {source}}}]}}"#
        );
        let place = Place::new(&config(&files));
        place.succeeds("fetch");
        let said = place.fails("files", 1);
        assert!(said.contains("$.storage.files.1.contents"), "{said}");
        assert!(!said.contains("SECRET"), "{said}");
        assert!(
            !place.path("root/first").exists(),
            "nothing is half applied"
        );
        assert!(!place.path("root/etc").exists());
    }
    // A damaged file of an earlier stage.
    let place = Place::new(&config(""));
    place.write("state", "nonsense");
    assert!(place.fails("fetch", 3).contains("is not the state file"));
}

#[test]
fn keys_go_where_the_variable_says() {
    let mut place = Place::new(&config(
        r#", "passwd": {"users": [{"name": "root", "sshAuthorizedKeys": ["ssh-rsa A", "ssh-rsa B"]}]}"#,
    ));
    place.write("root/etc/passwd", "root:x:0:0:root:/root:/bin/bash\n");
    place.write("root/root/.bashrc", "");
    const NAME: &str = "IGNITION_WRITE_AUTHORIZED_KEYS_FRAGMENT";
    place.variables.push((NAME, "false".to_owned()));
    place.succeeds("fetch");
    place.succeeds("files");
    assert_eq!(
        place.read("root/root/.ssh/authorized_keys"),
        "ssh-rsa A\nssh-rsa B\n"
    );
    place.variables.pop();
    place.variables.push((NAME, "perhaps".to_owned()));
    assert!(place.fails("files", 3).contains(NAME));
}
