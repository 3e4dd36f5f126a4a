//! The machines of a cluster on this host: each with a card for the network between them, and its config.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use cluster::address::Subnet;
use serde_json::{Map, Value, json};

use super::node::{self, Own, Part};
use super::object::ClusterFile;
use super::secrets::Secrets;
use crate::vm::agent::{Secret, Start, data_url};

/// The network between the machines, with this many bits: no other way leads there.
const NETWORK: ([u8; 3], u8) = ([10, 77, 0], 24);
/// The same of IPv6 (RFC 4193), for clusters with such subnets.
const NETWORK_6: (u16, u8) = (0xfd77, 64);
/// The last octet of the first machine's address.
const FIRST: u8 = 11;
/// The most machines: more have no room on one host.
pub const MOST: u8 = 20;
/// The port of the API server unless the object names another one.
pub const API: u16 = 6443;
/// How long a part of the control plane may take to start. Begun anew after kubeadm's four minutes, it would never come up on a
/// loaded host without KVM.
pub(crate) const START: &str = "20m";
/// etcd's times, ms; the second is at least five times the first
/// (<https://etcd.io/docs/v3.6/tuning/#time-parameters>). The defaults are 100 and 1000.
const PATIENT: [(&str, &str); 2] = [
    ("heartbeat-interval", "1000"),
    ("election-timeout", "10000"),
];
/// How long the controller manager and the scheduler lead without a word, and how often they say one: by default 15, 10 and 2 s.
/// Whoever has not renewed its lease in time ends, and the kubelet begins it anew after a pause.
const LEASES: [(&str, &str); 3] = [
    ("leader-elect-lease-duration", "90s"),
    ("leader-elect-renew-deadline", "60s"),
    ("leader-elect-retry-period", "5s"),
];
/// The network's configuration on a node, before the image's own for all cards.
const NETWORK_FILE: &str = "/etc/systemd/network/05-slipway-peers.network";

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name and its node's.
    pub name: String,
    /// What it is in the cluster.
    pub part: Part,
    /// Its addresses between the machines: one of each IP version that the cluster has, first the one by which the node is known.
    pub addresses: Vec<IpAddr>,
    /// The Ethernet address of its card there.
    pub mac: String,
}

/// The machines of this cluster: the control planes, then the workers.
///
/// # Errors
/// If there is no control plane, or they are too many.
pub fn members(file: &ClusterFile, control_planes: u8, workers: u8) -> Result<Vec<Member>> {
    ensure!(control_planes > 0, "a cluster has a control plane at least");
    let all = control_planes.saturating_add(workers);
    ensure!(
        all <= MOST,
        "{all} machines are too many for one host; expected at most {MOST}"
    );
    let part = |number| match number {
        0 => (Part::First, "cp1".to_owned()),
        number if number < control_planes => (Part::Further, format!("cp{}", number + 1)),
        number => (Part::Worker, format!("w{}", number - control_planes + 1)),
    };
    let members = (0..all).map(|number| {
        let (part, name) = part(number);
        Member::new(file, number, name, part)
    });
    Ok(members.collect())
}

