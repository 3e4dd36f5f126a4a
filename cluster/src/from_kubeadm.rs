//! A node by kubeadm's own documents, as the kubeadm bootstrap provider of Cluster API delivers them: `InitConfiguration` with
//! `ClusterConfiguration`, or `JoinConfiguration`.
//!
//! They become what a cluster object becomes. What `kubeadm init` or `kubeadm join` would do by a field and Slipway does not is
//! refused, with its line and column; a field that kubeadm ignores with a warning is a note.

mod joining;
mod refused;

use std::collections::BTreeMap;

use super::translate::Translation;
use super::{
    Cni, Further, Image, Join, Object, Role, balancer, complete, join, kubeadm, name_address,
};
use crate::config::{self, Config, Reported};
use crate::documents::{Documents, all};
use crate::host::Host;
use crate::release::{EtcdFlags, Kubeadm};
use crate::report::{Position, Report};
use crate::yaml::{Content, Node};
use joining::Joining;

/// What kubeadm's documents ask for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The node.
    pub object: Object,
    /// By what a node that joins trusts its cluster; none on the first node.
    pub discovery: Option<Join>,
    /// Whether documents of the cluster are beside those of a node that joins.
    pub has_cluster: bool,
}

/// Whether a text is one of kubeadm's documents and not a cluster object: its first line that is no comment begins a YAML document, which
/// neither TOML nor JSON can have there.
#[must_use]
pub fn is(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_end);
    let first = lines.find(|line| !line.is_empty() && !line.trim_start().starts_with('#'));
    first.is_some_and(|line| {
        line == "---" || line.starts_with("apiVersion:") || line.starts_with("kind:")
    })
}

/// Reads the documents for this host; `role` is what the machine is set up for.
///
/// # Errors
/// All mistakes, each with kubeadm's field and its position.
pub fn read(text: &str, image: &Image, host: &Host, role: Role) -> Result<Asked, Report> {
    let mut report = Report::default();
    let mut documents = all(text, &mut report);
    let has_cluster = documents.has_cluster();
    let joining = match documents.join.take() {
        Some(node) => joining::take(&mut documents, &node, image, role, &mut report),
        None => {
            expect_init(&documents, &mut report);
            None
        }
    };
    refused::check(&documents, joining.is_some(), host, &mut report);
    if !report.mistakes.is_empty() {
        return Err(report);
    }
    let is_worker = joining.as_ref().is_some_and(Joining::is_worker);
    let has_taints = of_registration(&documents, "taints").is_some();
    let mut translation = translation(documents, image, is_worker);
    let root = versions(&translation);
    let known = kubeadm(&translation, &root, image, &mut report);
    rename(&mut report, "version", "kubernetesVersion");
    for mistake in &mut report.mistakes {
        mistake.message = mistake
            .message
            .replace("image-repository", "imageRepository");
    }
    let kubeadm = known.unwrap_or_else(Kubeadm::newest);
    let mut notes = complete(&mut translation, &kubeadm, image);
    let documents = &translation.documents;
    let read = config::complete(documents, &kubeadm, host, Reported::AtOnce, &mut report);
    if joining.is_some() {
        rename(
            &mut report,
            "localAPIEndpoint",
            "controlPlane.localAPIEndpoint",
        );
    }
    let Some(mut config) = read.filter(|_| report.mistakes.is_empty()) else {
        return Err(report);
    };
    notes.extend(report.warnings.iter().map(ToString::to_string));
    // As with an object: the image's etcd may be older than this kubeadm's, and kubeadm makes a token if it is given none.
    config.etcd_flags = EtcdFlags::ByTag;
    if !translation.has_tokens {
        config.init.bootstrap_tokens.clear();
    }
    let lacks_second = name_address(&mut config, host);
    if is_worker {
        join::register(&mut config, has_taints, &translation.labels);
    }
    let object = object(config, joining.as_ref(), lacks_second, notes, &mut report);
    Ok(Asked {
        object,
        discovery: joining.map(|joining| joining.join),
        has_cluster,
    })
}

fn object(
    config: Config,
    joining: Option<&Joining>,
    lacks_second: Option<String>,
    notes: Vec<String>,
    report: &mut Report,
) -> Object {
    let worker = joining.filter(|joining| joining.is_worker());
    let further = joining.and_then(|joining| joining.control_plane.as_ref());
    let none = Node {
        at: START,
        content: Content::Map(Vec::new()),
    };
    Object {
        config,
        // kubeadm sets up no network of pods.
        cni: Cni::None,
        flannel_image: String::new(),
        metrics_server: None,
        labels: BTreeMap::new(),
        kubelet_image: None,
        // The provider's script writes the file, behind the command that these documents are for.
        sentinel: false,
        join: worker.map(|joining| joining.join.clone()),
        further: further.map(|key| Further {
            fetched: key
                .clone()
                .zip(joining)
                .map(|(key, joining)| (joining.join.clone(), key)),
        }),
        // The provider's endpoint is a load balancer of all control planes.
        balancer: balancer::read(&none, false, report),
        notes,
        lacks_second,
    }
}

/// The begin of a text.
const START: Position = Position { line: 1, column: 1 };

fn expect_init(documents: &Documents, report: &mut Report) {
    let there = documents.init.is_some() || documents.cluster.is_some();
    if !there && report.mistakes.is_empty() {
        let message = "expected a document of the kind InitConfiguration, ClusterConfiguration or JoinConfiguration";
        report.refuse("", message);
    }
}

/// A field of `nodeRegistration`.
fn of_registration<'a>(documents: &'a Documents, name: &str) -> Option<&'a Node> {
    let init = documents.init.as_ref()?;
    let node = init.get("nodeRegistration")?.get(name)?;
    Some(node).filter(|node| node.content != Content::Null)
}

fn translation(documents: Documents, image: &Image, is_worker: bool) -> Translation {
    let text = |document: &Option<Node>, name: &str| {
        let node = document.as_ref()?.get(name)?;
        node.text()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let own = image.images.get("kube-apiserver");
    let own = own.and_then(|image| image.rsplit_once('/'));
    let asked = text(&documents.cluster, "imageRepository");
    let has_own = asked.is_none() || asked.as_deref() == own.map(|(repository, _)| repository);
    let tokens = documents.init.as_ref();
    let tokens = tokens.and_then(|init| init.get("bootstrapTokens"));
    Translation {
        version: text(&documents.cluster, "kubernetesVersion"),
        cni: Cni::None,
        labels: BTreeMap::new(),
        kubelet_image: None,
        sentinel: false,
        metrics_server: false,
        dns: Vec::new(),
        has_tokens: matches!(tokens.map(|node| &node.content), Some(Content::List(all)) if !all.is_empty()),
        // A worker runs none of a control plane's.
        uses_image: !is_worker && has_own && !image.images.is_empty(),
        documents,
    }
}

/// The version of Kubernetes with its position, where a cluster object has it.
fn versions(translation: &Translation) -> Node {
    let cluster = translation.documents.cluster.as_ref();
    let version = cluster.and_then(|cluster| cluster.get("kubernetesVersion"));
    Node {
        at: cluster.map_or(START, |cluster| cluster.at),
        content: Content::Map(
            version
                .map(|node| ("version".to_owned(), node.clone()))
                .into_iter()
                .collect(),
        ),
    }
}

fn rename(report: &mut Report, from: &str, to: &str) {
    for mistake in &mut report.mistakes {
        if let Some(rest) = mistake.field.strip_prefix(from)
            && (rest.is_empty() || rest.starts_with('.'))
        {
            mistake.field = format!("{to}{rest}");
        }
    }
}
