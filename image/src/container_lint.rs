//! Rules for the spec of the kubelet's container. Each prevents a failure that was seen on nodes: mounts that never
//! reach the host, mounts that double with every restart until the namespace is full, volumes that hang a pod.

use std::fmt;

use crate::container::NOTIFY_SOCKET;
use crate::kubelet::{MOUNTS, PINNED, PROGRAM, STATE, Source};
use crate::paths::KUBELET_ROOTFS;
use crate::runtime_spec::{CAPABILITIES, Mount, Spec};

/// The words by which a mount states its propagation.
const PROPAGATION: &[&str] = &[
    "shared", "rshared", "slave", "rslave", "private", "rprivate",
];

/// A rule that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The rule's name.
    pub rule: &'static str,
    /// What was found, and what was expected.
    pub found: String,
    /// What to do about it.
    pub fix: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.rule, self.found, self.fix)
    }
}

/// A rule: its name, its function, what to do where it is broken.
type Rule = (&'static str, fn(&Spec, &mut Vec<String>), &'static str);

const RULES: [Rule; 12] = [
    (
        "propagation",
        states_its_propagation,
        "give each bind exactly one word of propagation in its options",
    ),
    (
        "shared",
        shares_only_the_state,
        "make /var/lib/kubelet rshared, and every other bind rslave",
    ),
    (
        "nested",
        nests_nothing_under_a_shared_bind,
        "make the outer bind rslave, or mount the inner one elsewhere",
    ),
    (
        "order",
        mounts_a_folder_before_what_is_in_it,
        "put the outer mount before the inner one",
    ),
    (
        "target",
        uses_plain_targets_once,
        "give each mount one absolute target without . and ..",
    ),
    (
        "recursive",
        binds_with_what_is_below,
        "write rbind in place of bind",
    ),
    (
        "root-propagation",
        lets_mounts_reach_the_host,
        "set linux.rootfsPropagation to \"rshared\"",
    ),
    (
        "namespaces",
        has_only_a_mount_namespace,
        "leave only the mount namespace in linux.namespaces",
    ),
    (
        "root",
        runs_from_a_kept_root,
        "point root.path at the image's container or a pinned one, with root.readonly",
    ),
    (
        "hidden",
        hides_nothing,
        "empty linux.maskedPaths and linux.readonlyPaths",
    ),
    (
        "privileges",
        may_do_everything,
        "grant all capabilities and devices, and leave noNewPrivileges off",
    ),
    (
        "notify",
        notifies_systemd,
        "bind /run and set NOTIFY_SOCKET in process.env",
    ),
];

/// Checks all rules.
#[must_use]
pub fn spec(spec: &Spec) -> Vec<Broken> {
    let mut broken = Vec::new();
    for (rule, check, fix) in RULES {
        let mut wrong = Vec::new();
        check(spec, &mut wrong);
        broken.extend(wrong.into_iter().map(|found| Broken { rule, found, fix }));
    }
    broken
}

fn binds(spec: &Spec) -> impl Iterator<Item = &Mount> {
    spec.mounts.iter().filter(|mount| is_bind(mount))
}

fn is_bind(mount: &Mount) -> bool {
    mount.kind == "bind" || mount.options.iter().any(|o| o == "bind" || o == "rbind")
}

fn propagations(mount: &Mount) -> Vec<&str> {
    let words = mount.options.iter().map(String::as_str);
    words.filter(|word| PROPAGATION.contains(word)).collect()
}

fn is_shared(mount: &Mount) -> bool {
    propagations(mount)
        .iter()
        .any(|word| word.ends_with("shared"))
}

/// Runtimes differ in the default propagation of a bind.
fn states_its_propagation(spec: &Spec, wrong: &mut Vec<String>) {
    for mount in binds(spec) {
        let found = propagations(mount);
        if found.len() != 1 {
            wrong.push(format!(
                "the bind at {} states {} propagations ({}), expected one of {}",
                mount.destination,
                found.len(),
                found.join(", "),
                PROPAGATION.join(", ")
            ));
        }
    }
}

/// Each further shared bind is a way for the container to fill the host's mount table.
fn shares_only_the_state(spec: &Spec, wrong: &mut Vec<String>) {
    for mount in binds(spec).filter(|mount| is_shared(mount)) {
        if mount.destination != STATE {
            wrong.push(format!(
                "the bind at {} is shared, expected that of {STATE} only",
                mount.destination
            ));
        }
    }
    if !binds(spec).any(|mount| mount.destination == STATE && is_shared(mount)) {
        wrong.push(format!(
            "no shared bind at {STATE}: volumes would not reach the pods"
        ));
    }
}