/// The addresses of a machine, one of each version of which the cluster has subnets, in the order of those of services.
fn addresses(file: &ClusterFile, number: u8) -> Vec<IpAddr> {
    let last = FIRST + number;
    let ([a, b, c], _) = NETWORK;
    let (first, _) = NETWORK_6;
    let networks = &file.config().cluster.networking;
    let subnets = [&networks.service_subnet, &networks.pod_subnet].into_iter();
    let mut all: Vec<IpAddr> = Vec::new();
    for subnet in subnets.flat_map(|text| Subnet::parse_list(text)) {
        let address = match subnet.first {
            IpAddr::V4(_) => IpAddr::from([a, b, c, last]),
            IpAddr::V6(_) => IpAddr::from([first, 0, 0, 0, 0, 0, 0, last.into()]),
        };
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

impl Member {
    fn new(file: &ClusterFile, number: u8, name: String, part: Part) -> Self {
        Self {
            name,
            part,
            addresses: addresses(file, number),
            mac: format!("52:54:00:51:1c:{:02x}", FIRST + number),
        }
    }

    /// The config of its first boot.
    ///
    /// # Errors
    /// As [`node::config`].
    pub fn config(&self, file: &ClusterFile, secrets: &Secrets, agent: &Secret) -> Result<Value> {
        let own = Own {
            name: Some(self.name.clone()),
            address: self.addresses.first().map(ToString::to_string),
        };
        let mut config = node::config(file, secrets, self.part, &own)?;
        let network = json!({
            "path": NETWORK_FILE,
            "mode": 0o644,
            "contents": {"source": data_url(self.network().as_bytes())},
        });
        let files = config["storage"]["files"]
            .as_array_mut()
            .context("a config without files")?;
        files.push(network);
        let agent = agent.config(Start::WithServices);
        files.extend(
            agent["storage"]["files"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
        config["systemd"] = agent["systemd"].clone();
        config["ignition"] = agent["ignition"].clone();
        Ok(config)
    }

    fn network(&self) -> String {
        // Its neighbours of IPv6 know a card by its link-local address.
        let local = match self.addresses.iter().any(IpAddr::is_ipv6) {
            true => "ipv6",
            false => "no",
        };
        let mut text = format!(
            "[Match]\nMACAddress={}\n\n[Network]\nLinkLocalAddressing={local}\nIPv6AcceptRA=no\n",
            self.mac
        );
        for address in &self.addresses {
            let bits = if address.is_ipv4() {
                NETWORK.1
            } else {
                NETWORK_6.1
            };
            // Nobody else is on this network.
            text +=
                &format!("\n[Address]\nAddress={address}/{bits}\nDuplicateAddressDetection=none\n");
        }
        text
    }
}

/// The object as the machines are given it: its endpoint is the control plane's address between them, and the API server's
/// certificate is for the endpoint of the file and for this host too. Several members of etcd wait longer for each other than
/// by default, and leases of the controller manager and the scheduler last longer, unless the file says how long: they share this
/// host's processors, under software emulation at a twentieth of their speed.
///
/// # Errors
/// If the file's fields are of other types than its rules say.
pub fn local(file: &ClusterFile, control_planes: u8) -> Result<ClusterFile> {
    let mut fields = file.fields();
    if control_planes > 1 {
        arguments(&mut fields, "etcd", &PATIENT)?;
    }
    for leader in ["controller-manager", "scheduler"] {
        arguments(&mut fields, leader, &LEASES)?;
    }
    fields
        .entry("start-timeout")
        .or_insert_with(|| json!(START));
    let server = fields.entry("api-server").or_insert_with(|| json!({}));
    let server = server
        .as_object_mut()
        .context("api-server is not a table")?;
    let port = server
        .get("port")
        .and_then(Value::as_u64)
        .unwrap_or(API.into());
    let names = server.entry("sans").or_insert_with(|| json!([]));
    let names = names
        .as_array_mut()
        .context("api-server.sans is not a list")?;
    names.extend([json!("localhost"), json!("127.0.0.1")]);
    if let Ok(endpoint) = file.endpoint() {
        let host = cluster::address::host_and_port(endpoint).map_or(endpoint, |(host, _)| host);
        names.push(json!(host));
    }
    let port = u16::try_from(port).context("api-server.port is no port")?;
    let first = addresses(file, 0);
    let first = first
        .first()
        .context("the cluster has no subnet of services")?;
    let endpoint = SocketAddr::new(*first, port);
    fields.insert("endpoint".to_owned(), json!(endpoint.to_string()));
    let text = serde_json::to_string(&fields)?;
    ClusterFile::parse(file.path(), &text)
}

/// Gives a component arguments that the file does not.
fn arguments(fields: &mut Map<String, Value>, table: &str, given: &[(&str, &str)]) -> Result<()> {
    let component = fields.entry(table).or_insert_with(|| json!({}));
    let component = component
        .as_object_mut()
        .with_context(|| format!("{table} is not a table"))?;
    let arguments = component.entry("args").or_insert_with(|| json!({}));
    let arguments = arguments
        .as_object_mut()
        .with_context(|| format!("{table}.args is not a table"))?;
    for (name, value) in given {
        arguments.entry(*name).or_insert_with(|| json!(value));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;
    use crate::recipe::node_config;

    #[test]
    fn each_machine_has_a_config_with_addresses_of_its_own() {
        let text = "name = \"blue\"\nendpoint = \"api.example.test\"\n";
        let file = ClusterFile::parse(Path::new("blue.toml"), text).unwrap();
        let secrets = Secrets::make(file.config(), SystemTime::now()).unwrap();
        let alone = local(&file, 1).unwrap();
        assert_eq!(alone.fields().get("etcd"), None);
        for leader in ["controller-manager", "scheduler"] {
            let arguments = &alone.fields()[leader]["args"];
            assert_eq!(arguments["leader-elect-renew-deadline"], "60s");
        }
        let timeouts = &alone.config().init.timeouts;
        let limit = timeouts.control_plane_component_health_check;
        assert_eq!(
            limit.map(|limit| limit.to_string()).as_deref(),
            Some("20m0s")
        );
        let own = ClusterFile::parse(
            Path::new("blue.toml"),
            "name = \"blue\"\nendpoint = \"a.test\"\nstart-timeout = \"1m\"\n",
        );
        assert_eq!(
            local(&own.unwrap(), 1).unwrap().fields()["start-timeout"],
            "1m"
        );
        let file = local(&file, 2).unwrap();
        assert_eq!(
            file.fields()["etcd"]["args"]["election-timeout"],
            json!("10000")
        );
        assert_eq!(file.endpoint().unwrap(), "10.77.0.11:6443");
        let sans = &file.config().cluster.api_server.cert_sans;
        assert_eq!(*sans, ["localhost", "127.0.0.1", "api.example.test"]);
        let members = members(&file, 2, 2).unwrap();
        let named: Vec<_> = members
            .iter()
            .map(|member| (member.name.as_str(), member.addresses[0].to_string()))
            .collect();
        let named: Vec<_> = named
            .iter()
            .map(|(name, address)| (*name, &**address))
            .collect();
        assert_eq!(
            named,
            [
                ("cp1", "10.77.0.11"),
                ("cp2", "10.77.0.12"),
                ("w1", "10.77.0.13"),
                ("w2", "10.77.0.14")
            ]
        );
        let agent = Secret::new().unwrap();
        for member in &members {
            let config = member.config(&file, &secrets, &agent).unwrap().to_string();
            let verdict = node_config::check(config.as_bytes(), "x", None);
            assert!(verdict.report.entries.is_empty(), "{}", verdict.report);
            assert!(
                config.contains("slipway%2Dagent%2Eservice") || config.contains("slipway-agent"),
                "{config}"
            );
        }
        assert!(members[1].network().contains("Address=10.77.0.12/24\n"));
        let parts: Vec<Part> = members.iter().map(|member| member.part).collect();
        assert_eq!(
            parts,
            [Part::First, Part::Further, Part::Worker, Part::Worker]
        );
        for (control_planes, workers) in [(1, 20), (200, 200)] {
            let error = super::members(&file, control_planes, workers)
                .unwrap_err()
                .to_string();
            assert!(error.contains("at most 20"), "{error}");
        }
        assert!(super::members(&file, 0, 1).is_err());
    }

    /// By the first subnet of services the nodes are known, and of each version there is an address.
    #[test]
    fn machines_have_an_address_of_each_version_of_their_cluster() {
        let of = |subnets: &str| {
            let text = format!("name = \"blue\"\n[networks]\n{subnets}\n");
            let file = ClusterFile::parse(Path::new("blue.toml"), &text).unwrap();
            let local = local(&file, 1).unwrap();
            let member = members(&local, 1, 1).unwrap().remove(1);
            let lines: Vec<String> = member
                .network()
                .lines()
                .filter_map(|line| line.strip_prefix("Address=").map(str::to_owned))
                .collect();
            (local.endpoint().unwrap().to_owned(), lines.join(" "))
        };
        let (endpoint, addresses) = of(
            "pods = [\"10.5.0.0/16\", \"fd00:5::/48\"]\nservices = [\"10.6.0.0/16\", \"fd00:6::/112\"]",
        );
        assert_eq!(
            (&*endpoint, &*addresses),
            ("10.77.0.11:6443", "10.77.0.12/24 fd77::c/64")
        );
        let (endpoint, addresses) = of("pods = \"fd00:5::/48\"\nservices = \"fd00:6::/112\"");
        assert_eq!((&*endpoint, &*addresses), ("[fd77::b]:6443", "fd77::c/64"));
    }
}
