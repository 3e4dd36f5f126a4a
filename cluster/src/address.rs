//! Addresses, subnets, names and endpoints, by Go's and Kubernetes' rules.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

impl IpVersion {
    /// The version of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Reads an address. Leading zeros of a part are taken, as Kubernetes takes them (`010.0.0.1` is `10.0.0.1`), and an
/// address of version 4 within version 6 is of version 4.
#[must_use]
pub fn parse(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        let address: Ipv6Addr = text.parse().ok()?;
        return Some(
            address
                .to_ipv4_mapped()
                .map_or(address.into(), IpAddr::from),
        );
    }
    let mut bytes = [0; 4];
    let mut parts = text.split('.');
    for byte in &mut bytes {
        let part = parts
            .next()
            .filter(|part| !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit()))?;
        *byte = part.parse().ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(bytes).into())
}

/// Whether other machines can reach the address: not unspecified, loopback, link-local, multicast or broadcast.
#[must_use]
pub fn is_global_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified()
                || v4.is_loopback()
                || v4.is_multicast()
                || v4.is_link_local()
                || v4.is_broadcast())
        }
        IpAddr::V6(v6) => {
            !(v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_multicast()
                || v6.is_unicast_link_local())
        }
    }
}

/// A subnet: its first address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The first address.
    pub first: IpAddr,
    /// Bits of the prefix.
    pub prefix: u32,
}

impl Subnet {
    /// The subnets of a list with commas between them, as kubeadm has them, without what is none.
    #[must_use]
    pub fn parse_list(text: &str) -> Vec<Self> {
        let all = text.split(',');
        all.filter_map(|subnet| Self::parse(subnet.trim()))
            .collect()
    }

