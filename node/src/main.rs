//! `slipway-node`: the commands that units of the running node execute, after the handoff. `slipway-init` writes the units.
//!
//! A node joins a cluster by what it has: a bootstrap token and a pin, or the cluster's shared keys. It does not prove what it is, and
//! these commands speak nothing but the APIs of Kubernetes and etcd with other nodes. Attestation and a protocol between nodes (gRPC)
//! come later, and have this place:
//!
//! * On the node that joins, `files` in [`prepare`]: the cluster object is read, and no file of a cluster is written. The first control
//!   plane ([`control_plane`]), a further one ([`further`]) and a worker ([`join`]) begin there, so what is refused there changes
//!   nothing.
//! * What a node asks of its cluster before it trusts it is [`discover`]; a protocol takes the place of these requests.
//! * On a control plane, [`serving_requests`] decides on the requests of nodes. The first certificate of a kubelet is approved by
//!   the controller manager, for the group of bootstrap tokens, as with kubeadm: attestation would have to take that right from the
//!   group and decide here.

// Floor: bbolt's files, requests to containerd
mod bolt;
mod cri;

// Floor: machines and servers of tests
#[cfg(test)]
mod samples;

// Floor: the kubelet's credential providers, and how long it holds up a shutdown
mod credential_providers;
mod shutdown_limit;

// Floor: a static pod as the kubelet starts it, and those that run
mod runtime_pod;
mod static_pods;

// Floor: etcd's data before etcd starts
mod etcd_first_start;

// Floor: the console, remedies, questions and messages to systemd, the container's bundle, containerd's data
mod bundle;
mod console;
mod containerd;
mod notify;
mod remedies;
mod systemd;

// Floor: the etcd gate, room on the disks, the journal, locks, the network of pods, facts of this boot, steps, waiting; units and pods of the timeline
mod boot_pods;
mod boot_units;
mod cni;
mod disk_room;
mod gate;
mod journal;
mod lock;
mod steps;
mod this_boot;
mod waiting;

// Floor: the cluster object, discovery of a cluster, a worker's identity, this node in its cluster; what a clock that is not set has decided
mod discover;
mod identity;
mod object;
mod own_node;
mod unset_clock;

// Floor: layers of images
mod oci_layer;

// Floor: the pinned container of the kubelet
mod pinned_kubelet;

// Floor: the control plane's files
mod control_plane;

// Floor: the balancer of the API servers, and the kubelet's way to it; metrics-server's objects
mod balancer;
mod kubelet_server;
mod metrics_server;

// Floor: the cluster's objects and its administrator, a worker's files, a member of etcd
mod administrator;
mod apply;
mod etcd_member;
mod join;

// Floor: the API server as this node may ask it; a place among etcd's members; the files, requests and states of addons
mod addon_files;
mod addon_requests;
mod addon_states;
mod client;
mod etcd_place;

// Floor: a further control plane's files
mod further;

// Floor: applying addons and the cluster's objects, uploading the shared keys, approving requests
mod addons;
mod key_upload;
mod objects_owner;
mod serving_requests;

// Floor: a worker's way to Ready, the routes to the pods of others, the ends of tokens once the clock is set
mod routes;
mod token_ends;
mod worker;

// Floor: the node's status
mod node_status;

// Floor: the rows of a status
mod status_rows;

// Floor: the page of a console
mod page;

// Floor: a part of a command
mod upload_command;

// Floor: one command each
mod addon_commands;
mod ahead;
mod balance;
mod bless;
mod boot_record;
mod certificates;
mod cluster_up;
mod console_page;
mod container_images;
mod coreos_metadata;
mod csr_command;
mod election;
mod etcd_command;
mod kubeadm_command;
mod kubelet_lint;
mod prepare;
mod render;
mod reset_later;
mod status;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use image::container_images::IMAGES_COMMAND;
use image::kubelet::{
    ADDONS_COMMAND, AHEAD_COMMAND, BALANCER_COMMAND, BLESS_COMMAND, CERTS_COMMAND, CLOCK_COMMAND,
    CLUSTER_COMMAND, ELECTION_COMMAND, GATE_COMMAND, KUBELET_COMMAND, PERMANENT, PREPARE_COMMAND,
    REQUESTS_COMMAND, ROUTES_COMMAND, TIMELINE_COMMAND,
};
use image::paths::{BLESS_BOOT_COMMAND, CONSOLE_COMMAND, METADATA_COMMAND, RESET_COMMAND};
use linux::log;
use linux::world::World;

const NAME: &str = "slipway-node";
/// Exit code of a wrong command line.
const USAGE: u8 = 2;

/// A command: its name, its description, its function.
type Command = (&'static str, &'static str, fn(&World) -> Result<()>);

