//! The hand-over to systemd-networkd: the plan of the init as configuration files, so that the running node has the same
//! network. Written at every boot, below `/run`; they sort before the image's own `80-dhcp.network`.

use std::fs;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use image::bond::PRIMARY;
use image::mac::Mac;
use image::network::{Bond, Interface, Method, Network};

use crate::address::covers;
use crate::fixed_route::fixed_routes;
use crate::identity::iaid;
use crate::route::Route;
use linux::mount;
use linux::world::World;

/// Takes precedence over the same folder below `/usr/lib` (systemd.network(5)).
const FOLDER: &str = "/run/systemd/network";
/// Sorts after an administrator's files and before the image's.
const PREFIX: &str = "70-slipway";
/// Sorts after those of one link.
const LATER_PREFIX: &str = "75-slipway";
/// systemd's `99-default.link`, but each card keeps the kernel's name, and has udev's names beside it.
const KERNEL_NAMES: &str = "[Match]\nOriginalName=eth*\n\n[Link]\nNamePolicy=keep kernel\n\
    AlternativeNamesPolicy=database onboard slot path mac\nMACAddressPolicy=persistent\n";

/// Writes the files, and sets the host name if the plan has one.
pub(crate) fn hand_over(world: &World, plan: &Network) -> Result<()> {
    if plan.is_default() {
        return Ok(());
    }
    let folder = world.in_run(FOLDER);
    mount::folder(&folder, 0o755)?;
    for (name, text) in files(plan) {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let name = plan.interfaces.iter().find_map(|one| one.hostname.as_ref());
    if let Some(name) = name {
        nix::unistd::sethostname(name).with_context(|| format!("naming the node {name}"))?;
    }
    Ok(())
}

/// The files by name.
fn files(plan: &Network) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (name, mac) in &plan.names {
        out.push((
            format!("{PREFIX}-{name}.link"),
            format!("[Match]\nPermanentMACAddress={mac}\n\n[Link]\nName={name}\n"),
        ));
    }
    for vlan in &plan.vlans {
        let text = format!(
            "[NetDev]\nName={}\nKind=vlan\n\n[VLAN]\nId={}\n",
            vlan.name, vlan.id
        );
        out.push((format!("{PREFIX}-{}.netdev", vlan.name), text));
    }
    for bond in &plan.bonds {
        out.push((format!("{PREFIX}-{}.netdev", bond.name), netdev(bond)));
    }
    if has_kernel_names(plan) {
        out.push((format!("{LATER_PREFIX}.link"), KERNEL_NAMES.to_owned()));
    }
    for name in interfaces(plan) {
        let one = plan.interface(std::slice::from_ref(&name));
        let (line, body) = (match_line(plan, &name), body(plan, &name, &one));
        let text = format!("[Match]\n{line}\n\n{body}");
        out.push((format!("{PREFIX}-{name}.network"), text));
    }
    if let Some(one) = general(plan) {
        let body = body(plan, "", &one);
        let text = format!("[Match]\nType=ether\nKind=!*\n\n{body}");
        out.push((format!("{LATER_PREFIX}.network"), text));
    }
    out
}

/// The settings of the links that no word names, if they differ from the image's own.
fn general(plan: &Network) -> Option<Interface> {
    let unnamed = plan.interfaces.iter().find(|one| one.name.is_none());
    let has_routes = plan.routes.iter().any(|route| route.interface.is_none());
    let differs = plan.interfaces.is_empty() && (has_routes || !plan.resolvers.is_empty());
    let default = differs.then(Interface::default);
    unnamed.cloned().or(default)
}

/// How systemd-networkd finds the link of this name on the running node: the line of a `[Match]` section. From the name alone:
/// a later boot loads no driver of a network card before the handoff.
fn match_line(plan: &Network, name: &str) -> String {
    match address_of(plan, name) {
        // A bond or a VLAN above it shows the same current address.
        Some(mac) => format!("PermanentMACAddress={mac}"),
        // udev adds the name of a port, which the init does without.
        None if name.starts_with("en") => format!("Name={name} {name}np*"),
        None => format!("Name={name}"),
    }
}

/// The Ethernet address of the link that a name refers to, if the name tells: an alias, or udev's name by address, which
/// udev derives for no member of a bond, since that shows the bond's address.
fn address_of(plan: &Network, name: &str) -> Option<Mac> {
    if let Some((_, mac)) = plan.aliases.iter().find(|(alias, _)| alias == name) {
        return Some(*mac);
    }
    let digits = name.strip_prefix("enx")?;
    let bytes = HEXLOWER.decode(digits.as_bytes()).ok()?;
    bytes.try_into().ok().map(Mac)
}

