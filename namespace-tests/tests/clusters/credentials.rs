//! A kubelet that gets the login of a registry from a credential provider of the recipe.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use image::paths::KUBELET_ROOTFS;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;
use slipway::layer::Entry;
use slipway::oci::{self, Image, RunConfig};

use crate::control_plane::{OBJECT, PODS, READY};

/// The image of these tests.
pub(crate) const RECIPE: &str = "namespace-tests/credentials.toml";
/// The administrator's kubectl.
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";
/// The image of the pods, in the registry alone.
const IMAGE: &str = "registry.example:5000/words:1";
/// The same by the registry's address, which the recipe has as the mirror of its name.
const PUSHED: &str = "10.77.0.31:5000/words:1";
/// The last number of that address.
const ADDRESS: u8 = 31;
/// The architecture of `recipes/node.toml`, as images name it.
const ARCHITECTURE: &str = "amd64";
/// The file that the provider reads.
const LOGIN: &str = "/etc/kubernetes/registry-login";
/// The user, the password, and one that the registry refuses.
const USER: &str = "puller";
const PASSWORD: &str = "in-no-log-of-the-node";
const WRONG: &str = "another-word-than-the-registrys";
/// User and password as requests have them (`Authorization: Basic`), with the right one and with the other one.
const HEADERS: [&str; 2] = [
    "cHVsbGVyOmluLW5vLWxvZy1vZi10aGUtbm9kZQ==",
    "cHVsbGVyOmFub3RoZXItd29yZC10aGFuLXRoZS1yZWdpc3RyeXM=",
];
/// The registry's users: the right password by bcrypt, as `htpasswd -B -C 5` writes it.
const USERS: &str = "puller:$2y$05$slipwayTestsOfNodesABuPgfVmiS3CtAtsQWuj.nHKWEZ0HFicOC\n";
/// Starts the registry by its package's own configuration, which lets in those users alone.
const SERVE: &str = "mkdir -p /var/lib/docker-registry
docker-registry serve /etc/docker/registry/config.yml > /var/log/registry.log 2>&1 &";
/// Succeeds once the registry asks for a login.
const ASKS: &str = "exec 3<>/dev/tcp/127.0.0.1/5000
printf 'GET /v2/ HTTP/1.0\\r\\n\\r\\n' >&3
timeout 5 head -n 1 <&3 | grep ' 401 '";
/// Where the registry's node finds the image.
const ARCHIVE: &str = "/var/tmp/image.tar";

/// With a password that the registry refuses a pod waits for its image, and its event has the registry's answer. With the right one in the
/// provider's file another pod becomes Ready, and so does the first one by its next attempt. Neither password is in a log of the node or in
/// an object of the cluster.
pub(crate) fn a_provider_gives_the_registrys_password_and_no_log_has_it(
    lab: &mut Lab,
) -> Result<()> {
    let _store = store(lab)?;
    let mut node = lab.control_plane("cp1", 11, OBJECT)?;
    node.write_etc(LOGIN, &login(WRONG))?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    node.run("images=$(ctr -n k8s.io images ls -q); ! grep registry.example:5000 <<< \"$images\"")?;

    apply(&node, "first")?;
    is_refused(&node, "first")?;
    node.write_running(LOGIN, &login(PASSWORD))?;
    apply(&node, "second")?;
    is_ready(&node, "second")?;
    is_ready(&node, "first")?;
    // The node has the image now, and the registry is asked all the same.
    node.write_running(LOGIN, &login(WRONG))?;
    apply(&node, "third")?;
    is_refused(&node, "third")?;
    no_log_has_a_password(&node)
}

/// What the provider reads.
fn login(password: &str) -> String {
    format!("{USER}\n{password}\n")
}

/// A node beside the cluster that serves the image to who has the password.
fn store(lab: &mut Lab) -> Result<Node> {
    let archive = archive(lab)?;
    let mut store = lab.runtime("store", ADDRESS, false)?;
    store.write_etc("/etc/docker/registry/htpasswd", USERS)?;
    store.start(&lab.hub)?;
    store.run(SERVE)?;
    store
        .wait_for("the registry", ASKS, PODS)
        .with_context(|| {
            let log = store.run("cat /var/log/registry.log");
            log.unwrap_or_else(|error| format!("{error:#}"))
        })?;
    store.wait_for("containerd", "ctr version", PODS)?;
    let inside = store.below_var(ARCHIVE);
    let parent = inside.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    fs::copy(&archive, &inside).with_context(|| format!("copying {}", archive.display()))?;
    store.run(&format!("ctr -n k8s.io images import {ARCHIVE}"))?;
    let push = |user: &str| {
        store.run(&format!(
            "ctr -n k8s.io images push --local --plain-http {user} {PUSHED} {IMAGE}"
        ))
    };
    ensure!(push("").is_err(), "the registry takes an image of anybody");
    push(&format!("--user {USER}:{PASSWORD}"))?;
    Ok(store)
}

