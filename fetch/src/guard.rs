//! Where a registry may send this machine for a token. The registry chooses the address, so it must not lead to a metadata
//! service, nor to a service of this machine, by whatever name: the addresses of a name are checked where it is looked up.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;

use crate::hosts;

/// The rules for the token services of one registry.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    /// The host that the user named: it may be anywhere.
    registry: String,
    /// Whether the registry itself is on loopback.
    is_local: bool,
    /// The hosts that are asked. Other names that a pool looks up are those of proxies, which the user named.
    asked: Arc<Mutex<BTreeSet<String>>>,
}

/// A host that is refused for its address.
#[derive(Debug)]
pub(crate) struct Forbidden {
    host: String,
    address: IpAddr,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address } = self;
        write!(
            f,
            "the registry's token service {host} is at {address}: a metadata service, a link-local address or this machine"
        )
    }
}

impl std::error::Error for Forbidden {}

impl Guard {
    /// The rules for the registry of this URL, whose scheme is http on loopback only.
    pub(crate) fn new(registry: &str) -> Self {
        let url = Url::parse(registry).ok();
        let host = url.as_ref().and_then(Url::host_str);
        Self {
            registry: host.unwrap_or_default().to_owned(),
            is_local: url.as_ref().is_some_and(|url| url.scheme() == "http"),
            asked: Arc::default(),
        }
    }

    /// Refuses an address by its host; one with a name is asked if the name's addresses are allowed.
    pub(crate) fn admit(&self, url: &Url) -> Result<(), Forbidden> {
        let host = url.host_str().unwrap_or_default();
        if host == self.registry {
            return Ok(());
        }
        let literal = host.trim_matches(['[', ']']).parse();
        if let Ok(address) = literal {
            return self.check(host, &[SocketAddr::new(address, 0)]);
        }
        if let Some(address) = hosts::of_metadata_service(host) {
            let host = host.to_owned();
            return Err(Forbidden { host, address });
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert(host.to_owned());
        Ok(())
    }

    /// Refuses a host that has one of these addresses.
    fn check(&self, host: &str, addresses: &[SocketAddr]) -> Result<(), Forbidden> {
        let is_here = |address: IpAddr| address.is_loopback() || address.is_unspecified();
        let mut addresses = addresses.iter().map(|address| address.ip().to_canonical());
        let refused = addresses.find(|address| {
            hosts::is_metadata_address(*address) || (!self.is_local && is_here(*address))
        });
        let host = host.to_owned();
        refused.map_or(Ok(()), |address| Err(Forbidden { host, address }))
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let this = self.clone();
        Box::pin(async move {
            let name = name.as_str();
            let found: Vec<SocketAddr> = lookup_host((name, 0)).await?.collect();
            let asked = this.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.contains(name) {
                this.check(name, &found)?;
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(guard: &Guard, url: &str) -> bool {
        guard.admit(&Url::parse(url).unwrap()).is_ok()
    }

    fn resolves(guard: &Guard, name: &str) -> Result<usize, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let found = runtime.block_on(guard.resolve(name.parse().unwrap()));
        found
            .map(Iterator::count)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_are_refused_whoever_has_them() {
        let guard = Guard::new("https://registry.example/v2/a");
        for (address, refused) in [
            ("169.254.169.254", true),
            ("fe80::a9fe:a9fe", true),
            ("::ffff:169.254.169.254", true),
            ("fd00:ec2::254", true),
            ("168.63.129.16", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("0.0.0.0", true),
            ("10.0.0.7", false),
            ("203.0.113.9", false),
            ("fd00::7", false),
        ] {
            let all = ["203.0.113.1", address].map(|text| (text.parse::<IpAddr>().unwrap(), 0));
            let found = guard.check("auth.example", &all.map(SocketAddr::from));
            assert_eq!(found.is_err(), refused, "{address}");
            if let Err(why) = found {
                assert!(why.to_string().contains("auth.example is at"), "{why}");
            }
        }
    }

    #[test]
    fn a_name_is_refused_by_its_addresses_where_it_is_looked_up() {
        let guard = Guard::new("https://registry.example/v2/a");
        assert!(resolves(&guard, "localhost").unwrap() > 0, "a proxy's name");
        assert!(admits(&guard, "https://localhost/token"));
        let why = resolves(&guard, "localhost").unwrap_err();
        assert!(why.contains("token service localhost is at"), "{why}");
        // The registry is where the user says that it is.
        let named = Guard::new("https://localhost/v2/a");
        assert!(admits(&named, "https://localhost/token"));
        assert!(resolves(&named, "localhost").unwrap() > 0);
    }

    #[test]
    fn literal_addresses_and_metadata_services_are_refused_at_once() {
        let guard = Guard::new("https://registry.example/v2/a");
        for (url, admitted) in [
            ("https://auth.example/t", true),
            ("https://203.0.113.9/t", true),
            ("https://127.0.0.1/t", false),
            ("https://[::1]/t", false),
            ("https://2852039166/t", false),
            ("https://metadata.google.internal/t", false),
        ] {
            assert_eq!(admits(&guard, url), admitted, "{url}");
        }
        let local = Guard::new("http://localhost:5000/v2/a");
        assert!(admits(&local, "http://127.0.0.1:5001/t"));
        assert!(!admits(&local, "http://169.254.169.254/t"));
    }
}
