//! A node of kubeadm's documents in place of an object's: completed by what the image has, as those of an object are.

use std::collections::BTreeMap;

use super::from_image::{complete, kubeadm};
use super::image::Image;
use super::translate::Translation;
use super::{
    Cni, Further, Join, Object, balancer, join, name_address, names_services, service_version,
};
use crate::config::{self, Reported};
use crate::documents::Documents;
use crate::host::Host;
use crate::release::{EtcdFlags, Kubeadm};
use crate::report::{Position, Report};
use crate::validate::of_node;
use crate::yaml::{Content, Node};

/// How a node comes into its cluster; the first one begins it.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// As a worker.
    pub(crate) join: Option<Join>,
    /// As a further control plane.
    pub(crate) further: Option<Further>,
}

/// Reads the documents for this host. Nothing where the report has mistakes.
pub(crate) fn read(
    documents: Documents,
    way: Way,
    image: &Image,
    host: &Host,
    report: &mut Report,
) -> Option<Object> {
    let is_worker = way.join.is_some();
    let has_taints = of_registration(&documents, "taints").is_some();
    let mut translation = translation(documents, image, is_worker);
    let root = versions(&translation);
    let known = kubeadm(&translation, &root, image, report);
    rename(report, "version", "kubernetesVersion");
    for mistake in &mut report.mistakes {
        mistake.message = mistake
            .message
            .replace("image-repository", "imageRepository");
    }
    let kubeadm = known.unwrap_or_else(Kubeadm::newest);
    let mut notes = complete(&mut translation, &kubeadm, image);
    let documents = &translation.documents;
    let read = config::complete(documents, &kubeadm, host, Reported::AtOnce, report);
    if let Some(config) = &read {
        of_node(&config.init, &config.cluster, report);
    }
    let mut config = read.filter(|_| report.mistakes.is_empty())?;
    notes.extend(report.warnings.iter().map(ToString::to_string));
    // As with an object: the image's etcd may be older than this kubeadm's, and kubeadm makes a token if it is given none.
    config.etcd_flags = EtcdFlags::ByTag;
    if !translation.has_tokens {
        config.init.bootstrap_tokens.clear();
    }
    let joins = is_worker || way.further.is_some();
    let is_known = !joins || names_services(&translation);
    let service_version = service_version(&config, is_worker).filter(|_| is_known);
    let lacks_second = name_address(&mut config, host);
    if is_worker {
        join::register(&mut config, has_taints, &translation.labels);
    }
    let none = Node {
        at: START,
        content: Content::Map(Vec::new()),
    };
    Some(Object {
        config,
        // kubeadm sets up no network of pods.
        cni: Cni::None,
        flannel_image: String::new(),
        metrics_server: None,
        cloud_controller: None,
        labels: BTreeMap::new(),
        kubelet_image: None,
        // The provider's script writes the file, behind the command that these documents are for.
        sentinel: false,
        join: way.join,
        further: way.further,
        // The provider's endpoint is a load balancer of all control planes.
        balancer: balancer::read(&none, false, report),
        notes,
        lacks_second,
        service_version,
    })
}

/// The begin of a text.
const START: Position = Position { line: 1, column: 1 };

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
        // As an argument of the kubelet, if at all.
        cloud_provider: None,
        cloud_config: None,
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

/// Names mistakes by another field.
pub(crate) fn rename(report: &mut Report, from: &str, to: &str) {
    for mistake in &mut report.mistakes {
        if let Some(rest) = mistake.field.strip_prefix(from)
            && (rest.is_empty() || rest.starts_with('.'))
        {
            mistake.field = format!("{to}{rest}");
        }
    }
}
