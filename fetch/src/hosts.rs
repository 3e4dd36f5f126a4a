//! Metadata services by name. Their names resolve nowhere this early, their addresses are fixed, and some have one of each
//! version of IP: with both under one name the first that connects is used.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where most services are (RFC 3927).
const LINK_LOCAL: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Base of EC2's instance metadata service
/// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html>).
pub const EC2: &str = "http://instance-data.ec2.internal";
/// Base of Compute Engine's metadata server
/// (<https://cloud.google.com/compute/docs/metadata/querying-metadata>).
pub const COMPUTE: &str = "http://metadata.google.internal";
/// Base of OpenStack's metadata service; its address of version 6 is link-local, so that [`openstack`] makes it for the links
/// of a machine.
pub const OPENSTACK: &str = "http://metadata.openstack.internal";

/// Base of Azure's instance metadata service.
pub(crate) const AZURE: &str = "http://169.254.169.254";

const EC2_SIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
const COMPUTE_SIX: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);
/// Azure's wire server
/// (<https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16>).
const AZURE_WIRE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
/// <https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/gettingmetadata.htm>
const ORACLE_SIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe);
/// <https://www.scaleway.com/en/docs/instances/how-to/use-cloud-init/>
const SCALEWAY_SIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42);
/// <https://docs.openstack.org/neutron/latest/admin/config-ipv6.html>
const OPENSTACK_SIX: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe);

/// A name and its addresses, of port 0: the request's own counts.
pub type Host = (String, Vec<SocketAddr>);

/// The services whose addresses do not depend on the machine.
pub(crate) fn fixed() -> Vec<Host> {
    [(EC2, EC2_SIX), (COMPUTE, COMPUTE_SIX)]
        .into_iter()
        .map(|(base, six)| {
            let addresses: [IpAddr; 2] = [LINK_LOCAL.into(), six.into()];
            (
                name(base),
                addresses.map(|address| (address, 0).into()).to_vec(),
            )
        })
        .collect()
}

/// OpenStack's service on a machine whose links have these indices.
#[must_use]
pub fn openstack(links: &[u32]) -> Host {
    let four = SocketAddr::from((LINK_LOCAL, 0));
    let six = links
        .iter()
        .map(|index| std::net::SocketAddrV6::new(OPENSTACK_SIX, 0, 0, *index).into());
    (name(OPENSTACK), [four].into_iter().chain(six).collect())
}

/// What a request to a host of this list is to name as its host: the address, as by any other client.
pub(crate) fn header<'a>(hosts: &'a [Host], name: &str) -> Option<&'a SocketAddr> {
    let (_, addresses) = hosts.iter().find(|(own, _)| own == name)?;
    addresses.first()
}

/// Whether a URL's host is a metadata service by its name or address, or any other link-local address.
pub(crate) fn is_link_local(host: &str) -> bool {
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    let is_metadata = |address: IpAddr| is_metadata_address(address.to_canonical());
    of_metadata_service(host).is_some() || literal.parse().is_ok_and(is_metadata)
}

/// The address of a metadata service that this crate knows by name.
pub(crate) fn of_metadata_service(host: &str) -> Option<IpAddr> {
    let names = [EC2, COMPUTE, OPENSTACK].map(name);
    let is_one = names.iter().any(|name| name.eq_ignore_ascii_case(host));
    is_one.then_some(LINK_LOCAL.into())
}

/// Whether an address, in its canonical form, is link-local, or a vendor's service for its machines.
pub(crate) fn is_metadata_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.is_link_local() || four == AZURE_WIRE,
        IpAddr::V6(six) => {
            let vendors = [EC2_SIX, COMPUTE_SIX, ORACLE_SIX, SCALEWAY_SIX];
            six.is_unicast_link_local() || vendors.contains(&six)
        }
    }
}

fn name(base: &str) -> String {
    base.trim_start_matches("http://").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_are_known_by_any_form_of_their_address() {
        for host in [
            "169.254.169.254",
            "169.254.42.42",
            "[fe80::a9fe:a9fe]",
            "[::ffff:169.254.169.254]",
            "[fd00:ec2::254]",
            "168.63.129.16",
            "metadata.google.internal",
        ] {
            assert!(is_link_local(host), "{host}");
        }
        for host in ["127.0.0.1", "[fd00::1]", "r.example", ""] {
            assert!(!is_link_local(host), "{host}");
        }
    }

    #[test]
    fn services_have_an_address_of_each_version() {
        for (name, addresses) in fixed().into_iter().chain([openstack(&[2, 3])]) {
            assert_eq!(addresses[0].to_string(), "169.254.169.254:0", "{name}");
            assert!(addresses.len() > 1 && addresses[1..].iter().all(SocketAddr::is_ipv6));
        }
        assert_eq!(fixed()[0].1[1].to_string(), "[fd00:ec2::254]:0");
        assert_eq!(openstack(&[3]).1[1].to_string(), "[fe80::a9fe:a9fe%3]:0");
    }
}
