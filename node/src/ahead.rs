//! `static-pods`: starts etcd and the API server before the kubelet, as the kubelet would, which then has them for its own.
//!
//! The kubelet needs a second and more from its start to the first process of a static pod, and under emulation five. What is
//! started here is what it finds when it is started anew beside its running pods: a sandbox and a container with its labels, for
//! the uid in the manifest. A pod that this cannot start is the kubelet's, as without this command.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cluster::report::Report;
use cluster::yaml;
use image::kubelet::{JOINED_CONFIG, POD_LOGS, RUNTIME_SOCKET, STATIC_PODS};
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;
use serde_json::Value;

use crate::cri::{CreateContainerRequest, Cri, PodSandbox, SANDBOX_READY};
use crate::object;
use crate::runtime_pod::{RuntimePod, Settings};

/// What the API waits for. The others end without an API server, so they are written once it serves.
const AHEAD: [&str; 2] = ["etcd", "kube-apiserver"];
/// How long containerd may take from its socket to its first answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many seconds a pod of another manifest may take to end. Both end in one, unless something else is wrong.
const GRACE: i64 = 10;
/// How often it is asked.
const EVERY: Duration = Duration::from_millis(20);
/// The unified hierarchy of control groups, below `/sys`.
const GROUPS: &str = "fs/cgroup";
/// The controllers without which the kubelet says that a pod's group does not exist (`cgroup_v2_manager_linux.go`).
const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "memory", "hugetlb", "pids"];

/// Starts what is not started yet.
///
/// # Errors
/// If containerd refuses it. The kubelet starts it then.
pub(crate) fn run(world: &World) -> Result<()> {
    let Some(bootstrap) = object::read(world, Duration::ZERO)? else {
        return Ok(());
    };
    let node = &bootstrap.object.config.init.node_registration.name;
    let settings = match settings(world, node)? {
        Ok(settings) => settings,
        Err(why) => {
            tracing::info!("the kubelet starts the static pods: {why}");
            return Ok(());
        }
    };
    let mut pods = Vec::new();
    for name in AHEAD {
        let Some(manifest) = manifest(world, name)? else {
            continue;
        };
        match RuntimePod::read(&manifest, &settings) {
            Ok(pod) => pods.push(pod),
            Err(why) => tracing::info!("the kubelet starts {name}: {why:#}"),
        }
    }
    if pods.is_empty() {
        return Ok(());
    }
    let socket = world.in_initrd(RUNTIME_SOCKET);
    Cri::with(&socket, |cri| async move {
        serves(&cri).await?;
        let cri = &cri;
        let starts = pods.into_iter().map(|pod| start(world, cri, pod));
        let mut failure = None;
        for started in futures_util::future::join_all(starts).await {
            failure = failure.or(started.err());
        }
        failure.map_or(Ok(()), Err)
    })
}

/// What the kubelet's configuration says of pods, or what of it is not known here.
fn settings(world: &World, node: &str) -> Result<Result<Settings, &'static str>> {
    let path = world.in_initrd(JOINED_CONFIG);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let config = read_yaml(&text).with_context(|| path.display().to_string())?;
    let text = |key: &str, default: &str| {
        let found = config[key].as_str().filter(|found| !found.is_empty());
        found.unwrap_or(default).to_owned()
    };
    if config["cgroupsPerQOS"] == false || text("cgroupRoot", "/") != "/" {
        return Ok(Err("it has control groups of its own"));
    }
    Ok(Ok(Settings {
        node: node.to_owned(),
        systemd: text("cgroupDriver", "cgroupfs") == "systemd",
        logs: text("podLogsDir", POD_LOGS),
    }))
}

/// The manifest of a static pod, if it is there.
fn manifest(world: &World, name: &str) -> Result<Option<Value>> {
    let path = world.in_initrd(STATIC_PODS).join(format!("{name}.yaml"));
    let about = || format!("reading {}", path.display());
    let text = atomic_file::read(&path).with_context(about)?;
    let text = text
        .map(String::from_utf8)
        .transpose()
        .with_context(about)?;
    text.map(|text| read_yaml(&text))
        .transpose()
        .with_context(about)
}

fn read_yaml(text: &str) -> Result<Value> {
    let mut report = Report::default();
    let node = yaml::document(text, 0, &mut report);
    if let Some(mistake) = report.mistakes.first() {
        bail!("{mistake}");
    }
    Ok(node.map(|node| node.content.value()).unwrap_or_default())
}

/// Waits until containerd answers: its socket is there before it is ready.
async fn serves(cri: &Cri) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match cri.sandboxes("", "").await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => tokio::time::sleep(EVERY).await,
        }
    }
}

