//! The choice of a proxy for a request, by Go's rules, which Ignition uses.
//!
//! <https://pkg.go.dev/golang.org/x/net/http/httpproxy#Config>

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use reqwest::Url;

/// Proxies, and the hosts that are reached without one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxy {
    /// URL of the proxy of plain requests.
    pub http: Option<String>,
    /// URL of the proxy of requests by TLS.
    pub https: Option<String>,
    /// Hosts that are reached directly: `*`, addresses, ranges as `10.0.0.0/8`, names with all subdomains, `.names` for
    /// subdomains only; a port after a name or address restricts the entry to that port.
    pub none: Vec<String>,
}

/// A proxy's URL may hold a password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &Option<String>| url.as_deref().map(crate::failure::shown);
        f.debug_struct("Proxy")
            .field("http", &shown(&self.http))
            .field("https", &shown(&self.https))
            .field("none", &self.none)
            .finish()
    }
}

impl Proxy {
    /// Parses the URLs. An error names the invalid one.
    pub(crate) fn rules(&self) -> anyhow::Result<Rules> {
        let read = |name: &str, url: &Option<String>| {
            let url = url.as_deref().filter(|url| !url.is_empty());
            url.map(|url| {
                let url = match url.contains("://") {
                    true => url.to_owned(),
                    false => format!("http://{url}"),
                };
                Url::parse(&url).map_err(|error| anyhow::anyhow!("the {name} proxy's URL: {error}"))
            })
            .transpose()
        };
        Ok(Rules {
            http: read("http", &self.http)?,
            https: read("https", &self.https)?,
            none: self
                .none
                .iter()
                .flat_map(|some| some.split(','))
                .filter_map(Except::read)
                .collect(),
        })
    }
}

/// Parsed proxies and exceptions.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    http: Option<Url>,
    https: Option<Url>,
    none: Vec<Except>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Except {
    All,
    /// An address and the length of its prefix.
    Range(IpAddr, u8),
    Address(IpAddr, Option<u16>),
    /// A name, whether it matches itself besides its subdomains, and the port.
    Name(String, bool, Option<u16>),
}

impl Except {
    fn read(text: &str) -> Option<Self> {
        let text = text.trim().to_lowercase();
        if text.is_empty() {
            return None;
        }
        if text == "*" {
            return Some(Self::All);
        }
        if let Some((address, bits)) = text.split_once('/')
            && let (Ok(address), Ok(bits)) = (address.parse(), bits.parse())
        {
            return Some(Self::Range(address, bits));
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse() {
            return Some(Self::Address(address, None));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text.as_str(), None),
        };
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            return Some(Self::Address(address, port));
        }
        let name = host.strip_prefix('*').filter(|rest| rest.starts_with('.'));
        let name = name.unwrap_or(host);
        Some(match name.strip_prefix('.') {
            Some(name) => Self::Name(name.to_owned(), false, port),
            None => Self::Name(name.to_owned(), true, port),
        })
    }

    fn holds(&self, host: &str, port: Option<u16>) -> bool {
        let address: Option<IpAddr> = host.parse().ok();
        match self {
            Self::All => true,
            Self::Range(range, bits) => {
                address.is_some_and(|address| within(address, *range, *bits))
            }
            Self::Address(one, only) => {
                address == Some(*one) && only.is_none_or(|only| Some(only) == port)
            }
            Self::Name(name, itself, only) => {
                let below = host
                    .strip_suffix(name.as_str())
                    .is_some_and(|rest| rest.ends_with('.'));
                (below || (*itself && host == name)) && only.is_none_or(|only| Some(only) == port)
            }
        }
    }
}

fn within(address: IpAddr, range: IpAddr, bits: u8) -> bool {
    let bits = u32::from(bits);
    match (address, range) {
        (IpAddr::V4(address), IpAddr::V4(range)) if bits <= 32 => {
            let shift = 32 - bits;
            address.to_bits().checked_shr(shift) == range.to_bits().checked_shr(shift)
        }
        (IpAddr::V6(address), IpAddr::V6(range)) if bits <= 128 => {
            let shift = 128 - bits;
            address.to_bits().checked_shr(shift) == range.to_bits().checked_shr(shift)
        }
        _ => false,
    }
}

/// How a client's connections reach their servers.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    /// Without a proxy.
    Direct,
    /// By the proxies that the environment names.
    Environment,
    /// By these.
    Rules(Arc<Rules>),
}

