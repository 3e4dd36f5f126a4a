//! Containers and CI runners: namespaces are refused, or the user has no subordinate ids.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use linux::host::is_root;
use nix::libc;
use nix::mount::MsFlags;

use crate::host::{Host, Mount, NET_ADMIN, NOWHERE, SYS_ADMIN, USER};
use crate::inputs;
use crate::server::Server;

/// The words for AppArmor's setting, with the command that changes it.
const APPARMOR: [&str; 3] = [
    "this kernel has kernel.apparmor_restrict_unprivileged_userns=1",
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    "/etc/sysctl.d",
];

/// Commands that start no program, each with words of what it says.
const WITHOUT_PROGRAMS: [(&[&str], &str); 30] = [
    (
        &["check", "small.toml"],
        "small 1 from small.toml: no mistakes",
    ),
    (&["new", "other"], "other.toml"),
    (&["lock", "small.toml", "--locked"], "   1 packages"),
    (
        &["lock", "small.toml", "--locked", "--diff", "small.lock"],
        "",
    ),
    (
        &["build", "small.toml", "--dry-run"],
        "out/small-1: disk.raw\n1 file to fetch, ",
    ),
    (&["inspect", "one"], "packages: 1\n  bash 1"),
    (&["inspect", "one/disk.raw"], "the hash tree's top fits"),
    (&["inspect", "one/small.efi"], "image    small 1, contract"),
    (
        &["diff", "one", "two", "--no-files"],
        "~ image small 1 → small 2",
    ),
    (
        &["timeline", "boot.jsonl"],
        "init      verity     1.000    2.000 s",
    ),
    (&["timeline", "boot.jsonl", "--svg", "boot.svg"], "boot.svg"),
    (&["cache", "show"], " in the cache, of at most "),
    (&["cache", "keygen", "my.key"], "my:"),
    (&["ignition", "validate", "a.ign"], ""),
    (&["ignition", "validate", "a.bu"], ""),
    (&["ignition", "merge", "a.ign", "b.ign"], "\"/etc/b\""),
    (&["ignition", "from-butane", "a.bu"], "\"/etc/a\""),
    (&["ignition", "program", "-o", "ignition"], ""),
    (
        &[
            "farm",
            "render",
            "small.toml",
            "--image",
            "r.example/slipway:1",
            "--claim",
            "images",
        ],
        "kind: Job",
    ),
    (&["release", "list"], "carried"),
    (&["release", "show", "1.36"], "version = \"1.36."),
    (&["release", "check"], "carried table: "),
    (&["cluster", "new", CLUSTER], "the cluster \"blue\""),
    (
        &["cluster", "join-config", CLUSTER, "--role", "worker"],
        "\"ignition\"",
    ),
    (&["cluster", "kubeconfig", CLUSTER], "kind: Config"),
    (&["schema"], "\"$schema\""),
    (&["schema", "--cluster"], "\"$schema\""),
    (&["completions", "bash"], "doctor"),
    (&["manual"], ".TH slipway"),
    (&["manual", "build"], "Build the image of a recipe"),
];
/// Those that say of a cluster that none is there.
const WITHOUT_A_CLUSTER: [(&[&str], &str); 3] = [
    (
        &["cluster", "status", CLUSTER],
        "no machines of blue.toml run on this host",
    ),
    (
        &["cluster", "down", CLUSTER],
        "blue.toml has no machines on this host",
    ),
    (
        &[
            "cluster",
            "validate",
            CLUSTER,
            "--server",
            "https://127.0.0.1:1",
        ],
        "Connection refused",
    ),
];
/// The pages of all other commands: they start programs, whatever their arguments, or ask servers (`release add`).
const OTHERS: [&str; 6] = [
    "slipway-cache-prune",
    "slipway-cluster-up",
    "slipway-demo",
    "slipway-doctor",
    "slipway-release-add",
    "slipway-run",
];
const CLUSTER: &str = "blue.toml";

/// A container of Docker without options: no `CAP_SYS_ADMIN`, and the calls for namespaces and mounts fail.
#[test]
fn a_container_without_its_rights_is_refused_before_any_request() {
    if !is_root() {
        return;
    }
    let mirror = Server::start();
    let mut host = Host::new();
    host.set_mirror(mirror.url());
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
}

