//! `[containers]`: images that are made, pulled, or composed of packages.

use super::{SMALL, written};
use crate::recipe::{PrebuiltFrom, Recipe, SET_ETCD, SET_ROOT};

#[test]
fn images_without_the_one_of_pods_are_refused() {
    let text = format!(
        "{SMALL}\nkubernetes = {{ version = '1.36', kubelet = [{{ go-module = true }}] }}\ncontainers.images = ['etcd']"
    );
    let report = written(&[("a.toml", &text)]).unwrap_err();
    assert!(report.contains("expected \"pause\" among them"), "{report}");
    let text = text.replace("['etcd']", "[]");
    assert!(written(&[("a.toml", &text)]).is_ok());
}

#[test]
fn images_of_a_registry_are_neither_compiled_nor_made_of_packages() {
    let text = |from: &str| {
        format!(
            "{SMALL}\n[kubernetes]\nversion = '1.36'\nkubelet = [{{ release = 'https://k8s.example/{{version}}/{{program}}' }}]\n\
             [containers]\nimages = ['pause', 'etcd', 'kube-apiserver', 'coredns']\nimages-from = '{from}'\n"
        )
    };
    let recipe =
        written(&[("a.toml", &text("registry"))]).unwrap_or_else(|report| panic!("{report}"));
    assert!(recipe.components().is_empty());
    assert!(recipe.sets().iter().all(|set| set.name != SET_ETCD));
    assert_eq!(recipe.lock_request().images.len(), 4);
    let report = written(&[("a.toml", &text("registri"))]).unwrap_err();
    assert!(
        report.contains("cannot be `registri`") && report.contains("`registry`"),
        "{report}"
    );
    let report = written(&[("a.toml", &text("build"))]).unwrap_err();
    assert!(report.contains("expected { go-module = true }"), "{report}");
}

/// A recipe with a list of images that others built.
fn with_prebuilt(list: &str, kubernetes: bool) -> Result<Recipe, String> {
    let mut text = format!("{SMALL}\n[containers]\nprebuilt = [\n{list}\n]\n");
    if kubernetes {
        text.push_str("[kubernetes]\nversion = '1.36'\nkubelet = [{ go-module = true }]\n");
    }
    written(&[("a.toml", &text), ("layout/index.json", "{}")])
}

#[test]
fn images_of_others_are_of_a_registry_or_a_layout() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let good = format!(
        "{{ oci = 'r.example:5000/a/b:v1@{digest}' }},\n{{ oci = 'r.example/c@{digest}', name = 'r.example/c:v2' }},\n{{ layout = 'layout', name = 'r.example/d:1' }}"
    );
    let recipe = with_prebuilt(&good, true).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(recipe.prebuilt.len(), 3);
    assert!(
        matches!(&recipe.prebuilt[2].from, PrebuiltFrom::Layout(path) if path.ends_with("layout"))
    );
    let report = with_prebuilt(&good, false).unwrap_err();
    assert!(
        report.contains("without a kubelet that runs them"),
        "{report}"
    );
}

#[test]
fn an_image_of_others_that_is_not_named_or_pinned_is_refused_in_its_place() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let line = SMALL.lines().count() + 3 + 1;
    for (item, column, expected) in [
        (
            "{ oci = 'r.example/a:v1' }",
            9,
            "it has no digest, and a tag may change",
        ),
        (
            "{ oci = 'r.example/a:v1@sha256:12' }",
            9,
            "its digest is not a SHA-256",
        ),
        (
            &format!("{{ oci = 'a:v1@{digest}' }}"),
            9,
            "it names no registry",
        ),
        (
            &format!("{{ oci = 'r.example/../a@{digest}' }}"),
            9,
            "it has other characters",
        ),
        (
            "{ layout = 'nothing', name = 'r.example/a:1' }",
            12,
            "it has no index.json",
        ),
        (
            "{ layout = 'layout' }",
            1,
            "an image of a layout without a name",
        ),
        (
            "{ layout = 'layout', name = 'a' }",
            29,
            "is not the name of an image: it names no registry",
        ),
        (
            "{ layout = 'layout', name = 'r.example/a' }",
            29,
            "it has no tag",
        ),
        (
            "{ name = 'r.example/a:1' }",
            1,
            "an image has 0 of its sources",
        ),
        (
            &format!("{{ layout = 'layout', oci = 'r.example/a@{digest}' }}"),
            1,
            "an image has 2 of its sources",
        ),
        (
            "{ layout = 'layout', name = 'r.example/a:1' }, { layout = 'layout', name = 'r.example/a:1' }",
            48,
            "is given twice",
        ),
        ("{ ocy = 'x' }", 3, "unknown key `ocy`"),
    ] {
        let report = with_prebuilt(item, true).unwrap_err();
        assert!(report.contains(expected), "{expected}: {report}");
        let place = format!("a.toml:{line}:{column}");
        assert!(report.contains(&place), "{place}: {report}");
    }
}

