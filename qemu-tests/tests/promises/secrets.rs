//! Secrets of a config stay secret.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use image::cmdline::REPORT_URL;
use image::layout::LABEL_STATE;
use image::paths::{IGNITION_RESULT, NODE_SETTINGS, STATE_PROVISIONED};
use image::report::{HANDED_OFF, PORT};
use qemu_tests::disk_content::dump;
use qemu_tests::http::{self, Request};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::{Value, json};
use slipway::vm::agent::data_url;
use slipway::vm::channel::Waited;
use slipway::vm::disks::{Node, partition};
use slipway::vm::machine::{OnReset, Start};

/// A part of each planted secret, and its base64 for contents in that encoding.
const PLANTED: [&str; 2] = ["HUSH", "SFVTSC"];
/// The planted base64: `HUSH-in-base64`.
const BASE64: &str = "SFVTSC1pbi1iYXNlNjQ=";
/// How long a report may take to reach the server after it was on the console.
const POSTED: Duration = Duration::from_secs(40);

/// A server on the host: `/file` for requests with the header, 404 for all others; it keeps posted bodies.
struct Server {
    port: u16,
    posted: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let posted = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&posted);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                // A guest that is switched off during a request is not a failure of the server.
                if let Ok(Some(body)) = answer(connection)
                    && let Ok(mut kept) = kept.lock()
                {
                    kept.push(body);
                }
            }
        });
        Ok(Self { port, posted })
    }

    fn posted(&self) -> Vec<String> {
        let posted = self.posted.lock();
        posted.map(|posted| posted.clone()).unwrap_or_default()
    }
}

/// Answers one request; returns the body if it was posted.
fn answer(mut connection: TcpStream) -> Result<Option<String>> {
    let Request { head, body } = Request::read(&mut connection)?;
    let known = head.contains("HUSH-header") && head.contains("HUSH-query");
    let (status, text) = match (
        head.starts_with("POST "),
        known && head.starts_with("GET /file"),
    ) {
        (true, _) => ("204 No Content", ""),
        (_, true) => ("200 OK", "HUSH-from-server"),
        _ => ("404 Not Found", "HUSH-not-found"),
    };
    http::answer(&mut connection, status, text.as_bytes())?;
    Ok(head.starts_with("POST ").then_some(body))
}

/// A config with a secret of each kind; `source` is a path on the server.
fn config(server: &Server, source: &str) -> Value {
    let url = format!(
        "http://HUSH-user:HUSH-password@10.0.2.2:{}/{source}?token=HUSH-query&more=a%20b",
        server.port
    );
    json!({
        "ignition": { "version": "3.4.0" },
        "passwd": {
            "users": [{ "name": "probe", "passwordHash": "$y$HUSH-hash", "sshAuthorizedKeys": ["ssh-ed25519 AAAAHUSH-key probe"] }],
            "groups": [{ "name": "team", "passwordHash": "HUSH-group-hash" }],
        },
        "storage": { "files": [
            { "path": "/etc/probe/contents", "mode": 0o600, "contents": { "source": data_url(b"HUSH-contents") } },
            { "path": "/etc/probe/base64", "contents": { "source": format!("data:;base64,{BASE64}") } },
            { "path": "/var/lib/probe", "append": [{ "source": data_url(b"HUSH-appended") }] },
            { "path": "/etc/probe/fetched", "contents": {
                "source": url,
                "httpHeaders": [{ "name": "Authorization", "value": "Bearer HUSH-header" }],
            }},
        ]},
        "systemd": { "units": [{
            "name": "probe.service",
            "contents": "[Service]\nEnvironment=TOKEN=HUSH-unit\nExecStart=/bin/true\n",
            "dropins": [{ "name": "10.conf", "contents": "[Service]\nEnvironment=MORE=HUSH-dropin\n" }],
        }]},
    })
}

/// A change that makes a config invalid.
type Spoil = fn(&mut Value);

/// Ways to fail: the step of the report, and the change of the config.
fn failures() -> Vec<(&'static str, Spoil)> {
    vec![
        ("config", |config| {
            config["storage"]["files"][0]["mode"] = json!("HUSH-mode");
            config["passwd"]["users"][0]["uid"] = json!("HUSH-uid");
        }),
        ("config", |config| {
            config["storage"]["files"][0]["contents"]["verification"] =
                json!({ "hash": format!("sha256-{}", "0".repeat(64)) });
            config["storage"]["files"][1]["contents"]["source"] = json!("data:;base64,HUSH*");
            config["systemd"]["units"][0]["contents"] = json!("[Service]\nHUSH-line\n");
        }),
        ("config", |config| {
            let text = "[etcd]\nminimum-size = \"HUSH-size\"\ntoken = \"HUSH-token\"\n";
            let file = json!({ "path": NODE_SETTINGS, "contents": { "source": data_url(text.as_bytes()) } });
            if let Some(files) = config["storage"]["files"].as_array_mut() {
                files.push(file);
            }
        }),
        ("disks", |config| {
            config["storage"]["disks"] = json!([{
                "device": "/dev/disk/by-id/virtio-system",
                "partitions": [{ "label": "huge", "number": 20, "sizeMiB": 999_999 }],
            }]);
        }),
        ("disks", |config| {
            config["storage"]["files"][0]["group"] = json!({ "name": "nobody-knows-it" });
            config["passwd"]["users"][0]["gecos"] = json!("HUSH:gecos");
        }),
        ("ignition", |config| {
            // The path exists since `/var` was seeded.
            config["storage"]["files"][0]["path"] = json!("/var/lib/slipway/seeded");
        }),
    ]
}