    /// Reads `ADDRESS/PREFIX`; bits after the prefix are cleared.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let address = parse(address)?;
        let digits = !length.is_empty() && length.bytes().all(|digit| digit.is_ascii_digit());
        let prefix: u32 = digits.then(|| length.parse().ok())??;
        let bits = bits(address);
        let mask = if prefix > bits {
            None
        } else {
            u128::MAX.checked_shl(bits - prefix)
        };
        let number = match (prefix <= bits, mask) {
            (false, _) => return None,
            (true, Some(mask)) => number(address) & mask,
            (true, None) => 0,
        };
        let first = from_number(number, address);
        Some(Self { first, prefix })
    }

    /// The bits of an address of its version.
    #[must_use]
    pub fn bits(&self) -> u32 {
        bits(self.first)
    }

    /// The number of addresses, or the largest that is counted: 2^63 - 1.
    #[must_use]
    pub fn size(&self) -> i64 {
        match self.bits() - self.prefix {
            free @ 0..63 => 1 << free,
            _ => i64::MAX,
        }
    }

    /// Whether an address is in the subnet.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let around = Self::parse(&format!("{address}/{}", self.prefix));
        around.as_ref() == Some(self)
    }

    /// The address with this number, from 0, if it is in the subnet.
    #[must_use]
    pub fn nth(&self, index: i64) -> Option<IpAddr> {
        let inside = (0..self.size()).contains(&index);
        let index = u128::try_from(index).ok()?;
        inside.then(|| from_number(number(self.first) + index, self.first))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn from_number(number: u128, like: IpAddr) -> IpAddr {
    match (like, u32::try_from(number)) {
        (IpAddr::V4(_), Ok(number)) => Ipv4Addr::from_bits(number).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

/// The address of a list of subnets' first one with this number: the API server's is 1, the name server's 10.
#[must_use]
pub fn service_address(subnets: &str, index: i64) -> Option<IpAddr> {
    Subnet::parse(subnets.split(',').next()?)?.nth(index)
}

/// Whether this is a name by RFC 1123: labels of lower-case letters, digits and hyphens, at most 253 characters.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let inside = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        ends.iter().all(|end| end.is_some_and(|c| inside(*c)))
            && bytes.iter().all(|c| inside(*c) || *c == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// Whether this is a name whose first label is `*`.
#[must_use]
pub fn is_wildcard_name(text: &str) -> bool {
    text.len() <= 253 && text.strip_prefix("*.").is_some_and(is_name)
}

/// The scheme of a URL, and its host with what belongs to it, as its port; each is empty if it has none.
///
/// # Errors
/// Why Go's `url.Parse` does not take it, to follow the URL in a sentence.
pub(crate) fn url_parts(url: &str) -> Result<(&str, &str), &'static str> {
    let (url, fragment) = url.split_once('#').unwrap_or((url, ""));
    if url.bytes().any(|byte| byte.is_ascii_control()) {
        return Err("has a control character");
    }
    let (scheme, rest) = without_scheme(url);
    if scheme.is_empty() && rest.starts_with(':') {
        return Err("has no scheme before its colon");
    }
    let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
    let (host, path) = match rest.strip_prefix("//") {
        // Without a scheme a path may begin with three slashes.
        Some(rest) if !scheme.is_empty() || !rest.starts_with('/') => {
            rest.split_at(rest.find('/').unwrap_or(rest.len()))
        }
        _ if scheme.is_empty() || rest.starts_with('/') => ("", rest),
        // Behind a scheme and without a slash it is no path, and not looked at.
        _ => ("", ""),
    };
    let first = path.split('/').next().unwrap_or_default();
    if scheme.is_empty() && host.is_empty() && first.contains(':') {
        return Err("has a colon in its first part, and no scheme before it");
    }
    if !has_escapes(path) || !has_escapes(fragment) {
        return Err("has a % without two hexadecimal digits behind it");
    }
    if !is_url_host(host) {
        return Err("has a host that is not valid, or a port that is not a number");
    }
    Ok((scheme, host))
}

/// The scheme and what follows its colon; without a scheme all of it.
fn without_scheme(url: &str) -> (&str, &str) {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    match url.split_once(':') {
        Some((scheme, rest))
            if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(inside) =>
        {
            (scheme, rest)
        }
        _ => ("", url),
    }
}

/// Whether two hexadecimal digits follow each `%`.
fn has_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|rest| {
        let two = rest.as_bytes().get(..2);
        two.is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Whether Go's `url.Parse` takes this between `//` and the path: a host and perhaps a port, each of which may be empty.
fn is_url_host(text: &str) -> bool {
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let port = if host.contains('[') {
        host.rsplit_once(']').map(|(_, port)| port)
    } else {
        Some(host.rfind(':').map_or("", |at| &host[at..]))
    };
    let is_digits = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    let is_port =
        port.is_some_and(|port| port.is_empty() || port.strip_prefix(':').is_some_and(is_digits));
    let sign = |c: char| {
        !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c)
    };
    // Of ASCII only the percent sign itself may be written so.
    let is_high = |c: char| matches!(c, '8' | '9' | 'a'..='f' | 'A'..='F');
    let mut escapes = host.split('%').skip(1);
    let are_high = escapes.all(|rest| rest.starts_with("25") || rest.starts_with(is_high));
    is_port && host.chars().all(sign) && has_escapes(host) && are_high
}

/// The host and the port of an endpoint, `HOST` or `HOST:PORT`; the port is empty if there is none. An address of version
/// 6 is in brackets if a port follows it.
///
/// # Errors
/// What is wrong with it.
pub fn host_and_port(endpoint: &str) -> Result<(&str, &str), String> {
    let (host, port) = split(endpoint).unwrap_or((endpoint, ""));
    if !port.is_empty() && !is_port(port) {
        return Err(format!("{port:?} is not a port; expected 1 to 65535"));
    }
    if parse(host).is_some() || is_name(host) {
        return Ok((host, port));
    }
    Err(format!(
        "{host:?} is neither an address nor a name in lower case"
    ))
}

fn is_port(port: &str) -> bool {
    let digits = port.bytes().all(|digit| digit.is_ascii_digit());
    digits && port.parse().is_ok_and(|port: u16| port > 0)
}

/// As Go's `net.SplitHostPort`.
fn split(endpoint: &str) -> Option<(&str, &str)> {
    let (host, port) = endpoint.rsplit_once(':')?;
    if let Some(inside) = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        return (!inside.contains(['[', ']'])).then_some((inside, port));
    }
    (!host.contains([':', '[', ']']) && !port.contains(['[', ']'])).then_some((host, port))
}

/// `HOST:PORT`, with brackets around an address of version 6.
#[must_use]
pub fn join(host: &str, port: impl fmt::Display) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("10.2.3.4", Some("10.2.3.4")),
            ("010.002.3.4", Some("10.2.3.4")),
            ("FD00::0:1", Some("fd00::1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("1.2.3", None),
            ("1.2.3.256", None),
            ("1.2.3.4.5", None),
            ("+1.2.3.4", None),
            ("", None),
        ] {
            let read = parse(text).map(|address| address.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn urls_are_those_of_go() {
        for (url, scheme) in [
            ("https://a:2379", "https"),
            ("unix:///a b?%zz#c", "unix"),
            ("unix://:@/x", "unix"),
            ("unix://[::1]:5/x", "unix"),
            ("https://a:", "https"),
            ("x:%zz", "x"),
            ("a:2379", "a"),
            ("x/y:z", ""),
            ("/x:y", ""),
            ("//a:1", ""),
            ("", ""),
        ] {
            assert_eq!(
                url_parts(url).map(|(scheme, _)| scheme),
                Ok(scheme),
                "{url}"
            );
        }
        for url in [
            ":x",
            "1a:2",
            " https://a:1",
            "https://a:x",
            "https://a b",
            "https://[::1",
            "https://a%41",
            "unix:///%zz",
            "unix:///x#%zz",
            "unix:///a\tb",
        ] {
            assert!(url_parts(url).is_err(), "{url}");
        }
        assert_eq!(url_parts("//u@a:1/x"), Ok(("", "u@a:1")));
    }

    #[test]
    fn subnets_have_addresses() {
        let nth = |text: &str, index| {
            let address = Subnet::parse(text).and_then(|subnet| subnet.nth(index));
            address.map(|address| address.to_string())
        };
        assert_eq!(nth("10.96.3.0/12", 10).as_deref(), Some("10.96.0.10"));
        assert_eq!(nth("fd00:2::/112", 1).as_deref(), Some("fd00:2::1"));
        assert_eq!(nth("10.0.0.0/29", 10), None);
        assert_eq!(nth("::/0", 1).as_deref(), Some("::1"));
        assert_eq!(nth("10.0.0.0/33", 1), None);
        assert_eq!(
            Subnet::parse("fd00::/48").map(|subnet| subnet.size()),
            Some(i64::MAX)
        );
    }

    #[test]
    fn endpoints_are_a_host_and_perhaps_a_port() {
        assert_eq!(
            host_and_port("api.example.test"),
            Ok(("api.example.test", ""))
        );
        assert_eq!(host_and_port("10.0.0.1:8443"), Ok(("10.0.0.1", "8443")));
        assert_eq!(host_and_port("[fd00::1]:443"), Ok(("fd00::1", "443")));
        assert_eq!(host_and_port("fd00::1"), Ok(("fd00::1", "")));
        for wrong in [
            "API.example.test",
            "10.0.0.1:0",
            "[fd00::1]",
            "a_b",
            "",
            "h:99999",
        ] {
            assert!(host_and_port(wrong).is_err(), "{wrong}");
        }
        assert_eq!(join("fd00::1", 6443), "[fd00::1]:6443");
    }
}