#[test]
fn coredns_wants_a_source_that_compiles() {
    let text = |sources: &str, image: &str| {
        let text = format!(
            "{SMALL}\nkubernetes = {{ version = '1.36', kubelet = [{sources}] }}\ncontainers.images = ['pause', '{image}']"
        );
        written(&[("a.toml", &text)])
    };
    let server = "{ release = 'https://k8s.example/{version}/{program}' }";
    let report = text(server, "coredns").unwrap_err();
    assert!(report.contains("expected { go-module = true }"), "{report}");
    let recipe = text(&format!("{server}, {{ go-module = true }}"), "coredns").unwrap();
    assert_eq!(recipe.components(), ["coredns".to_owned()].into());
    assert!(text(server, "kube-proxy").is_ok());
    let report = text(server, "core-dns").unwrap_err();
    assert!(report.contains("`coredns`"), "{report}");
}

#[test]
fn names_that_pods_cannot_use_are_refused_in_both_lists() {
    for (name, why) in [
        ("r.example/Tools:1", "it has other characters than a-z"),
        ("docker.io/jq:1", "docker.io/library/NAME"),
        (
            "slipway.local/etcd:baked",
            "slipway.local/ is for the images",
        ),
        ("r.example/a:b:c", "it has other characters"),
    ] {
        let composed = with_composed(&format!("name = '{name}'\npackages = ['jq']"), true);
        let prebuilt = format!("{{ layout = 'layout', name = '{name}' }}");
        for report in [composed, with_prebuilt(&prebuilt, true)] {
            let report = report.unwrap_err();
            let found = format!("{name:?} is not the name of an image: ");
            assert!(report.contains(&found) && report.contains(why), "{report}");
        }
    }
}

#[test]
fn amazons_controller_is_of_no_other_release_of_kubernetes() {
    let text = |version: &str, image: &str| {
        let text = format!(
            "{SMALL}\n[kubernetes]\nversion = '{version}'\nkubelet = [{{ go-module = true }}]\n[containers]\nimages = ['pause', '{image}']\n"
        );
        let lines = text.lines().count();
        (written(&[("a.toml", &text)]), lines)
    };
    let amazons = "aws-cloud-controller-manager";
    for version in ["1.33", "1.33.4"] {
        let (read, lines) = text(version, amazons);
        let report = read.unwrap_err();
        let place = format!("a.toml:{}:11", lines - 3);
        for words in [
            format!("no {amazons} is known for Kubernetes {version}"),
            "expected a patch release of 1.34, 1.35, 1.36".to_owned(),
            place,
        ] {
            assert!(report.contains(&words), "{words}: {report}");
        }
        assert!(text(version, "metrics-server").0.is_ok());
    }
    assert!(text("1.34", amazons).0.is_ok());
    // It is wrong anyway.
    let report = text("1.37", amazons).0.unwrap_err();
    assert!(!report.contains("is known for"), "{report}");
}

/// A recipe with an image of packages: lines of its table.
fn with_composed(lines: &str, kubernetes: bool) -> Result<Recipe, String> {
    let mut text = format!("{SMALL}\n[[containers.composed]]\n{lines}\n");
    if kubernetes {
        text.push_str("[kubernetes]\nversion = '1.36'\nkubelet = [{ go-module = true }]\n");
    }
    written(&[("a.toml", &text)])
}

#[test]
fn an_image_of_packages_is_a_set_of_its_own() {
    let lines = "name = 'r.example/tools:1'\npackages = ['jq', 'curl']\nentrypoint = ['/usr/bin/jq']\narguments = ['.']\nuser = '1000:1000'\nenvironment = { LANG = 'C.UTF-8' }\ncheck = ['/usr/bin/jq', '--version']";
    let recipe = with_composed(lines, true).unwrap_or_else(|report| panic!("{report}"));
    let sets = recipe.sets();
    let set = sets
        .iter()
        .find(|set| set.name == "image r.example/tools:1")
        .unwrap();
    assert_eq!(set.packages, ["jq", "curl"]);
    assert!(set.dependencies && set.essential && !set.is_tools());
    let image = &recipe.composed[0];
    assert_eq!(
        (&*image.user, &*image.environment["LANG"]),
        ("1000:1000", "C.UTF-8")
    );
    let report = with_composed(lines, false).unwrap_err();
    assert!(
        report.contains("without a kubelet that runs them"),
        "{report}"
    );
}