fn quiet(place: &str, text: &str) -> Result<()> {
    for planted in PLANTED {
        if let Some(at) = text.find(planted) {
            let from = text[..at].rfind('\n').map_or(0, |at| at + 1);
            let line = text[from..].lines().next().unwrap_or_default();
            anyhow::bail!("a secret is in {place}: {line}");
        }
    }
    Ok(())
}

/// Boots with a port for the report and a server for it.
fn boot(lab: &mut Lab, node: &Node, server: &Server, config: Value) -> Result<Running> {
    let plan = BootOptions {
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let mut machine = lab.machine(node, &plan)?;
    machine.ports.push(PORT.to_owned());
    if let Start::Direct { cmdline, .. } = &mut machine.start {
        let url = format!("http://10.0.2.2:{}/report", server.port);
        // Print all messages of kernel and init on the console.
        cmdline.push_str(&format!(" {REPORT_URL}={url} loglevel=8 slipway.debug"));
    }
    lab.start(node, machine, Some(config))
}

/// Fails if a file name or content in `state` has a secret.
fn state_is_quiet(lab: &Lab, node: &Node) -> Result<()> {
    let Ok((start, _)) = partition(&node.system(), LABEL_STATE) else {
        return Ok(());
    };
    let out = tempfile::tempdir_in(node.folder())?;
    dump(&lab.tools, &node.system(), start, out.path())?;
    let mut folders = vec![out.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            let name = path.strip_prefix(out.path())?.display().to_string();
            quiet(&format!("{name} of state"), &(name.clone() + "\n" + &text))?;
        }
    }
    Ok(())
}

/// Password hashes, ssh keys, contents, headers, users and queries of URLs in a config are on no console, in no kernel
/// log, journal, report, port, timeline or state, whether the config is applied or fails, in any step.
pub(crate) fn secrets_of_a_config_are_printed_nowhere(lab: &mut Lab) -> Result<()> {
    let server = Server::start()?;
    for (number, (step, change)) in failures().into_iter().enumerate() {
        let node = lab.node()?;
        let mut config = config(&server, "file");
        change(&mut config);
        let before = server.posted().len();
        let running = boot(lab, &node, &server, config)?;
        let report = running
            .wait_report(timeouts::INIT)
            .with_context(|| format!("failure {number}, in {step}"))?;
        let found: Value = serde_json::from_str(&report)?;
        ensure!(found["step"] == step, "expected one of {step}: {report}");
        running.wait_console(&["report sent to the report server"], POSTED)?;
        let posted = server.posted();
        ensure!(posted.len() > before, "nothing was posted");
        quiet("the posted report", &posted[before..].join("\n"))?;
        quiet("the port", &running.vm.port(PORT)?.text())?;
        quiet("the console", &running.vm.console().text())?;
        running.vm.pull_plug();
        state_is_quiet(lab, &node)?;
    }
    // The server refuses every request; the init retries and the console shows it.
    let node = lab.node()?;
    let running = boot(lab, &node, &server, config(&server, "missing"))?;
    let waits = |text: &str| (text.matches("answered 404").count() > 0).then_some(());
    let waited = running.vm.console().wait(timeouts::INIT, waits);
    ensure!(
        waited == Waited::Found(()),
        "the console does not say that the server refuses: {waited:?}"
    );
    quiet("the console", &running.vm.console().text())?;
    running.vm.pull_plug();
    applied(lab, &server)
}

fn applied(lab: &mut Lab, server: &Server) -> Result<()> {
    let node = lab.node()?;
    let running = boot(lab, &node, server, config(server, "file"))?;
    running.wait_handoff(timeouts::INIT)?;
    quiet("the console", &running.vm.console().text())?;
    running.wait_services()?;
    // All of the config was applied.
    for (script, expected) in [
        ("cat /etc/probe/contents", "HUSH-contents"),
        ("cat /etc/probe/base64", "HUSH-in-base64"),
        ("cat /etc/probe/fetched", "HUSH-from-server"),
        ("cat /var/lib/probe", "HUSH-appended"),
        ("grep -c HUSH-hash /etc/shadow", "1"),
    ] {
        let found = running.run(script)?;
        ensure!(found == expected, "`{script}` gave {found:?}");
    }
    // Each word proves that the output is not empty.
    for (script, word) in [
        ("dmesg", HANDED_OFF),
        ("journalctl --boot --all --output=cat", HANDED_OFF),
        (&format!("cat {IGNITION_RESULT}"), "userConfigProvided"),
        ("cat /proc/cmdline", REPORT_URL),
        ("cat /run/slipway/*.json*", "ignition"),
        ("grep -r . /var/lib/slipway/state", STATE_PROVISIONED),
    ] {
        let answer = running.ask(script)?;
        ensure!(
            answer.output.contains(word),
            "`{script}` says nothing of {word:?}: {}",
            answer.output
        );
        quiet(&format!("the output of `{script}`"), &answer.output)?;
    }
    quiet("the console", &running.vm.console().text())?;
    running.vm.pull_plug();
    Ok(())
}
