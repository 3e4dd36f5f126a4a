//! All mistakes of a cluster object at once, and what it says of names.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use cluster::host::Host;
use cluster::object::{Image, Object, Role, lowered, read};
use cluster::report::Report;

fn image() -> Image {
    Image {
        version: "v1.36.3".to_owned(),
        ..Image::default()
    }
}

fn of(text: &str, host: &Host) -> Result<Object, Report> {
    read(text, &image(), host, Role::ControlPlane)
}

fn refused(text: &str, host: &Host) -> Vec<String> {
    let report = of(text, host).unwrap_err();
    report.mistakes.iter().map(ToString::to_string).collect()
}

/// What every version refuses is named beside a version that is not known.
const UNKNOWN: &str = r#"version = "1.20.0"
feature-gates = { NoSuchGate = true }
nmae = "x"
[networks]
pods = "10.5.0.0/40"
domain = "Blue"
[api-server]
args = { insecure-port = 8080, audit-log-maxage = "long" }
sans = ["A_b", 5]
[etcd]
args = { quota = 1 }
[kubelet]
args = { max-pods = 5 }
config = { maxPodz = 5, maxPods = "many" }
[certificates]
algorithm = "DSA"
"#;

#[test]
fn a_version_that_is_not_known_hides_no_other_mistake() {
    let mistakes = refused(UNKNOWN, &Host::of_documentation());
    let expected = [
        "nmae: unknown field; did you mean \"name\"? (line 3, column 8)",
        "version: \"1.20.0\" is not a known version of Kubernetes; expected 1.34.x to 1.36.x (line 1, column 11)",
        "etcd.args.quota: etcd 3.6 has no flag --quota (line 11, column 18)",
        "api-server.args.insecure-port: kube-apiserver 1.36 has no flag --insecure-port any more; in its place: api-server.port \
         (line 8, column 26)",
        "api-server.args.audit-log-maxage: --audit-log-maxage of kube-apiserver 1.36 is of type int, which \"long\" is not \
         (line 8, column 51)",
        "kubelet.args.max-pods: the kubelet 1.36 calls --max-pods deprecated; expected maxPods in [kubelet.config] \
         (line 13, column 21)",
        "feature-gates.NoSuchGate: Kubernetes 1.36 has no feature gate NoSuchGate (line 2, column 32)",
        "api-server.sans.1: expected text, found a number (write it in quotes) (line 9, column 16)",
        "kubelet.config.maxPods: expected a whole number, found text (line 14, column 35)",
        "networks.domain: \"Blue\" is not a name of lower-case letters, digits, '-' and '.' (line 6, column 10)",
        "networks.pods: \"10.5.0.0/40\" is not a subnet, or two with a comma between them; expected ADDRESS/PREFIX \
         (line 5, column 8)",
        "api-server.sans: \"a_b\" is neither an address nor a name in lower case, with or without *. before it \
         (line 9, column 9)",
        "certificates.algorithm: \"DSA\" is not known; expected ECDSA-P256, ECDSA-P384, RSA-2048, RSA-3072 or RSA-4096 \
         (line 16, column 13)",
        "kubelet.config.maxPodz: unknown field (line 14, column 22)",
    ];
    assert_eq!(mistakes, expected);
    // The same ones with a version that is known, but for the version.
    let known = UNKNOWN.replacen("1.20.0", "1.36.0", 1);
    let others = refused(&known, &Host::of_documentation());
    let without: Vec<&str> = expected
        .into_iter()
        .filter(|mistake| !mistake.starts_with("version: "))
        .collect();
    assert_eq!(others, without);
}

/// What one of the known versions takes may be right, once the version is.
#[test]
fn what_some_version_takes_is_not_refused_for_one_that_is_not_known() {
    // A gate of 1.34 alone, and a field that is there from 1.36 on.
    let text = "version = \"VERSION\"\nfeature-gates = { UserNamespacesPodSecurityStandards = true }\n[kubelet.config]\ntlsCurvePreferences = [29]\n";
    let fields = |version: &str, image: &Image| -> Vec<String> {
        let text = text.replace("VERSION", version);
        let report = read(&text, image, &Host::of_documentation(), Role::ControlPlane);
        let mistakes = report.unwrap_err().mistakes;
        mistakes.into_iter().map(|mistake| mistake.field).collect()
    };
    assert_eq!(fields("1.20.0", &image()), ["version"]);
    let gate = "feature-gates.UserNamespacesPodSecurityStandards";
    assert_eq!(fields("1.36.3", &image()), [gate]);
    let field = "kubelet.config.tlsCurvePreferences";
    assert_eq!(fields("1.34.0", &image()), [field]);
    // No version at all is one mistake too, and not the only one.
    let none = Image::default();
    let report = read(
        "cni = \"x\"\n[networks]\npods = \"y\"\n",
        &none,
        &Host::of_documentation(),
        Role::ControlPlane,
    );
    let fields: Vec<String> = report
        .unwrap_err()
        .mistakes
        .into_iter()
        .map(|mistake| mistake.field)
        .collect();
    assert_eq!(fields, ["cni", "version", "networks.pods"]);
}

#[test]
fn a_name_in_capitals_is_lowered_as_by_kubeadm_and_said() {
    let name = |object: &Object| object.config.init.node_registration.name.clone();
    let host = Host::of_documentation();
    let object = of("[node]\nname = \" CP-1.Example \"\n", &host).unwrap();
    assert_eq!(name(&object), "cp-1.example");
    let note = "node.name \"CP-1.Example\" is taken in lower case, cp-1.example: names of nodes have no capital letters";
    assert!(
        object.notes.contains(&note.to_owned()),
        "{:?}",
        object.notes
    );
    let plain = of("[node]\nname = \"cp-1\"\n", &host).unwrap();
    assert_eq!(plain.notes, [""; 0]);
    assert_eq!(lowered("the host name", "cp-1\n", "cp-1"), None);
}

#[test]
fn a_name_that_is_none_of_dns_is_refused_with_where_it_came_from() {
    let rule = "is not a name of lower-case letters, digits, '-' and '.'";
    for given in ["Node_One", "node_one"] {
        let mut host = Host::of_documentation();
        host.name = given.to_lowercase();
        // Nothing of the object is at fault: no line.
        let expected = format!(
            "node.name: the host name \"node_one\" {rule}; expected another host name, or node.name"
        );
        assert_eq!(refused("", &host), [expected]);
        assert_eq!(refused("[node]\nname = \"\"\n", &host).len(), 1);
        let own = format!("[node]\nname = \"{given}\"\n");
        let expected = format!("node.name: \"node_one\" {rule} (line 2, column 8)");
        assert_eq!(refused(&own, &Host::of_documentation()), [expected]);
    }
    let mistakes = refused("[node]\nname = 5\n", &Host::of_documentation());
    let expected =
        "node.name: expected text, found a number (write it in quotes) (line 2, column 8)";
    assert_eq!(mistakes, [expected]);
}
