//! Requests for serving certificates, made by another library, against the rules for them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster::config;
use cluster::host::Host;
use cluster::serving::{Cluster, SIGNER, Wrong, check, is_pending};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, SanType,
};
use rsa::pkcs1::DecodeRsaPrivateKey as _;
use rsa::pkcs8::EncodePrivateKey as _;
use serde_json::{Value, json};

/// What a request asks for; by default what a kubelet of `node1` asks for.
struct Asked {
    name: &'static str,
    organisation: &'static str,
    names: Vec<SanType>,
    key: KeyPair,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            name: "system:node:node1",
            organisation: "system:nodes",
            names: vec![dns("node1"), ip("10.0.0.5"), ip("fd00::5")],
            key: KeyPair::generate().unwrap(),
        }
    }
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn ip(address: &str) -> SanType {
    SanType::IpAddress(address.parse().unwrap())
}

impl Asked {
    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let mut add = |kind, value: &str| params.distinguished_name.push(kind, value);
        add(DnType::OrganizationName, self.organisation);
        add(DnType::CommonName, self.name);
        params.subject_alt_names.clone_from(&self.names);
        params
    }

    /// In PEM.
    fn text(&self) -> String {
        let request = self.params().serialize_request(&self.key).unwrap();
        request.pem().unwrap()
    }
}

/// The object in the API, posted by the kubelet of `node1`.
fn posted(pem: &str) -> Value {
    json!({
        "metadata": {"name": "csr-1"},
        "spec": {
            "request": STANDARD.encode(pem),
            "signerName": SIGNER,
            "usages": ["server auth", "digital signature"],
            "username": "system:node:node1",
            "groups": ["system:nodes", "system:authenticated"],
        },
    })
}

fn node(name: &str, addresses: &[(&str, &str)]) -> Value {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|(kind, address)| json!({"type": kind, "address": address}))
        .collect();
    json!({"metadata": {"name": name, "labels": {}}, "status": {"addresses": addresses}})
}

/// A cluster whose API server is at 10.0.0.1, with the nodes `node1` and `node2`.
fn cluster() -> Cluster {
    let text = "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 10.0.0.1}
nodeRegistration: {name: cp1}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
controlPlaneEndpoint: api.example.test
";
    let config = config::read(text, "1.36.3", &Host::debian("cp1")).unwrap();
    let mut cluster = Cluster::new(&config);
    cluster.add(&node(
        "node1",
        &[
            ("Hostname", "Node1"),
            ("InternalIP", "10.0.0.5"),
            ("ExternalIP", "fd00:0::5"),
            ("ExternalDNS", "node1.example.test"),
            ("Legacy", "10.0.0.55"),
        ],
    ));
    cluster.add(&node(
        "node2",
        &[("Hostname", "node2"), ("InternalIP", "10.0.0.6")],
    ));
    cluster
}

fn names(names: Vec<SanType>) -> Result<(), Wrong> {
    let asked = Asked {
        names,
        ..Asked::default()
    };
    check(&posted(&asked.text()), &cluster()).map(drop)
}

#[test]
fn a_kubelets_request_for_its_own_addresses_is_right() {
    let request = posted(&Asked::default().text());
    let right = check(&request, &cluster()).unwrap();
    let shown: Vec<String> = right.names.iter().map(ToString::to_string).collect();
    assert_eq!(right.node, "node1");
    assert_eq!(shown, ["\"node1\"", "10.0.0.5", "fd00::5"]);
    // Some of them, in any case.
    for some in [
        vec![dns("NODE1.example.test")],
        vec![ip("fd00::5")],
        vec![ip("::ffff:10.0.0.5")],
    ] {
        assert_eq!(names(some), Ok(()));
    }
    assert!(is_pending(&request));
    for decided in [
        json!({"conditions": [{"type": "Approved"}]}),
        json!({"conditions": [{"type": "Denied"}]}),
        json!({"certificate": "AA=="}),
    ] {
        let mut request = request.clone();
        request["status"] = decided;
        assert!(!is_pending(&request));
    }
}

/// `openssl req -new -subj /O=system:nodes/CN=system:node:node1 -addext subjectAltName=DNS:node1,IP:10.0.0.5` with a key of P-256.
const OPENSSL: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIIBFzCBvgIBADAzMRUwEwYDVQQKDAxzeXN0ZW06bm9kZXMxGjAYBgNVBAMMEXN5
c3RlbTpub2RlOm5vZGUxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEbmKkeCGs
f5ZyoqT+TQNPeYJcyg6UptXW0LsAOLphsg1ZRqRD9UTtU1ljeDhZd/WN20KOajqC
R96rDbWPdeHgrqApMCcGCSqGSIb3DQEJDjEaMBgwFgYDVR0RBA8wDYIFbm9kZTGH
BAoAAAUwCgYIKoZIzj0EAwIDSAAwRQIgHymxrQ/kbJJANehOktR1s/3wv4LwD9xA
T8bUD+x1+WQCIQCBNIAV4d8zi4IL0rdPMiiRtbxG+fOqiTENMc+ttLqOFw==
-----END CERTIFICATE REQUEST-----
";

