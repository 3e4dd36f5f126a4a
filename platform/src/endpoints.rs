//! Endpoints: where the vendors' metadata services are. Addresses are the vendors' own; tests put a server on loopback there.

use std::time::Duration;

/// Bases of the services' URLs, without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// EC2's instance metadata service, version 2.
    pub aws: String,
    /// Azure's instance metadata service.
    pub azure: String,
    /// How long Azure's service answers 404 and 410 while it is being updated.
    pub azure_updates: Duration,
    /// DigitalOcean's droplet metadata.
    pub digitalocean: String,
    /// The metadata server of Compute Engine, by address: names may not resolve this early.
    pub gcp: String,
    /// Hetzner's server metadata.
    pub hetzner: String,
    /// Nova's metadata service.
    pub openstack: String,
}

impl Default for Endpoints {
    fn default() -> Self {
        let link_local = || "http://169.254.169.254".to_owned();
        Self {
            aws: link_local(),
            azure: link_local(),
            azure_updates: Duration::from_secs(70),
            digitalocean: link_local(),
            gcp: link_local(),
            hetzner: link_local(),
            openstack: link_local(),
        }
    }
}
