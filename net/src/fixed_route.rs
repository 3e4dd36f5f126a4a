//! The routes that a plan itself has, by interface: before the handoff and in the files for systemd-networkd.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use image::network::{Interface, Network, Route as Planned};

use crate::address::covers;
use crate::route::Route;

/// The routes of an interface that has these addresses: its default route, those that name it, and those without a name whose
/// gateway it reaches.
pub(crate) fn fixed_routes(
    plan: &Network,
    one: &Interface,
    addresses: &[(IpAddr, u8)],
) -> Vec<Route> {
    let planned = plan.routes.iter().filter(|route| match &route.interface {
        Some(name) => one.name.as_ref() == Some(name),
        None => reaches(plan, one, addresses, route),
    });
    let planned = planned.map(|route| Route {
        network: route.network,
        prefix: route.prefix,
        gateway: route.gateway,
    });
    one.gateway
        .map(default)
        .into_iter()
        .chain(planned)
        .collect()
}

/// Whether a route without an interface is one of this interface: the gateway is in its network or, where no interface has
/// it in its network, taken as on the link.
fn reaches(plan: &Network, one: &Interface, addresses: &[(IpAddr, u8)], route: &Planned) -> bool {
    let gateway = route.gateway;
    let is_fixed = |(own, _): &(IpAddr, u8)| own.is_ipv4() == gateway.is_ipv4();
    let may_be_on_link = plan.interfaces.len() <= 1 || one.addresses.iter().any(is_fixed);
    let mut all = plan.interfaces.iter();
    covers(addresses, gateway)
        || (may_be_on_link
            && one.wants_address()
            && !all.any(|other| covers(&other.addresses, gateway)))
}

fn default(gateway: IpAddr) -> Route {
    let network = match gateway {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Route {
        network,
        prefix: 0,
        gateway,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::cmdline::Cmdline;

    /// The networks to which an interface of a command line has routes.
    fn routes(cmdline: &str, name: &str) -> Vec<String> {
        let plan = Cmdline::parse(cmdline).unwrap().network;
        let one = plan.interface(&[name.to_owned()]);
        let routes = fixed_routes(&plan, &one, &one.addresses);
        routes.iter().map(|one| one.network.to_string()).collect()
    }

    #[test]
    fn a_route_is_on_the_interface_that_reaches_its_gateway() {
        let two = "ip=192.0.2.7::192.0.2.1:24::eth0:off ip=198.51.100.7:::24::eth1:off";
        for (words, of_first, of_second) in [
            (
                "rd.route=10.0.0.0/8:198.51.100.9",
                vec!["0.0.0.0"],
                vec!["10.0.0.0"],
            ),
            (
                "rd.route=10.0.0.0/8:192.0.2.9",
                vec!["0.0.0.0", "10.0.0.0"],
                vec![],
            ),
            (
                "rd.route=10.0.0.0/8:192.0.2.9:eth1",
                vec!["0.0.0.0"],
                vec!["10.0.0.0"],
            ),
            // Nobody's network: on the link.
            (
                "rd.route=10.0.0.0/8:203.0.113.1",
                vec!["0.0.0.0", "10.0.0.0"],
                vec!["10.0.0.0"],
            ),
            (
                "rd.route=[2001:db8::/32]:[2001:db8::1]",
                vec!["0.0.0.0"],
                vec![],
            ),
        ] {
            let words = format!("{two} {words}");
            assert_eq!(routes(&words, "eth0"), of_first, "{words}");
            assert_eq!(routes(&words, "eth1"), of_second, "{words}");
        }
        let alone = "ip=eth0:dhcp rd.route=10.0.0.0/8:192.0.2.9";
        assert_eq!(routes(alone, "eth0"), ["10.0.0.0"]);
        assert_eq!(routes(alone, "eth1"), [""; 0]);
    }

    #[test]
    fn a_route_of_a_card_counts_whatever_the_kernel_calls_it() {
        let plan = Cmdline::parse("ip=dhcp rd.route=10.0.0.0/8:192.0.2.9:enp1s0");
        let plan = plan.unwrap().network;
        for (udevs, count) in [("enp1s0", 1), ("enp2s0", 0)] {
            let one = plan.interface(&["eth0".to_owned(), udevs.to_owned()]);
            assert_eq!(fixed_routes(&plan, &one, &[]).len(), count, "{udevs}");
        }
    }
}
