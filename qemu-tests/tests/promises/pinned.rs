//! Another container of the kubelet than the image's own, from a registry.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use image::paths::CLUSTER;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;
use slipway::vm::agent::data_url;

use crate::clock::{VALID, tls};
use crate::cluster::{OBJECT, POD, config, expect, of_recipe, wait_ready};

/// The recipe of the image that trusts the registry.
const IMAGE: &str = "qemu-tests/pinned";
/// The repository of the registry.
const REPOSITORY: &str = "site/kubelet";
/// Prints on which file system the running kubelet's program is, and what the lint says of its container.
const KUBELET: &str = r#"
program=$(stat -Lc %d /proc/$(pgrep -xo kubelet)/exe)
for folder in /var /usr; do
  [[ $program == $(stat -c %d $folder) ]] && echo "of $folder"
done
said=$(/usr/lib/slipway/slipway-node kubelet lint 2>&1) && echo clean || echo "$said"
"#;
/// Waits for the pod, then says whether the host has the token that the kubelet mounted for it: the pod has what the host has.
const TOKEN: &str = r"
export KUBECONFIG=/etc/kubernetes/admin.conf
kubectl wait --for=condition=Ready pod/probe --timeout=120s >/dev/null
pod=$(kubectl get pod probe -o jsonpath='{.metadata.uid}')
test -s /var/lib/kubelet/pods/$pod/volumes/kubernetes.io~projected/*/token && echo a token
";
/// What the status says of it: the reason why it is not the pinned one.
const REFUSED: &str =
    "/usr/lib/slipway/slipway-node status --json | tr -d ' \n' | grep -o '\"refused\":[^}]*'";

/// A registry of one repository.
struct Registry {
    /// Host and port, for the guest.
    host: String,
    /// Whether it answers.
    is_on: Arc<AtomicBool>,
}

/// A cluster object pins the container that a build made: the node fetches it from a registry by https, and is Ready with it. On the
/// next boot it needs no registry. A digest that the registry does not have leaves the node Ready with the image's own kubelet, and
/// the status says why.
pub(crate) fn a_pinned_kubelet_runs_in_place_of_the_images(lab: &mut Lab) -> Result<()> {
    let (image, node, options) = of_recipe(lab, IMAGE)?;
    let layout = image.out.join("kubelet.oci");
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let digest = index["manifests"][0]["digest"].as_str();
    let digest = digest.context("the layout has no manifest")?.to_owned();
    let registry = serve(layout)?;
    let reference = format!("{}/{REPOSITORY}@{digest}", registry.host);
    let pinned = format!("{OBJECT}[kubelet]\nimage = \"{reference}\"\n");
    let mut config = config();
    config["storage"]["files"][0]["contents"]["source"] = data_url(pinned.as_bytes()).into();
    let options = BootOptions {
        config: Some(config),
        ..options
    };

    let running = lab.boot(&node, &options)?;
    wait_ready(&running).with_context(|| registry.host.clone())?;
    expect(&running, KUBELET, "of /var\nclean").with_context(|| journal(&running))?;
    expect(&running, REFUSED, "\"refused\":null")?;
    running.run_within(POD, timeouts::READY)?;
    expect(&running, TOKEN, "a token")?;
    running.power_off()?;

    registry.is_on.store(false, Ordering::SeqCst);
    let running = lab.boot(&node, &options)?;
    wait_ready(&running).context("without the registry")?;
    expect(&running, KUBELET, "of /var\nclean").with_context(|| journal(&running))?;

    registry.is_on.store(true, Ordering::SeqCst);
    let unknown = format!("sha256:{}", "0".repeat(64));
    running.run(&format!("sed -i s/{digest}/{unknown}/ {CLUSTER}"))?;
    running.run_within("systemctl restart kubelet", timeouts::READY)?;
    wait_ready(&running).context("with a digest that nobody has")?;
    expect(&running, KUBELET, "of /usr\nclean").with_context(|| journal(&running))?;
    let why = running.run(REFUSED)?;
    ensure!(why.contains("404"), "the status says {why}");
    fs::remove_dir_all(&image.out).context("removing the image")
}

/// What the kubelet's unit said.
fn journal(running: &Running) -> String {
    let script = "/usr/lib/slipway/slipway-node status
         journalctl -b --no-pager -o short-monotonic -u kubelet | grep slipway-node | tail -n 40";
    running
        .ask(script)
        .map_or_else(|error| error.to_string(), |answer| answer.output)
}

/// Serves an OCI layout as a registry does, by https, until the test ends.
fn serve(layout: PathBuf) -> Result<Registry> {
    let config = tls(VALID)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let registry = Registry {
        host: format!("10.0.2.2:{}", listener.local_addr()?.port()),
        is_on: Arc::new(AtomicBool::new(true)),
    };
    let is_on = Arc::clone(&registry.is_on);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            if is_on.load(Ordering::SeqCst) {
                let (config, layout) = (Arc::clone(&config), layout.clone());
                // A client may hang up over what it does not want.
                std::thread::spawn(move || drop(answer(connection, config, &layout)));
            }
        }
    });
    Ok(registry)
}

fn answer(connection: TcpStream, config: Arc<ServerConfig>, layout: &Path) -> Result<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(config)?, connection);
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut piece)?;
        ensure!(count > 0, "the node closed the connection");
        request.extend_from_slice(&piece[..count]);
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default();
    let inside = path.strip_prefix(&format!("/v2/{REPOSITORY}/"));
    let digest = inside.and_then(|path| {
        let digest = path
            .strip_prefix("manifests/")
            .or(path.strip_prefix("blobs/"));
        digest?.strip_prefix("sha256:")
    });
    let blob = digest.map(|digest| layout.join("blobs/sha256").join(digest));
    match blob.and_then(|blob| File::open(blob).ok()) {
        Some(mut file) => {
            let length = file.metadata()?.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\n\
                 Content-Length: {length}\r\nConnection: close\r\n\r\n"
            )?;
            io::copy(&mut file, &mut stream)?;
        }
        None => write!(
            stream,
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?,
    }
    stream.conn.send_close_notify();
    Ok(stream.flush()?)
}