#[test]
fn a_request_of_another_program_is_read() {
    assert!(check(&posted(OPENSSL), &cluster()).is_ok());
}

#[test]
fn a_name_that_is_not_the_nodes_alone_is_left() {
    let reason = |asked: SanType| {
        let wrong = names(vec![dns("node1"), asked]).unwrap_err();
        wrong.to_string()
    };
    for (asked, expected) in [
        (dns("node2"), "\"node2\" is not an address of its node"),
        (
            dns("*.example.test"),
            "it has a name that is not a DNS name; expected DNS names and addresses alone",
        ),
        (
            dns("kubernetes.default"),
            "\"kubernetes.default\" is not an address of its node",
        ),
        (ip("10.0.0.6"), "10.0.0.6 is not an address of its node"),
        (ip("10.0.0.55"), "10.0.0.55 is not an address of its node"),
        (ip("10.96.0.1"), "10.96.0.1 is not an address of its node"),
        (
            dns("10.0.0.5"),
            "\"10.0.0.5\" is not an address of its node",
        ),
        (
            SanType::Rfc822Name("a@node1".try_into().unwrap()),
            "it has an e-mail address; expected DNS names and addresses alone",
        ),
        (
            SanType::URI("spiffe://node1".try_into().unwrap()),
            "it has a URI; expected DNS names and addresses alone",
        ),
    ] {
        assert_eq!(reason(asked), expected);
    }
    assert_eq!(names(Vec::new()), Err(Wrong::NoName));
    // What a requester sends moves no cursor and fills no log.
    let long = "a".repeat(60);
    let shown = reason(dns(&format!("{long}.{long}.{long}")));
    assert!(shown.len() < 140 && shown.contains("\"…"), "{shown}");
}

