//! A node by kubeadm's own documents, as the kubeadm bootstrap provider of Cluster API delivers them: `InitConfiguration` with
//! `ClusterConfiguration`, or `JoinConfiguration`.
//!
//! They become what a cluster object becomes. What `kubeadm init` or `kubeadm join` would do by a field and Slipway does not is
//! refused, with its line and column; a field that kubeadm ignores with a warning is a note.

mod joining;
mod refused;

use crate::documents::{Documents, all};
use crate::host::Host;
use crate::object::documented::{self, Way};
use crate::object::{Further, Image, Join, Object, Role};
use crate::report::Report;
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
    let object = documented::read(documents, way(joining.as_ref()), image, host, &mut report);
    if joining.is_some() {
        let from = "localAPIEndpoint";
        documented::rename(&mut report, from, "controlPlane.localAPIEndpoint");
    }
    let Some(object) = object else {
        return Err(report);
    };
    Ok(Asked {
        object,
        discovery: joining.map(|joining| joining.join),
        has_cluster,
    })
}

/// How the node comes into its cluster.
fn way(joining: Option<&Joining>) -> Way {
    let Some(joining) = joining else {
        return Way::default();
    };
    let join = || joining.join.clone();
    let further = joining.control_plane.as_ref().map(|key| Further {
        fetched: key.clone().map(|key| (join(), key)),
    });
    Way {
        join: joining.is_worker().then(join),
        further,
    }
}

fn expect_init(documents: &Documents, report: &mut Report) {
    let there = documents.init.is_some() || documents.cluster.is_some();
    if !there && report.mistakes.is_empty() {
        let message = "expected a document of the kind InitConfiguration, ClusterConfiguration or JoinConfiguration";
        report.refuse("", message);
    }
}
