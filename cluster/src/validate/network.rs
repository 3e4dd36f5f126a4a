//! The rules of `networking`.

use crate::address::{self, Subnet};
use crate::report::Report;
use crate::types::{Arg, Cluster, argument};

/// The fewest addresses of a service subnet: those up to the name server's.
const SERVICES: i64 = 10;
/// The fewest addresses of a pod subnet (`MinimumAddressesInPodSubnet` of kubeadm).
const PODS: i64 = 14;
/// The most bits of a service subnet's addresses: the API server keeps a map of them in etcd.
const SERVICE_BITS: u32 = 20;
/// The most bits between the prefix of a pod subnet and that of a node.
const NODE_BITS: u32 = 16;

pub(super) fn check(cluster: &Cluster, report: &mut Report) {
    let networking = &cluster.networking;
    if !address::is_name(&networking.dns_domain) {
        let message = format!(
            "{:?} is not a name of lower-case letters, digits, '-' and '.'",
            networking.dns_domain
        );
        report.refuse("networking.dnsDomain", message);
    }
    let field = "networking.serviceSubnet";
    for subnet in subnets(&networking.service_subnet, SERVICES, field, report) {
        if subnet.bits() - subnet.prefix > SERVICE_BITS {
            let least = subnet.bits() - SERVICE_BITS;
            report.refuse(
                field,
                format!("{subnet} is too large; expected a prefix of at least {least} bits"),
            );
        }
    }
    if networking.pod_subnet.is_empty() {
        return;
    }
    let field = "networking.podSubnet";
    let pods = subnets(&networking.pod_subnet, PODS, field, report);
    let manager = &cluster.controller_manager.extra_args;
    if argument(manager, "allocate-node-cidrs") != Some("false") {
        pods.iter()
            .for_each(|subnet| node_mask(subnet, manager, field, report));
    }
}

/// The subnets of a list: one, or one of each version.
fn subnets(list: &str, least: i64, field: &str, report: &mut Report) -> Vec<Subnet> {
    let all: Option<Vec<Subnet>> = list.split(',').map(Subnet::parse).collect();
    let Some(all) = all else {
        report.refuse(field, format!("{list:?} is not a subnet, or two with a comma between them; expected ADDRESS/PREFIX"));
        return Vec::new();
    };
    let dual = matches!(&all[..], [a, b] if a.bits() != b.bits());
    if all.len() > 1 && !dual {
        report.refuse(
            field,
            format!("{list:?}: expected one subnet, or one of IPv4 and one of IPv6"),
        );
    }
    for subnet in all.iter().filter(|subnet| counted(subnet) < least) {
        report.refuse(
            field,
            format!(
                "{subnet} counts as {} addresses; expected at least {least}",
                counted(subnet)
            ),
        );
    }
    all
}

/// The addresses of a subnet as Kubernetes counts them (`RangeSize` of `k8s.io/utils/net`): none if all bits, or all but one, are free.
fn counted(subnet: &Subnet) -> i64 {
    match subnet.prefix {
        0 | 1 => 0,
        _ => subnet.size(),
    }
}

/// A subnet of pods holds whole subnets of nodes, and not too many.
fn node_mask(subnet: &Subnet, manager: &[Arg], field: &str, report: &mut Report) {
    let (name, default) = match subnet.bits() {
        32 => ("node-cidr-mask-size-ipv4", 24),
        _ => ("node-cidr-mask-size-ipv6", 64),
    };
    let mask = match argument(manager, name).filter(|value| !value.is_empty()) {
        None => Some(default),
        Some(text) => text.parse().ok(),
    };
    let Some(mask): Option<u32> = mask else {
        report.refuse(
            field,
            format!("the controller manager's argument {name} is not a number"),
        );
        return;
    };
    if subnet.prefix > mask {
        report.refuse(
            field,
            format!(
                "{subnet} is smaller than the subnet of one node, which has a prefix of {mask} bits"
            ),
        );
    } else if mask - subnet.prefix > NODE_BITS {
        let message = format!(
            "{subnet} is too large for nodes with a prefix of {mask} bits; expected at most {NODE_BITS} bits between both"
        );
        report.refuse(field, message);
    }
}
