//! Encrypted volumes that clevis opens, with a real tang server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, ensure};
use qemu_tests::lab::{BootOptions, Lab};
use serde_json::json;
use slipway::install::tools::{self, Tools};
use slipway::lock;
use slipway::recipe::{SetRequest, load};
use slipway::vm::agent::data_url;

use crate::disks::{boot_and_wait, disk, expect_answers, mount_unit};

/// The content of a file in the volumes.
const WRITTEN: &str = "slipway wrote these words into a file";
/// Debian packages of the server; coreutils and dash are for the script that makes its keys.
const PROGRAMS: [&str; 4] = ["coreutils", "dash", "jose", "tang-common"];
/// Path of the keys in the server's sandbox.
const KEYS: &str = "/run/tang";

/// One volume opens with a tang server, one with a custom pin that needs a server and the machine's TPM: in the first boot
/// and in the second one, with no key on any disk. While the server is down both stay closed and the node still boots; they
/// open as soon as the server is back.
pub(crate) fn volumes_open_with_a_tang_server_and_with_two_pins(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("qemu-tests/clevis")?;
    let mut tang = Tang::start(lab)?;
    let url = format!("http://10.0.2.2:{}", tang.port);
    let node = lab.node_of(&image.disk)?;
    let (far, both) = ("/dev/mapper/far", "/dev/mapper/both");
    let written = data_url(WRITTEN.as_bytes());
    let pins = json!({ "t": 2, "pins": {
        "tang": [{ "url": url, "thp": tang.thumbprint }],
        "tpm2": {},
    }});
    // Not enabled: without the server the mounts would block the boot.
    let unit = |path: &str, device: &str| {
        let mut unit = mount_unit(path, device);
        unit["enabled"] = false.into();
        unit
    };
    let config = json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "luks": [
                { "name": "far", "device": "/dev/disk/by-id/virtio-far",
                  "clevis": { "tang": [{ "url": url, "thumbprint": tang.thumbprint }] } },
                { "name": "both", "device": "/dev/disk/by-id/virtio-both",
                  "clevis": { "custom": { "pin": "sss", "config": pins.to_string(), "needsNetwork": true } } },
            ],
            "filesystems": [
                { "device": far, "format": "ext4", "path": "/var/lib/far" },
                { "device": both, "format": "ext4", "path": "/var/lib/both" },
            ],
            "files": [
                { "path": "/var/lib/far/probe", "contents": { "source": written } },
                { "path": "/var/lib/both/probe", "contents": { "source": written } },
            ],
        },
        "systemd": { "units": [unit("/var/lib/far", far), unit("/var/lib/both", both)] },
    });
    let plan = BootOptions {
        config: Some(config),
        more: vec![disk(&node, "far")?, disk(&node, "both")?],
        tpm: true,
        image: Some(image),
        ..BootOptions::default()
    };
    let answers = [
        (
            "systemctl start var-lib-far.mount && cat /var/lib/far/probe",
            WRITTEN,
        ),
        (
            "systemctl start var-lib-both.mount && cat /var/lib/both/probe",
            WRITTEN,
        ),
        (
            "grep -c ' none luks,_netdev,x-initrd.attach$' /etc/crypttab",
            "2",
        ),
        ("test -e /etc/luks || echo none", "none"),
        // The random key is removed: the key of clevis is the only one.
        (
            "cryptsetup luksDump /dev/disk/by-id/virtio-far | grep -c -E '^ +[0-9]+: (luks2|clevis)$'",
            "2",
        ),
    ];
    let running = boot_and_wait(lab, &node, &plan, &[far, both])?;
    running.wait_services()?;
    expect_answers(&running, &answers).context("after the first boot")?;
    running.power_off()?;
    ensure!(tang.stop() > 0, "the server had no request");
    let running = boot_and_wait(lab, &node, &plan, &[])?;
    running.wait_services()?;
    let closed = [
        ("test -e /dev/mapper/far || echo closed", "closed"),
        ("test -e /dev/mapper/both || echo closed", "closed"),
    ];
    expect_answers(&running, &closed).context("without the server")?;
    tang.listen()?;
    expect_answers(&running, &answers).context("with the server again")
}