/// A bind inside a shared one is propagated back to the host, and doubles there with each restart.
fn nests_nothing_under_a_shared_bind(spec: &Spec, wrong: &mut Vec<String>) {
    for outer in binds(spec) {
        let stated = propagations(outer);
        if !is_shared(outer) && !stated.is_empty() {
            continue;
        }
        let inside = format!("{}/", outer.destination.trim_end_matches('/'));
        for inner in spec
            .mounts
            .iter()
            .filter(|m| m.destination.starts_with(&inside))
        {
            wrong.push(format!(
                "{} is mounted inside {}, whose propagation is {}: it would double on the host with every restart",
                inner.destination,
                outer.destination,
                stated.first().unwrap_or(&"not stated")
            ));
        }
    }
}

/// A mount hides every earlier one at or below its target.
fn mounts_a_folder_before_what_is_in_it(spec: &Spec, wrong: &mut Vec<String>) {
    for (at, outer) in spec.mounts.iter().enumerate() {
        let inside = format!("{}/", outer.destination.trim_end_matches('/'));
        for inner in &spec.mounts[..at] {
            if inner.destination.starts_with(&inside) {
                wrong.push(format!(
                    "{} is mounted after {} and hides it",
                    outer.destination, inner.destination
                ));
            }
        }
    }
}

fn uses_plain_targets_once(spec: &Spec, wrong: &mut Vec<String>) {
    for (at, mount) in spec.mounts.iter().enumerate() {
        let target = &mount.destination;
        let plain = target
            .strip_prefix('/')
            .is_some_and(|rest| !rest.split('/').any(|part| matches!(part, "" | "." | "..")));
        if !plain {
            wrong.push(format!(
                "the target {target:?} is not a plain absolute path"
            ));
        }
        if spec.mounts[..at].iter().any(|m| m.destination == *target) {
            wrong.push(format!("{target} is mounted twice"));
        }
    }
}

/// Without the mounts below it, a bound folder shows what lies under them.
fn binds_with_what_is_below(spec: &Spec, wrong: &mut Vec<String>) {
    for mount in binds(spec).filter(|mount| mount.source == mount.destination) {
        let folder = ["/dev", "/sys", "/run", "/var", STATE].contains(&mount.source.as_str());
        if folder && !mount.options.iter().any(|option| option == "rbind") {
            wrong.push(format!(
                "{} is bound without the mounts below it, expected rbind",
                mount.destination
            ));
        }
    }
}

/// Measured with crun and runc: with any other value no mount of the kubelet reaches the host.
fn lets_mounts_reach_the_host(spec: &Spec, wrong: &mut Vec<String>) {
    let found = &spec.linux.rootfs_propagation;
    if !["shared", "rshared"].contains(&found.as_str()) {
        wrong.push(format!(
            "rootfsPropagation is {found:?}, expected \"rshared\""
        ));
    }
}

/// The kubelet looks after the host's processes, network and control groups.
fn has_only_a_mount_namespace(spec: &Spec, wrong: &mut Vec<String>) {
    let found: Vec<&str> = spec
        .linux
        .namespaces
        .iter()
        .map(|n| n.kind.as_str())
        .collect();
    if found != ["mount"] {
        wrong.push(format!(
            "the namespaces are {found:?}, expected [\"mount\"] only"
        ));
    }
}

/// The verified root of the image, or a pinned one, which was verified when it was fetched.
fn runs_from_a_kept_root(spec: &Spec, wrong: &mut Vec<String>) {
    let path = &spec.root.path;
    if path != KUBELET_ROOTFS && !is_pinned(path) {
        wrong.push(format!(
            "the root is {path}, expected {KUBELET_ROOTFS}, or a folder named by a digest below {PINNED}"
        ));
    }
    if !spec.root.readonly {
        wrong.push("the root is writable, expected read-only".to_owned());
    }
}

