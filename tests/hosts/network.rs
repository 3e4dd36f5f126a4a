//! Proxies and certificate authorities of organisations.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use linux::host::is_root;
use nix::mount::MsFlags;

use crate::host::{Host, Mount, can_build};
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
    host.set_mirror(MIRROR);
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
    host.set_mirror(MIRROR);
    host.set("http_proxy", format!("http://me:secret@{dead}"));
    for command in [&["lock", "small.toml"][..], &["doctor"]] {
        let said = host.run(command);
        said.refuses(&words);
        assert!(!said.text().contains("secret"), "{}", said.text());
    }
    // A mirror that is excepted is asked all the same.
    let mirror = Server::start();
    let mut host = Host::new();
    host.set_mirror(mirror.url());
    host.set("http_proxy", format!("http://{dead}"));
    host.set("no_proxy", "127.0.0.1");
    host.run(&["lock", "small.toml"]).refuses(&["404"]);
    assert!(!mirror.asked().is_empty());
}

/// The proxy of an organisation, without a password and with one that it does not take.
#[test]
fn a_proxy_that_wants_a_password_is_named_with_the_variable_that_takes_it() {
    if !can_build() {
        return;
    }
    for login in ["", "me:secret@"] {
        let proxy = Server::saying("407 Proxy Authentication Required");
        let mut host = Host::new();
        host.set_mirror(MIRROR);
        host.set("http_proxy", format!("http://{login}{}", proxy.address));
        let words = format!(
            "the proxy http://{} of http_proxy asks for a password",
            proxy.address
        );
        for command in [&["lock", "small.toml"][..], &["doctor"]] {
            let said = host.run(command);
            said.refuses(&[&words, "put USER:PASSWORD@ before its host in http_proxy"]);
            assert!(!said.text().contains("secret"), "{}", said.text());
        }
        assert!(!proxy.asked().is_empty());
    }
}

#[test]
fn variables_that_cannot_be_right_are_refused_together() {
    if !can_build() {
        return;
    }
    let mirror = Server::start();
    let mut host = Host::new();
    host.set_mirror(mirror.url());
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
    host.set_mirror(mirror.url());
    // The host's own authorities, whatever they are, and another one.
    host.run(&["lock", "small.toml"])
        .refuses(&["UnknownIssuer", "certificate"]);
    let (_, another) = Server::by_tls("another");
    set_authority(&mut host, &another);
    host.run(&["lock", "small.toml"])
        .refuses(&["UnknownIssuer", "export SSL_CERT_FILE"]);
    assert!(mirror.asked().is_empty());
    set_authority(&mut host, &authority);
    host.run(&["lock", "small.toml"]).refuses(&["404"]);
    assert!(!mirror.asked().is_empty());
}

/// What adds an authority to a host's, and what a host without any has to install.
#[test]
fn authorities_are_added_by_the_command_of_the_distribution() {
    if !is_root() || !can_build() {
        return;
    }
    let (mirror, _) = Server::by_tls("ours");
    for (os_release, trust, install) in [
        (
            "ID=debian\n",
            "cp CA.crt /usr/local/share/ca-certificates/ && update-ca-certificates",
            "apt-get install ca-certificates",
        ),
        (
            "ID=alpine\n",
            "cp CA.crt /usr/local/share/ca-certificates/ && update-ca-certificates",
            "apk add ca-certificates",
        ),
        (
            "ID=fedora\n",
            "cp CA.crt /etc/pki/ca-trust/source/anchors/ && update-ca-trust",
            "dnf install ca-certificates",
        ),
        (
            "ID=arch\n",
            "trust anchor --store CA.crt",
            "pacman -S ca-certificates",
        ),
        (
            "ID=opensuse-leap\nID_LIKE=\"suse opensuse\"\n",
            "cp CA.crt /etc/pki/trust/anchors/ && update-ca-certificates",
            "zypper install ca-certificates-mozilla",
        ),
    ] {
        let mut host = Host::new();
        host.set_mirror(mirror.url());
        host.set_distribution(os_release);
        let mut bare = Host::new();
        bare.environment.clone_from(&host.environment);
        bare.set_distribution(os_release);
        let there = ["/etc/ssl", "/etc/pki"].map(Path::new);
        bare.mounts.extend(
            there
                .into_iter()
                .filter(|path| path.exists())
                .map(|path| Mount::New("tmpfs", path.to_owned(), "size=1m", MsFlags::MS_RDONLY)),
        );
        let trust = format!("have root run `{trust}`");
        let install =
            format!("this host has no certificate authorities: have root run `{install}`");
        // One that no server here has.
        set_authority(&mut host, &Server::by_tls("another").1);
        host.run(&["lock", "small.toml"])
            .refuses(&["export SSL_CERT_FILE", &trust]);
        bare.run(&["lock", "small.toml"]).refuses(&[&install]);
    }
    assert!(mirror.asked().is_empty());
}

/// Makes `SSL_CERT_FILE` name a file with this authority, PEM.
fn set_authority(host: &mut Host, authority: &str) {
    let path = host.path("ca.pem");
    fs::write(&path, authority).unwrap();
    host.set("SSL_CERT_FILE", path.display().to_string());
}

/// Signatures and hashes vouch for what comes, and yet who says https has all of it by TLS: in a session (`lock`) and outside one
/// (`doctor`).
#[test]
fn a_mirror_by_tls_that_redirects_to_plain_http_is_not_followed() {
    if !can_build() {
        return;
    }
    let plain = Server::start();
    let url = format!("{}/", plain.url());
    let (mirror, authority) = Server::by_tls_to("ours", &url);
    let mut host = Host::new();
    host.set_mirror(mirror.url());
    set_authority(&mut host, &authority);
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