/// A tang server on loopback: Debian's `tangd`, started for each connection, as its socket unit does.
struct Tang {
    tools: Tools,
    keys: PathBuf,
    thumbprint: String,
    port: u16,
    server: Option<(JoinHandle<usize>, Arc<AtomicBool>)>,
}

impl Tang {
    /// Makes the keys and listens.
    fn start(lab: &Lab) -> Result<Self> {
        let keys = lab.folder().join("tang");
        if keys.exists() {
            fs::remove_dir_all(&keys).context("removing the keys of an earlier run")?;
        }
        fs::create_dir(&keys)?;
        let tools = programs(lab)?;
        let sandbox = tools.sandbox().bind(&keys, KEYS);
        sandbox
            .command("/usr/bin/sh")
            .args(["/usr/libexec/tangd-keygen", KEYS, "sig", "exc"])
            .run()?;
        let thumbprint = sandbox
            .command("/usr/bin/jose")
            .args(["jwk", "thp", "-a", "S256", "-i", &format!("{KEYS}/sig.jwk")])
            .run()?;
        let mut tang = Self {
            tools,
            keys,
            thumbprint: String::from_utf8(thumbprint)?.trim().to_owned(),
            port: 0,
            server: None,
        };
        tang.listen()?;
        Ok(tang)
    }

    /// Listens, on the same port again after a stop.
    fn listen(&mut self) -> Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", self.port))?;
        self.port = listener.local_addr()?.port();
        let ends = Arc::<AtomicBool>::default();
        let (tools, keys, seen) = (self.tools.clone(), self.keys.clone(), Arc::clone(&ends));
        let thread = thread::spawn(move || serve(&listener, &tools, &keys, &seen));
        self.server = Some((thread, ends));
        Ok(())
    }

    /// Stops the server; returns how many connections there were.
    fn stop(&mut self) -> usize {
        let Some((thread, ends)) = self.server.take() else {
            return 0;
        };
        ends.store(true, Ordering::SeqCst);
        // Wakes the thread, which is blocked in accept.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        thread.join().unwrap_or(0)
    }
}

impl Drop for Tang {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers until `ends` is set; returns how many connections there were.
fn serve(listener: &TcpListener, tools: &Tools, keys: &Path, ends: &AtomicBool) -> usize {
    let mut asked = 0;
    for connection in listener.incoming() {
        if ends.load(Ordering::SeqCst) {
            break;
        }
        asked += 1;
        let connection = connection.context("accepting");
        if let Err(error) = connection.and_then(|connection| answer(connection, tools, keys)) {
            eprintln!("the tang server: {error:#}");
        }
    }
    asked
}

fn answer(connection: TcpStream, tools: &Tools, keys: &Path) -> Result<()> {
    let (input, output) = (connection.try_clone()?, connection.try_clone()?);
    let sandbox = tools.sandbox().bind(keys, KEYS);
    let mut child = sandbox
        .command("/usr/libexec/tangd")
        .arg(KEYS)
        .stdin(Stdio::from(OwnedFd::from(input)))
        .stdout(Stdio::from(OwnedFd::from(output)))
        .stderr(Stdio::piped())
        .spawn()?;
    let said = child.stderr.take().context("reading tangd's log")?;
    // tangd logs a line per request; the client closes the connection when it has its answer.
    for line in BufReader::new(said).lines() {
        drop(line?);
    }
    child.wait()?;
    // The client may have closed it already.
    drop(connection.shutdown(Shutdown::Both));
    Ok(())
}

fn programs(lab: &Lab) -> Result<Tools> {
    let recipe = load(&lab.recipes().join("demo.toml"))?;
    let request = SetRequest {
        name: "tools-tang".into(),
        packages: PROGRAMS.map(str::to_owned).into(),
        dependencies: true,
        essential: false,
        recommends: false,
        backports: Vec::new(),
    };
    let session = lab.session();
    let locked = lock::resolve(session, &recipe, std::slice::from_ref(&request))?;
    tools::install(
        session,
        &request.name,
        &locked.fetch(session, &request.name)?,
    )
}