/// A kubelet writes the addresses of its Node itself: what it claims there is not its own by that.
#[test]
fn a_node_that_claims_names_of_others_gets_none_of_them() {
    let claimed = |kind: &str, text: &str, control_plane: bool| {
        let mut cluster = cluster();
        let mut claiming = node("node1", &[(kind, text)]);
        if control_plane {
            claiming["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = "".into();
        }
        cluster.add(&claiming);
        let name = match kind {
            "InternalIP" => ip(text),
            _ => dns(text),
        };
        let asked = Asked {
            names: vec![name],
            ..Asked::default()
        };
        let found = check(&posted(&asked.text()), &cluster);
        found.map(drop).map_err(|wrong| wrong.to_string())
    };
    for (kind, text) in [
        ("Hostname", "kubernetes"),
        ("Hostname", "api.example.test"),
        ("Hostname", "cp1"),
        ("InternalIP", "10.0.0.1"),
        ("Hostname", "kubernetes.default.svc"),
        ("Hostname", "kubernetes.default.svc.cluster.local"),
        ("InternalDNS", "hook.team.svc"),
        ("InternalIP", "10.96.0.1"),
        ("InternalIP", "10.111.255.255"),
        ("InternalIP", "127.0.0.1"),
        ("Hostname", "localhost"),
    ] {
        let wrong = claimed(kind, text, false).unwrap_err();
        assert!(
            wrong.contains("a node may not be called so"),
            "{text}: {wrong}"
        );
    }
    assert!(claimed("Hostname", "*.default.svc", false).is_err());
    let wrong = claimed("InternalIP", "10.0.0.6", false).unwrap_err();
    assert_eq!(wrong, "10.0.0.6 is an address of the node \"node2\" too");
    // The API server's own node is called as it is, but not as services are.
    assert_eq!(claimed("InternalIP", "10.0.0.1", true), Ok(()));
    assert_eq!(claimed("Hostname", "cp1", true), Ok(()));
    assert!(claimed("InternalIP", "10.96.0.1", true).is_err());
    // Beside the cluster's range of services.
    assert_eq!(claimed("InternalIP", "10.112.0.0", false), Ok(()));
}

#[test]
fn a_request_of_another_requester_subject_or_signer_is_left() {
    let cluster = cluster();
    let request = posted(&Asked::default().text());
    let changed = |field: &str, value: Value| {
        let mut request = request.clone();
        request["spec"][field] = value;
        check(&request, &cluster).unwrap_err().to_string()
    };
    // The request of node1, posted by others.
    let by_node2 = changed("username", "system:node:node2".into());
    assert!(
        by_node2.contains("expected the requester: CN=system:node:node2"),
        "{by_node2}"
    );
    for (field, value, expected) in [
        (
            "username",
            json!("kubernetes-admin"),
            "its requester is \"kubernetes-admin\"",
        ),
        (
            "username",
            json!("system:node:"),
            "its requester is \"system:node:\"",
        ),
        (
            "groups",
            json!(["system:authenticated"]),
            "expected a node of the group system:nodes",
        ),
        (
            "groups",
            json!(null),
            "expected a node of the group system:nodes",
        ),
        (
            "signerName",
            json!("kubernetes.io/kube-apiserver-client"),
            "expected kubernetes.io/kubelet-serving",
        ),
    ] {
        let found = changed(field, value);
        assert!(found.contains(expected), "{found}");
    }
    for (name, organisation) in [
        ("system:node:node2", "system:nodes"),
        ("node1", "system:nodes"),
        ("system:node:node1", "system:masters"),
    ] {
        let asked = Asked {
            name,
            organisation,
            ..Asked::default()
        };
        let wrong = check(&posted(&asked.text()), &cluster).unwrap_err();
        assert!(matches!(wrong, Wrong::Subject(..)), "{wrong}");
    }
    let asked = Asked::default();
    let mut params = asked.params();
    params
        .distinguished_name
        .push(DnType::OrganizationalUnitName, "x");
    let text = params.serialize_request(&asked.key).unwrap().pem().unwrap();
    let wrong = check(&posted(&text), &cluster).unwrap_err();
    assert!(matches!(wrong, Wrong::Subject(..)), "{wrong}");
    let gone = Asked {
        name: "system:node:gone",
        ..Asked::default()
    };
    let mut request = posted(&gone.text());
    request["spec"]["username"] = "system:node:gone".into();
    let wrong = check(&request, &cluster).unwrap_err();
    assert_eq!(wrong, Wrong::NoNode("gone".to_owned()));
}

#[test]
fn other_usages_and_other_extensions_are_left() {
    let cluster = cluster();
    let with = |asked: &Asked, usages: &[&str]| {
        let mut request = posted(&asked.text());
        request["spec"]["usages"] = json!(usages);
        check(&request, &cluster)
    };
    let (signature, server, encipherment) =
        ("digital signature", "server auth", "key encipherment");
    let curve = Asked::default();
    let pem = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/keys/rsa-2048.key"
    ));
    let key = rsa::RsaPrivateKey::from_pkcs1_pem(&pem.unwrap()).unwrap();
    let der = key.to_pkcs8_der().unwrap().as_bytes().to_vec();
    let rsa = Asked {
        key: KeyPair::try_from(der).unwrap(),
        ..Asked::default()
    };
    assert!(with(&rsa, &[signature, server]).is_ok());
    assert!(with(&rsa, &[server, encipherment, signature]).is_ok());
    for usages in [
        &[signature, server, encipherment][..],
        &[server],
        &[],
        &[signature, server, "client auth"],
        &[signature, server, server],
        &[signature, "client auth"],
    ] {
        let wrong = with(&curve, usages).unwrap_err();
        assert!(matches!(wrong, Wrong::Usages(_)), "{usages:?}: {wrong}");
    }
    assert!(with(&rsa, &[encipherment, server]).is_err());
    let mut params = curve.params();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let text = params.serialize_request(&curve.key).unwrap().pem().unwrap();
    let wrong = check(&posted(&text), &cluster).unwrap_err();
    assert_eq!(wrong, Wrong::Extension("several extensions"));
    params.subject_alt_names.clear();
    let text = params.serialize_request(&curve.key).unwrap().pem().unwrap();
    let wrong = check(&posted(&text), &cluster).unwrap_err();
    assert!(matches!(wrong, Wrong::Extension(_)), "{wrong}");
}

#[test]
fn what_is_not_one_request_that_its_key_signed_is_left() {
    let (one, other) = (Asked::default().text(), Asked::default().text());
    let body = one.lines().nth(2).unwrap();
    let middle = one.len() / 2;
    let swapped = match one.as_bytes()[middle] {
        b'A' => "B",
        _ => "A",
    };
    let damaged = format!("{}{swapped}{}", &one[..middle], &one[middle + 1..]);
    for wrong in [
        String::new(),
        format!("{one}{other}"),
        format!("text\n{one}"),
        one.replace("REQUEST-----\n", "REQUEST-----\nProc-Type: 4\n\n"),
        one.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
        one.replace(&format!("{body}\n"), ""),
        damaged,
    ] {
        let found = check(&posted(&wrong), &cluster()).unwrap_err();
        assert!(matches!(found, Wrong::Unreadable(_)), "{found}: {wrong}");
    }
    let mut request = posted(&one);
    request["spec"]["request"] = "not base 64".into();
    assert!(matches!(
        check(&request, &cluster()),
        Err(Wrong::Unreadable(_))
    ));
}
