//! What kubeadm asks of the machine that it runs on.

/// The folders beside `/etc/ssl/certs` that certificates of authorities may be linked to. The API server and the
/// controller manager mount those that exist.
pub const CA_FOLDERS: [&str; 5] = [
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// The facts of a machine that a rendering depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host name: the node's name if the configuration gives none.
    pub name: String,
    /// The address of the interface with the default route, if there is one: what the API server advertises if the
    /// configuration says nothing.
    pub address: Option<std::net::IpAddr>,
    /// The addresses of each interface that other machines can reach, in the kernel's order.
    pub interfaces: Vec<Vec<std::net::IpAddr>>,
    /// The socket of the container runtime, if the configuration names none.
    pub cri_socket: String,
    /// Those of [`CA_FOLDERS`] that exist.
    pub ca_folders: Vec<String>,
    /// Whether systemd-resolved runs.
    pub resolved: bool,
    /// What the machine's cloud calls it, as nodes have it (`spec.providerID`), where that is known.
    pub provider_id: Option<String>,
    /// Proxies of the environment (`HTTPS_PROXY` and the like), which the static pods are given.
    pub proxies: Vec<(String, String)>,
}

impl Host {
    /// A machine of Debian with the package `ca-certificates`, without systemd-resolved, and with containerd.
    #[must_use]
    pub fn debian(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            address: None,
            interfaces: Vec::new(),
            cri_socket: "unix:///var/run/containerd/containerd.sock".to_owned(),
            ca_folders: CA_FOLDERS[2..].iter().map(ToString::to_string).collect(),
            resolved: false,
            provider_id: None,
            proxies: Vec::new(),
        }
    }

    /// The address of the other IP version on the interface that has this one.
    #[must_use]
    pub fn second(&self, address: std::net::IpAddr) -> Option<std::net::IpAddr> {
        let mut interfaces = self.interfaces.iter();
        let own = interfaces.find(|own| own.contains(&address))?;
        let mut others = own.iter().copied();
        others.find(|other| other.is_ipv4() != address.is_ipv4())
    }

    /// A machine with an address of a network for documentation (RFC 5737): where an object is only checked, the machine
    /// that it is for is not there.
    #[must_use]
    pub fn of_documentation() -> Self {
        Self {
            address: Some(std::net::Ipv4Addr::new(192, 0, 2, 1).into()),
            ..Self::debian("node")
        }
    }
}
