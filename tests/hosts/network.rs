//! Proxies and certificate authorities of organisations.

use std::fs;
use std::net::TcpListener;

use crate::host::{Host, can_build};
use crate::server::Server;

/// A mirror whose name only a proxy could resolve.
const MIRROR: &str = "http://mirror.invalid/debian";

#[test]
fn a_proxy_is_asked_in_place_of_the_mirror() {
    if !can_build() {
        return;
    }
    let proxy = Server::start();
    let mut host = Host::new();
    host.set("SLIPWAY_DEBIAN_MIRROR", MIRROR);
    host.set("http_proxy", format!("http://{}", proxy.address));
    host.run(&["lock", "small.toml"]).refuses(&["404"]);
    let asked = proxy.asked();
    let expected = "GET http://mirror.invalid/debian/dists/";
    // The suites are asked for side by side, the archive of security updates among them.
    assert!(
        asked.iter().any(|line| line.starts_with(expected)),
        "{asked:?}"
    );
}

#[test]
fn a_proxy_that_does_not_answer_is_named_with_its_variable() {
    if !can_build() {
        return;
    }
    // A port where nothing listens.
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let words = [
        format!("proxy http://{dead} of http_proxy"),
        "no_proxy".to_owned(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut host = Host::new();
    host.set("SLIPWAY_DEBIAN_MIRROR", MIRROR);
    host.set("http_proxy", format!("http://me:secret@{dead}"));
    for command in [&["lock", "small.toml"][..], &["doctor"]] {
        let said = host.run(command);
        said.refuses(&words);
        assert!(!said.text().contains("secret"), "{}", said.text());
    }
    // A mirror that is excepted is asked all the same.
    let mirror = Server::start();
    let mut host = Host::new();
    host.set(
        "SLIPWAY_DEBIAN_MIRROR",
        format!("http://{}/debian", mirror.address),
    );
    host.set("http_proxy", format!("http://{dead}"));
    host.set("no_proxy", "127.0.0.1");
    host.run(&["lock", "small.toml"]).refuses(&["404"]);
    assert!(!mirror.asked().is_empty());
}

#[test]
fn variables_that_cannot_be_right_are_refused_together() {
    if !can_build() {
        return;
    }
    let mirror = Server::start();
    let mut host = Host::new();
    host.set(
        "SLIPWAY_DEBIAN_MIRROR",
        format!("http://{}/debian", mirror.address),
    );
    host.set("https_proxy", "socks5://proxy.invalid:1080");
    host.set("SSL_CERT_FILE", "/nowhere/ca.pem");
    host.run(&["lock", "small.toml"]).refuses(&[
        "https_proxy=socks5://proxy.invalid:1080: its scheme is socks5://",
        "SSL_CERT_FILE=/nowhere/ca.pem: No such file",
    ]);
    assert!(mirror.asked().is_empty());
}

/// A mirror behind an organisation's own authority.
#[test]
fn an_authority_that_is_not_trusted_is_told_from_one_that_is() {
    if !can_build() {
        return;
    }
    let (mirror, authority) = Server::by_tls("ours");
    let mut host = Host::new();
    host.set(
        "SLIPWAY_DEBIAN_MIRROR",
        format!("https://{}/debian", mirror.address),
    );
    // The host's own authorities, whatever they are, and another one.
    host.run(&["lock", "small.toml"])
        .refuses(&["UnknownIssuer", "certificate"]);
    let (_, another) = Server::by_tls("another");
    fs::write(host.path("ca.pem"), another).unwrap();
    host.set("SSL_CERT_FILE", host.path("ca.pem").display().to_string());
    host.run(&["lock", "small.toml"])
        .refuses(&["UnknownIssuer", "export SSL_CERT_FILE"]);
    assert!(mirror.asked().is_empty());
    fs::write(host.path("ca.pem"), authority).unwrap();
    host.run(&["lock", "small.toml"]).refuses(&["404"]);
    assert!(!mirror.asked().is_empty());
}

/// Signatures and hashes vouch for what comes, and yet who says https has all of it by TLS: in a session (`lock`) and outside one
/// (`doctor`).
#[test]
fn a_mirror_by_tls_that_redirects_to_plain_http_is_not_followed() {
    if !can_build() {
        return;
    }
    let plain = Server::start();
    let url = format!("http://{}/debian/", plain.address);
    let (mirror, authority) = Server::by_tls_to("ours", &url);
    let mut host = Host::new();
    host.set(
        "SLIPWAY_DEBIAN_MIRROR",
        format!("https://{}/debian", mirror.address),
    );
    fs::write(host.path("ca.pem"), authority).unwrap();
    host.set("SSL_CERT_FILE", host.path("ca.pem").display().to_string());
    for command in [&["lock", "small.toml"][..], &["doctor"]] {
        let before = mirror.asked().len();
        host.run(command).refuses(&[
            "it redirects from https to http",
            "give the URL with http:// if it is to be fetched so",
        ]);
        assert!(mirror.asked().len() > before, "{command:?}");
    }
    assert!(plain.asked().is_empty(), "{:?}", plain.asked());
}
