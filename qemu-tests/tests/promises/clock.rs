//! A machine whose clock has stopped.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use image::report::HANDOFF_LINE;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use slipway::vm::agent::data_url;
use slipway::vm::machine::Clock;

/// A certificate and its key, made by `data/make.sh`.
pub(crate) type Pair = (&'static [u8], &'static [u8]);

pub(crate) const VALID: Pair = (
    include_bytes!("../data/valid.pem"),
    include_bytes!("../data/valid.key"),
);
const EXPIRED: Pair = (
    include_bytes!("../data/expired.pem"),
    include_bytes!("../data/expired.key"),
);
/// What the server answers.
const CONTENT: &str = "by https";

/// A machine that begins in 1970 has the image's time: a server whose certificate is of 2001 is refused by its address and for that
/// reason, with the clock and nothing written, and one whose certificate is from 2020 on is believed.
pub(crate) fn a_clock_of_1970_is_raised_so_that_certificates_count(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let manifest = fs::read_to_string(lab.image.out.join("manifest.json"))?;
    let manifest: Value = serde_json::from_str(&manifest)?;
    let epoch = manifest["epoch"]
        .as_u64()
        .context("the image has no time")?;
    let renewed = Arc::new(AtomicBool::new(false));
    let host = serve(Arc::clone(&renewed))?;
    let trusted = |(certificate, _): Pair| json!({ "source": data_url(certificate) });
    let config = json!({
        "ignition": {
            "version": "3.4.0",
            "security": { "tls": { "certificateAuthorities": [trusted(VALID), trusted(EXPIRED)] } },
        },
        "storage": { "files": [{
            "path": "/etc/probe",
            "contents": { "source": format!("https://{host}/probe") },
        }]},
    });
    let written = || -> Result<SystemTime> { Ok(fs::metadata(node.system())?.modified()?) };
    let before = written()?;
    let mut machine = lab.machine(&node, &BootOptions::default())?;
    machine.clock = Clock::Lost;
    let running = lab.start(&node, machine, Some(config))?;
    let words = [
        format!("https://{host}/probe"),
        "certificate expired".to_owned(),
        "the machine's clock says".to_owned(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = running.wait_console(&words, timeouts::INIT)?;
    let line = text.lines().find(|line| line.contains(words[2]));
    let line = line.context("finding the line")?;
    ensure!(
        words.iter().all(|word| line.contains(word)) && !line.contains("1970"),
        "the certificate is refused by: {line}"
    );
    ensure!(!text.contains(HANDOFF_LINE), "the node was handed off");
    ensure!(written()? == before, "the disk was written to");

    renewed.store(true, Ordering::SeqCst);
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_agent()?;
    let found = running.run("cat /etc/probe")?;
    ensure!(found == CONTENT, "the file has {found:?}");
    let raised = "dmesg | grep -c \"the clock was behind the image's time and has been raised\"";
    let found = running.run(raised)?;
    ensure!(found == "1", "`{raised}` gave {found:?}");
    let now: u64 = running.run("date +%s")?.parse()?;
    ensure!(now >= epoch, "the node's clock says {now}, before {epoch}");
    Ok(())
}

/// Serves until the test ends, with the expired certificate until it is renewed; returns host and port for the guest.
fn serve(renewed: Arc<AtomicBool>) -> Result<String> {
    let (old, new) = (tls(EXPIRED)?, tls(VALID)?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let host = format!("10.0.2.2:{}", listener.local_addr()?.port());
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let config = if renewed.load(Ordering::SeqCst) {
                &new
            } else {
                &old
            };
            // A node that does not trust the certificate ends the handshake.
            drop(answer(connection, Arc::clone(config)));
        }
    });
    Ok(host)
}

fn answer(connection: TcpStream, config: Arc<ServerConfig>) -> Result<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(config)?, connection);
    request(&mut stream)?;
    let length = CONTENT.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(format!("{head}{CONTENT}").as_bytes())?;
    stream.conn.send_close_notify();
    Ok(stream.flush()?)
}

/// Reads a request without a body.
pub(crate) fn request(stream: &mut StreamOwned<ServerConnection, TcpStream>) -> Result<()> {
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut piece)?;
        ensure!(count > 0, "the node closed the connection");
        request.extend_from_slice(&piece[..count]);
    }
    Ok(())
}

pub(crate) fn tls((certificate, key): Pair) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate)?],
            PrivateKeyDer::from_pem_slice(key)?,
        )?;
    Ok(Arc::new(config))
}
