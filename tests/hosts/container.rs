//! Containers and CI runners: namespaces are refused, or the user has no subordinate ids.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use linux::host::is_root;
use nix::libc;
use nix::mount::MsFlags;

use crate::host::{Host, Mount, NET_ADMIN, SYS_ADMIN, USER};
use crate::server::Server;

/// The words for AppArmor's setting, with the command that changes it.
const APPARMOR: [&str; 3] = [
    "this kernel has kernel.apparmor_restrict_unprivileged_userns=1",
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    "/etc/sysctl.d",
];

/// A container of Docker without options: no `CAP_SYS_ADMIN`, and the calls for namespaces and mounts fail.
#[test]
fn a_container_without_its_rights_is_refused_before_any_request() {
    if !is_root() {
        return;
    }
    let mirror = Server::start();
    let mut host = Host::new();
    host.set(
        "SLIPWAY_DEBIAN_MIRROR",
        format!("http://{}/debian", mirror.address),
    );
    host.dropped = vec![SYS_ADMIN, NET_ADMIN];
    host.denied = vec![libc::SYS_unshare, libc::SYS_mount];
    for command in [
        &["build", "small.toml"][..],
        &["lock", "small.toml"],
        &["doctor"],
    ] {
        host.run(command).refuses(&[
            "does not have CAP_SYS_ADMIN, CAP_NET_ADMIN",
            "docker run --privileged",
        ]);
    }
    // `doctor` asks the mirror all the same; the others did not come to it.
    assert_eq!(mirror.asked().len(), 1, "{:?}", mirror.asked());
    // What starts no program works there.
    host.run(&["check", "small.toml"]).succeeds();
}

/// A container that may make namespaces and not raise the loopback interface in them, which maintainer scripts need.
#[test]
fn a_container_that_cannot_raise_its_loopback_is_refused() {
    if !is_root() {
        return;
    }
    let mut host = Host::new();
    host.dropped = vec![NET_ADMIN];
    host.run(&["build", "small.toml"])
        .refuses(&["does not have CAP_NET_ADMIN", "start it with"]);
}

/// A policy of the host that refuses a single call, to a root with all its rights.
#[test]
fn a_filter_that_forbids_mounts_is_named_with_the_call() {
    if !is_root() {
        return;
    }
    for (call, words) in [
        (libc::SYS_unshare, "making namespaces"),
        (libc::SYS_mount, "mounts"),
        (libc::SYS_pivot_root, "pivoting"),
    ] {
        let mut host = Host::new();
        host.denied = vec![call];
        host.run(&["build", "small.toml"])
            .refuses(&["forbids them", words, "EPERM", "privileged"]);
    }
}

/// A CI runner: an ordinary user whom nobody gave ids, without the programs that map them.
#[test]
fn a_user_is_told_all_that_is_missing_at_once() {
    if !is_root() {
        return;
    }
    let mut host = Host::of_user(USER);
    host.set("PATH", "/nowhere");
    let words = [
        "/etc/subuid gives 54321 no range",
        "/etc/subgid gives 54321 no range",
        "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 54321",
        "newuidmap and newgidmap not found in PATH",
        "or run as root",
    ];
    host.refuses_in_the_first_second(&["build", "small.toml"], &words);
}

/// Ubuntu, with AppArmor's restriction: subordinate ids and `newuidmap` are there, which maps nothing here.
fn ubuntu() -> Host {
    let mut host = Host::of_user(USER);
    let programs = host.path("bin");
    fs::create_dir(&programs).unwrap();
    for name in ["newuidmap", "newgidmap"] {
        fs::write(programs.join(name), "#!/bin/sh\n").unwrap();
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o4755)).unwrap();
    }
    let settings = host.path("kernel");
    fs::create_dir(&settings).unwrap();
    fs::write(
        settings.join("apparmor_restrict_unprivileged_userns"),
        "1\n",
    )
    .unwrap();
    let ids = host.path("ids");
    fs::write(&ids, format!("{USER}:100000:65536\n")).unwrap();
    host.mounts = vec![
        Mount::Bind(settings, "/proc/sys/kernel".into()),
        Mount::Bind(ids.clone(), "/etc/subuid".into()),
        Mount::Bind(ids, "/etc/subgid".into()),
    ];
    host.set("PATH", programs.display().to_string());
    host
}

/// AppArmor forbids the namespace.
#[test]
fn a_kernel_setting_that_forbids_user_namespaces_is_named_with_its_command() {
    if !is_root() {
        return;
    }
    let mut host = ubuntu();
    host.denied = vec![libc::SYS_unshare];
    let said = host.run(&["build", "small.toml"]);
    said.refuses(&APPARMOR);
    assert!(!said.text().contains("usermod"), "{}", said.text());
}

/// As Ubuntu does it: the namespace is granted, and what makes the user root in it is refused. Here the kernel refuses an id that nobody
/// mapped, in the place of AppArmor, which gives no capability.
#[test]
fn a_user_namespace_that_is_granted_and_of_no_use_is_named_with_the_same_command() {
    if !is_root() {
        return;
    }
    let said = ubuntu().run(&["build", "small.toml"]);
    said.refuses(&APPARMOR);
    said.refuses(&["making this process root of a user namespace was refused"]);
    assert!(!said.text().contains("usermod"), "{}", said.text());
}

/// Parts of `/proc` are covered, as container programs do it.
#[test]
fn covered_parts_of_proc_are_no_hindrance() {
    if !is_root() {
        return;
    }
    let mut host = Host::new();
    host.mounts = ["/proc/acpi", "/proc/scsi", "/proc/asound", "/proc/irq"]
        .iter()
        .filter(|path| fs::metadata(path).is_ok())
        .map(|path| Mount::New("tmpfs", path.into(), "size=0", MsFlags::MS_RDONLY))
        .collect();
    assert!(!host.mounts.is_empty());
    host.set("SLIPWAY_DEBIAN_MIRROR", "http://127.0.0.1:1/debian");
    let said = host.run(&["doctor"]);
    said.refuses(&["good     namespaces"]);
}

/// A container whose image has the program alone, as a builder of a farm may be: no `/tmp`, no `/etc`.
#[test]
fn a_container_of_one_program_makes_its_namespaces() {
    if !is_root() {
        return;
    }
    let mut host = Host::new().with_root_of_one_program();
    host.set("SLIPWAY_DEBIAN_MIRROR", "http://127.0.0.1:1/debian");
    let said = host.run(&["doctor"]);
    said.refuses(&["good     namespaces", "good     cache folder"]);
    assert!(!host.path("root/tmp").exists());
}
