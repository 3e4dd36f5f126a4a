//! `[dns] addresses`: where pods ask CoreDNS, in place of the tenth address of the services' subnet.

use std::net::IpAddr;

use crate::address::{self, Subnet};
use crate::report::{Position, Report};
use crate::yaml::{Content, Node};

/// The field.
const FIELD: &str = "dns.addresses";
/// The field of the subnets, as kubeadm has it.
const SERVICES: &str = "networking.serviceSubnet";
/// The number of the API server's address in the first subnet of services, `kubernetes.default.svc`.
const API_SERVER: i64 = 1;

/// An address, and where the object has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) at: Position,
    pub(super) address: IpAddr,
}

/// Reads an address, or a list of one of each IP version.
pub(super) fn read(node: &Node, report: &mut Report) -> Vec<Placed> {
    let items = match &node.content {
        Content::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    if items.is_empty() {
        let message = "expected an address, or one of each IP version";
        report.refuse_at(FIELD, node.at, message);
    }
    let mut found: Vec<Placed> = Vec::new();
    for item in items {
        let Some(text) = item.text() else {
            report.refuse_at(FIELD, item.at, "expected an address in quotes");
            continue;
        };
        let Some(address) = address::parse(text) else {
            let message = format!("{text:?} is not an address of IPv4 or IPv6");
            report.refuse_at(FIELD, item.at, message);
            continue;
        };
        let twin = |other: &Placed| other.address.is_ipv4() == address.is_ipv4();
        if found.iter().any(twin) {
            let message = format!("{address} is a second one; expected one of each IP version");
            report.refuse_at(FIELD, item.at, message);
            continue;
        }
        let at = item.at;
        found.push(Placed { at, address });
    }
    found
}

/// Refuses addresses that the API server would not give to a Service of these subnets, or has given to itself. Nothing is held
/// against subnets that are refused.
pub(super) fn check(addresses: &[Placed], services: &str, report: &mut Report) {
    if report.mistakes.iter().any(|one| one.field == SERVICES) {
        return;
    }
    let subnets = Subnet::parse_list(services);
    for Placed { at, address } in addresses {
        let subnet = subnets.iter().find(|subnet| subnet.contains(*address));
        let message = match subnet {
            None => format!("{address} is not in networks.services, {services}"),
            Some(_) if address::service_address(services, API_SERVER) == Some(*address) => {
                format!(
                    "{address} is the API server's own in networks.services; expected another one"
                )
            }
            Some(subnet) if is_reserved(subnet, *address) => {
                format!("no Service may have {address}, the first or the last one of {subnet}")
            }
            Some(_) => continue,
        };
        report.refuse_at(FIELD, *at, message);
    }
}

/// Whether the API server gives this address to no Service: the first one of a subnet, and of IPv4 the last one.
fn is_reserved(subnet: &Subnet, address: IpAddr) -> bool {
    let last = subnet.nth(subnet.size() - 1).filter(IpAddr::is_ipv4);
    address == subnet.first || last == Some(address)
}
