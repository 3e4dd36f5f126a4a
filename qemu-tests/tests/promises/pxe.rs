//! Booting from the network.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use image::report::HANDOFF_LINE;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use slipway::vm::machine::Start;
use slipway::vm::pxe::{SCRIPT, Server};
use slipway::vm::run::Image;

use crate::clock::{VALID, request, tls};

/// Where QEMU's user network shows the host's loopback.
const HOST: &str = "10.0.2.2";

/// iPXE fetches the script, kernel and initrd by HTTP, the init fetches the root, and a worker runs from 2 GiB of RAM
/// without any disk.
pub(crate) fn ipxe_boots_kernel_initrd_and_root_over_http(lab: &mut Lab) -> Result<()> {
    let server = Server::start(
        &lab.image.out.join("pxe"),
        SocketAddr::from(([127, 0, 0, 1], 0)),
    )?;
    let image = lab.image.clone();
    let running = worker(lab, &image, server.address().port(), SCRIPT)?;
    let booted = running.wait_handoff(timeouts::HANDOFF);
    booted.with_context(|| format!("requests were {:#?}", server.requests()))?;
    running.wait_agent()?;
    let root = running.run("findmnt -no FSTYPE / && ls /sys/block | grep -c '^vd' || true")?;
    ensure!(root.starts_with("erofs"), "{root}");
    let requests = server.requests();
    for file in [SCRIPT, "root"] {
        ensure!(
            requests
                .iter()
                .any(|line| line.contains(&format!("/{file}"))),
            "{file} was not asked for: {requests:#?}"
        );
    }
    Ok(())
}

/// A worker without a disk, started by a script of the server at this port of the host.
fn worker(lab: &mut Lab, image: &Image, port: u16, script: &str) -> Result<Running> {
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        config: Some(serde_json::json!({
            "ignition": { "version": "3.4.0" },
            // The demo is a control plane; this machine has no etcd disk.
            "storage": { "files": [{
                "path": image::paths::NODE_SETTINGS,
                "overwrite": true,
                "contents": { "source": slipway::vm::agent::data_url(b"role = \"worker\"\n") },
            }]},
        })),
        image: Some(image.clone()),
        ..BootOptions::default()
    };
    let mut machine = lab.machine(&node, &plan)?;
    machine.start = Start::Network {
        script: format!("http://{HOST}:{port}/{script}"),
    };
    machine.disks.clear();
    machine.memory = 2048;
    lab.start(&node, machine, plan.config)
}

/// The init fetches the root by https from a server whose certificate an authority of the recipe's `[ca]` vouches for; the same image
/// without the word names the server and the reason, and is not handed off.
pub(crate) fn a_root_by_https_is_fetched_by_the_recipes_authority(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("qemu-tests/authority")?;
    for (image, is_trusted) in [(lab.image.clone(), false), (image, true)] {
        let folder = image.out.join("pxe");
        let host = serve(folder.join("root"))?;
        let server = Server::start(&folder, SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let port = server.address().port();
        let starts = lab.folder().join("starts");
        fs::create_dir_all(&starts)?;
        let script =
            format!("#!ipxe\nset base https://{host}\nchain http://{HOST}:{port}/{SCRIPT}\n");
        fs::write(starts.join(SCRIPT), script)?;
        let start = Server::start(&starts, SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let running = worker(lab, &image, start.address().port(), SCRIPT)?;
        if is_trusted {
            running.wait_handoff(timeouts::HANDOFF)?;
            running.wait_agent()?;
            let root = running.run("findmnt -no FSTYPE /; cat /proc/cmdline")?;
            let from = format!("slipway.root=https://{host}/root");
            ensure!(root.starts_with("erofs") && root.contains(&from), "{root}");
        } else {
            let words = [
                format!("https://{host}/root"),
                "invalid peer certificate".to_owned(),
            ];
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = running.wait_console(&words, timeouts::INIT)?;
            ensure!(!text.contains(HANDOFF_LINE), "the node was handed off");
        }
    }
    Ok(())
}

/// Serves a file by https until the test ends; gives host and port for the guest.
fn serve(file: PathBuf) -> Result<String> {
    let config = tls(VALID)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let host = format!("{HOST}:{}", listener.local_addr()?.port());
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A node that does not trust the certificate ends the handshake.
            drop(answer(connection, Arc::clone(&config), &file));
        }
    });
    Ok(host)
}

fn answer(connection: TcpStream, config: Arc<ServerConfig>, file: &Path) -> Result<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(config)?, connection);
    request(&mut stream)?;
    let mut file = File::open(file)?;
    let length = file.metadata()?.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    io::copy(&mut file, &mut stream)?;
    stream.conn.send_close_notify();
    Ok(stream.flush()?)
}
