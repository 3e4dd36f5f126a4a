//! Sends a failure's report off the machine: to a virtio serial port, and to a server.
//!
//! Best effort, bounded in time: the report is on the consoles already, and the node follows its policy whether the
//! report is received or not.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fetch::Message;
use image::cmdline::Cmdline;
use image::report::{LINE, PORT, Report};
use nix::libc::O_NONBLOCK;

use crate::context::{Early, links};
use crate::deadline::within;
use crate::loader::of_running_kernel;
use linux::block;
use linux::certificates::ca_bundle;
use linux::log::say;
use linux::modules::{Modules, Network};
use linux::world::World;

/// Time limit for bringing the network up.
const NETWORK: Duration = Duration::from_secs(20);
/// Time limit for the server's response.
const SERVER: Duration = Duration::from_secs(20);

/// Sends the report to the machine's port and to `slipway.report.url=`, where they exist, and logs the result on the
/// consoles.
pub(crate) fn send(early: &Early, report: &Report) {
    let world = &early.world;
    let text = serde_json::to_string(report).unwrap_or_default();
    let cmdline = fs::read_to_string(world.proc.join("cmdline")).unwrap_or_default();
    // A command line that is malformed elsewhere still names its server; the network is then the default one.
    let url = Cmdline::report_url_of(&cmdline);
    let modules = of_running_kernel(world);
    if let Ok(modules) = &modules {
        modules.load_for_devices(Network::Without);
    }
    if let Some(port) = port(world) {
        log_result(world, "the virtio port", write(&port, &text));
    }
    let Some(url) = url else { return };
    let done = modules.and_then(|modules| post(early, modules, url, text));
    log_result(world, "the report server", done);
}

fn log_result(world: &World, receiver: &str, done: Result<()>) {
    match done {
        Ok(()) => say(world, &format!("slipway: report sent to {receiver}")),
        Err(error) => say(
            world,
            &format!("slipway: report not sent to {receiver}: {error:#}"),
        ),
    }
}

/// The device of Slipway's virtio serial port.
fn port(world: &World) -> Option<PathBuf> {
    let ports = world.sys.join("class/virtio-ports");
    let name = block::entries(&ports).into_iter().find(|name| {
        fs::read_to_string(ports.join(name).join("name")).is_ok_and(|text| text.trim() == PORT)
    })?;
    Some(world.dev.join(name))
}

/// Writes without blocking: a port without a reader at the other end must not hold the node up.
fn write(port: &PathBuf, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(O_NONBLOCK)
        .open(port)
        .with_context(|| format!("opening {}", port.display()))?;
    file.write_all(format!("{LINE}{text}\n").as_bytes())
        .with_context(|| format!("writing to {}", port.display()))
}

/// Brings the network up and posts.
fn post(early: &Early, modules: Modules, url: String, text: String) -> Result<()> {
    let world = &early.world;
    let network = Arc::clone(&early.network);
    let up = move || network.up_with_any(&modules);
    within(world, "the network, to send the report", NETWORK, up)?;
    let (network, inside) = (Arc::clone(&early.network), Arc::clone(world));
    within(world, "the server, to send the report", SERVER, move || {
        let client = fetch::blocking::Client::new(&fetch::Options {
            ca_bundle: ca_bundle(&inside, &inside.sysroot),
            links: links(&network),
            ..fetch::Options::default()
        })?;
        Ok(client.post(&Message::json(&url, &text), SERVER)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::world::Clock;

    #[test]
    fn the_port_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert_eq!(port(&world), None);
        for (device, name) in [("vport1p1", "other\n"), ("vport1p2", "slipway.report\n")] {
            let place = world.sys.join("class/virtio-ports").join(device);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("name"), name).unwrap();
        }
        fs::create_dir_all(&world.dev).unwrap();
        let found = port(&world).unwrap();
        assert_eq!(found, world.dev.join("vport1p2"));
        fs::write(&found, "").unwrap();
        write(&found, "{}").unwrap();
        assert_eq!(fs::read_to_string(found).unwrap(), "slipway-report: {}\n");
    }
}
