//! Facts about this process that decide whether it may have namespaces: user, capabilities, container, settings.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

use super::distribution::Distribution;
use crate::host::sandbox;

/// This process's label, as AppArmor shows it since Linux 5.8 (security/apparmor/lsm.c, `apparmor_getselfattr`).
const APPARMOR: &str = "/proc/self/attr/apparmor/current";

/// The capabilities that a build needs of root, by number (linux/capability.h), with their names.
const NEEDED: [(u8, &str); 10] = [
    (21, "CAP_SYS_ADMIN"),
    // The loopback interface of the programs' own network.
    (12, "CAP_NET_ADMIN"),
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (4, "CAP_FSETID"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (18, "CAP_SYS_CHROOT"),
    (31, "CAP_SETFCAP"),
];

/// What is known of this process and its host.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The user's name, or its number.
    pub(super) user: String,
    /// Whether the user is root, maybe of a container.
    pub(super) root: bool,
    /// The names of needed capabilities that this process does not have.
    pub(super) lacks: Vec<&'static str>,
    /// Whether setuid programs give nothing (`no_new_privs`, prctl(2)).
    pub(super) no_new_privileges: bool,
    /// Whether a seccomp filter is on.
    pub(super) filtered: bool,
    /// The kind of container that this is, if it is one.
    pub(super) container: Option<&'static str>,
    /// Files that give the user no subordinate ids, with what they say.
    pub(super) without_ids: Vec<String>,
    /// The programs that map subordinate ids and are not there, or cannot do it.
    pub(super) helpers: Vec<Helper>,
    /// The kernel setting that forbids user namespaces, with the command that allows them.
    pub(super) sysctl: Option<String>,
    /// The AppArmor profile that confines this process.
    pub(super) profile: Option<String>,
    /// The distribution of the host.
    pub(super) distribution: Distribution,
}

/// A program that maps subordinate ids and cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Helper {
    /// It is not in the search path.
    Absent(&'static str),
    /// It has neither the setuid bit nor capabilities.
    Powerless(PathBuf),
}

impl Facts {
    /// Those of this process, which was started by this user: in a user namespace without a map it is nobody.
    pub(super) fn of(user: Uid) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let known = User::from_uid(user).ok().flatten();
        let name = known.map_or_else(|| user.to_string(), |found| found.name);
        Self {
            root: user.is_root(),
            lacks: lacks(&status),
            no_new_privileges: number(&status, "NoNewPrivs", 10) == Some(1),
            filtered: number(&status, "Seccomp", 10).is_some_and(|mode| mode > 0),
            container: container(Path::new("/")),
            without_ids: sandbox::without_subordinate_ids(user, &name),
            helpers: helpers(&env::var_os("PATH").unwrap_or_default()),
            sysctl: sandbox::forbidding_sysctl(Path::new("/proc/sys")),
            profile: profile(&fs::read_to_string(APPARMOR).unwrap_or_default()),
            distribution: Distribution::here(),
            user: name,
        }
    }
}

/// A number of `/proc/PID/status` (proc_pid_status(5)).
fn number(status: &str, key: &str, radix: u32) -> Option<u64> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    u64::from_str_radix(value.trim(), radix).ok()
}

/// The profile of a label, `NAME (MODE)`, if it refuses anything: nothing is refused without one, and by one in another mode than these.
fn profile(label: &str) -> Option<String> {
    let (name, mode) = label.trim_end_matches(['\n', '\0']).rsplit_once(" (")?;
    matches!(mode, "enforce)" | "kill)" | "mixed)" | "prompt)").then(|| name.to_owned())
}

/// The needed capabilities that are not in effect; none if it is not known.
fn lacks(status: &str) -> Vec<&'static str> {
    let Some(effective) = number(status, "CapEff", 16) else {
        return Vec::new();
    };
    let lacked = NEEDED.iter().filter(|(bit, _)| effective >> bit & 1 == 0);
    lacked.map(|(_, name)| *name).collect()
}

/// The container that this process is in, by what container programs leave there.
fn container(root: &Path) -> Option<&'static str> {
    let has = |path: &str| root.join(path).exists();
    if has("var/run/secrets/kubernetes.io") || env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Some("a pod of Kubernetes")
    } else if has("run/.containerenv") {
        Some("a container of Podman")
    } else if has(".dockerenv") {
        Some("a container of Docker")
    } else if has("run/systemd/container") || env::var_os("container").is_some() {
        Some("a container")
    } else {
        None
    }
}

fn helpers(path: &std::ffi::OsStr) -> Vec<Helper> {
    let mut found = Vec::new();
    for name in ["newuidmap", "newgidmap"] {
        let file = env::split_paths(path)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file());
        match file {
            None => found.push(Helper::Absent(name)),
            Some(file) if !has_power(&file) => found.push(Helper::Powerless(file)),
            Some(_) => {}
        }
    }
    found
}

/// Whether a program runs with more rights than its caller has.
fn has_power(file: &Path) -> bool {
    use nix::sys::statvfs::{FsFlags, statvfs};
    let setuid = fs::metadata(file).is_ok_and(|meta| meta.permissions().mode() & 0o4000 != 0);
    let capable = xattr::get(file, "security.capability").is_ok_and(|value| value.is_some());
    let ignored = statvfs(file).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_NOSUID));
    (setuid || capable) && !ignored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacked_capabilities_have_their_names() {
        // The capabilities of root, and of root in a container of Docker without options.
        assert_eq!(lacks("CapEff:\t000001ffffffffff\n"), Vec::<&str>::new());
        let docker = lacks("NoNewPrivs:\t0\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n");
        assert_eq!(docker, ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"]);
        assert_eq!(lacks("CapEff:\t0000000000000000\n").len(), NEEDED.len());
        assert_eq!(lacks(""), Vec::<&str>::new());
    }

    #[test]
    fn a_profile_counts_where_it_refuses() {
        let of = |label: &str| profile(label);
        assert_eq!(of("closed (enforce)\n").as_deref(), Some("closed"));
        assert_eq!(of("a (b) (kill)").as_deref(), Some("a (b)"));
        for label in [
            "unconfined\n",
            "slipway (unconfined)\n",
            "closed (complain)\n",
            "",
        ] {
            assert_eq!(of(label), None, "{label}");
        }
    }

    #[test]
    fn a_container_is_known_by_its_files() {
        for (file, kind) in [
            (".dockerenv", "Docker"),
            ("run/.containerenv", "Podman"),
            ("var/run/secrets/kubernetes.io/x", "Kubernetes"),
        ] {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
            assert!(container(root.path()).unwrap().contains(kind));
        }
    }

    #[test]
    fn helpers_are_absent_or_powerless() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().as_os_str();
        let absent = helpers(path);
        let names = [Helper::Absent("newuidmap"), Helper::Absent("newgidmap")];
        assert_eq!(absent, names);
        let file = folder.path().join("newuidmap");
        fs::write(&file, "").unwrap();
        assert_eq!(helpers(path)[0], Helper::Powerless(file.clone()));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(helpers(path), [Helper::Absent("newgidmap")]);
    }
}
