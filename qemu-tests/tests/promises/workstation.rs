//! `slipway cluster`: a cluster of two machines on this host, by the program's own commands.
#![allow(
    clippy::disallowed_methods,
    reason = "the tool itself is what is tested here, as a user starts it, and a real kubectl"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
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
                        "--listen-client-urls=http://[::]:2379",
                        "--advertise-client-urls=http://127.0.0.1:2379"
                    ],
                    "startupProbe": {"httpGet": {"path": "/health", "port": 2379}, "periodSeconds": 2, "failureThreshold": 60}
                }]
            }
        }
    }
}"#;

/// Lines of a console in an error.
const CONSOLE_TAIL: usize = 25;

/// The name of the API server's service, and its address: the first of the services' subnet.
const API: (&str, Ipv4Addr) = (
    "kubernetes.default.svc.cluster.local",
    Ipv4Addr::new(10, 96, 0, 1),
);

/// The files and programs of a cluster.
struct Cluster {
    slipway: PathBuf,
    kubectl: PathBuf,
    image: PathBuf,
    folder: PathBuf,
}

/// `new`, `up`, `status`, `kubeconfig` and `down`: a control plane and a worker become Ready, kubectl on this host reaches them,
/// pods run on both and are reached across the nodes, CoreDNS names the API server's service, kube-proxy leads to both services,
/// and nothing is left.
pub(crate) fn the_commands_run_a_cluster_with_a_worker(lab: &mut Lab) -> Result<()> {
    let own = Own {
        recipe: "recipes/cluster",
        words: "",
        replaced: &[],
        arguments: &["--workers=1"],
    };
    with_cluster(lab, &own, Cluster::use_it)
}

/// A second control plane joins: both nodes become Ready, its own API server is ready, which it is with a member of
/// etcd that votes, and both are marked as control planes. Their pods reach each other by flannel.
pub(crate) fn a_second_control_plane_joins_the_cluster(lab: &mut Lab) -> Result<()> {
    let own = Own {
        recipe: "qemu-tests/flannel",
        words: "cni = \"flannel\"\n",
        replaced: &[],
        arguments: &["--control-planes=2", "--workers=0"],
    };
    with_cluster(lab, &own, |cluster| {
        cluster.use_second()?;
        cluster.has_flannel()
    })
}

/// A worker is added to a cluster that was started before, and joins: the bootstrap token, which lasts a day, has ended since then.
pub(crate) fn a_worker_joins_once_the_token_has_ended(lab: &mut Lab) -> Result<()> {
    let own = Own {
        recipe: "recipes/cluster",
        words: "",
        replaced: &[],
        arguments: &["--workers=0"],
    };
    with_cluster(lab, &own, |cluster| {
        cluster.slipway(["kubeconfig", "blue.toml", "--output", "admin"])?;
        // As its controller does it at the end of each.
        let tokens =
            "-n kube-system delete secrets --field-selector=type=bootstrap.kubernetes.io/token";
        let tokens: Vec<_> = tokens.split(' ').collect();
        let removed = cluster.kubectl(&tokens)?;
        ensure!(removed.contains("bootstrap-token-"), "removed: {removed:?}");
        cluster.slipway(["down", "blue.toml", "--keep"])?;
        cluster.up(&["--workers=1"])?;
        cluster.slipway(["kubeconfig", "blue.toml", "--output", "admin"])?;
        let names = "jsonpath={.items[*].metadata.name}";
        let nodes = cluster.kubectl(&["get", "nodes", "-o", names])?;
        ensure!(nodes == "cp1 w1", "the nodes are {nodes:?}");
        cluster.is_validated()
    })
}

/// A cluster whose nodes, pods and services have addresses of IPv6 alone runs on this host: pods are reached across its nodes.
pub(crate) fn a_cluster_of_ip_version_6_alone_runs(lab: &mut Lab) -> Result<()> {
    let own = Own {
        recipe: "recipes/cluster",
        words: "",
        replaced: &[
            ("pods = \"10.244.0.0/16\"", "pods = \"fd00:5::/48\""),
            ("services = \"10.96.0.0/12\"", "services = \"fd00:6::/112\""),
        ],
        arguments: &["--workers=1"],
    };
    with_cluster(lab, &own, |cluster| {
        cluster.slipway(["kubeconfig", "blue.toml", "--output", "admin"])?;
        let addresses = r#"jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}"#;
        let addresses = cluster.kubectl(&["get", "nodes", "-o", addresses])?;
        ensure!(
            addresses == "fd77::b fd77::c",
            "the nodes have {addresses:?}"
        );
        cluster.pods_answer_across_nodes(["cp1", "w1"])?;
        cluster.has_two("kube-system", "deployment", "coredns", "readyReplicas")
    })
}