/// The pages of commands, without those that have others below them.
fn commands(list: &str) -> BTreeSet<String> {
    let is_above = |page: &&str| {
        let below = format!("{page}-");
        list.lines().any(|other| other.starts_with(&below))
    };
    let pages = list.lines().filter(|page| !is_above(page));
    pages.map(str::to_owned).collect()
}

/// The page of a command with its arguments.
fn page(words: &[&str], pages: &BTreeSet<String>) -> String {
    let pairs = words.get(..2).unwrap_or(words).join("-");
    let pair = format!("slipway-{pairs}");
    match pages.contains(&pair) {
        true => pair,
        false => format!("slipway-{}", words[0]),
    }
}

/// A server of images begins to listen.
fn serves(host: &Host) {
    let mut child = host
        .command(&["pxe", "serve", ".", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
    child.kill().unwrap();
    child.wait().unwrap();
    read.unwrap();
    assert!(line.starts_with("http://127.0.0.1:"), "{line:?}");
}

/// A template names no endpoint, which configs of nodes need.
fn set_endpoint(host: &Host) {
    let path = host.path(CLUSTER);
    let text = fs::read_to_string(&path).unwrap();
    let with = text.replace("# endpoint = ", "endpoint = ");
    assert_ne!(with, text);
    fs::write(path, with).unwrap();
}

/// Root without capabilities, and a user without ids, where each call for namespaces and mounts fails: what starts no program does
/// all of its work there. Every command is tried, or is one of the others.
#[test]
fn commands_that_start_no_program_need_no_namespaces() {
    if !is_root() {
        return;
    }
    let mut container = Host::new();
    container.dropped = vec![SYS_ADMIN, NET_ADMIN];
    for mut host in [container, Host::of_user(USER)] {
        host.no_namespaces = true;
        host.set_mirror(NOWHERE);
        inputs::write(&host);
        host.run(&["build", "small.toml"])
            .refuses(&["this host cannot build yet"]);
        let pages = commands(&host.run(&["manual", "--list"]).succeeds());
        let mut untried = pages.clone();
        for (words, expected) in WITHOUT_PROGRAMS {
            let said = host.run(words).succeeds();
            assert!(said.contains(expected), "{words:?}: {said}");
            untried.remove(&page(words, &pages));
            if words.starts_with(&["cluster", "new"]) {
                set_endpoint(&host);
            }
        }
        for (words, expected) in WITHOUT_A_CLUSTER {
            host.run(words).refuses(&[expected]);
            untried.remove(&page(words, &pages));
        }
        serves(&host);
        untried.remove("slipway-pxe-serve");
        assert_eq!(untried.iter().collect::<Vec<_>>(), OTHERS);
        for name in ["ignition", "boot.svg", "other.toml"] {
            assert!(host.path(name).is_file(), "{name}");
        }
        assert!(!host.path("out").exists());
    }
}

/// The files by which container programs are known, in a root of one program.
#[test]
fn each_kind_of_container_is_told_how_its_own_is_started() {
    if !is_root() {
        return;
    }
    for (file, words) in [
        (
            ".dockerenv",
            [
                "this is a container of Docker, whose root does not have CAP_SYS_ADMIN",
                "`docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt seccomp=unconfined --security-opt \
                 apparmor=unconfined …`",
            ],
        ),
        (
            "run/.containerenv",
            [
                "this is a container of Podman, whose root does not have CAP_SYS_ADMIN",
                "`podman run --privileged …`, also as an ordinary user",
            ],
        ),
        (
            "var/run/secrets/kubernetes.io/serviceaccount",
            [
                "this is a pod of Kubernetes, whose root does not have CAP_SYS_ADMIN",
                "set `securityContext: {privileged: true}` for the container",
            ],
        ),
    ] {
        let mut host = Host::new().with_root_of_one_program();
        host.dropped = vec![SYS_ADMIN];
        let path = host.path("root").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        host.run(&["build", "small.toml"]).refuses(&words);
    }
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
    let mut host = Host::of_user_with_ids(65_536, 0o4755);
    let settings = host.replace_folder("kernel", "/proc/sys/kernel");
    fs::write(
        settings.join("apparmor_restrict_unprivileged_userns"),
        "1\n",
    )
    .unwrap();
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
    host.set_mirror(NOWHERE);
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
    host.set_mirror(NOWHERE);
    let said = host.run(&["doctor"]);
    said.refuses(&["good     namespaces", "good     cache folder"]);
    assert!(!host.path("root/tmp").exists());
}
