//! A node that boots an image with other container images in its root, and the earlier one again, with the same `/var`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use image::container_images::{ContainerImages, INDEX};
use image::paths::KUBELET_ROOTFS;
use namespace_tests::image_root::ImageRoot;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;
use slipway::layer::Entry;
use slipway::oci::{self, Blob, Image, RunConfig};

use crate::control_plane::{OBJECT, PODS, READY, identity};

/// The image that takes the place of the other tests' one.
const RECIPE: &str = "namespace-tests/update.toml";
/// The administrator's kubectl.
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";

/// A pod, and its container image: of a root, or made here.
struct Pod {
    name: &'static str,
    image: &'static str,
    /// Which of [`LAYERS`] it has, if it is made here.
    layers: &'static [usize],
    /// The file that its container prints, and what that has.
    file: &'static str,
    has: &'static str,
}

/// The files of the layers that are made here. The links of the first one lead to a `/usr`, which the pods get from the node.
const LAYERS: [&str; 4] = ["", "/words", "/more", "/own"];

/// Its image is in both roots.
const STAYS: Pod = Pod {
    name: "stays",
    image: "slipway.local/pause:baked",
    layers: &[],
    file: "/etc/hosts",
    has: "localhost",
};
/// In the first root alone.
const OLD: Pod = Pod {
    name: "old",
    image: "registry.example/tools:1",
    layers: &[],
    file: "/etc/debian_version",
    has: "^[0-9]",
};
/// In the second root alone.
const NEW: Pod = Pod {
    name: "new",
    image: "registry.example/tools:2",
    ..OLD
};
/// The same, of layers.
const WORDS: Pod = Pod {
    name: "words",
    image: "registry.example/words:1",
    layers: &[0, 1],
    file: "/words",
    has: "^the layer of /words$",
};
/// The same image by another name, imported while the second root runs: containerd has its files from there.
const COPY: Pod = Pod {
    name: "copy",
    image: "registry.example/copy:1",
    ..WORDS
};
/// An image whose lower layers are those of one of the second root, imported while that runs.
const MORE: Pod = Pod {
    name: "more",
    image: "registry.example/more:1",
    layers: &[0, 1, 2],
    file: "/more",
    has: "^the layer of /more$",
};
/// Imported, and in no root.
const OWN: Pod = Pod {
    name: "own",
    image: "registry.example/own:1",
    layers: &[0, 3],
    file: "/own",
    has: "^the layer of /own$",
};