/// What a cluster of these tests has of its own.
struct Own<'a> {
    /// The recipe of its nodes.
    recipe: &'a str,
    /// Lines of its object.
    words: &'a str,
    /// Lines of a new object, and what takes their place.
    replaced: &'a [(&'a str, &'a str)],
    /// Arguments of `up`.
    arguments: &'a [&'a str],
}

/// Makes a cluster, uses it, and ends it without a trace.
fn with_cluster(
    lab: &mut Lab,
    own: &Own<'_>,
    using: impl FnOnce(&Cluster) -> Result<()>,
) -> Result<()> {
    let image = lab.builder().build(own.recipe)?.out;
    let folder = lab.folder().join("cluster");
    if folder.exists() {
        fs::remove_dir_all(&folder).context("removing the folder of a run before")?;
    }
    fs::create_dir_all(&folder)?;
    let cluster = Cluster {
        slipway: leave::program()?,
        kubectl: kubectl(lab, own.recipe, &folder)?,
        image,
        folder,
    };
    cluster.slipway(["new", "blue.toml"])?;
    // What a node on another host would be told; `up` has its own.
    let object = cluster.folder.join("blue.toml");
    let mut text = fs::read_to_string(&object)?;
    for (line, other) in own.replaced {
        ensure!(text.contains(line), "a new object has no {line}");
        text = text.replace(line, other);
    }
    fs::write(
        &object,
        format!("endpoint = \"api.example.test:6443\"\n{}{text}", own.words),
    )?;
    let up = cluster.up(own.arguments);
    let used = up.and_then(|()| using(&cluster));
    let machines = cluster.folder.join("blue.machines");
    let mut log = fs::read_to_string(machines.join("log")).unwrap_or_default();
    for name in ["cp1", "cp2", "w1"] {
        let console = fs::read_to_string(machines.join(format!("{name}.console")));
        let console = console.unwrap_or_default();
        let lines: Vec<&str> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(CONSOLE_TAIL)..].join("\n");
        log += &format!("\n{name}:\n{tail}\n");
    }
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
fn kubectl(lab: &Lab, recipe: &str, folder: &Path) -> Result<PathBuf> {
    let file = lab.recipes().join("..").join(format!("{recipe}.toml"));
    let recipe = recipe::load(&file);
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

    fn up(&self, arguments: &[&str]) -> Result<()> {
        let up = ["up", "blue.toml", "--image"].map(OsStr::new);
        let up = up.into_iter().chain([self.image.as_os_str()]);
        self.slipway(up.chain(arguments.iter().map(OsStr::new)))
            .map(drop)
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
        self.pods_answer_across_nodes(["cp1", "w1"])?;
        for (kind, name, field) in [
            ("daemonset", "kube-proxy", "numberReady"),
            ("deployment", "coredns", "readyReplicas"),
        ] {
            self.has_two("kube-system", kind, name, field)?;
        }
        self.resolve()?;
        // By exec, in a kube-proxy: the addresses of both services lead somewhere.
        let rules =
            "-n kube-system exec daemonset/kube-proxy -- nft --numeric-protocol list ruleset";
        let rules: Vec<_> = rules.split(' ').collect();
        self.until(&rules, |rules| {
            ["10.96.0.1 . 6 . 443", "10.96.0.10 . 17 . 53"]
                .iter()
                .all(|rule| rules.contains(rule))
        })?;
        self.makes_a_token()?;
        self.is_validated()
    }

    fn use_second(&self) -> Result<()> {
        self.slipway(["kubeconfig", "blue.toml", "--output", "admin"])?;
        let nodes = self.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
        ensure!(nodes == "cp1 cp2", "the nodes are {nodes:?}");
        let selected = "node-role.kubernetes.io/control-plane";
        let marked = ["get", "nodes", "-l", selected, "-o", "name"];
        self.until(&marked, |found| found.lines().count() == 2)?;
        for pod in ["etcd-cp2", "kube-apiserver-cp2", "kube-scheduler-cp2"] {
            let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
            let arguments = ["-n", "kube-system", "get", "pod", pod, "-o", ready];
            self.until(&arguments, |found| found == "True")?;
        }
        // Its API server is ready only if its own member of etcd answers, which a learner does not.
        let second = "/api/v1/namespaces/kube-system/pods/https:kube-apiserver-cp2:6443/proxy";
        self.until(
            &["get", "--raw", &format!("{second}/readyz?verbose")],
            |found| found.contains("[+]etcd-readiness ok"),
        )?;
        let manifest = "-n kube-system get pod etcd-cp2 -o jsonpath={.spec.containers[0].command}";
        let manifest: Vec<_> = manifest.split(' ').collect();
        let command = self.kubectl(&manifest)?;
        ensure!(
            command.contains("--initial-cluster-state=existing") && command.contains("cp1=https"),
            "etcd of cp2 runs {command}"
        );
        Ok(())
    }

    /// flannel runs on both nodes by VXLAN, and leads to the pods of each: no other route does.
    fn has_flannel(&self) -> Result<()> {
        self.has_two(
            "kube-flannel",
            "daemonset",
            "kube-flannel-ds",
            "numberReady",
        )?;
        let kind =
            r"jsonpath={.items[*].metadata.annotations.flannel\.alpha\.coreos\.com/backend-type}";
        self.until(&["get", "nodes", "-o", kind], |found| {
            found == "vxlan vxlan"
        })?;
        self.pods_answer_across_nodes(["cp1", "cp2"])
    }

    /// Waits for the two pods of an object that has one a node.
    fn has_two(&self, space: &str, kind: &str, name: &str, field: &str) -> Result<()> {
        let path = format!("-o=jsonpath={{.status.{field}}}");
        self.until(&["-n", space, "get", kind, name, &path], |found| {
            found == "2"
        })
    }

    /// Asks CoreDNS for the API server's service, through a port of this host.
    fn resolve(&self) -> Result<()> {
        let (name, address) = API;
        let (_forward, port) = self.forward("service/kube-dns", 53)?;
        let answer = ask(port, name)?;
        // RFC 1035, section 4.1.1: the lowest bits of the flags are the error, then follows the number of questions and of answers.
        let [error, answers] = [answer[3] & 0xf, answer[7]];
        ensure!(
            error == 0 && answers == 1 && answer.ends_with(&address.octets()),
            "CoreDNS answers {answer:x?} for {name}, expected {address}"
        );
        Ok(())
    }

    /// A port of this host that leads to a service's pod, as long as the first value lives.
    fn forward(&self, service: &str, port: u16) -> Result<(Ended, u16)> {
        let mut child = Command::new(&self.kubectl)
            .args([
                "--kubeconfig",
                "admin",
                "-n",
                "kube-system",
                "port-forward",
                service,
            ])
            .arg(format!(":{port}"))
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .spawn()
            .context("running kubectl port-forward")?;
        let stdout = child.stdout.take().context("what kubectl says")?;
        let mut child = Ended(child, BufReader::new(stdout));
        let mut line = String::new();
        child.1.read_line(&mut line)?;
        // Forwarding from 127.0.0.1:40001 -> 53
        let port = line.split([':', ' ']).find_map(|word| word.parse().ok());
        let port = port.with_context(|| format!("kubectl port-forward says {line:?}"))?;
        Ok((child, port))
    }

    /// A config for another worker, with a token that the cluster knows from then on.
    fn makes_a_token(&self) -> Result<()> {
        let config =
            self.slipway(["join-config", "blue.toml", "--role=worker", "--fresh-token"])?;
        let names = "jsonpath={.items[*].metadata.name}";
        let names = self.kubectl(&["-n", "kube-system", "get", "secrets", "-o", names])?;
        let ids = names.split_whitespace();
        let ids: Vec<&str> = ids
            .filter_map(|name| name.strip_prefix("bootstrap-token-"))
            .collect();
        ensure!(ids.len() == 2, "the cluster has the secrets {names}");
        // In a data URL, where the dot between id and secret is escaped.
        let is_of = |id: &&str| config.contains(&format!("{id}%2E"));
        ensure!(
            ids.iter().any(is_of),
            "the config has no token of the cluster"
        );
        Ok(())
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

    /// The API server, on the first control plane, reaches a pod of each node: one of them on the way to the other node.
    fn pods_answer_across_nodes(&self, expected: [&str; 2]) -> Result<()> {
        fs::write(self.folder.join("pods.json"), PODS).context("writing pods")?;
        self.kubectl(&["apply", "-f", "pods.json"])?;
        self.has_two("default", "daemonset", "probe", "numberReady")?;
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
        ensure!(nodes == BTreeSet::from(expected), "the pods are {pods:?}");
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

/// A process that ends with the test, and what it says: kubectl has a line for each connection, and would be ended by the
/// closed pipe.
struct Ended(Child, BufReader<ChildStdout>);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended before.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The answer of a name server on a port of this host to a question for a name's IPv4 addresses (RFC 1035, sections 4.1 and
/// 4.2.2).
fn ask(port: u16, name: &str) -> Result<Vec<u8>> {
    let mut question = vec![0x51, 0x1b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').chain([""]) {
        question.push(u8::try_from(label.len())?);
        question.extend(label.as_bytes());
    }
    question.extend([0, 1, 0, 1]);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(&u16::try_from(question.len())?.to_be_bytes())?;
    stream.write_all(&question)?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    ensure!(
        answer.len() >= question.len() && answer[..2] == question[..2],
        "the name server answers {answer:x?}"
    );
    Ok(answer)
}
