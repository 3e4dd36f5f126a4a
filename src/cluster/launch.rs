//! Starting the machines of a cluster on this host.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use image::node::Role;

use super::machines::{self, Member};
use super::node::Part;
use super::object::ClusterFile;
use super::secrets::Secrets;
use super::token::OwnToken;
use crate::host::atomic_file;
use crate::install::tools::Tools;
use crate::vm::accel;
use crate::vm::agent::{Agent, Answer, PORT, Secret};
use crate::vm::disks::Node;
use crate::vm::hub::{Hub, Peer};
use crate::vm::machine::{Accel, Forward};
use crate::vm::preflight;
use crate::vm::process::Vm;
use crate::vm::run::{self, Image, Options};

/// One question to a node.
pub(super) const QUESTION: Duration = Duration::from_secs(60);

/// What a cluster on this host consists of.
#[derive(Debug)]
pub struct Cluster<'a> {
    /// Its object.
    pub file: &'a ClusterFile,
    /// Its secrets.
    pub secrets: &'a Secrets,
    /// The image of all nodes.
    pub image: &'a Image,
    /// The tools that run it.
    pub tools: &'a Tools,
    /// The machines' size and acceleration.
    pub options: &'a Options,
    /// How many control planes it has, at least one.
    pub control_planes: u8,
    /// How many workers it has.
    pub workers: u8,
    /// The port of this host that leads to the API server; 0 for a free one.
    pub port: u16,
}

/// A machine that runs.
pub(crate) struct Running {
    /// Which one it is.
    pub(crate) member: Member,
    /// What its agent asks for.
    pub(crate) secret: Secret,
    /// Its process.
    pub(crate) vm: Vm,
    /// Whether its disk was made from the cluster's image.
    pub(crate) is_of_image: bool,
}

impl Running {
    /// The output of a script that succeeded.
    ///
    /// # Errors
    /// If the node does not answer.
    pub(crate) fn ask(&self, script: &str) -> Result<Option<String>> {
        let answer = self.answer(script)?;
        Ok((answer.code == 0).then_some(answer.output))
    }

    /// The same, whether it succeeds or not.
    ///
    /// # Errors
    /// If the node does not answer.
    pub(crate) fn answer(&self, script: &str) -> Result<Answer> {
        let agent = Agent::new(self.vm.port(PORT)?, &self.secret);
        agent
            .ask(script, QUESTION)
            .with_context(|| format!("asking the node {}", self.member.name))
    }
}

/// Starts machines on one network.
pub(crate) struct Launcher<'a> {
    /// Why the machines are emulated; none if they are not.
    pub(crate) emulation: Option<String>,
    cluster: &'a Cluster<'a>,
    file: &'a ClusterFile,
    folder: &'a Path,
    scratch: &'a Path,
    port: u16,
    accel: Accel,
    hub: Hub,
}

impl<'a> Launcher<'a> {
    /// Machines with their disks in the first folder and what goes with them in the second; `port` of this host leads to the
    /// first one's API server.
    ///
    /// # Errors
    /// If the way to run them that is asked for is not there.
    pub(crate) fn new(
        cluster: &'a Cluster<'a>,
        file: &'a ClusterFile,
        (folder, scratch): (&'a Path, &'a Path),
        port: u16,
    ) -> Result<Self> {
        preflight::check(cluster.options.memory, &[])?;
        let (accel, emulation) = accel::choose(cluster.tools, cluster.options.accel)?;
        Ok(Self {
            emulation,
            cluster,
            file,
            folder,
            scratch,
            port,
            accel,
            hub: Hub::default(),
        })
    }

    /// The machines, as [`stages`] has them.
    ///
    /// # Errors
    /// If they are too many.
    pub(crate) fn stages(&self) -> Result<(Vec<Member>, Vec<Member>)> {
        let (control_planes, workers) = (self.cluster.control_planes, self.cluster.workers);
        let members = machines::members(self.file, control_planes, workers)?;
        Ok(stages(self.folder, members))
    }