/// What containerd keeps of earlier roots until its garbage collection: links that lead nowhere, and snapshots that are given up.
const LEFT: &str = "cd /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots
links=$(find . -mindepth 2 -maxdepth 2 -name fs -xtype l)
gone=$(ctr -n k8s.io snapshots ls | grep slipway.local/gone/ || true)
[ -z \"$links$gone\" ] || { echo \"$links\"; echo \"$gone\"; ctr -n k8s.io containers ls; exit 1; }";
/// Gives an image of the root another name and takes it back, with a whole garbage collection.
const COLLECT: &str =
    "ctr -n k8s.io images tag slipway.local/pause:baked registry.example/for-a-moment:1
ctr -n k8s.io images rm --sync registry.example/for-a-moment:1";
/// Removes the image [`OWN`] with its name by digest, after which its manifest is gone.
const REMOVE_OWN: &str = "all=$(ctr -n k8s.io images ls)
digest=$(echo \"$all\" | awk '$1 == \"registry.example/own:1\" { print $3 }')
blob=/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/${digest#sha256:}
ls $blob
ctr -n k8s.io images rm --sync $(echo \"$all\" | awk -v digest=$digest '$3 == digest { print $1 }')
[ ! -e $blob ]";
/// Removes an image of the root and all of its names, as `crictl rmi` does, and gives the name of another one to what was imported.
const TAKE: &str = "all=$(ctr -n k8s.io images ls)
digest=$(echo \"$all\" | awk '$1 == \"registry.example/tools:2\" { print $3 }')
ctr -n k8s.io images rm --sync $(echo \"$all\" | awk -v digest=$digest '$3 == digest { print $1 }')
ctr -n k8s.io images tag --force registry.example/more:1 registry.example/words:1";
/// Where a node finds what it imports.
const ARCHIVE: &str = "/var/tmp/image.tar";

/// At each boot containerd and the kubelet list the images of the root that runs, all whole, and what was imported, and nothing of the
/// other root; one that was removed on the node is among them at the next boot. Pods whose image is there run, the others wait for it; nothing leads to a folder that the root does not have, and garbage
/// collections take nothing of the root.
pub(crate) fn another_image_and_the_earlier_one_again_have_their_own_container_images(
    lab: &mut Lab,
) -> Result<()> {
    let first = lab.image.clone();
    let made = Made::of(lab)?;
    let second = lab.another_image(RECIPE, vec![made.setting(&WORDS)?])?;
    let mut node = lab.control_plane("cp1", 11, OBJECT)?;
    node.start(&lab.hub)?;
    node.wait_ready(READY)?;
    let identity = identity(&node)?;
    made.import(&node, &OWN)?;
    for pod in [&STAYS, &OLD, &OWN] {
        apply(&node, pod)?;
        runs(&node, pod)?;
    }
    lists(&node, &first, &[&OWN])?;

    boot(lab, &mut node, &second).context("with the other image")?;
    lists(&node, &second, &[&OWN])?;
    for pod in [&NEW, &WORDS] {
        apply(&node, pod)?;
    }
    for pod in [&COPY, &MORE] {
        made.import(&node, pod)?;
        apply(&node, pod)?;
    }
    for pod in [&STAYS, &OWN, &NEW, &WORDS, &COPY, &MORE] {
        runs(&node, pod)?;
    }
    waits(&node, &OLD)?;
    lists(&node, &second, &[&OWN, &COPY, &MORE])?;

    boot(lab, &mut node, &first).context("with the earlier image")?;
    lists(&node, &first, &[&OWN, &COPY, &MORE])?;
    for pod in [&STAYS, &OLD, &OWN, &COPY, &MORE] {
        runs(&node, pod)?;
    }
    for pod in [&NEW, &WORDS] {
        waits(&node, pod)?;
    }
    // From here on containerd has files of its own for it.
    made.import(&node, &WORDS)?;
    runs(&node, &WORDS)?;
    node.kubectl("delete pod own")?;
    node.run(REMOVE_OWN)?;
    lists(&node, &first, &[&COPY, &MORE, &WORDS])?;

    boot(lab, &mut node, &second).context("with the other image once more")?;
    lists(&node, &second, &[&COPY, &MORE])?;
    // The layers of what was imported go, and with them what only they hold.
    node.run("ctr -n k8s.io content prune references")?;
    for pod in [&STAYS, &NEW, &WORDS, &COPY, &MORE] {
        runs(&node, pod)?;
    }
    waits(&node, &OLD)?;
    lists(&node, &second, &[&COPY, &MORE])?;
    node.kubectl("delete pod new")?;
    node.run(TAKE)?;
    ensure!(
        lists(&node, &second, &[&COPY, &MORE]).is_err(),
        "no image of the root is gone"
    );
    boot(lab, &mut node, &second).context("with the same image")?;
    apply(&node, &NEW)?;
    for pod in [&STAYS, &NEW, &WORDS, &COPY, &MORE] {
        runs(&node, pod)?;
    }
    lists(&node, &second, &[&COPY, &MORE])?;
    ensure!(identity == self::identity(&node)?, "it is another cluster");
    Ok(())
}

/// The power is cut, and the node boots this image.
fn boot(lab: &Lab, node: &mut Node, image: &ImageRoot) -> Result<()> {
    node.cut()?;
    node.boot_from(image)?;
    node.start(&lab.hub)?;
    node.wait_ready(READY).map(drop)
}

/// containerd and the kubelet list the images of this root, whole, `others`, and nothing else.
fn lists(node: &Node, root: &ImageRoot, others: &[&Pod]) -> Result<()> {
    let images = index(root)?.images.into_iter();
    let own: BTreeSet<String> = images.flat_map(|image| image.names).collect();
    let mut wanted = own.clone();
    wanted.extend(others.iter().map(|pod| pod.image.to_owned()));
    node.wait_for("the end of what an earlier root had", LEFT, PODS)?;
    node.run(COLLECT)?;
    let said = node.run("ctr -n k8s.io images ls -q")?;
    // Each image is there by the digest of its config too.
    let names = said.lines().filter(|name| !name.starts_with("sha256:"));
    let found: BTreeSet<String> = names.map(str::to_owned).collect();
    ensure!(
        found == wanted,
        "containerd lists {found:?}, expected {wanted:?}"
    );
    let said = node.run("ctr -n k8s.io images check")?;
    for name in &own {
        // Name, type, digest, status, numbers, size, and whether it is unpacked.
        let is_whole = said.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.first() == Some(&name.as_str())
                && words.contains(&"complete")
                && words.last() == Some(&"true")
        });
        ensure!(is_whole, "{name} is not whole:\n{said}");
    }
    let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let script = format!(
        "said=$({KUBECTL} get node cp1 -o jsonpath='{{.status.images[*].names[*]}}' | tr ' ' '\\n' | sort)
[ \"$said\" = \"$(printf '%s\\n' {} | sort)\" ] || {{ echo \"$said\"; exit 1; }}",
        names.join(" ")
    );
    node.wait_for("the kubelet's list of images", &script, PODS)?;
    Ok(())
}

/// The images of a root.
fn index(root: &ImageRoot) -> Result<ContainerImages> {
    let file = root.tree.join(INDEX.trim_start_matches('/'));
    let about = || format!("reading {}", file.display());
    let text = fs::read(&file).with_context(about)?;
    serde_json::from_slice(&text).with_context(about)
}

/// Makes a pod, once its account is there.
fn apply(node: &Node, pod: &Pod) -> Result<()> {
    let Pod {
        name, image, file, ..
    } = pod;
    let text = format!(
        "apiVersion: v1
kind: Pod
metadata: {{ name: {name} }}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: it
    image: {image}
    imagePullPolicy: Never
    command: [/usr/bin/bash, -c, 'cat {file}; exec sleep infinity']
    volumeMounts: [{{ name: usr, mountPath: /usr, readOnly: true }}]
  volumes:
  - {{ name: usr, hostPath: {{ path: {KUBELET_ROOTFS}/usr }} }}"
    );
    let script = format!("{KUBECTL} apply -f - <<'END'\n{text}\nEND");
    node.wait_for("the default account", &script, PODS)?;
    Ok(())
}

/// Its container of this boot runs, and has the files of its image.
fn runs(node: &Node, pod: &Pod) -> Result<()> {
    let Pod { name, has, .. } = pod;
    let script = format!(
        "status() {{ {KUBECTL} get pod {name} -o jsonpath=\"{{.status.containerStatuses${{1:-}}}}\"; }}
id=$(status '[0].containerID')
ctr -n k8s.io tasks ls -q 2>/dev/null | grep -qxF \"${{id#containerd://}}\" || {{ status; exit 1; }}
{KUBECTL} logs {name} | grep -q '{has}' || {{ {KUBECTL} logs {name}; exit 1; }}"
    );
    node.wait_for(&format!("the pod {name}"), &script, PODS)?;
    Ok(())
}

/// It waits for its image, which is not there.
fn waits(node: &Node, pod: &Pod) -> Result<()> {
    let name = pod.name;
    let reason = "jsonpath='{.status.containerStatuses[0].state.waiting.reason}'";
    let script = format!("{KUBECTL} get pod {name} -o {reason} | grep -x ErrImageNeverPull");
    node.wait_for(&format!("the pod {name} without an image"), &script, PODS)?;
    Ok(())
}

/// Images as other tools build them, of layers.
struct Made {
    folder: PathBuf,
    architecture: String,
    layers: Vec<Blob>,
}

impl Made {
    /// The layers, in a folder of the lab.
    fn of(lab: &Lab) -> Result<Self> {
        let folder = lab.folder().join("made");
        fs::create_dir(&folder).context("making a folder for images")?;
        let images = index(&lab.image)?.images;
        let config = &images.first().context("the root has no image")?.config;
        let config: serde_json::Value = serde_json::from_str(config)?;
        let architecture = config["architecture"].as_str();
        let architecture = architecture.context("an image without an architecture")?;
        let layers = LAYERS.iter().enumerate().map(|(number, path)| {
            let entries: Vec<Entry> = match *path {
                "" => {
                    let links = ["bin", "lib", "lib64", "sbin"].into_iter();
                    let links =
                        links.map(|name| Entry::symlink(format!("/{name}"), format!("usr/{name}")));
                    links.chain([Entry::directory("/usr", 0o755)]).collect()
                }
                path => vec![Entry::file(path, 0o644, format!("the layer of {path}\n"))],
            };
            oci::layer(&entries, 0, &folder.join(format!("layer-{number}")))
        });
        Ok(Self {
            architecture: architecture.to_owned(),
            layers: layers.collect::<Result<_>>()?,
            folder,
        })
    }

    /// The OCI layout of a pod's image.
    fn layout(&self, pod: &Pod) -> Result<PathBuf> {
        let layout = self.folder.join(pod.name);
        if layout.exists() {
            return Ok(layout);
        }
        let layers = pod.layers.iter();
        let layers = layers.map(|number| self.layers.get(*number).cloned());
        let image = Image {
            name: pod.image.to_owned(),
            architecture: self.architecture.clone(),
            run: RunConfig::default(),
            layers: layers.collect::<Option<_>>().context("a layer")?,
        };
        oci::write_layout(&layout, &[image], 0)?;
        Ok(layout)
    }

    /// The setting of a recipe that has a pod's image in its root.
    fn setting(&self, pod: &Pod) -> Result<String> {
        let (layout, name) = (self.layout(pod)?, pod.image);
        Ok(format!(
            "containers.prebuilt=[{{ layout = {layout:?}, name = {name:?} }}]"
        ))
    }

    /// Imports a pod's image into containerd, which unpacks it.
    fn import(&self, node: &Node, pod: &Pod) -> Result<()> {
        let archive = node.below_var(ARCHIVE);
        let parent = archive.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        oci::write_archive(&self.layout(pod)?, &archive)?;
        node.run(&format!("ctr -n k8s.io images import {ARCHIVE}"))?;
        Ok(())
    }
}