/// Starts a pod, unless it runs. One that runs as another manifest had it is ended first: both want the same port and the same data,
/// and the kubelet, which has not seen the manifest change, would start this one beside it and wait after each failure.
async fn start(world: &World, cri: &Cri, mut pod: RuntimePod) -> Result<()> {
    let named = pod.sandbox.metadata.clone().unwrap_or_default();
    let sandboxes = cri.sandboxes(&named.namespace, &named.name).await?;
    let of_pod = |sandbox: &PodSandbox| sandbox.metadata.as_ref().map(|of| of.uid == pod.uid);
    let (sandboxes, others): (Vec<_>, Vec<_>) = sandboxes
        .into_iter()
        .partition(|sandbox| of_pod(sandbox) == Some(true));
    let runs = |sandbox: &PodSandbox| sandbox.state == SANDBOX_READY;
    for other in others.into_iter().filter(runs) {
        end(cri, other).await?;
        tracing::info!("{} of another manifest is ended", named.name);
    }
    if sandboxes.iter().any(runs) {
        return Ok(());
    }
    let containers = cri.containers(&pod.uid).await?;
    let attempt = |sandbox: &PodSandbox| Some(sandbox.metadata.as_ref()?.attempt + 1);
    let before = sandboxes.iter().filter_map(attempt).max();
    let attempts = containers
        .iter()
        .filter_map(|container| container.metadata.as_ref());
    let restarts = attempts.map(|metadata| metadata.attempt + 1).max();
    let (before, restarts) = (before.unwrap_or_default(), restarts.unwrap_or_default());
    pod.number(before, restarts);
    folders(world, &mut pod, restarts)?;
    let id = cri.run_sandbox(&pod.sandbox).await?;
    // The kubelet ends what is not in the group that it expects.
    if let Err(error) = open_group(&world.sys.join(GROUPS), &pod.group) {
        tracing::warn!("the kubelet may start this pod anew: {error:#}");
    }
    let request = CreateContainerRequest {
        pod_sandbox_id: id,
        config: Some(pod.container),
        sandbox_config: Some(pod.sandbox),
    };
    let container = cri.create_container(&request).await?;
    cri.start_container(container).await?;
    tracing::info!("{} is started ahead of the kubelet", named.name);
    Ok(())
}

/// Ends a pod's containers, and then its sandbox.
async fn end(cri: &Cri, sandbox: PodSandbox) -> Result<()> {
    let uid = sandbox.metadata.map(|metadata| metadata.uid);
    for container in cri.containers(&uid.unwrap_or_default()).await? {
        cri.stop_container(container.id, GRACE).await?;
    }
    cri.stop_sandbox(sandbox.id).await
}

/// Makes the folders of a pod, and the file for its container's message.
fn folders(world: &World, pod: &mut RuntimePod, restarts: u32) -> Result<()> {
    for path in &pod.folders {
        folder(&world.in_initrd(path), 0o755)?;
    }
    let container = pod.container.metadata.as_ref();
    let name = container.map_or("", |metadata| metadata.name.as_str());
    let logs = format!("{}/{name}", pod.sandbox.log_directory);
    folder(&world.in_initrd(&logs), 0o755)?;
    folder(&world.in_initrd(&pod.state), 0o750)?;
    let message = format!("{}/{restarts:08x}", pod.state);
    let file = world.in_initrd(&message);
    let about = || format!("writing {}", file.display());
    fs::write(&file, "").with_context(about)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).with_context(about)?;
    pod.messages_to(&message);
    Ok(())
}

/// Opens the controllers of the unified hierarchy for a group, as the kubelet does for those that it makes.
fn open_group(hierarchy: &Path, group: &str) -> Result<()> {
    let Some(known) = atomic_file::read(&hierarchy.join("cgroup.controllers"))? else {
        // Version 1: each hierarchy has its group.
        return Ok(());
    };
    let known = String::from_utf8_lossy(&known).into_owned();
    let known = known.split_whitespace();
    let wanted: Vec<String> = known
        .filter(|name| CONTROLLERS.contains(name))
        .map(|name| format!("+{name}"))
        .collect();
    let mut path = hierarchy.to_owned();
    let below = group.split('/').filter(|name| !name.is_empty());
    for name in below {
        let file = path.join("cgroup.subtree_control");
        fs::write(&file, wanted.join(" "))
            .with_context(|| format!("writing {}", file.display()))?;
        path.push(name);
        if !path.is_dir() {
            bail!("{} is not there", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{machine, put};
    use linux::world::Clock;

    const OBJECT: &str = "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n";

    #[test]
    fn a_node_without_a_control_plane_asks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        run(&World::below(folder.path(), Clock::Real)).unwrap();
        let world = machine(folder.path(), OBJECT);
        put(&world.in_initrd(JOINED_CONFIG), "cgroupDriver: systemd\n");
        run(&world).unwrap();
    }

    #[test]
    fn without_containerd_the_command_fails_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        crate::prepare::run(&world).unwrap();
        let error = format!("{:#}", run(&world).unwrap_err());
        assert!(error.contains("containerd.sock"), "{error}");
    }

    #[test]
    fn all_controllers_are_opened_down_to_the_pod() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path();
        open_group(top, "/a.slice/b.slice").unwrap();
        put(
            &top.join("cgroup.controllers"),
            "cpuset cpu io memory pids misc\n",
        );
        assert!(open_group(top, "/a.slice/b.slice").is_err());
        fs::create_dir_all(top.join("a.slice/b.slice")).unwrap();
        open_group(top, "/a.slice/b.slice").unwrap();
        for (path, opened) in [("", true), ("a.slice", true), ("a.slice/b.slice", false)] {
            let file = top.join(path).join("cgroup.subtree_control");
            let text = fs::read_to_string(file).ok();
            assert_eq!(
                text.as_deref(),
                opened.then_some("+cpuset +cpu +memory +pids")
            );
        }
    }
}