#[test]
fn an_image_of_packages_that_is_not_right_is_refused_in_its_place() {
    let first = SMALL.lines().count() + 3;
    let name = "name = 'r.example/a:1'";
    for (lines, (line, column), expected) in [
        ("packages = ['jq']".to_owned(), (0, 1), "without a name"),
        (
            "name = 'r.example/a'\npackages = ['jq']".to_owned(),
            (0, 8),
            "it has no tag",
        ),
        (name.to_owned(), (0, 1), "without packages"),
        (format!("{name}\npackages = ['jq', 'J_q']"), (1, 19), "J_q"),
        (
            format!("{name}\npackages = ['jq', 'jq']"),
            (1, 19),
            "`jq` is given twice",
        ),
        (
            format!("{name}\npackages = ['jq']\nentrypoint = ['jq']"),
            (2, 14),
            "\"jq\" is not an absolute path",
        ),
        (
            format!("{name}\npackages = ['jq']\ncheck = ['jq']"),
            (2, 9),
            "\"jq\" is not an absolute path",
        ),
        (
            format!("{name}\npackages = ['jq']\nuser = 'nobody'"),
            (2, 8),
            "expected two numbers, as 1000:1000",
        ),
        (
            format!("{name}\npackages = ['jq']\nenvironment = {{ 'A=B' = '' }}"),
            (2, 15),
            "is not the name of a variable",
        ),
        (
            format!("{name}\npackages = ['jq']\nentrypoynt = []"),
            (2, 1),
            "unknown key `entrypoynt`",
        ),
        (
            format!(
                "{name}\npackages = ['jq']\n[[containers.composed]]\n{name}\npackages = ['curl']"
            ),
            (2, 1),
            "is given twice",
        ),
    ] {
        let report = with_composed(&lines, true).unwrap_err();
        assert!(report.contains(expected), "{expected}: {report}");
        let row = first + line;
        // A table of a list is where its head is.
        let places = [
            format!("a.toml:{row}:{column}"),
            format!("a.toml:{}:{column}", row - 1),
        ];
        assert!(
            places.iter().any(|place| report.contains(place)),
            "{expected}: {places:?}: {report}"
        );
    }
}

#[test]
fn one_name_is_that_of_one_image() {
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let first = format!("r.example:5000/a:1@{}", digest("a"));
    let line = SMALL.lines().count() + 3;
    let composed = |name: &str| {
        format!(
            "{{ oci = '{first}' }}\n]\n[[containers.composed]]\nname = '{name}'\npackages = ['jq'"
        )
    };
    let read = with_prebuilt(&composed("r.example:5000/a:2"), true);
    assert!(read.is_ok(), "{}", read.unwrap_err());
    let report = with_prebuilt(&composed("r.example:5000/a:1"), true).unwrap_err();
    for expected in [
        "`r.example:5000/a:1` is in `containers.composed` and in `containers.prebuilt`".to_owned(),
        "the other image".to_owned(),
        format!("a.toml:{}:8", line + 4),
    ] {
        assert!(report.contains(&expected), "{expected}: {report}");
    }
    // One name with another digest, or with another registry to pull it from, is still one name.
    for second in [
        format!("{{ oci = 'r.example:5000/a:1@{}' }}", digest("b")),
        format!(
            "{{ oci = 'm.example/b@{}', name = 'r.example:5000/a:1' }}",
            digest("b")
        ),
    ] {
        let report = with_prebuilt(&format!("{{ oci = '{first}' }},\n{second}"), true);
        let report = report.unwrap_err();
        assert!(
            report.contains("`r.example:5000/a:1` is given twice"),
            "{report}"
        );
    }
    let untagged = |digit: &str| format!("{{ oci = 'r.example:5000/a@{}' }}", digest(digit));
    let two = format!("{},\n{}", untagged("a"), untagged("b"));
    assert!(with_prebuilt(&two, true).is_ok());
}

