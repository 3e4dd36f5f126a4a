//! Network: the proxy and certificate variables, and what a failed first request says about them.

use std::env;
use std::fs;
use std::path::Path;

use super::distribution::Distribution;
use super::finding::Finding;

/// The beginning of each certificate in PEM.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// Where the host's certificates are, beside the places that downloads look at.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A variable with its value, which is not empty.
type Set = (&'static str, String);

/// The first of these variables that is set, which alone counts, as downloads read them; none if it is empty.
fn first_set(names: &[&'static str]) -> Option<Set> {
    let set = names
        .iter()
        .find_map(|name| Some((*name, env::var(name).ok()?)));
    set.filter(|(_, value)| !value.is_empty())
}

/// The variable that names the proxy of a scheme.
fn proxy_of(scheme: &str) -> Option<Set> {
    let own = match scheme {
        "https" => first_set(&["HTTPS_PROXY", "https_proxy"]),
        _ => first_set(&["HTTP_PROXY", "http_proxy"]),
    };
    own.or_else(|| first_set(&["ALL_PROXY", "all_proxy"]))
}

/// The variables that cannot be used as they are.
pub(super) fn variables() -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for (name, value) in ["http", "https"].into_iter().filter_map(proxy_of) {
        let finding = proxy(name, &value);
        all.extend(finding.filter(|new| !all.contains(new)));
    }
    all.extend(first_set(&["SSL_CERT_FILE"]).and_then(|(_, file)| certificates(Path::new(&file))));
    all
}

/// What is wrong with a proxy's address.
fn proxy(name: &str, value: &str) -> Option<Finding> {
    let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let port = match host.rsplit_once(':') {
        // A colon inside brackets is part of an address.
        Some((_, port)) if !port.ends_with(']') => port.parse::<u16>().is_ok(),
        _ => true,
    };
    let why = if !matches!(scheme, "http" | "https") {
        format!("its scheme is {scheme}://, and only http:// and https:// are possible")
    } else if host.is_empty() || host.starts_with(':') || host.contains(char::is_whitespace) {
        "it has no host".to_owned()
    } else if !port {
        "its port is not a number up to 65535".to_owned()
    } else {
        return None;
    };
    // The value may hold a password.
    Some(Finding::missing(
        "proxy",
        format!("{name}={}: {why}", fetch::shown(value)),
        format!("export {name}=http://HOST:PORT, or unset it"),
    ))
}

/// What is wrong with the file of `SSL_CERT_FILE`.
fn certificates(file: &Path) -> Option<Finding> {
    let why = match fs::read_to_string(file) {
        Ok(text) if text.contains(CERTIFICATE) => return None,
        Ok(_) => "it has no certificate in PEM".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(Finding::missing(
        "certificates",
        format!("SSL_CERT_FILE={}: {why}", file.display()),
        "export SSL_CERT_FILE as the path of a PEM file with all authorities to trust, or unset it to trust the host's",
    ))
}

/// What to do about a request that failed for this reason, if it is the host's settings that have to change.
#[must_use]
pub fn remedy(url: &str, why: &str) -> Option<String> {
    // `BadSignature`: another authority has the same name, as an organisation's renewed one.
    if ["UnknownIssuer", "BadSignature"]
        .iter()
        .any(|word| why.contains(word))
    {
        return Some(of_unknown_issuer(Distribution::here()));
    }
    if why.contains("invalid peer certificate") {
        return None;
    }
    let scheme = url.split("://").next().unwrap_or_default();
    let (name, value) = proxy_of(scheme).filter(|_| !is_excepted(url))?;
    let proxy = fetch::shown(&value);
    let wants_password = why.contains("407") || why.to_lowercase().contains("proxy auth");
    if wants_password {
        return Some(format!(
            "the proxy {proxy} of {name} asks for a password: put USER:PASSWORD@ before its host in {name}"
        ));
    }
    let is_connection = ["connect", "tunnel", "dns", "timed out", "no answer"];
    let why = why.to_lowercase();
    is_connection.iter().any(|word| why.contains(word)).then(|| {
        format!(
            "the request went to the proxy {proxy} of {name}: correct or unset {name}, or add the server to no_proxy"
        )
    })
}

fn of_unknown_issuer(distribution: Distribution) -> String {
    let own = env::var_os("SSL_CERT_FILE").is_some() || env::var_os("SSL_CERT_DIR").is_some();
    if !own && !BUNDLES.iter().any(|bundle| Path::new(bundle).exists()) {
        return format!(
            "this host has no certificate authorities: {}",
            distribution.install_certificates()
        );
    }
    format!(
        "the server's authority is not trusted here. If it is your organisation's (its mirror, or a proxy that opens TLS): \
         export SSL_CERT_FILE as a PEM file that has it too, or {}",
        distribution.trust_authority()
    )
}

/// Whether `no_proxy` excepts the server of a URL, by curl's rules for names; ranges of addresses are left out.
fn is_excepted(url: &str) -> bool {
    let Some((_, none)) = first_set(&["NO_PROXY", "no_proxy"]) else {
        return false;
    };
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.trim_matches(['[', ']']).to_lowercase();
    excepts(&none, &host)
}

fn excepts(none: &str, host: &str) -> bool {
    none.split(',').any(|word| {
        let word = word.trim().to_lowercase();
        let name = word.trim_start_matches('.');
        let below = || {
            host.strip_suffix(name)
                .is_some_and(|rest| rest.ends_with('.'))
        };
        word == "*" || (!name.is_empty() && (host == name || below()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_cannot_be_one_is_named_without_its_password() {
        for good in [
            "http://proxy.example:3128",
            "proxy.example:3128",
            "https://me:secret@proxy.example/",
            "http://[::1]:8080",
            "http://[::1]",
        ] {
            assert_eq!(proxy("http_proxy", good), None, "{good}");
        }
        for (bad, why) in [
            ("socks5://proxy.example:1080", "socks5://"),
            ("http://", "no host"),
            ("http://:3128", "no host"),
            ("http://me:secret@proxy.example:port", "not a number"),
        ] {
            let found = proxy("http_proxy", bad).unwrap();
            assert!(found.found.contains(why), "{found:?}");
            assert!(found.is_fatal() && !found.found.contains("secret"));
        }
    }

    #[test]
    fn a_certificate_file_must_be_there_and_have_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        assert!(certificates(&file).unwrap().found.contains("No such file"));
        fs::write(&file, "text").unwrap();
        assert!(
            certificates(&file)
                .unwrap()
                .found
                .contains("no certificate")
        );
        fs::write(&file, format!("{CERTIFICATE}\n")).unwrap();
        assert_eq!(certificates(&file), None);
    }

    #[test]
    fn excepted_servers_are_those_of_curl() {
        for (none, host, expected) in [
            ("mirror.example", "mirror.example", true),
            ("example", "mirror.example", true),
            (".example", "mirror.example", true),
            ("mirror.example", "other.example", false),
            ("a, *", "other.example", true),
            ("", "other.example", false),
            ("example", "notexample", false),
        ] {
            assert_eq!(excepts(none, host), expected, "{none} {host}");
        }
    }

    #[test]
    fn an_authority_that_is_not_trusted_has_the_hosts_command() {
        let said = remedy(
            "https://x.example/a",
            "invalid peer certificate: UnknownIssuer",
        );
        let said = said.unwrap();
        assert!(
            said.contains("SSL_CERT_FILE") || said.contains("ca-certificates"),
            "{said}"
        );
    }
}