/// Whether the plan refers to a card by the kernel's name (`eth0`). All cards keep these names then: the kernel gives the lowest
/// free number, which depends on the cards before.
fn has_kernel_names(plan: &Network) -> bool {
    let bonds = plan.bonds.iter().map(|bond| &bond.name);
    let vlans = plan.vlans.iter().map(|vlan| &vlan.name);
    let given = plan.names.iter().chain(&plan.aliases).map(|(name, _)| name);
    let made: Vec<&String> = bonds.chain(vlans).chain(given).collect();
    interfaces(plan).iter().any(|name| {
        let digits = name.strip_prefix("eth").unwrap_or_default();
        let is_kernels = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_kernels && !made.contains(&name)
    })
}

/// Every interface that the plan names, in a route too if it gets an address.
fn interfaces(plan: &Network) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let named = plan.interfaces.iter().filter_map(|one| one.name.clone());
    let below = plan
        .vlans
        .iter()
        .flat_map(|v| [v.name.clone(), v.parent.clone()]);
    let bonds = plan
        .bonds
        .iter()
        .flat_map(|bond| bond.members.iter().chain([&bond.name]).cloned());
    let routed = plan
        .routes
        .iter()
        .filter_map(|route| route.interface.clone())
        .filter(|name| plan.interface(std::slice::from_ref(name)).wants_address());
    for name in named.chain(below).chain(bonds).chain(routed) {
        if !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

fn netdev(bond: &Bond) -> String {
    let mut text = format!("[NetDev]\nName={}\nKind=bond\n", bond.name);
    if let Some(mtu) = bond.mtu {
        text += &format!("MTUBytes={mtu}\n");
    }
    text += "\n[Bond]\n";
    for (key, value) in &bond.options {
        match image::bond::networkd(key, value) {
            Some(line) => text += &format!("{line}\n"),
            // It stands in the member's own file.
            None if key == PRIMARY => {}
            None => tracing::warn!(
                "net: {}: systemd-networkd has no word for {key}; the running node's bond has its default",
                bond.name
            ),
        }
    }
    text
}

/// The sections of a `.network` file after `[Match]`.
fn body(plan: &Network, name: &str, one: &Interface) -> String {
    let mut text = link_section(one);
    text += "[Network]\n";
    for vlan in plan.vlans.iter().filter(|vlan| vlan.parent == name) {
        text += &format!("VLAN={}\n", vlan.name);
    }
    let bond = plan
        .bonds
        .iter()
        .find(|bond| bond.members.iter().any(|member| member == name));
    if let Some(bond) = bond {
        text += &format!("Bond={}\n", bond.name);
        let primary = bond.options.iter().find(|(key, _)| key == PRIMARY);
        if primary.is_some_and(|(_, primary)| primary == name) {
            text += "PrimarySlave=yes\n";
        }
        // A member of a bond has no addresses.
        return text;
    }
    text += method(one.method);
    for resolver in &plan.resolvers {
        text += &format!("DNS={resolver}\n");
    }
    for (address, prefix) in &one.addresses {
        text += &format!("\n[Address]\nAddress={address}/{prefix}\n");
        if let Some(peer) = one.peer.filter(|peer| peer.is_ipv4() == address.is_ipv4()) {
            text += &format!("Peer={peer}\n");
        }
    }
    for route in fixed_routes(plan, one, &one.addresses) {
        let Route {
            network,
            prefix,
            gateway,
        } = route;
        text += &format!("\n[Route]\nDestination={network}/{prefix}\nGateway={gateway}\n");
        if !covers(&one.addresses, gateway) {
            text += "GatewayOnLink=yes\n";
        }
    }
    text + &dhcp_sections(plan, name, one)
}

/// `[Link]`, unless it is empty.
fn link_section(one: &Interface) -> String {
    let mut link = String::new();
    if let Some(mtu) = one.mtu {
        link += &format!("MTUBytes={mtu}\n");
    }
    if let Some(mac) = one.mac {
        link += &format!("MACAddress={mac}\n");
    }
    match link.is_empty() {
        true => link,
        false => format!("[Link]\n{link}\n"),
    }
}

const fn method(method: Method) -> &'static str {
    match method {
        Method::Off => "DHCP=no\nIPv6AcceptRA=no\n",
        Method::Dhcp4 => "DHCP=ipv4\n",
        Method::Dhcp6 | Method::Either6 => "DHCP=ipv6\nIPv6AcceptRA=yes\n",
        // networkd starts DHCPv6 where a router advertisement asks for it, whatever DHCP= is (systemd.network(5)).
        Method::Auto6 => "DHCP=no\nIPv6AcceptRA=yes\n",
        Method::Both => "DHCP=yes\nIPv6AcceptRA=yes\n",
    }
}

