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
        let gate = [GATE, ETCD_GATE].contains(&cells[0]);
        let component = COMPONENTS.contains(&cells[0]) || cells[0] == ETCD;
        assert!(gate || component, "{line}");
        assert!(seen.insert((cells[0], cells[1], cells[2])), "twice: {line}");
        assert!(Minors::parse(cells[2]).is_some(), "{line}");
        for cell in cells.iter().skip(if gate { 3 } else { 4 }) {
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
fn what_etcd_does_not_know_is_refused_with_what_takes_its_place() {
    for (minor, flag, value, expected) in [
        (
            5,
            "feature-gates",
            "InitialCorruptCheck=true",
            "etcd 3.5 has no flag --feature-gates; it is there from 3.6 on",
        ),
        (
            5,
            "compaction-batch-limit",
            "10",
            "etcd 3.5 has no flag --compaction-batch-limit yet; in its place: --experimental-compaction-batch-limit",
        ),
        (
            6,
            "enable-v2",
            "true",
            "etcd 3.6 has no flag --enable-v2 any more; in its place: nothing, it serves the API v3 alone",
        ),
        (
            6,
            "proxy",
            "on",
            "etcd 3.6 has no flag --proxy any more; in its place: the command etcd grpc-proxy",
        ),
        (
            6,
            "experimental-compaction-batch-limit",
            "10",
            "etcd 3.6 calls --experimental-compaction-batch-limit deprecated; expected --compaction-batch-limit",
        ),
        (
            6,
            "experimental-initial-corrupt-check",
            "true",
            "etcd 3.6 calls --experimental-initial-corrupt-check deprecated; expected --feature-gates with InitialCorruptCheck=true or false",
        ),
        (
            5,
            "quota-backend-byte",
            "1",
            "etcd 3.5 has no flag --quota-backend-byte; did you mean --quota-backend-bytes?",
        ),
        (
            6,
            "quota-backend-bytes",
            "8Gi",
            "--quota-backend-bytes of etcd 3.6 is of type int64, which \"8Gi\" is not",
        ),
        (
            5,
            "initial-cluster-state",
            "old",
            "--initial-cluster-state of etcd 3.5 is of type existing|new, which \"old\" is not",
        ),
        (
            6,
            "max-concurrent-streams",
            "4294967296",
            "--max-concurrent-streams of etcd 3.6 is of type uint32, which \"4294967296\" is not",
        ),
        (
            6,
            "feature-gates",
            "initialCorruptCheck=true",
            "etcd 3.6 has no feature gate initialCorruptCheck; did you mean InitialCorruptCheck?",
        ),
    ] {
        assert_eq!(check(ETCD, minor, flag, value).unwrap_err(), expected);
    }
}

#[test]
fn what_etcd_knows_is_taken() {
    for (minors, flag, value) in [
        (&ETCD_MINORS[..], "quota-backend-bytes", "8589934592"),
        (&ETCD_MINORS[..], "heartbeat-interval", "100"),
        (&ETCD_MINORS[..], "initial-cluster-state", "existing"),
        (&[5][..], "experimental-initial-corrupt-check", "true"),
        (&[5][..], "v2-deprecation", "not-yet"),
        (
            &[6][..],
            "feature-gates",
            "InitialCorruptCheck=true,LeaseCheckpoint=false",
        ),
        (&[6][..], "watch-progress-notify-interval", "5s"),
    ] {
        for minor in minors {
            assert_eq!(check(ETCD, *minor, flag, value), Ok(()), "3.{minor} {flag}");
        }
    }
    assert!(check(ETCD, 6, "v2-deprecation", "not-yet").is_err());
    let all = |minor: u32| rows(ETCD).filter(|row| row.known.have(minor)).count();
    assert_eq!((all(5), all(6)), (127, 153));
}

#[test]
fn every_experimental_flag_of_a_known_gate_has_that_gate() {
    for (name, gate) in replaced::GATES {
        let flag = format!("experimental-{name}");
        assert!(row(ETCD, 5, &flag).is_some(), "{flag}");
        let row = row(ETCD_GATE, 6, gate).unwrap();
        assert!(row.known.have(6), "{gate}");
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