/// Whether the path is that of a pinned container: a folder named by a digest.
fn is_pinned(path: &str) -> bool {
    let name = path
        .strip_prefix(PINNED)
        .and_then(|rest| rest.strip_prefix('/'));
    name.is_some_and(|name| {
        name.len() == 64
            && name
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// The kubelet writes below `/proc/sys`.
fn hides_nothing(spec: &Spec, wrong: &mut Vec<String>) {
    for (name, paths) in [
        ("masked", &spec.linux.masked_paths),
        ("read-only", &spec.linux.readonly_paths),
    ] {
        if !paths.is_empty() {
            wrong.push(format!("{name} paths are {paths:?}, expected none"));
        }
    }
}

/// Mount helpers, volume drivers and the kubelet itself need all capabilities and all devices.
fn may_do_everything(spec: &Spec, wrong: &mut Vec<String>) {
    let sets = &spec.process.capabilities;
    for (name, set) in [
        ("bounding", &sets.bounding),
        ("effective", &sets.effective),
        ("permitted", &sets.permitted),
    ] {
        let absent: Vec<_> = CAPABILITIES
            .iter()
            .filter(|wanted| !set.iter().any(|found| found == *wanted))
            .collect();
        if !absent.is_empty() {
            wrong.push(format!("the {name} capabilities lack {absent:?}"));
        }
    }
    if spec.process.no_new_privileges {
        wrong.push("noNewPrivileges is set: mount helpers could not work".to_owned());
    }
    let devices = &spec.linux.resources.devices;
    if !devices
        .iter()
        .any(|rule| rule.allow && rule.access == "rwm")
        || devices.iter().any(|rule| !rule.allow)
    {
        wrong.push("not all devices are allowed".to_owned());
    }
}

/// Without the socket systemd never receives READY=1, and stops the kubelet after its timeout.
fn notifies_systemd(spec: &Spec, wrong: &mut Vec<String>) {
    let wanted = format!("NOTIFY_SOCKET={NOTIFY_SOCKET}");
    let bound = binds(spec).any(|m| m.destination == "/run" && m.source == "/run");
    if !bound || !spec.process.env.contains(&wanted) {
        wrong.push(format!("{wanted} or the bind of /run is missing"));
    }
}

/// Checks that the kubelet's image has every mount point; returns one sentence for each that is missing. The root is
/// read-only, so the runtime cannot create them. `is_file` returns whether a path of the image is a file (else it is a
/// folder), or an error if it cannot be examined.
pub fn image(is_file: impl Fn(&str) -> std::io::Result<bool>) -> Vec<String> {
    let targets = MOUNTS
        .iter()
        .map(|mount| (mount.target, matches!(mount.source, Source::File(_))));
    std::iter::once((PROGRAM, true))
        .chain(targets)
        .filter_map(|(target, wants_file)| {
            let expected = if wants_file { "file" } else { "folder" };
            match is_file(target) {
                Ok(found) if found == wants_file => None,
                Ok(_) => Some(format!(
                    "{target} in the kubelet's image is not a {expected}"
                )),
                Err(error) => Some(format!(
                    "the {expected} {target} is missing in the kubelet's image: {error}"
                )),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::container::kubelet;
    use crate::runtime_spec::Namespace;

    use super::*;

    /// Applies `spoil` to a valid spec and checks that the linter reports `expected`.
    fn broken(expected: &str, spoil: impl FnOnce(&mut Spec)) {
        let mut spoiled = kubelet(KUBELET_ROOTFS, &[], &|_| true);
        assert_eq!(spec(&spoiled), [], "the spec itself must be good");
        spoil(&mut spoiled);
        let found = spec(&spoiled);
        assert!(
            found.iter().any(|broken| broken.found.contains(expected)),
            "expected {expected:?} in {found:#?}"
        );
    }

    fn at<'a>(spec: &'a mut Spec, target: &str) -> &'a mut Mount {
        spec.mounts
            .iter_mut()
            .find(|mount| mount.destination == target)
            .unwrap()
    }

    fn bind(target: &str, options: &[&str]) -> Mount {
        Mount {
            destination: target.to_owned(),
            kind: "bind".to_owned(),
            source: target.to_owned(),
            options: options.iter().map(|o| (*o).to_owned()).collect(),
        }
    }

    #[test]
    fn a_bind_without_or_with_two_propagations_is_refused() {
        broken("the bind at /dev states 0 propagations", |spec| {
            at(spec, "/dev").options.retain(|option| option != "rslave");
        });
        broken("the bind at /dev states 2 propagations", |spec| {
            at(spec, "/dev").options.push("rshared".to_owned());
        });
    }

    #[test]
    fn only_the_state_may_be_shared_and_must_be() {
        broken("/run is shared", |spec| {
            at(spec, "/run").options = vec!["rbind".to_owned(), "rshared".to_owned()];
        });
        broken("no shared bind at /var/lib/kubelet", |spec| {
            at(spec, STATE).options = vec!["rbind".to_owned(), "rslave".to_owned()];
        });
        broken("no shared bind at /var/lib/kubelet", |spec| {
            spec.mounts.retain(|mount| mount.destination != STATE);
        });
    }

    #[test]
    fn nothing_may_nest_under_a_shared_or_silent_bind() {
        broken(
            "/var/lib/kubelet/x is mounted inside /var/lib/kubelet",
            |spec| {
                spec.mounts
                    .push(bind("/var/lib/kubelet/x", &["rbind", "rslave"]));
            },
        );
        broken("whose propagation is not stated", |spec| {
            spec.mounts.push(bind("/data", &["rbind"]));
            spec.mounts.push(bind("/data/x", &["rbind", "rslave"]));
        });
    }

    #[test]
    fn the_order_of_mounts_counts() {
        broken("/var is mounted after /var/lib/kubelet", |spec| {
            spec.mounts
                .sort_by(|a, b| b.destination.cmp(&a.destination));
        });
    }

    #[test]
    fn targets_are_plain_and_used_once() {
        broken("is mounted twice", |spec| {
            spec.mounts.push(bind("/run", &["rbind", "rslave"]));
        });
        for target in ["data", "/a/../b", "/a/", "/"] {
            broken("not a plain absolute path", |spec| {
                spec.mounts.push(bind(target, &["rbind", "rslave"]));
            });
        }
    }

    #[test]
    fn folders_with_mounts_below_need_rbind() {
        broken("/var is bound without", |spec| {
            at(spec, "/var").options = vec!["bind".to_owned(), "rslave".to_owned()];
        });
    }

    #[test]
    fn mounts_must_be_able_to_reach_the_host() {
        for word in ["", "rslave", "rprivate", "private"] {
            broken("rootfsPropagation", |spec| {
                spec.linux.rootfs_propagation = word.to_owned();
            });
        }
    }

    #[test]
    fn other_namespaces_are_refused() {
        for kind in ["pid", "network", "ipc", "uts", "cgroup", "user"] {
            broken("the namespaces are", |spec| {
                spec.linux.namespaces.push(Namespace {
                    kind: kind.to_owned(),
                });
            });
        }
        broken("the namespaces are", |spec| spec.linux.namespaces.clear());
    }

    #[test]
    fn the_root_is_the_verified_one_and_read_only() {
        broken("the root is /tmp/x", |spec| {
            "/tmp/x".clone_into(&mut spec.root.path)
        });
        let digest = "0a".repeat(32);
        let pinned = kubelet(&format!("{PINNED}/{digest}"), &[], &|_| true);
        assert_eq!(spec(&pinned), []);
        for root in [format!("{PINNED}/current"), format!("{PINNED}/{digest}/x")] {
            broken("a folder named by a digest", |spec| spec.root.path = root);
        }
        broken("the root is writable", |spec| spec.root.readonly = false);
    }

    #[test]
    fn nothing_may_be_hidden() {
        broken("masked paths", |spec| {
            spec.linux.masked_paths.push("/proc/kcore".to_owned());
        });
        broken("read-only paths", |spec| {
            spec.linux.readonly_paths.push("/proc/sys".to_owned());
        });
    }

    #[test]
    fn everything_must_be_allowed() {
        broken("the bounding capabilities", |spec| {
            spec.process.capabilities.bounding.pop();
        });
        broken("the effective capabilities", |spec| {
            spec.process.capabilities.effective.clear();
        });
        broken("the permitted capabilities", |spec| {
            spec.process.capabilities.permitted.remove(21);
        });
        broken("noNewPrivileges", |spec| {
            spec.process.no_new_privileges = true
        });
        broken("not all devices", |spec| {
            spec.linux.resources.devices.clear()
        });
        broken("not all devices", |spec| {
            spec.linux.resources.devices[0].allow = false;
        });
    }

    #[test]
    fn systemd_must_hear_that_it_is_ready() {
        broken("NOTIFY_SOCKET", |spec| spec.process.env.clear());
        broken("the bind of /run", |spec| {
            spec.mounts.retain(|mount| mount.destination != "/run");
        });
    }
}
