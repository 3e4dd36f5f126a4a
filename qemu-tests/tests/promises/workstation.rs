//! `slipway cluster`: a cluster of two machines on this host, by the program's own commands.
#![allow(
    clippy::disallowed_methods,
    reason = "the tool itself is what is tested here, as a user starts it, and a real kubectl"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use qemu_tests::lab::Lab;
use serde_json::Value;
use slipway::lock::{self, Mode};
use slipway::recipe;

use crate::leave;

/// How long the nodes may take to run what they were told to.
const PATIENCE: Duration = Duration::from_secs(300);
/// Two pods, one a node, of an image that the nodes have: they answer by HTTP at their own addresses.
const PODS: &str = r#"{
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "probe"},
    "spec": {
        "selector": {"matchLabels": {"app": "probe"}},
        "template": {
            "metadata": {"labels": {"app": "probe"}},
            "spec": {
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": "etcd",
                    "image": "slipway.local/etcd:baked",
                    "imagePullPolicy": "Never",
                    "command": [
                        "/usr/bin/etcd",
                        "--listen-client-urls=http://0.0.0.0:2379",
                        "--advertise-client-urls=http://127.0.0.1:2379"
                    ],
                    "startupProbe": {"httpGet": {"path": "/health", "port": 2379}, "periodSeconds": 2, "failureThreshold": 60}
                }]
            }
        }
    }
}"#;

/// The files and programs of a cluster.
struct Cluster {
    slipway: PathBuf,
    kubectl: PathBuf,
    folder: PathBuf,
}

/// `new`, `up`, `status`, `kubeconfig` and `down`: a control plane and a worker become Ready, kubectl on this host reaches them,
/// pods run on both and are reached across the nodes, kube-proxy leads to the API server's service, and nothing is left.
pub(crate) fn the_commands_run_a_cluster_with_a_worker(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("recipes/cluster")?.out;
    let folder = lab.folder().join("cluster");
    if folder.exists() {
        fs::remove_dir_all(&folder).context("removing the folder of a run before")?;
    }
    fs::create_dir_all(&folder)?;
    let cluster = Cluster {
        slipway: leave::program()?,
        kubectl: kubectl(lab, &folder)?,
        folder,
    };
    cluster.slipway(["new", "blue.toml"])?;
    let up = cluster.slipway([
        OsStr::new("up"),
        "blue.toml".as_ref(),
        "--image".as_ref(),
        image.as_os_str(),
    ]);
    let used = up.and_then(|_| cluster.use_it());
    let log = fs::read_to_string(cluster.folder.join("blue.machines/log")).unwrap_or_default();
    let down = cluster.slipway(["down", "blue.toml"]);
    used.with_context(|| format!("the machines' process said:\n{log}"))?;
    down?;
    ensure!(
        !cluster.folder.join("blue.machines").exists(),
        "the machines' disks are left"
    );
    let error = cluster.slipway(["status", "blue.toml"]);
    ensure!(error.is_err(), "machines that were ended have a status");
    fs::remove_dir_all(&cluster.folder).context("removing the cluster's folder")
}

/// The kubectl of the image, a static program that runs here too.
fn kubectl(lab: &Lab, folder: &Path) -> Result<PathBuf> {
    let recipe = recipe::load(&lab.recipes().join("cluster.toml"));
    let recipe = recipe.map_err(|mistakes| anyhow::anyhow!("{}", mistakes.render(false)))?;
    let locked = lock::pin(lab.session(), recipe, Mode::Locked)?;
    let programs =
        lock::kubelet::obtain(lab.session(), &locked)?.context("the lock has no kubelet")?;
    let program = programs
        .components
        .get("kubectl")
        .context("the lock has no kubectl")?;
    // It acts as the one by whose name it is called.
    let path = folder.join("kubectl");
    fs::copy(&program.path, &path).context("copying kubectl")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

impl Cluster {
    fn slipway<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<String> {
        let mut command = Command::new(&self.slipway);
        command.arg("cluster").args(arguments).arg("--quiet");
        self.output(&mut command)
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.kubectl);
        command
            .args(["--kubeconfig", "admin", "--request-timeout=30s"])
            .args(arguments);
        self.output(&mut command)
    }

    fn output(&self, command: &mut Command) -> Result<String> {
        command.current_dir(&self.folder);
        // The identity of the cluster's secrets is the test's own.
        command.env("SLIPWAY_IDENTITY", self.folder.join("age.key"));
        let output = command
            .output()
            .with_context(|| format!("running {command:?}"))?;
        ensure!(
            output.status.success(),
            "{command:?}: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    fn use_it(&self) -> Result<()> {
        let status: Value =
            serde_json::from_str(&self.slipway(["status", "blue.toml", "--json"])?)?;
        ensure!(status["ready"] == true, "the status is {status}");
        self.slipway(["kubeconfig", "blue.toml", "--output", "admin"])?;
        let nodes = self.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
        ensure!(nodes == "cp1 w1", "the nodes are {nodes:?}");
        fs::write(self.folder.join("pods.json"), PODS).context("writing pods")?;
        self.kubectl(&["apply", "-f", "pods.json"])?;
        for (space, name) in [("default", "probe"), ("kube-system", "kube-proxy")] {
            let ready = "jsonpath={.status.numberReady}";
            self.until(
                &["-n", space, "get", "daemonset", name, "-o", ready],
                |found| found == "2",
            )?;
        }
        self.pods_answer_across_nodes()?;
        // By exec, in a kube-proxy: the address of the API server's service leads somewhere.
        let rules = "-n kube-system exec daemonset/kube-proxy -- nft list ruleset";
        let rules: Vec<&str> = rules.split(' ').collect();
        self.until(&rules, |found| found.contains("10.96.0.1 . tcp . 443"))?;
        self.is_validated()
    }

    /// `validate` calls the cluster valid, and names what is missing where more nodes are expected.
    fn is_validated(&self) -> Result<()> {
        let said = self.slipway(["validate", "blue.toml", "--nodes=2", "--wait=300"])?;
        for node in ["cp1  Ready", "w1   Ready"] {
            ensure!(said.contains(node), "`validate` says:\n{said}");
        }
        let error = self.slipway(["validate", "blue.toml", "--nodes=3"]);
        let error = format!("{:#}", error.err().context("a third node is there")?);
        ensure!(
            error.contains("missing nodes: 1"),
            "`validate` says:\n{error}"
        );
        Ok(())
    }

    /// The API server, on the control plane, reaches the pod of each node: one of them by a route to the other node.
    fn pods_answer_across_nodes(&self) -> Result<()> {
        let names = "jsonpath={range .items[*]}{.spec.nodeName}={.metadata.name} {end}";
        let pods = self.kubectl(&["get", "pods", "-l", "app=probe", "-o", names])?;
        let mut nodes = BTreeSet::new();
        for (node, pod) in pods
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
        {
            let path = format!("/api/v1/namespaces/default/pods/{pod}:2379/proxy/health");
            self.until(&["get", "--raw", &path], |found| {
                found.contains(r#""health":"true""#)
            })?;
            nodes.insert(node);
        }
        ensure!(
            nodes == BTreeSet::from(["cp1", "w1"]),
            "the pods are {pods:?}"
        );
        Ok(())
    }

    /// Asks until the answer is as expected. An answer may be an error of what is not there yet.
    fn until(&self, arguments: &[&str], expected: impl Fn(&str) -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.kubectl(arguments);
            if found.as_ref().is_ok_and(|found| expected(found)) {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "kubectl {arguments:?} answers {found:?}"
            );
            std::thread::sleep(Duration::from_secs(2));
        }
    }
}
