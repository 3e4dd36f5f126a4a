//! Addons with a kind of their own, a Job, and one that needs another, on two control planes.

use anyhow::{Result, ensure};
use image::paths::KUBELET_ROOTFS;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;

use crate::control_plane::{OBJECT, PODS, READY};
use crate::join::ticket;

/// The addons' folders.
const FOLDER: &str = "/etc/slipway/addons";
/// The administrator's kubectl.
const KUBECTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf";

/// A kind, and a Job that ends after two seconds and says this word.
fn base(word: &str) -> String {
    format!(
        r#"
apiVersion: batch/v1
kind: Job
metadata: {{ name: prepare }}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: prepare
        image: slipway.local/pause:baked
        imagePullPolicy: Never
        command: [/usr/bin/bash, -c, "sleep 2; echo {word}"]
        volumeMounts: [{{ name: usr, mountPath: /usr, readOnly: true }}]
      volumes: [{{ name: usr, hostPath: {{ path: {KUBELET_ROOTFS}/usr }} }}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{ name: boats.lab.test }}
spec:
  group: lab.test
  scope: Namespaced
  names: {{ kind: Boat, plural: boats, singular: boat }}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {{ type: object, properties: {{ sails: {{ type: integer, minimum: 1 }} }} }}
"#
    )
}

/// Objects of the kind.
fn boats(names: &[&str], sails: i32) -> String {
    let one = |name: &&str| {
        format!(
            "apiVersion: lab.test/v1\nkind: Boat\nmetadata: {{ name: {name} }}\nspec: {{ sails: {sails} }}\n"
        )
    };
    names.iter().map(one).collect::<Vec<_>>().join("---\n")
}

/// The state of an addon on a node.
fn is(name: &str, state: &str) -> String {
    format!(
        "slipway-node addons --json | tr -d ' \\n' | grep -o '{{\"name\":\"{name}\"[^}}]*' | grep -q '\"state\":\"{state}\"'"
    )
}

fn names(node: &Node) -> Result<String> {
    node.kubectl("get boats -o jsonpath='{range .items[*]}{.metadata.name}={.spec.sails} {end}'")
}

/// The addon `fleet` is applied once the Job and the kind of `base` are there. What the API server refuses is named, and changes
/// nothing; what a new version has no more is gone, but for a kind; a second control plane with the same addons sends nothing.
pub(crate) fn kinds_jobs_and_needs_are_waited_for_on_two_control_planes(
    lab: &mut Lab,
) -> Result<()> {
    let mut first = lab.control_plane("cp1", 11, OBJECT)?;
    let needs = "depends = [\"base\"]\n";
    let files = |node: &Node, base: &str, boats: &str| {
        node.write_etc(&format!("{FOLDER}/base/base.yaml"), base)?;
        node.write_etc(&format!("{FOLDER}/fleet/addon.toml"), needs)?;
        node.write_etc(&format!("{FOLDER}/fleet/boats.yaml"), boats)
    };
    files(&first, &base("one"), &boats(&["ketch", "sloop"], 2))?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    for name in ["base", "fleet"] {
        first.wait_for(name, &is(name, "applied"), PODS)?;
    }
    let order = first.kubectl("get job/prepare boat/ketch -o jsonpath='{.items[0].status.completionTime} {.items[1].metadata.creationTimestamp}'")?;
    let times = order.split_once(' ');
    ensure!(
        times.is_some_and(|(job, boat)| !job.is_empty() && job <= boat),
        "the Job ended, and the boat was made, at {order}"
    );

    let object = ticket(&first)?.object("lab", true);
    let mut second = lab.control_plane("cp2", 12, &object)?;
    files(&second, &base("one"), &boats(&["ketch", "sloop"], 2))?;
    let versions = "get boats,jobs,crd -A -o jsonpath='{range .items[*]}{.metadata.name}={.metadata.resourceVersion} {end}'";
    let before = first.kubectl(versions)?;
    second.start(&lab.hub)?;
    second.wait_ready(READY)?;
    for name in ["base", "fleet"] {
        second.wait_for(name, &is(name, "applied"), PODS)?;
    }
    ensure!(
        first.kubectl(versions)? == before,
        "the second control plane sent something"
    );

    // One that its kind refuses, and a Job's template, which never changes.
    first.write_running(
        &format!("{FOLDER}/fleet/boats.yaml"),
        &boats(&["ketch", "sloop"], 0),
    )?;
    refuses(&first, "fleet", "spec.sails")?;
    first.write_running(&format!("{FOLDER}/base/base.yaml"), &base("two"))?;
    refuses(&first, "base", "field is immutable")?;
    ensure!(names(&first)? == "ketch=2 sloop=2 ", "{}", names(&first)?);

    for node in [&first, &second] {
        node.write_running(&format!("{FOLDER}/base/base.yaml"), &base("two"))?;
        node.write_running(&format!("{FOLDER}/fleet/boats.yaml"), &boats(&["sloop"], 3))?;
    }
    first.kubectl("delete job prepare")?;
    first.run_within("slipway-node addons apply", PODS)?;
    ensure!(names(&first)? == "sloop=3 ", "{}", names(&first)?);
    ensure!(first.kubectl("logs job/prepare")?.trim() == "two");
    let before = first.kubectl(versions)?;
    second.run_within("slipway-node addons apply", PODS)?;
    ensure!(
        first.kubectl(versions)? == before,
        "the second control plane sent something"
    );

    // Both are switched off: the kind stays, since every object of it would go with it.
    for name in ["base", "fleet"] {
        first.run(&format!(
            "rm {FOLDER}/{name}/*.yaml; echo > {FOLDER}/{name}/addon.toml"
        ))?;
    }
    let said = first.run_within("slipway-node addons apply 2>&1", PODS)?;
    ensure!(
        said.contains("boats.lab.test"),
        "nothing is said of the kind: {said}"
    );
    ensure!(names(&first)?.is_empty(), "{}", names(&first)?);
    first.kubectl("get crd boats.lab.test")?;
    first.run(&format!("! {KUBECTL} get job prepare")).map(drop)
}

/// `addons apply` fails with these words, and the state has them.
fn refuses(node: &Node, name: &str, words: &str) -> Result<()> {
    node.run_within(
        &format!("! slipway-node addons apply > /run/said 2>&1 && grep -F '{words}' /run/said"),
        PODS,
    )?;
    node.wait_for(name, &is(name, "refused"), PODS).map(drop)
}