/// The identifiers of [`crate::identity`], so that the leases stay the same, and the MTU as before the handoff.
fn dhcp_sections(plan: &Network, name: &str, one: &Interface) -> String {
    let mut text = "\n[DHCPv4]\nClientIdentifier=mac\n".to_owned();
    if one.method.asks_four() && !plan.has_mtu(one) {
        text += "UseMTU=yes\n";
    }
    if one.method.asks_six() || one.method.hears_routers() {
        let iaid = iaid(plan, name);
        text += &format!("\n[DHCPv6]\nDUIDType=link-layer\nIAID={iaid}\n");
    }
    if one.method.asks_six() {
        text += "WithoutRA=solicit\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::cmdline::Cmdline;

    fn written(cmdline: &str) -> Vec<(String, String)> {
        let plan = Cmdline::parse(cmdline).unwrap().network;
        files(&plan)
    }

    #[test]
    fn a_fixed_address_is_handed_over() {
        let files = written(
            "ip=192.0.2.7::192.0.2.1:24:node7:enp1s0:off:1400 nameserver=192.0.2.53 \
             rd.route=198.51.100.0/24:192.0.2.9:enp1s0",
        );
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].0, "70-slipway-enp1s0.network");
        assert_eq!(
            files[0].1,
            "[Match]\nName=enp1s0 enp1s0np*\n\n[Link]\nMTUBytes=1400\n\n[Network]\nDHCP=no\nIPv6AcceptRA=no\n\
             DNS=192.0.2.53\n\n[Address]\nAddress=192.0.2.7/24\n\n[Route]\n\
             Destination=0.0.0.0/0\nGateway=192.0.2.1\n\n[Route]\n\
             Destination=198.51.100.0/24\nGateway=192.0.2.9\n\n[DHCPv4]\nClientIdentifier=mac\n"
        );
    }

    /// The init sets it on the link; systemd-networkd refuses it without this word.
    #[test]
    fn a_gateway_outside_of_the_own_network_is_handed_over() {
        let files = written("ip=192.0.2.7::198.51.100.1:32::eth0:off");
        let file = files
            .iter()
            .find(|(name, _)| name == "70-slipway-eth0.network");
        let text = &file.unwrap().1;
        let route = "[Route]\nDestination=0.0.0.0/0\nGateway=198.51.100.1\nGatewayOnLink=yes\n";
        assert!(text.contains(route), "{text}");
    }

    #[test]
    fn a_vlan_over_a_bond_is_handed_over() {
        let files = written(
            "bond=bond0:ens3,ens4:mode=active-backup,miimon=100,primary=ens4 vlan=vlan5:bond0 ip=vlan5:dhcp",
        );
        let file = |name: &str| {
            files
                .iter()
                .find(|(own, _)| own == name)
                .map(|(_, text)| text.as_str())
                .unwrap_or_else(|| panic!("{name} in {files:?}"))
        };
        assert!(
            file("70-slipway-bond0.netdev").contains("Mode=active-backup\nMIIMonitorSec=100ms")
        );
        assert!(file("70-slipway-vlan5.netdev").contains("Kind=vlan\n\n[VLAN]\nId=5"));
        assert!(file("70-slipway-bond0.network").contains("VLAN=vlan5\nDHCP=no"));
        assert!(file("70-slipway-vlan5.network").contains("DHCP=ipv4"));
        assert!(file("70-slipway-ens4.network").contains("Bond=bond0\nPrimarySlave=yes"));
        assert!(!file("70-slipway-ens3.network").contains("DHCP"));
        assert!(files.iter().all(|(_, text)| text.ends_with('\n')));
    }

    #[test]
    fn name_servers_and_routes_without_an_ip_are_handed_over() {
        let files = written("nameserver=192.0.2.53 rd.route=198.51.100.0/24:192.0.2.9");
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].0, "75-slipway.network");
        let begin = "[Match]\nType=ether\nKind=!*\n\n[Network]\nDHCP=yes\nIPv6AcceptRA=yes\n\
            DNS=192.0.2.53\n\n[Route]\nDestination=198.51.100.0/24\nGateway=192.0.2.9\n";
        assert!(files[0].1.starts_with(begin), "{}", files[0].1);

        let files = written("ip=dhcp rd.route=198.51.100.0/24:192.0.2.9:enp1s0");
        let [(name, of_one), (later, of_all)] = files.as_slice() else {
            panic!("{files:?}");
        };
        assert_eq!(name, "70-slipway-enp1s0.network");
        assert!(of_one.contains("DHCP=ipv4\n"), "{of_one}");
        assert!(of_one.contains("\nGateway=192.0.2.9\n"), "{of_one}");
        assert_eq!(later, "75-slipway.network");
        assert!(!of_all.contains("[Route]"), "{of_all}");

        // Before the handoff this one has no address either.
        let files = written("ip=ens3:dhcp rd.route=198.51.100.0/24:192.0.2.9:ens4");
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].0, "70-slipway-ens3.network");
    }

    #[test]
    fn a_servers_mtu_is_used_unless_the_plan_has_one() {
        for (words, used) in [
            ("ip=eth0:dhcp", true),
            ("ip=dhcp", true),
            ("ip=eth0:both", true),
            ("ip=eth0:dhcp:1400", false),
            ("ip=eth0:dhcp6", false),
            ("bond=bond0:ens3,ens4 ip=bond0:dhcp", true),
            ("bond=bond0:ens3,ens4:mode=1:1450 ip=bond0:dhcp", false),
        ] {
            let files = written(words);
            let is_used =
                |text: &str| text.contains("\n[DHCPv4]\nClientIdentifier=mac\nUseMTU=yes\n");
            let found = files.iter().any(|(_, text)| is_used(text));
            assert_eq!(found, used, "{words}: {files:?}");
        }
    }

    #[test]
    fn names_and_all_interfaces_are_handed_over() {
        let files = written("ifname=uplink:52:54:00:12:34:56 ip=auto6");
        assert_eq!(files[0].0, "70-slipway-uplink.link");
        assert!(files[1].1.contains("IPv6AcceptRA=yes"), "{files:?}");
        assert!(written("quiet").is_empty());
    }

    /// A later boot has no cards before the handoff.
    #[test]
    fn links_are_found_by_their_names_alone() {
        let mut plan = Cmdline::parse("quiet").unwrap().network;
        plan.aliases = vec![("lan".to_owned(), "52:54:00:12:34:56".parse().unwrap())];
        for (name, line) in [
            ("lan", "PermanentMACAddress=52:54:00:12:34:56"),
            ("enx52540012345a", "PermanentMACAddress=52:54:00:12:34:5a"),
            ("enx52540012345", "Name=enx52540012345 enx52540012345np*"),
            ("enp1s0", "Name=enp1s0 enp1s0np*"),
            ("eth0", "Name=eth0"),
        ] {
            assert_eq!(match_line(&plan, name), line);
        }
    }

    #[test]
    fn the_kernels_names_are_kept_where_the_plan_has_one() {
        for (words, kept) in [
            ("ip=eth0:dhcp", true),
            ("bond=bond0:eth0,eth1 ip=bond0:dhcp", true),
            ("vlan=eth1.5:eth1 ip=eth1.5:dhcp", true),
            ("ip=ens3:dhcp", false),
            ("ip=dhcp", false),
            ("bond=eth7:ens3,ens4 ip=eth7:dhcp", false),
            ("ifname=eth0:52:54:00:12:34:56 ip=eth0:dhcp", false),
        ] {
            let files = written(words);
            let file = files.iter().find(|(name, _)| name == "75-slipway.link");
            assert_eq!(file.is_some(), kept, "{words}");
        }
    }

    #[test]
    fn version_6_keeps_its_identity() {
        let text = |words: &str, name: &str| {
            let files = written(words);
            let file = files.into_iter().find(|(own, _)| own == name);
            file.unwrap_or_else(|| panic!("{name}")).1
        };
        let same = "\n[DHCPv6]\nDUIDType=link-layer\nIAID=0\n";
        let asked = text("ip=eth0:dhcp6", "70-slipway-eth0.network");
        assert!(asked.contains("DHCP=ipv6\nIPv6AcceptRA=yes\n"), "{asked}");
        assert!(
            asked.ends_with(&format!("{same}WithoutRA=solicit\n")),
            "{asked}"
        );
        let heard = text("ip=auto6", "75-slipway.network");
        assert!(heard.ends_with(same), "{heard}");
        let tagged = text(
            "vlan=vlan7:eth0 ip=vlan7:either6",
            "70-slipway-vlan7.network",
        );
        assert!(tagged.contains("IAID=7\nWithoutRA=solicit\n"), "{tagged}");
    }
}
