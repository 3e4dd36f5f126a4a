//! Ordinary users: what root has to give them, in the words of their distribution.

use std::fs;

use linux::host::is_root;
use nix::libc;

use crate::host::{Host, USER};

/// The mode of a program that runs as its owner, root.
const SETUID: u32 = 0o4755;

/// Fedora, Arch and the others call the package with `newuidmap` otherwise.
#[test]
fn the_package_of_newuidmap_is_named_as_the_distribution_calls_it() {
    if !is_root() {
        return;
    }
    for (os_release, words) in [
        ("ID=debian\n", "have root run `apt-get install uidmap`"),
        (
            "ID=ubuntu\nID_LIKE=debian\n",
            "have root run `apt-get install uidmap`",
        ),
        ("ID=fedora\n", "have root run `dnf install shadow-utils`"),
        (
            "ID=\"rhel\"\nID_LIKE=\"fedora\"\n",
            "have root run `dnf install shadow-utils`",
        ),
        (
            "ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n",
            "have root run `zypper install shadow`",
        ),
        ("ID=arch\n", "have root run `pacman -S shadow`"),
        ("ID=alpine\n", "have root run `apk add shadow-subids`"),
        (
            "ID=nixos\n",
            "have root install the package with newuidmap and newgidmap (uidmap, shadow or shadow-utils)",
        ),
    ] {
        let mut host = Host::of_user(USER);
        host.set("PATH", "/nowhere");
        host.set_distribution(os_release);
        host.run(&["build", "small.toml"])
            .refuses(&["newuidmap and newgidmap not found in PATH", words]);
    }
}

/// One id short of what a Debian system uses.
#[test]
fn too_few_subordinate_ids_are_refused_as_none_are() {
    if !is_root() {
        return;
    }
    let host = Host::of_user_with_ids(65_534, SETUID);
    host.run(&["build", "small.toml"]).refuses(&[
        "/etc/subuid gives 54321 no range of at least 65535 ids",
        "/etc/subgid gives 54321 no range of at least 65535 ids",
        "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 54321",
    ]);
}

/// As a package unpacked by hand, or copied into an image, leaves them.
#[test]
fn programs_that_may_map_no_ids_are_named_with_the_command_that_lets_them() {
    if !is_root() {
        return;
    }
    let host = Host::of_user_with_ids(65_536, 0o755);
    let bin = host.path("bin").display().to_string();
    let said = host.run(&["build", "small.toml"]);
    for name in ["newuidmap", "newgidmap"] {
        said.refuses(&[
            &format!("{bin}/{name} is neither setuid nor has capabilities"),
            &format!("have root run `chmod u+s {bin}/{name}`"),
        ]);
    }
    fs::remove_file(host.path("bin/newgidmap")).unwrap();
    let said = host.run(&["build", "small.toml"]);
    said.refuses(&["newgidmap not found in PATH", "chmod u+s"]);
    assert!(!said.text().contains("usermod"), "{}", said.text());
}

/// `docker run --security-opt no-new-privileges` with a user, or a systemd unit with `NoNewPrivileges=`.
#[test]
fn a_process_that_may_not_gain_privileges_is_told_so() {
    if !is_root() {
        return;
    }
    let mut host = Host::of_user_with_ids(65_536, SETUID);
    host.no_new_privileges = true;
    host.run(&["build", "small.toml"]).refuses(&[
        "this process may not gain privileges (no_new_privs), so newuidmap has none",
        "start it without `--security-opt no-new-privileges`, `allowPrivilegeEscalation: false` or `NoNewPrivileges=`",
    ]);
}

/// Debian's older setting, and the kernel's own.
#[test]
fn each_setting_that_forbids_user_namespaces_is_named_with_its_command() {
    if !is_root() {
        return;
    }
    for (file, words) in [
        (
            "kernel/unprivileged_userns_clone",
            [
                "this kernel has kernel.unprivileged_userns_clone=0",
                "have root run `sysctl -w kernel.unprivileged_userns_clone=1`",
            ],
        ),
        (
            "user/max_user_namespaces",
            [
                "this kernel has user.max_user_namespaces=0",
                "have root run `sysctl -w user.max_user_namespaces=15000`",
            ],
        ),
    ] {
        let mut host = Host::of_user_with_ids(65_536, SETUID);
        // Both folders: this host may have a setting of its own.
        for folder in ["kernel", "user"] {
            host.replace_folder(folder, format!("/proc/sys/{folder}"));
        }
        fs::write(host.path(file), "0\n").unwrap();
        host.denied = vec![libc::SYS_unshare];
        let said = host.run(&["build", "small.toml"]);
        said.refuses(&words);
        said.refuses(&["/etc/sysctl.d", "making a user namespace was refused"]);
    }
}