#[test]
fn flannel_is_compiled_and_of_no_registry() {
    let text = |sources: &str, from: &str| {
        let text = format!(
            "{SMALL}\n[kubernetes]\nversion = '1.36'\nkubelet = [{sources}]\n[containers]\nimages-from = '{from}'\nimages = ['pause', 'flannel']\n"
        );
        let line = text
            .lines()
            .position(|line| line.starts_with("images ="))
            .unwrap()
            + 1;
        (written(&[("a.toml", &text)]), format!("a.toml:{line}:10"))
    };
    let server = "{ release = 'https://k8s.example/{version}/{program}' }";
    let both = format!("{server}, {{ go-module = true }}");
    for (sources, from, expected) in [
        (server, "build", "expected { go-module = true }"),
        (&*both, "registry", "expected images-from = \"build\""),
    ] {
        let (read, place) = text(sources, from);
        let report = read.unwrap_err();
        assert!(
            report.contains(expected) && report.contains(&place),
            "{place}: {report}"
        );
    }
    let recipe = text(&both, "build").0.unwrap();
    assert_eq!(recipe.components(), ["flannel".to_owned()].into());
    let packages = recipe.sets();
    let nft = packages.iter().find(|set| set.name == SET_ETCD).unwrap();
    assert!(nft.packages.contains(&"nftables".to_owned()));
}

#[test]
fn metrics_server_and_amazons_controller_are_compiled_and_need_no_package() {
    for image in ["metrics-server", "aws-cloud-controller-manager"] {
        is_compiled_and_needs_no_package(image);
    }
}

fn is_compiled_and_needs_no_package(image: &str) {
    let text = |sources: &str, from: &str| {
        let text = format!(
            "{SMALL}\n[kubernetes]\nversion = '1.36'\nkubelet = [{sources}]\n[containers]\nimages-from = '{from}'\nimages = ['pause', '{image}']\n"
        );
        written(&[("a.toml", &text)])
    };
    let server = "{ release = 'https://k8s.example/{version}/{program}' }";
    let both = format!("{server}, {{ go-module = true }}");
    for (sources, from, expected) in [
        (server, "build", "expected { go-module = true }"),
        (
            &*both,
            "registry",
            &*format!("{image}'s image in `prebuilt`"),
        ),
    ] {
        let report = text(sources, from).unwrap_err();
        assert!(report.contains(expected), "{report}");
    }
    let recipe = text(&both, "build").unwrap();
    assert_eq!(recipe.components(), [image.to_owned()].into());
}

#[test]
fn etcd_is_debians_or_compiled_and_the_cni_plugins_are_debians_or_their_releases() {
    let text = |sources: &str, rest: &str| {
        let text = format!(
            "{SMALL}\n[kubernetes]\nversion = '1.36'\nkubelet = [{sources}]\n{rest}\n[containers]\nimages = ['pause', 'etcd']\n"
        );
        move |more: &str| written(&[("a.toml", &format!("{text}{more}"))])
    };
    let server = "{ release = 'https://k8s.example/{version}/{program}' }";
    let both = format!("{server}, {{ go-module = true }}");
    let set = |recipe: &Recipe, name: &str| {
        let mut sets = recipe.sets().into_iter();
        sets.find(|set| set.name == name).unwrap().packages
    };
    for more in ["", "etcd = '3.5'"] {
        let recipe = text(server, "")(more).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(recipe.components(), [].into());
        assert_eq!(set(&recipe, SET_ETCD), ["catatonit", "etcd-server"]);
        assert_eq!(recipe.lock_request().kubelet.unwrap().github, None);
    }
    let recipe = text(&both, "")("etcd = '3.6'").unwrap();
    assert_eq!(recipe.components(), ["etcd".to_owned()].into());
    assert_eq!(set(&recipe, SET_ETCD), ["catatonit"]);
    for (sources, more, expected) in [
        (
            server,
            "etcd = '3.6'",
            "Debian has no etcd 3.6: it is compiled",
        ),
        (server, "etcd = '3.7'", "`3.7`"),
        (
            both.as_str(),
            "images-from = 'registry'\netcd = '3.6'",
            "no image of it that the build makes",
        ),
    ] {
        let report = text(sources, "")(more).unwrap_err();
        assert!(report.contains(expected), "{expected}: {report}");
        assert!(report.contains("a.toml:"), "{report}");
    }
    let plugins = "containernetworking-plugins".to_owned();
    let recipe = text(server, "cni-plugins = 'debian'")("").unwrap();
    assert!(set(&recipe, SET_ROOT).contains(&plugins));
    assert_eq!(recipe.components(), [].into());
    let recipe = text(server, "cni-plugins = 'release'\ntools = ['crictl']")("").unwrap();
    assert!(!set(&recipe, SET_ROOT).contains(&plugins));
    let own = ["cni-plugins", "crictl"].map(str::to_owned);
    assert_eq!(recipe.components(), own.into());
    let github = recipe.lock_request().kubelet.unwrap().github;
    assert_eq!(github.as_deref(), Some("https://github.com"));
    let report = text(server, "github = 'mirror'")("").unwrap_err();
    assert!(report.contains("a.toml:"), "{report}");
}
