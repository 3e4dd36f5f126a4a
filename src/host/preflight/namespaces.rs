//! Namespaces: enters them as a build does, and explains a refusal by the facts of the host.

use std::fs;
use std::path::Path;

use anyhow::Result;
use nix::unistd::Uid;

use super::facts::{Facts, Helper};
use super::finding::Finding;
use crate::host::sandbox::{self, Sandbox};

/// The name of this resource.
const NAME: &str = "namespaces";
/// Path of this program inside the namespaces.
const PROBE: &str = "/run/slipway-preflight";

/// Makes an ordinary user root of a user namespace. Call it before any thread is started.
///
/// # Errors
/// The reasons, each with its remedy.
pub(super) fn enter() -> Result<(), Vec<Finding>> {
    let user = Uid::effective();
    sandbox::become_root_of_namespace()
        .map_err(|error| explain(&Facts::of(user), &format!("{error:#}")))
}

/// Runs this very program in the namespaces that a build uses, with the host's root read-only.
pub(super) fn probe() -> Vec<Finding> {
    match try_them() {
        Ok(()) if in_user_namespace() => vec![Finding::good(
            NAME,
            "as a user with subordinate ids; a program ran in them",
        )],
        Ok(()) => vec![Finding::good(NAME, "as root; a program ran in them")],
        Err(error) => explain(&Facts::of(Uid::effective()), &format!("{error:#}")),
    }
}

fn try_them() -> Result<()> {
    let program = std::env::current_exe()?;
    Sandbox::read_only(Path::new("/"))
        .bind_read_only(&program, PROBE)
        .command(PROBE)
        .arg("--version")
        .run()?;
    Ok(())
}

/// Whether this root is not root of the host: its id 0 is then another id outside.
fn in_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| {
        let mut words = map.split_whitespace();
        words.next() != Some("0") || words.next() != Some("0")
    })
}

/// The reasons of a refusal that the facts show, all at once; the refusal itself if they show none.
fn explain(facts: &Facts, refusal: &str) -> Vec<Finding> {
    let reasons = match facts.root {
        true => of_root(facts, refusal),
        false => of_user(facts, refusal),
    };
    if !reasons.is_empty() {
        return reasons;
    }
    let mut remedy = match facts.root {
        true => {
            "allow this program mount and user namespaces in the host's security policy, or use another host"
        }
        false => "allow user namespaces in the host's security policy, or run as root",
    }
    .to_owned();
    let mut found = refusal.to_owned();
    if let Some(profile) = &facts.profile {
        found += &format!("; the AppArmor profile {profile} confines this program");
        remedy += "; in an AppArmor profile that is the rule `userns,`, beside `mount,`, `umount,` and `pivot_root,`";
    }
    vec![Finding::missing(NAME, found, remedy)]
}

/// Root without all of its rights is root of a container.
fn of_root(facts: &Facts, refusal: &str) -> Vec<Finding> {
    let place = facts.container.unwrap_or("a container or a service");
    let found = if !facts.lacks.is_empty() {
        format!(
            "this is {place}, whose root does not have {}",
            facts.lacks.join(", ")
        )
    } else if facts.filtered || facts.container.is_some() {
        format!("this is {place} that forbids them: {refusal}")
    } else {
        return Vec::new();
    };
    vec![Finding::missing(NAME, found, of_container(facts.container))]
}

/// What gives a container the right to make namespaces and mounts.
fn of_container(container: Option<&str>) -> &'static str {
    match container {
        Some("a pod of Kubernetes") => {
            "set `securityContext: {privileged: true}` for the container (a GitLab runner: `privileged = true` below \
             [runners.kubernetes])"
        }
        Some("a container of Podman") => {
            "start it with `podman run --privileged …`, also as an ordinary user"
        }
        Some("a container of Docker") => {
            "start it with `docker run --privileged …`, or with less: `docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN \
             --security-opt seccomp=unconfined --security-opt apparmor=unconfined …`"
        }
        _ => {
            "start it with CAP_SYS_ADMIN and CAP_NET_ADMIN and without a seccomp filter (`docker run --privileged …`; in a systemd unit, \
             without `CapabilityBoundingSet`, `RestrictNamespaces` and `SystemCallFilter`)"
        }
    }
}

/// An ordinary user needs subordinate ids, the programs that map them, and a kernel that allows it.
fn of_user(facts: &Facts, refusal: &str) -> Vec<Finding> {
    let mut all = Vec::new();
    if !facts.without_ids.is_empty() {
        let remedy = format!(
            "have root run `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {}`",
            facts.user
        );
        let found = facts.without_ids.join("; ");
        all.push(Finding::missing("subordinate ids", found, remedy));
    }
    all.extend(of_helpers(facts));
    if let Some(sysctl) = &facts.sysctl {
        let (found, remedy) = sysctl.split_once(": ").unwrap_or((sysctl, ""));
        let keep = "and write the same into a file of /etc/sysctl.d to keep it";
        all.push(Finding::missing(
            NAME,
            format!("{found}: {refusal}"),
            format!("{remedy}, {keep}; or run as root"),
        ));
    }
    if let (true, Some(last)) = (!all.is_empty(), all.last_mut())
        && let Some(remedy) = &mut last.remedy
        && !remedy.contains("or run as root")
    {
        *remedy += "; or run as root";
    }
    all
}