const COMMANDS: [Command; 17] = [
    (
        IMAGES_COMMAND,
        "tells containerd of the container images in the root",
        container_images::run,
    ),
    (
        GATE_COMMAND,
        "waits for the proven etcd volume, on a control plane",
        gate::run,
    ),
    (
        PREPARE_COMMAND,
        "makes folders, joins the cluster or begins it, writes the container's bundle, waits for the clock",
        prepare::run,
    ),
    (
        AHEAD_COMMAND,
        "starts etcd and the API server of a control plane, which the kubelet then takes over",
        ahead::run,
    ),
    (
        ELECTION_COMMAND,
        "asks the only member of etcd to elect itself, on a control plane",
        election::run,
    ),
    (
        BLESS_COMMAND,
        "removes the boot counter from the entry that this boot came from, once the static pods run",
        bless::run,
    ),
    (
        BLESS_BOOT_COMMAND,
        "the same at once, on a node whose kubelet does not start",
        bless::boot,
    ),
    (
        CLUSTER_COMMAND,
        "brings this node of a cluster up, until it is Ready",
        cluster_up::run,
    ),
    (
        CLOCK_COMMAND,
        "moves the ends of bootstrap tokens that were made before the clock was set, on a control plane",
        token_ends::run,
    ),
    (
        ADDONS_COMMAND,
        "applies the cluster's addons, on a control plane",
        addon_commands::up,
    ),
    (
        CERTS_COMMAND,
        "makes certificates of a control plane anew that end soon",
        certificates::run,
    ),
    (
        REQUESTS_COMMAND,
        "approves kubelets' requests for serving certificates, on a control plane with serverTLSBootstrap",
        csr_command::run,
    ),
    (
        BALANCER_COMMAND,
        "carries connections to an API server that is well, from a loopback address",
        balance::run,
    ),
    (
        ROUTES_COMMAND,
        "sets the routes to the pods of other nodes, with cni = \"bridge\"",
        routes::run,
    ),
    (
        TIMELINE_COMMAND,
        "completes the boot's timeline, until the node is Ready",
        boot_record::run,
    ),
    (
        METADATA_COMMAND,
        "writes the platform's metadata by the names of Container Linux",
        coreos_metadata::run,
    ),
    (
        CONSOLE_COMMAND,
        "shows the status on the consoles that ask for no login",
        console_page::run,
    ),
];

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let called = (!arguments.is_empty()).then(|| arguments.remove(0));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // By a link of that name, in an image without kubeadm.
    if called.is_some_and(|called| {
        Path::new(&called).file_name() == Some(kubeadm_command::COMMAND.as_ref())
    }) {
        return kubeadm_command::command(NAME, &arguments);
    }
    match arguments[..] {
        ["-h" | "--help"] => print(&usage()),
        ["-V" | "--version"] => print(&format!("{NAME} {}\n", env!("CARGO_PKG_VERSION"))),
        [name] if let Some(command) = COMMANDS.iter().find(|command| command.0 == name) => {
            run(command)
        }
        [status::COMMAND] => status::run(NAME, false),
        [status::COMMAND, "--json"] => status::run(NAME, true),
        [addon_commands::COMMAND, ref options @ ..] => {
            addon_commands::command(NAME, options).unwrap_or_else(|| wrong(&arguments))
        }
        [certificates::COMMAND, ref options @ ..] => {
            certificates::command(NAME, options).unwrap_or_else(|| wrong(&arguments))
        }
        [csr_command::COMMAND, ref options @ ..] => {
            csr_command::command(NAME, options).unwrap_or_else(|| wrong(&arguments))
        }
        [etcd_command::COMMAND, ref options @ ..] => {
            etcd_command::command(NAME, options).unwrap_or_else(|| wrong(&arguments))
        }
        [kubeadm_command::COMMAND, ref options @ ..] => kubeadm_command::command(NAME, options),
        [KUBELET_COMMAND, ref options @ ..] => {
            kubelet_lint::command(NAME, options).unwrap_or_else(|| wrong(&arguments))
        }
        // A script's first line names this program and the command; the kernel adds the script's path (execve(2)).
        [RESET_COMMAND, _, kind] => reset_later::command(NAME, kind),
        [render::COMMAND, "--batch", file] => render::batch(NAME, Path::new(file)),
        _ => wrong(&arguments),
    }
}

fn wrong(arguments: &[&str]) -> ExitCode {
    let found = arguments.join(" ");
    eprint!("{NAME}: expected one command, found {found:?}\n{}", usage());
    ExitCode::from(USAGE)
}

fn run((name, _, command): &Command) -> ExitCode {
    // Units send stderr to the journal.
    if let Err(error) = log::plain(NAME, false) {
        eprintln!("{NAME}: {error:#}");
    }
    let world = World::real();
    match command(&world) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::warn(&world, &format!("{name}: {error:#}"));
            match error.is::<addon_commands::Permanent>() {
                true => ExitCode::from(PERMANENT),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn usage() -> String {
    let mut out = format!("Usage: {NAME} COMMAND\n\nCommands:\n");
    for (name, description, _) in COMMANDS {
        out += &format!("  {name:16} {description}\n");
    }
    for (name, description) in [
        (status::COMMAND, status::DESCRIPTION),
        (addon_commands::COMMAND, addon_commands::DESCRIPTION),
        (certificates::COMMAND, certificates::DESCRIPTION),
        (csr_command::COMMAND, csr_command::DESCRIPTION),
        (etcd_command::COMMAND, etcd_command::DESCRIPTION),
        (kubeadm_command::COMMAND, kubeadm_command::DESCRIPTION),
        (KUBELET_COMMAND, kubelet_lint::DESCRIPTION),
        (render::COMMAND, render::DESCRIPTION),
        (RESET_COMMAND, reset_later::DESCRIPTION),
    ] {
        out += &format!("  {name:16} {description}\n");
    }
    out
}

/// Prints the text that an option requests to stdout.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
