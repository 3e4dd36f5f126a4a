//! The addons of a cluster: CoreDNS and kube-proxy.

mod coredns;
mod kube_proxy;

use crate::config::Config;
use crate::objects::Object;

/// Their objects.
#[must_use]
pub(crate) fn objects(config: &Config) -> Vec<Object> {
    let mut objects = Vec::new();
    if !config.cluster.dns.disabled && !config.skips("addon/coredns") {
        objects.extend(coredns::objects(config));
    }
    if !config.cluster.proxy.disabled && !config.skips("addon/kube-proxy") {
        objects.extend(kube_proxy::objects(config));
    }
    objects
}