fn of_helpers(facts: &Facts) -> Vec<Finding> {
    const NAME: &str = "id mapping";
    let mut all = Vec::new();
    let absent = facts.helpers.iter().filter_map(|helper| match helper {
        Helper::Absent(name) => Some(*name),
        Helper::Powerless(_) => None,
    });
    let absent: Vec<&str> = absent.collect();
    if !absent.is_empty() {
        let found = format!("{} not found in PATH", absent.join(" and "));
        let remedy = facts.distribution.install_uidmap();
        all.push(Finding::missing(NAME, found, remedy));
    }
    for helper in &facts.helpers {
        if let Helper::Powerless(path) = helper {
            let path = path.display();
            let found =
                format!("{path} is neither setuid nor has capabilities, or its mount ignores them");
            let remedy = format!("have root run `chmod u+s {path}`");
            all.push(Finding::missing(NAME, found, remedy));
        }
    }
    if facts.no_new_privileges {
        all.push(Finding::missing(
            NAME,
            "this process may not gain privileges (no_new_privs), so newuidmap has none",
            "start it without `--security-opt no-new-privileges`, `allowPrivilegeEscalation: false` or `NoNewPrivileges=`",
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::preflight::distribution::Distribution;

    const REFUSAL: &str = "making a user namespace was refused (EPERM: Operation not permitted)";

    fn facts() -> Facts {
        Facts {
            user: "me".to_owned(),
            root: false,
            lacks: Vec::new(),
            no_new_privileges: false,
            filtered: false,
            container: None,
            without_ids: Vec::new(),
            helpers: Vec::new(),
            sysctl: None,
            profile: None,
            distribution: Distribution::Debian,
        }
    }

    fn text(findings: &[Finding]) -> String {
        let lines = findings.iter().map(|finding| {
            assert!(finding.is_fatal());
            let remedy = finding.remedy.as_deref().unwrap_or_default();
            format!("{}: {} -> {remedy}\n", finding.name, finding.found)
        });
        lines.collect()
    }

    #[test]
    fn all_that_an_ordinary_user_lacks_is_named_at_once() {
        let found = explain(
            &Facts {
                without_ids: vec!["/etc/subuid gives me no range".to_owned()],
                helpers: vec![Helper::Absent("newuidmap"), Helper::Absent("newgidmap")],
                sysctl: Some("this kernel has a.b=1: have root run `sysctl -w a.b=0`".to_owned()),
                ..facts()
            },
            REFUSAL,
        );
        let said = text(&found);
        assert_eq!(found.len(), 3, "{said}");
        for part in [
            "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 me",
            "apt-get install uidmap",
            "sysctl -w a.b=0",
            "/etc/sysctl.d",
            "or run as root",
        ] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
    }

    #[test]
    fn roots_of_containers_are_told_how_theirs_is_started() {
        for (container, words) in [
            (Some("a container of Docker"), "docker run --privileged"),
            (Some("a container of Podman"), "podman run --privileged"),
            (Some("a pod of Kubernetes"), "privileged: true"),
            (None, "CAP_SYS_ADMIN"),
        ] {
            let facts = Facts {
                root: true,
                lacks: vec!["CAP_SYS_ADMIN"],
                container,
                ..facts()
            };
            let said = text(&explain(&facts, REFUSAL));
            assert!(said.contains("does not have CAP_SYS_ADMIN"), "{said}");
            assert!(said.contains(words), "{said}");
        }
        let filtered = Facts {
            root: true,
            filtered: true,
            ..facts()
        };
        assert!(text(&explain(&filtered, REFUSAL)).contains("EPERM"));
    }

    #[test]
    fn powerless_helpers_and_lost_privileges_are_named() {
        let facts = Facts {
            helpers: vec![Helper::Powerless("/usr/bin/newuidmap".into())],
            no_new_privileges: true,
            ..facts()
        };
        let said = text(&explain(&facts, REFUSAL));
        assert!(said.contains("chmod u+s /usr/bin/newuidmap"), "{said}");
        assert!(said.contains("no_new_privs"), "{said}");
    }

    #[test]
    fn an_unknown_reason_keeps_the_kernels_words() {
        let said = text(&explain(&facts(), REFUSAL));
        assert!(
            said.contains(REFUSAL) && said.contains("run as root") && !said.contains("AppArmor"),
            "{said}"
        );
        let confined = Facts {
            profile: Some("closed".to_owned()),
            ..facts()
        };
        let said = text(&explain(&confined, REFUSAL));
        for part in [REFUSAL, "the AppArmor profile closed confines", "`userns,`"] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
    }
}
