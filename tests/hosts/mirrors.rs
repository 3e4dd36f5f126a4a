//! Where the mirror comes from, on hosts of other distributions too.

use std::fs;

use linux::host::is_root;

use crate::host::Host;
use crate::server::Server;

/// Debian's cloud images: the entries name lists of mirrors.
#[test]
fn the_lists_of_debians_cloud_images_name_the_mirror() {
    if !is_root() {
        return;
    }
    let server = Server::start();
    let mut host = Host::new();
    let apt = host.replace_folder("apt", "/etc/apt");
    fs::create_dir(apt.join("sources.list.d")).unwrap();
    fs::create_dir(apt.join("mirrors")).unwrap();
    let paragraph = |list: &str, suites: &str| {
        format!(
            "Types: deb deb-src\nURIs: mirror+file:///etc/apt/mirrors/{list}.list\nSuites: {suites}\nComponents: main\n\n"
        )
    };
    let sources = paragraph("debian", "trixie trixie-updates trixie-backports")
        + &paragraph("debian-security", "trixie-security");
    fs::write(apt.join("sources.list.d/debian.sources"), sources).unwrap();
    for name in ["debian", "debian-security"] {
        let list = format!("http://{}/{name}\n", server.address);
        fs::write(apt.join(format!("mirrors/{name}.list")), list).unwrap();
    }
    host.run(&["lock", "small.toml"]).refuses(&["404"]);
    let asked = server.asked();
    // Several suites are asked for at once.
    for archive in ["debian", "debian-security"] {
        let begin = format!("GET /{archive}/dists/");
        assert!(
            asked.iter().any(|line| line.starts_with(&begin)),
            "{asked:?}"
        );
    }
}

/// Fedora, Arch: no Debian configuration at all.
#[test]
fn a_host_without_a_mirror_is_told_what_one_is_and_the_variable() {
    if !is_root() {
        return;
    }
    let mut host = Host::new();
    host.replace_folder("apt", "/etc/apt");
    let words = [
        "no Debian mirror is known: this host has no apt configuration",
        "A mirror is a server with Debian's packages",
        "debian.org/mirror/list",
        "export SLIPWAY_DEBIAN_MIRROR=http://HOST/debian",
    ];
    host.run(&["lock", "small.toml"]).refuses(&words);
    host.run(&["doctor"]).refuses(&words);
}