impl Via {
    /// The proxy of a connection to a server, whose URL this is, with its credentials.
    pub(crate) fn intercept(&self, url: &Url, server: &Uri) -> Option<Intercept> {
        match self {
            Self::Direct => None,
            Self::Environment => Matcher::from_system().intercept(server),
            Self::Rules(rules) => {
                let proxy = rules.of(url)?;
                let matcher = Matcher::builder().all(proxy.to_string()).build();
                matcher.intercept(server)
            }
        }
    }
}

impl Rules {
    /// The proxy of a request; none for a direct connection. Requests to loopback never use one.
    pub(crate) fn of(&self, url: &Url) -> Option<Url> {
        let proxy = match url.scheme() {
            "https" => self.https.as_ref(),
            _ => self.http.as_ref(),
        }?;
        let host = url.host_str()?.trim_matches(['[', ']']).to_lowercase();
        let host = host.trim_end_matches('.');
        let here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        let port = url.port_or_known_default();
        let excepted = || self.none.iter().any(|except| except.holds(host, port));
        (!here && !excepted()).then(|| proxy.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(none: &[&str]) -> Rules {
        let proxy = Proxy {
            http: Some("http://user:word@plain.example:3128".to_owned()),
            https: Some("safe.example:3129".to_owned()),
            none: none.iter().map(|text| (*text).to_owned()).collect(),
        };
        assert!(!format!("{proxy:?}").contains("word"));
        proxy.rules().unwrap()
    }

    fn of(rules: &Rules, url: &str) -> Option<String> {
        let proxy = rules.of(&Url::parse(url).unwrap())?;
        proxy.host_str().map(str::to_owned)
    }

    #[test]
    fn each_scheme_has_its_proxy_and_this_machine_none() {
        let rules = rules(&[]);
        let plain = Some("plain.example".to_owned());
        assert_eq!(of(&rules, "http://a.example/"), plain);
        assert_eq!(
            of(&rules, "https://a.example/"),
            Some("safe.example".to_owned())
        );
        for here in [
            "http://localhost/",
            "http://127.0.0.2:80/",
            "https://[::1]/",
        ] {
            assert_eq!(of(&rules, here), None, "{here}");
        }
        let only = Proxy {
            https: Some("http://p.example".to_owned()),
            ..Proxy::default()
        };
        assert_eq!(of(&only.rules().unwrap(), "http://a.example/"), None);
        let bad = Proxy {
            http: Some("http://[".to_owned()),
            ..Proxy::default()
        };
        assert!(bad.rules().is_err());
    }

    #[test]
    fn exceptions_are_read_as_go_reads_them() {
        for (except, straight, by_proxy) in [
            ("*", vec!["http://a.example/"], vec![]),
            (
                "b.example",
                vec!["http://b.example/", "http://a.B.example./"],
                vec!["http://ab.example/", "http://c.example/"],
            ),
            (
                ".b.example",
                vec!["http://a.b.example/"],
                vec!["http://b.example/"],
            ),
            (
                "*.b.example",
                vec!["http://a.b.example/"],
                vec!["http://b.example/"],
            ),
            (
                "b.example:8080, 10.0.0.0/8",
                vec!["http://b.example:8080/", "http://10.9.8.7/"],
                vec!["http://b.example/", "http://11.0.0.1/"],
            ),
            (
                "192.0.2.1",
                vec!["http://192.0.2.1:99/"],
                vec!["http://192.0.2.2/"],
            ),
            (
                "192.0.2.1:99",
                vec!["http://192.0.2.1:99/"],
                vec!["http://192.0.2.1/"],
            ),
            (
                "fd00::/8",
                vec!["http://[fd01::1]/"],
                vec!["http://[fe80::1]/"],
            ),
            (
                "[fd00::1]:80",
                vec!["http://[fd00::1]/"],
                vec!["http://[fd00::1]:81/"],
            ),
            (
                "0.0.0.0/0",
                vec!["http://192.0.2.1/"],
                vec!["http://[fd00::1]/"],
            ),
        ] {
            let rules = rules(&[except]);
            for url in straight {
                assert_eq!(of(&rules, url), None, "{except}: {url}");
            }
            for url in by_proxy {
                assert!(of(&rules, url).is_some(), "{except}: {url}");
            }
        }
    }
}
