//! The addresses and routes of a link: fixed ones, and those of a lease.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use image::network::Interface;

use crate::address::{AddressState, covers};
use crate::lease::Lease;
use crate::link::Link;
use crate::log_once::LogOnce;
use crate::netlink::Netlink;
use crate::route::Route;

/// The metric of a route, to which the link's index is added: each link has its own routes, whatever networks they share. Below
/// those of the kernel's routes by routers' advertisements (1024) for what the configuration itself names, above for leases.
const FIXED_METRIC: u32 = 512;
const LEASED_METRIC: u32 = 2048;

/// Adds a fixed address to a link. False while duplicate address detection is under way: the kernel accepts no route through
/// such an address.
pub(crate) fn apply_fixed(
    netlink: &mut Netlink,
    index: u32,
    settings: &Interface,
    (address, prefix): (IpAddr, u8),
) -> Result<bool> {
    let peer = settings
        .peer
        .filter(|peer| peer.is_ipv4() == address.is_ipv4());
    netlink
        .add_peer(index, address, prefix, peer.unwrap_or(address))
        .with_context(|| format!("adding {address}/{prefix}"))?;
    if address.is_ipv4() {
        return Ok(true);
    }
    let state = netlink.address_state(index, address)?;
    ensure!(
        state != AddressState::Duplicate,
        "another host uses {address}"
    );
    Ok(state == AddressState::Ready)
}

/// Adds a route that the plan itself has to a link with these addresses.
pub(crate) fn apply_route(
    netlink: &mut Netlink,
    index: u32,
    route: Route,
    addresses: &[(IpAddr, u8)],
) -> Result<()> {
    let on_link = !covers(addresses, route.gateway);
    netlink.add_route(index, route, on_link, FIXED_METRIC + index)
}

/// Configures a link by a lease. A server's MTU is best effort: some offer one that the device does not support. So is each of
/// its routes, but a lease whose routes are all refused leads nowhere.
pub(crate) fn apply_lease(
    netlink: &mut Netlink,
    link: &Link,
    lease: &Lease,
    log: &mut LogOnce,
) -> Result<()> {
    if let Some(mtu) = lease.mtu
        && let Err(error) = netlink.set_mtu(link.index, mtu.into())
    {
        tracing::warn!("net: {}: MTU {mtu}: {error:#}", link.name);
    }
    for (address, prefix) in &lease.addresses {
        netlink
            .add_address(link.index, *address, *prefix)
            .with_context(|| format!("adding {address}/{prefix}"))?;
    }
    let is_near = |gateway: IpAddr| covers(&lease.addresses, gateway);
    let metric = LEASED_METRIC + link.index;
    let mut refused = 0;
    for route in &lease.routes {
        let done = netlink.add_route(link.index, *route, !is_near(route.gateway), metric);
        refused += usize::from(done.is_err());
        log.warn(done.with_context(|| format!("{}: adding the {route}", link.name)));
    }
    ensure!(
        refused == 0 || refused < lease.routes.len(),
        "the kernel takes none of its routes"
    );
    // The name servers of each link are asked over it, as by systemd-networkd (RoutesToDNS=). Best effort: a server may be
    // reached otherwise.
    for route in routes_to_resolvers(lease) {
        if let Err(error) = netlink.add_route(link.index, route, !is_near(route.gateway), metric) {
            tracing::debug!("net: {}: adding the {route}: {error:#}", link.name);
        }
    }
    Ok(())
}

/// A route to each name server of a lease that the addresses do not cover, through the gateway of the lease's closest route.
fn routes_to_resolvers(lease: &Lease) -> Vec<Route> {
    let far = lease.resolvers.iter();
    let far = far.filter(|resolver| !covers(&lease.addresses, **resolver));
    let route = |resolver: &IpAddr| {
        let routes = lease.routes.iter();
        let leading = routes.filter(|route| covers(&[(route.network, route.prefix)], *resolver));
        let closest = leading.max_by_key(|route| route.prefix)?;
        let is_enough = closest.prefix == 32 || closest.gateway.is_unspecified();
        (!is_enough).then_some(Route {
            network: *resolver,
            prefix: 32,
            gateway: closest.gateway,
        })
    };
    far.filter_map(route).collect()
}

/// Removes addresses of a lease from a link, as far as it has them.
pub(crate) fn remove_lease(netlink: &mut Netlink, link: &Link, addresses: &[(IpAddr, u8)]) {
    for (address, prefix) in addresses {
        if let Err(error) = netlink.remove_address(link.index, *address, *prefix) {
            tracing::debug!("net: {}: removing {address}: {error:#}", link.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_server_is_asked_through_the_closest_route() {
        let route = |network: &str, prefix: u8, gateway: &str| Route {
            network: address(network),
            prefix,
            gateway: address(gateway),
        };
        let resolvers = [
            "192.0.2.53",
            "198.51.100.53",
            "203.0.113.53",
            "203.0.113.54",
            "10.9.8.53",
            "2001:db8::53",
        ];
        let lease = Lease {
            addresses: vec![(address("10.9.8.77"), 24)],
            routes: vec![
                route("0.0.0.0", 0, "10.9.8.1"),
                route("198.51.100.0", 24, "10.9.8.2"),
                route("203.0.113.53", 32, "10.9.8.3"),
                route("203.0.113.0", 24, "0.0.0.0"),
            ],
            resolvers: resolvers.map(address).to_vec(),
            ..Lease::default()
        };
        let expected = [
            route("192.0.2.53", 32, "10.9.8.1"),
            route("198.51.100.53", 32, "10.9.8.2"),
        ];
        assert_eq!(routes_to_resolvers(&lease), expected);
    }
}