/// The archive of an image with one file, and without programs: its links lead to a `/usr` that the pods get from the node.
fn archive(lab: &Lab) -> Result<PathBuf> {
    let folder = lab.folder().join("words");
    fs::create_dir(&folder).context("making a folder for the image")?;
    let links = ["bin", "lib", "lib64", "sbin"].into_iter();
    let links = links.map(|name| Entry::symlink(format!("/{name}"), format!("usr/{name}")));
    let files = [
        Entry::directory("/usr", 0o755),
        Entry::file("/words", 0o644, "of the registry\n"),
    ];
    let entries: Vec<Entry> = links.chain(files).collect();
    let image = Image {
        name: IMAGE.to_owned(),
        architecture: ARCHITECTURE.to_owned(),
        run: RunConfig::default(),
        layers: vec![oci::layer(&entries, 0, &folder.join("layer.tar"))?],
    };
    let (layout, archive) = (folder.join("layout"), folder.join("image.tar"));
    oci::write_layout(&layout, &[image], 0)?;
    oci::write_archive(&layout, &archive)?;
    Ok(archive)
}

/// Makes a pod, once its account is there, that is Ready with the file of the image.
fn apply(node: &Node, name: &str) -> Result<()> {
    let text = format!(
        "apiVersion: v1
kind: Pod
metadata: {{ name: {name} }}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: it
    image: {IMAGE}
    imagePullPolicy: Always
    command: [/usr/bin/sleep, infinity]
    readinessProbe: {{ exec: {{ command: [/usr/bin/grep, -x, of the registry, /words] }}, periodSeconds: 1 }}
    volumeMounts: [{{ name: usr, mountPath: /usr, readOnly: true }}]
  volumes:
  - {{ name: usr, hostPath: {{ path: {KUBELET_ROOTFS}/usr }} }}"
    );
    let script = format!("{KUBECTL} apply -f - <<'END'\n{text}\nEND");
    node.wait_for("the default account", &script, PODS)?;
    Ok(())
}

fn is_ready(node: &Node, name: &str) -> Result<()> {
    let script = format!(
        "{KUBECTL} wait --for=condition=Ready pod/{name} --timeout=1s || {{ {KUBECTL} get events; exit 1; }}"
    );
    node.wait_for(&format!("the pod {name}"), &script, PODS)?;
    Ok(())
}

/// The pod waits for its image, which the registry has refused to the kubelet's login.
fn is_refused(node: &Node, name: &str) -> Result<()> {
    let of_pod = format!("involvedObject.name={name},reason=Failed");
    let script = format!(
        "events=$({KUBECTL} get events --field-selector {of_pod} -o jsonpath='{{.items[*].message}}')
reason=$({KUBECTL} get pod {name} -o jsonpath='{{.status.containerStatuses[0].state.waiting.reason}}')
for words in '401 Unauthorized' ErrImagePull; do
    grep -qF \"$words\" <<< \"$events\" || {{ echo \"$reason: $events\"; exit 1; }}
done
[ \"$reason\" = ErrImagePull ] || [ \"$reason\" = ImagePullBackOff ] || {{ echo \"$reason: $events\"; exit 1; }}"
    );
    node.wait_for(&format!("the refusal of the pod {name}"), &script, PODS)?;
    Ok(())
}

/// Neither password, nor a header with one, is in a log of the node or of its services, or in an object of the cluster.
fn no_log_has_a_password(node: &Node) -> Result<()> {
    let secrets = [PASSWORD, WRONG, HEADERS[0], HEADERS[1]];
    let patterns = secrets.map(|secret| format!("-e {secret}")).join(" ");
    // grep says 1 where it finds nothing, and 2 where it cannot read a file.
    let found = node.run(&format!(
        "test -d /var/log/pods; grep -rlF {patterns} /var/log /dev/console || test $? = 1"
    ))?;
    ensure!(found.is_empty(), "a password is in {found}");
    let objects = node.kubectl("get pods,events -A -o yaml")?;
    for (what, text) in [
        ("the kubelet's log", node.log("kubelet")),
        ("containerd's log", node.log("containerd")),
        ("the list of pods and events", objects),
    ] {
        ensure!(text.contains(IMAGE), "{what} does not have {IMAGE}");
        let secret = secrets.iter().find(|secret| text.contains(**secret));
        ensure!(secret.is_none(), "{what} has {secret:?}");
    }
    Ok(())
}
