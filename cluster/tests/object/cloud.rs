//! `[cloud]` of an object: what kubelets and the controller of a cloud are given.

use cluster::cloud_controller;
use cluster::host::Host;
use cluster::kubelet;
use cluster::object::{Image, Role, read};
use serde_json::Value;

use crate::samples::{host, image, paths};

const TEXT: &str = "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n[cloud]\nprovider = \"aws\"\n";
const REFERENCE: &str = "slipway.local/aws-cloud-controller-manager:v1.36.2";
const PROVIDER_ID: &str = "aws:///eu-central-1a/i-0abc";

/// An image that brings the controller.
fn with_controller() -> Image {
    let mut image = Image {
        known: true,
        ..image()
    };
    let name = "aws-cloud-controller-manager".to_owned();
    image.images.insert(name, REFERENCE.to_owned());
    image
}

fn refused(text: &str, image: &Image) -> Vec<String> {
    let report = read(text, image, &host(), Role::ControlPlane).unwrap_err();
    report.mistakes.iter().map(ToString::to_string).collect()
}

fn on_amazon() -> Host {
    Host {
        provider_id: Some(PROVIDER_ID.to_owned()),
        ..host()
    }
}

#[test]
fn kubelets_leave_their_node_to_the_controller_and_name_their_machine() {
    let of = |text: &str| {
        let object = read(text, &with_controller(), &on_amazon(), Role::ControlPlane).unwrap();
        let files = kubelet::files(&object.config, &on_amazon());
        let texts: Vec<String> = files.into_iter().map(|file| file.text).collect();
        (object, texts.join("\n"))
    };
    let (object, files) = of(TEXT);
    assert!(files.contains("--cloud-provider=external"), "{files}");
    assert!(
        files.contains(&format!("providerID: {PROVIDER_ID}")),
        "{files}"
    );
    // All kubelets of the cluster have what is uploaded; this machine is this node's alone.
    assert_eq!(object.config.kubelet.value.get("providerID"), None);
    assert!(object.cloud_controller.is_some());
    let (object, files) = of(&TEXT.replace("aws", "external"));
    assert!(
        files.contains("--cloud-provider=external") && files.contains("providerID"),
        "{files}"
    );
    assert_eq!(object.cloud_controller, None);
    let (_, files) = of(&TEXT.replace("[cloud]\nprovider = \"aws\"\n", ""));
    assert!(
        !files.contains("cloud-provider") && !files.contains("providerID"),
        "{files}"
    );
    // What the default is may be said.
    of(&format!(
        "{TEXT}[kubelet]\nargs = {{ cloud-provider = \"external\" }}\n"
    ));
}

/// A worker's kubelet has to wait too; the controller is a matter of control planes, and of their image.
#[test]
fn a_worker_leaves_its_node_to_the_controller_too() {
    let join = "endpoint = \"10.0.0.6\"\n[join]\ntoken = \"abcdef.0123456789abcdef\"\nca-hashes = [\"sha256:7c2e69131a36ae2a042a339b33381c6d0d43887e2de83720eff5359e26aec866\"]\n";
    let text = TEXT.replace("[node]", &format!("{join}[node]"));
    let image = Image {
        known: true,
        ..image()
    };
    let object = read(&text, &image, &on_amazon(), Role::Worker).unwrap();
    assert_eq!(object.cloud_controller, None);
    let arguments = kubelet::arguments(&object.config, &on_amazon()).text;
    assert!(
        arguments.contains("--cloud-provider=external"),
        "{arguments}"
    );
    let clusters = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let joined = kubelet::joined(&object.config, &object.join.unwrap(), clusters).unwrap();
    assert!(
        joined.text.contains(&format!("providerID: {PROVIDER_ID}")),
        "{}",
        joined.text
    );
}

#[test]
fn what_fits_no_controller_is_refused_at_its_place() {
    let mut without = with_controller();
    without.images.remove("aws-cloud-controller-manager");
    let said = refused(TEXT, &without);
    assert!(
        said.len() == 1
            && said[0]
                .starts_with("cloud.provider: the image brings no aws-cloud-controller-manager")
            && said[0].ends_with("(line 5, column 12)"),
        "{said:?}"
    );
    let image = with_controller();
    let said = refused(&TEXT.replace("aws", "awss"), &image);
    assert!(
        said.len() == 1 && said[0].contains("did you mean \"aws\"?"),
        "{said:?}"
    );
    let said = refused(
        &format!("{TEXT}[kubelet]\nargs = {{ cloud-provider = \"\" }}\n"),
        &image,
    );
    assert!(
        said.len() == 1
            && said[0].starts_with("kubelet.args.cloud-provider: expected \"external\""),
        "{said:?}"
    );
    for text in [
        "[cloud]\nconfig = \"x\"\n",
        "[cloud]\nprovider = \"external\"\nconfig = \"x\"\n",
    ] {
        let text = format!("[node]\naddress = \"10.0.0.7\"\n{text}");
        let said = refused(&text, &image);
        assert!(
            said.len() == 1 && said[0].starts_with("cloud.config: nobody reads it"),
            "{said:?}"
        );
    }
}

/// Its pods come to a node before anything else does, and a changed configuration makes them anew.
#[test]
fn the_controller_runs_on_nodes_that_wait_for_it() {
    let objects = |text: &str| {
        let object = read(text, &with_controller(), &host(), Role::ControlPlane).unwrap();
        cloud_controller::objects(&object.config, &object.cloud_controller.unwrap())
    };
    let made = objects(TEXT);
    let paths = paths(&made);
    assert_eq!(
        paths,
        [
            "serviceaccounts/cloud-controller-manager",
            "clusterroles/system:cloud-controller-manager",
            "clusterrolebindings/system:cloud-controller-manager",
            "rolebindings/cloud-controller-manager:apiserver-authentication-reader",
            "configmaps/aws-cloud-controller-manager",
            "daemonsets/aws-cloud-controller-manager",
        ]
    );
    assert_eq!(
        made[4].value["data"]["cloud.conf"],
        "[Global]\nKubernetesClusterID=\"blue\"\n"
    );
    let pod = &made[5].value["spec"]["template"];
    let tolerated: Vec<&str> = pod["spec"]["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["key"].as_str())
        .collect();
    assert!(
        tolerated.contains(&"node.cloudprovider.kubernetes.io/uninitialized"),
        "{tolerated:?}"
    );
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["image"], REFERENCE);
    let env: Vec<&Value> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["value"])
        .collect();
    assert_eq!(env, ["10.0.0.7", "6443"]);
    let other = objects(&format!(
        "{TEXT}config = \"\"\"\n[Global]\nZone=eu-central-1a\"\"\"\n"
    ));
    assert_eq!(
        other[4].value["data"]["cloud.conf"],
        "[Global]\nKubernetesClusterID=\"blue\"\n[Global]\nZone=eu-central-1a\n"
    );
    let annotations = |objects: &[cluster::objects::Object]| {
        objects[5].value["spec"]["template"]["metadata"]["annotations"].clone()
    };
    assert_ne!(annotations(&made), annotations(&other));
}