    /// The token by which workers join a cluster that was started before; none if it is not made yet, or there are no workers.
    ///
    /// # Errors
    /// If this kubeconfig cannot be read.
    pub(crate) fn token(&self, kubeconfig: &Path) -> Result<Option<OwnToken<'a>>> {
        let cluster = self.cluster;
        let members = machines::members(self.file, cluster.control_planes, cluster.workers)?;
        if cluster.workers == 0 || !was_started(self.folder, &members) {
            return Ok(None);
        }
        let text = fs::read_to_string(kubeconfig)
            .with_context(|| format!("reading {}", kubeconfig.display()))?;
        OwnToken::new(self.file, cluster.secrets, &text).map(Some)
    }

    /// Starts a machine.
    ///
    /// # Errors
    /// If its disks cannot be made, or QEMU ends.
    pub(crate) fn launch(&self, member: Member) -> Result<Running> {
        let cluster = self.cluster;
        let folder = self.folder.join(&member.name);
        let node = Node::prepare(&folder, &cluster.image.disk, cluster.tools)?;
        let is_of_image = node.is_of(&cluster.image.disk)?;
        let secret = Secret::keep(&node.folder().join("secret"))?;
        let config = config(node.folder());
        // A node keeps the config of its first boot.
        if !config.exists() {
            let text = member.config(self.file, cluster.secrets, &secret)?;
            let text = text.to_string();
            atomic_file::write(&config, 0o600, |file| Ok(file.write_all(text.as_bytes())?))?;
        }
        let is_first = member.part == Part::First;
        let options = Options {
            ignition: Some(config),
            etcd: member.part.role() == Role::ControlPlane,
            forwards: forwards(self.file, self.port)
                .filter(|_| is_first)
                .into_iter()
                .collect(),
            ..cluster.options.clone()
        };
        let mut machine = run::machine(cluster.image, &node, &options, self.accel)?;
        machine.ports.push(PORT.to_owned());
        machine.peer = Some(Peer {
            hub: self.hub.clone(),
            mac: member.mac.clone(),
        });
        let place = self.scratch.join(&member.name);
        fs::create_dir(&place).with_context(|| format!("making {}", place.display()))?;
        let vm = Vm::start(cluster.tools, &machine, &place, None)?;
        Ok(Running {
            member,
            secret,
            vm,
            is_of_image,
        })
    }
}

/// The machines that start at once, and those that start one after the other behind them: control planes that were never
/// started. One that was may be a member of etcd, without which the others have no majority.
fn stages(folder: &Path, members: Vec<Member>) -> (Vec<Member>, Vec<Member>) {
    let is_new = |member: &Member| !config(&folder.join(&member.name)).exists();
    let (later, at_once) = members
        .into_iter()
        .partition(|member| member.part == Part::Further && is_new(member));
    (at_once, later)
}

/// Whether the first control plane was started before: it makes the token that its config has, once.
fn was_started(folder: &Path, members: &[Member]) -> bool {
    let mut first = members.iter().filter(|member| member.part == Part::First);
    first.any(|member| config(&folder.join(&member.name)).exists())
}

/// The config of a machine's first boot.
fn config(folder: &Path) -> PathBuf {
    folder.join("config.ign")
}

fn forwards(file: &ClusterFile, host: u16) -> Option<Forward> {
    let guest = u16::try_from(file.config().init.local_api_endpoint.bind_port).ok()?;
    Some(Forward { host, guest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_control_planes_that_are_new_wait_for_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = ClusterFile::parse(Path::new("blue.toml"), "name = \"blue\"\n").unwrap();
        let stages = || {
            let members = machines::members(&file, 3, 1).unwrap();
            let (at_once, later) = stages(folder.path(), members);
            [at_once, later].map(|members| {
                let names: Vec<String> = members.into_iter().map(|member| member.name).collect();
                names.join(" ")
            })
        };
        assert_eq!(stages(), ["cp1 w1", "cp2 cp3"]);
        // It may have a vote in etcd by now.
        fs::create_dir(folder.path().join("cp2")).unwrap();
        fs::write(config(&folder.path().join("cp2")), "{}").unwrap();
        assert_eq!(stages(), ["cp1 cp2 w1", "cp3"]);
        let members = machines::members(&file, 3, 1).unwrap();
        assert!(!was_started(folder.path(), &members));
        fs::create_dir(folder.path().join("cp1")).unwrap();
        fs::write(config(&folder.path().join("cp1")), "{}").unwrap();
        assert!(was_started(folder.path(), &members));
    }
}
