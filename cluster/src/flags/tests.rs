//! Rows of the table, and what is said of flags, values and gates that a version does not know.

use super::*;
use crate::release::RELEASES;

const COMPONENTS: [&str; 4] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    KUBELET_NAME,
];

#[test]
fn every_row_is_whole_and_every_version_has_its_rows() {
    let mut seen = std::collections::BTreeSet::new();
    for line in TABLE.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        assert_eq!(cells.len(), 5, "{line}");
        assert!(COMPONENTS.contains(&cells[0]) || cells[0] == GATE, "{line}");
        assert!(seen.insert((cells[0], cells[1])), "twice: {line}");
        assert!(Minors::parse(cells[2]).is_some(), "{line}");
        for cell in cells.iter().skip(if cells[0] == GATE { 3 } else { 4 }) {
            assert!(*cell == "-" || Minors::parse(cell).is_some(), "{line}");
        }
    }
    for release in &RELEASES {
        for component in COMPONENTS.into_iter().chain([GATE]) {
            let known = rows(component).filter(|row| row.known.have(release.minor));
            assert!(known.count() > 50, "{component} 1.{}", release.minor);
        }
    }
}

#[test]
fn what_a_version_does_not_know_is_refused_with_what_takes_its_place() {
    for (component, minor, flag, value, expected) in [
        (
            "kube-apiserver",
            36,
            "insecure-port",
            "0",
            "kube-apiserver 1.36 has no flag --insecure-port any more; in its place: api-server.port",
        ),
        (
            "kube-apiserver",
            36,
            "audit-log-maxages",
            "7",
            "kube-apiserver 1.36 has no flag --audit-log-maxages; did you mean --audit-log-maxage?",
        ),
        (
            "kube-apiserver",
            36,
            "audit-log-maxage",
            "a week",
            "--audit-log-maxage of kube-apiserver 1.36 is of type int, which \"a week\" is not",
        ),
        (
            "kube-controller-manager",
            35,
            "node-monitor-period",
            "5",
            "--node-monitor-period of kube-controller-manager 1.35 is of type duration, which \"5\" is not",
        ),
        (
            KUBELET_NAME,
            36,
            "max-pods",
            "50",
            "the kubelet 1.36 calls --max-pods deprecated; expected maxPods in [kubelet.config]",
        ),
        (
            KUBELET_NAME,
            36,
            "pod-infra-container-image",
            "pause",
            "kubelet 1.36 has no flag --pod-infra-container-image any more; in its place: containerd's own configuration",
        ),
        (
            "kube-scheduler",
            36,
            "feature-gates",
            "NoSuchGate=true",
            "Kubernetes 1.36 has no feature gate NoSuchGate",
        ),
    ] {
        assert_eq!(check(component, minor, flag, value).unwrap_err(), expected);
    }
    for (component, flag, value) in [
        ("kube-apiserver", "audit-log-maxage", "7"),
        ("kube-apiserver", "profiling", "false"),
        ("kube-controller-manager", "node-monitor-period", "5s"),
        ("kube-scheduler", "v", "3"),
        (KUBELET_NAME, "node-ip", "10.0.0.5,fd00::5"),
    ] {
        for release in &RELEASES {
            assert_eq!(
                check(component, release.minor, flag, value),
                Ok(()),
                "{flag}"
            );
        }
    }
}

#[test]
fn gates_are_known_by_version_and_some_are_locked() {
    assert_eq!(gate(36, "InPlacePodVerticalScaling", true), Ok(()));
    let said = gate(36, "inplacepodverticalscaling", true).unwrap_err();
    assert!(
        said.ends_with("did you mean InPlacePodVerticalScaling?"),
        "{said}"
    );
    let locked = rows(GATE)
        .find(|row| row.marked.is_some_and(|marked| marked.have(36)))
        .unwrap();
    let on = Minors::parse(locked.kind).is_some_and(|minors| minors.have(36));
    assert_eq!(gate(36, locked.name, on), Ok(()));
    assert!(gate(36, locked.name, !on).unwrap_err().contains("always"));
    let gone = rows(GATE).find(|row| row.known.last < 36).unwrap();
    let said = gate(36, gone.name, true).unwrap_err();
    assert!(said.contains("it was there until 1.3"), "{said}");
}
