//! Renders a configuration: one column of named steps.

use crate::addons;
use crate::certs::{CertificateFile, certificates};
use crate::config::Config;
use crate::host::Host;
use crate::kubeconfigs::{Kubeconfig, kubeconfigs};
use crate::kubelet;
use crate::objects::{Marks, Moment, Object, marks, objects};
use crate::static_pods::{File, static_pods};

/// Everything that `kubeadm init` writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// The certificates.
    pub certificates: Vec<CertificateFile>,
    /// The kubeconfigs.
    pub kubeconfigs: Vec<Kubeconfig>,
    /// Static pods and the kubelet's files.
    pub files: Vec<File>,
    /// The objects of the cluster, in their order.
    pub objects: Vec<Object>,
    /// How the node is marked.
    pub marks: Marks,
}

/// Renders a configuration for this host at this moment.
#[must_use]
pub fn render(config: &Config, host: &Host, moment: &dyn Moment) -> Rendered {
    let certificates = certificates(config);
    let kubeconfigs = kubeconfigs(config);
    let mut files = static_pods(config, host);
    files.extend(kubelet::files(config, host));
    let mut objects = objects(config, moment);
    objects.extend(addons::objects(config));
    if config.kubeadm.release.writes_empty {
        objects.iter_mut().for_each(Object::write_empty);
    }
    Rendered {
        certificates,
        kubeconfigs,
        files,
        objects,
        marks: marks(config),
    }
}
