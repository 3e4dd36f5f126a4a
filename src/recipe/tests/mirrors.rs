//! `[[containerd.mirrors]]`: the files that they become, and each mistake at its place.

use super::ca::certificate;
use super::{SMALL, written};
use crate::recipe::{FileKind, Recipe};

const KUBERNETES: &str = "[kubernetes]\nversion = '1.36'\nkubelet = [{ go-module = true }]\n";

fn with(text: &str) -> Result<Recipe, String> {
    let text = format!("{SMALL}\n{KUBERNETES}{text}\n");
    let (authority, _) = certificate("corp", 2090, true);
    let files = [("corp.pem", authority.as_str()), ("key.pem", "x")];
    written(&[("a.toml", text.as_str()), files[0], files[1]])
}

/// The content of a file of the registries' folder.
fn content(recipe: &Recipe, path: &str) -> String {
    let path = format!("/etc/containerd/certs.d/{path}");
    let file = recipe.files.iter().find(|file| file.path == path);
    match file.map(|file| &file.kind) {
        Some(FileKind::Content(bytes)) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn mirrors_become_the_file_that_containerd_reads() {
    let recipe = with(
        "[[containerd.mirrors]]\nregistry = 'docker.io'\n\
         endpoints = ['https://a.example/', 'https://b.example:5000/hub']\nca = ['corp.pem']\n\
         [[containerd.mirrors]]\nregistry = 'docker.io'\nendpoints = ['http://10.0.0.1:5000/v2/x']\n\
         plain-http = true\ncapabilities = ['pull']\noverride-path = true\n\
         [[containerd.mirrors]]\nregistry = '_default'\nendpoints = ['https://all.example']\n\
         [[containerd.mirrors]]\nregistry = 'r.example:5000'\nendpoints = ['https://c.example']\nfallback = false\n",
    )
    .unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(
        content(&recipe, "docker.io/hosts.toml"),
        "# Made from [[containerd.mirrors]] of the recipe.\n\
         \n[host.\"https://a.example\"]\ncapabilities = [\"pull\", \"resolve\"]\nca = \"ca-1.pem\"\n\
         \n[host.\"https://b.example:5000/hub\"]\ncapabilities = [\"pull\", \"resolve\"]\nca = \"ca-1.pem\"\n\
         \n[host.\"http://10.0.0.1:5000/v2/x\"]\ncapabilities = [\"pull\"]\noverride_path = true\n"
    );
    let pem = content(&recipe, "docker.io/ca-1.pem");
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----\n"), "{pem}");
    assert!(content(&recipe, "_default/hosts.toml").contains("[host.\"https://all.example\"]"));
    // containerd needs a table of hosts, and asks `server` last.
    assert_eq!(
        content(&recipe, "r.example:5000/hosts.toml"),
        "# Made from [[containerd.mirrors]] of the recipe.\n\
         server = \"https://c.example\"\ncapabilities = [\"pull\", \"resolve\"]\n\
         \n[host.\"https://c.example\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    );
    let paths: Vec<&str> = recipe.files.iter().map(|file| file.path.as_str()).collect();
    assert!(paths.is_sorted(), "{paths:?}");
    assert!(
        recipe
            .files
            .iter()
            .all(|file| file.origin.contains("a.toml:"))
    );
}

/// A table, line and column of the mistake in it (the line from that of its head), and words of the report.
const MISTAKES: &[(&str, usize, usize, &str)] = &[
    (
        "endpoints = ['https://a.example']",
        0,
        1,
        "mirrors without their `registry`",
    ),
    (
        "registry = 'docker.io'",
        0,
        1,
        "a registry without endpoints",
    ),
    (
        "registry = 'https://r.example/v2'\nendpoints = ['https://a.example']",
        1,
        12,
        "did you mean \"r.example\"?",
    ),
    (
        "registry = 'registry-1.docker.io'\nendpoints = ['https://a.example']",
        1,
        12,
        "references call it \"docker.io\"",
    ),
    (
        "registry = '*'\nendpoints = ['https://a.example']",
        1,
        12,
        "every other registry is \"_default\"",
    ),
    (
        "registry = 'r.example:x'\nendpoints = ['https://a.example']",
        1,
        12,
        "is not the registry of a reference",
    ),
    (
        "registry = 'r.example'\nendpoints = ['http://a.example']",
        2,
        14,
        "or plain-http = true beside the endpoints",
    ),
    (
        "registry = 'r.example'\nendpoints = ['a.example']",
        2,
        14,
        "is not a URL",
    ),
    (
        "registry = 'r.example'\nendpoints = ['https://a.example/?x']",
        2,
        14,
        "expected scheme, host and path",
    ),
    (
        "registry = 'r.example'\nendpoints = ['https://me:hunter2@a.example']",
        2,
        14,
        "has a user or a password",
    ),
    (
        "registry = 'r.example'\nendpoints = ['https://a.example', 'https://a.example/']",
        2,
        35,
        "is given twice for this registry",
    ),
    (
        "registry = 'r.example'\nendpoints = ['https://a.example']\ncapabilities = ['push']",
        3,
        17,
        "push",
    ),
    (
        "registry = 'r.example'\nendpoints = ['https://a.example']\nca = ['key.pem']",
        3,
        7,
        "key.pem is not usable",
    ),
    (
        "registry = '_default'\nendpoints = ['https://a.example']\nfallback = false",
        3,
        12,
        "`fallback` with \"_default\"",
    ),
    (
        "registry = 'r.example'\nendpoint = ['https://a.example']\nendpoints = ['https://a.example']",
        2,
        1,
        "did you mean `endpoints`",
    ),
    (
        "registry = 'r.example'\nendpoints = ['https://a.example']\n[files.'/etc/containerd/certs.d/r.example/hosts.toml']\ncontent = ''",
        3,
        8,
        "is also what [[containerd.mirrors]] makes",
    ),
];

#[test]
fn each_mistake_of_a_mirror_is_shown_at_its_place() {
    let first = format!("{SMALL}\n{KUBERNETES}").lines().count() + 1;
    for (text, line, column, words) in MISTAKES {
        let report = with(&format!("[[containerd.mirrors]]\n{text}")).unwrap_err();
        assert!(
            report.contains(&format!("a.toml:{}:{column}", first + line)),
            "{text}\n{report}"
        );
        assert!(report.contains(words), "{text}\n{report}");
        assert!(
            !report.contains(" mistakes") && !report.contains("hunter2"),
            "{text}\n{report}"
        );
    }
    let mirror =
        "[[containerd.mirrors]]\nregistry = 'r.example'\nendpoints = ['https://a.example']\n";
    let report = written(&[("a.toml", &format!("{SMALL}\n{mirror}"))]).unwrap_err();
    assert!(
        report.contains("in a recipe without [kubernetes]"),
        "{report}"
    );
}

/// Every field with an address, each with a password: the report has its place, and what to do, and not the password.
#[test]
fn no_field_takes_an_address_with_a_password() {
    let sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let url = "https://me:hunter2@a.example/x";
    let image = format!("me:hunter2@r.example/x:v1@sha256:{sum}");
    for (text, words) in [
        (format!("debian.mirror = '{url}'"), "the URL"),
        (format!("debian.security-mirror = '{url}'"), "the URL"),
        (format!("debian.snapshots = ['{url}/{{time}}']"), "the URL"),
        (
            format!("debian.debs = [{{ url = '{url}', sha256 = '{sum}' }}]"),
            "the URL",
        ),
        (
            format!("[files.'/x']\nurl = '{url}'\nsha256 = '{sum}'"),
            "the URL",
        ),
        (
            format!("[[overlay.archives]]\nurl = '{url}'\nsha256 = '{sum}'\nto = '/usr/lib/x'"),
            "the URL",
        ),
        (
            format!("[[overlay.images]]\noci = '{image}'\nto = '/usr/lib/x'"),
            "the reference",
        ),
        (
            format!("containers.prebuilt = [{{ oci = '{image}' }}]"),
            "the reference",
        ),
        // Of several, a mistake about both would show what they have in common.
        (
            format!("containers.prebuilt = [{{ oci = '{image}' }}, {{ oci = '{image}' }}]"),
            "the reference",
        ),
        (
            format!(
                "debian.debs = [{{ url = '{url}', sha256 = '{sum}' }}, {{ url = '{url}', sha256 = '{sum}' }}]"
            ),
            "the URL",
        ),
        (
            format!("debian.snapshots = ['{url}/{{time}}', '{url}/{{time}}']"),
            "the URL",
        ),
        (
            format!(
                "kubernetes = {{ version = '1.36', kubelet = [{{ release = '{url}/{{version}}' }}] }}"
            ),
            "the URL",
        ),
        (
            "kubernetes = { version = '1.36', kubelet = [{ oci = 'me:hunter2@r.example/x:v1' }] }"
                .to_owned(),
            "the reference",
        ),
    ] {
        let report = written(&[("a.toml", &format!("{SMALL}\n{text}\n"))]).unwrap_err();
        assert!(
            report.contains(&format!("{words} has a user or a password")),
            "{text}\n{report}"
        );
        assert!(
            report.contains("a.toml:") && report.contains("SLIPWAY_AUTH_FILE"),
            "{text}\n{report}"
        );
        assert!(!report.contains("hunter2"), "{text}\n{report}");
    }
    // Nor a word that is of another kind, or a file that is no TOML.
    for text in [
        format!("debian.mirror = ['{url}']"),
        format!("x = '{url}'"),
        format!("x = '{url}' y"),
    ] {
        let report = written(&[("a.toml", &format!("{SMALL}\n{text}\n"))]).unwrap_err();
        assert!(!report.contains("hunter2"), "{report}");
    }
}

#[test]
fn containerd_is_debians_or_compiled() {
    for (release, components) in [("1.7", vec![]), ("2.2", vec!["containerd".to_owned()])] {
        let recipe = with(&format!("[containerd]\nrelease = '{release}'\n"));
        let recipe = recipe.unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(recipe.components(), components.into_iter().collect());
    }
    let server = "[kubernetes]\nversion = '1.36'\nkubelet = [{ release = 'https://k8s.example/{version}/{program}' }]\n";
    for (kubernetes, release, expected) in [
        ("", "2.2", "in a recipe without [kubernetes]"),
        (
            server,
            "2.2",
            "Debian has no containerd 2.2: it is compiled",
        ),
        (server, "2.1", "`2.1`"),
    ] {
        let text = format!("{SMALL}\n{kubernetes}[containerd]\nrelease = '{release}'\n");
        let report = written(&[("a.toml", text.as_str())]).unwrap_err();
        assert!(
            report.contains(expected) && report.contains("a.toml:"),
            "{expected}: {report}"
        );
    }
}
