use super::*;

#[test]
fn an_image_of_others_is_listed_by_its_manifest() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let found = Component::image("r.example:5000/group/app:v1", &digest);
    assert_eq!((found.name.as_str(), found.version.as_str()), ("app", "v1"));
    let expected = format!(
        "pkg:oci/app@sha256%3A{}?repository_url=r.example%3A5000%2Fgroup%2Fapp",
        "a".repeat(64)
    );
    assert_eq!(found.purl.as_deref(), Some(expected.as_str()));
    assert_eq!(found.hashes[0].content, "a".repeat(64));
    let pinned = Component::image(&format!("r.example/app@{digest}"), &digest);
    assert_eq!((pinned.name.as_str(), pinned.version.as_str()), ("app", ""));
}

fn trixie() -> Distribution {
    Distribution::of("NAME=\"Debian\"\nID=debian\nVERSION_ID=\"13\"\n", "trixie")
}

fn package(name: &str, version: &str) -> LockedPackage {
    LockedPackage {
        name: name.into(),
        version: version.into(),
        architecture: "amd64".into(),
        archive: "debian".into(),
        path: format!("pool/{name}"),
        size: 1,
        sha256: "ab".repeat(32),
        source: None,
    }
}

#[test]
fn a_package_of_another_archive_is_none_of_debians() {
    let package = LockedPackage {
        archive: "vendor".into(),
        ..package("engine", "2")
    };
    let purl = Component::package(&package, "root", &trixie()).purl;
    assert_eq!(purl.as_deref(), Some("pkg:deb/vendor/engine@2?arch=amd64"));
}

#[test]
fn a_removed_package_is_excluded_unless_another_set_has_it() {
    let image = ImageId {
        name: "node".into(),
        version: "1".into(),
    };
    let (perl, dpkg) = (package("perl-base", "5"), package("dpkg", "1"));
    let dropped = |name: &str| Dropped {
        package: name.into(),
        kept: Vec::new(),
        missed_by: vec![crate::install::Missed {
            path: "/usr/bin/c_rehash".into(),
            package: "openssl".into(),
            program: "/usr/bin/perl".into(),
        }],
    };
    let listed = |set: &str, package: &LockedPackage, is_removed: bool| {
        let dropped = Some(dropped(&package.name)).filter(|_| is_removed);
        Component::package(package, set, &trixie()).removed(set, dropped.as_ref())
    };
    let text = text(
        &image,
        1_780_000_000,
        [
            listed("root", &perl, true),
            listed("root", &dpkg, true),
            listed("kubelet", &dpkg, false),
        ],
    )
    .unwrap();
    let read = components(&text).unwrap();
    let names: Vec<(&str, bool)> = read
        .iter()
        .map(|c| (c.name.as_str(), c.is_removed()))
        .collect();
    assert_eq!(names, [("dpkg", false), ("perl-base", true)]);
    let missed: Vec<&str> = read[1].missed_by().collect();
    assert_eq!(missed, ["/usr/bin/c_rehash: /usr/bin/perl"]);
    assert!(text.contains("\"scope\": \"excluded\""), "{text}");
}

#[test]
fn of_what_is_not_whole_the_document_says_what_is_there() {
    let image = ImageId {
        name: "node".into(),
        version: "1".into(),
    };
    let (dpkg, perl, sources) = (
        package("dpkg", "1"),
        package("perl-base", "5"),
        package("locales", "2"),
    );
    let part = |package: &LockedPackage| {
        let dropped = Dropped {
            package: package.name.clone(),
            kept: vec!["/usr/bin/update-alternatives".into()],
            missed_by: Vec::new(),
        };
        Component::package(package, "root", &trixie()).removed("root", Some(&dropped))
    };
    let locales = Component::package(&sources, "locales", &trixie());
    let text = text(
        &image,
        1_780_000_000,
        [
            part(&dpkg),
            part(&perl),
            Component::package(&perl, "kubelet", &trixie()),
            locales.compiled_to(&["de_DE.UTF-8".into(), "fr_FR.UTF-8".into()]),
        ],
    );
    let read = components(&text.unwrap()).unwrap();
    let found: Vec<_> = read
        .iter()
        .map(|c| (c.name.as_str(), c.is_removed(), c.description.as_deref()))
        .collect();
    let only = "Of its files only these are in the image: /usr/bin/update-alternatives";
    let compiled =
        "Not in the image, which has locales that were compiled from it: de_DE.UTF-8, fr_FR.UTF-8";
    assert_eq!(
        found,
        [
            ("dpkg", false, Some(only)),
            ("locales", true, Some(compiled)),
            ("perl-base", false, None),
        ]
    );
}

#[test]
fn packages_stand_once_with_all_their_sets() {
    let image = ImageId {
        name: "node".into(),
        version: "1".into(),
    };
    let libc = package("libc6", "2.41-12+deb13u1");
    let text = text(
        &image,
        1_780_000_000,
        [
            Component::package(&libc, "root", &trixie()),
            Component::package(&libc, "kubelet", &trixie()),
            Component::package(&package("mount", "1:2.41"), "root", &trixie()),
        ],
    )
    .unwrap();
    let read = components(&text).unwrap();
    assert_eq!(read.len(), 2);
    assert_eq!(
        read[0].purl.as_deref(),
        Some("pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64&distro=debian-13")
    );
    let sets: Vec<&str> = read[0]
        .properties
        .iter()
        .map(|p| p.value.as_str())
        .collect();
    assert_eq!(sets, ["kubelet", "root"]);
    assert!(text.contains("2026-05-28T20:26:40Z"));
    assert!(text.contains("mount@1%3A2.41"));
}

#[test]
fn a_package_names_the_source_that_advisories_are_about() {
    let of = |source: &str| {
        let package = LockedPackage {
            source: Some(source.to_owned()),
            ..package("libssl3t64", "3.5.1-1+b1")
        };
        Component::package(&package, "root", &trixie())
            .purl
            .unwrap()
    };
    let purl = "pkg:deb/debian/libssl3t64@3.5.1-1%2Bb1?arch=amd64&distro=debian-13";
    assert_eq!(of("openssl"), format!("{purl}&upstream=openssl"));
    let versioned = format!("{purl}&upstream=openssl%403.5.1-1");
    assert_eq!(of("openssl (3.5.1-1)"), versioned);
    assert_eq!(
        of("linux-signed-amd64 (6.12+1)"),
        format!("{purl}&upstream=linux")
    );
}

#[test]
fn a_distribution_without_a_version_has_its_suites_name() {
    let sid = Distribution::of("ID=debian\nVERSION_CODENAME=forky\n", "forky");
    assert_eq!((sid.id.as_str(), sid.version.as_str()), ("debian", "forky"));
}

#[test]
fn parts_stand_beside_their_programs_and_are_their_dependencies() {
    let image = ImageId {
        name: "node".into(),
        version: "1".into(),
    };
    let module = go::Module {
        path: "golang.org/x/net".into(),
        version: "v0.50.0".into(),
    };
    let program = |name: &str| Component {
        parts: vec![Component::module(&module)],
        ..Component::program(name, "v1", &format!("pkg:golang/{name}@v1"), "ab")
    };
    let text = text(
        &image,
        1_780_000_000,
        [program("kubelet"), program("crictl")],
    )
    .unwrap();
    let read = components(&text).unwrap();
    let names: Vec<&str> = read.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["crictl", "golang.org/x/net", "kubelet"]);
    let of: Vec<&str> = read[1].part_of().collect();
    assert_eq!(of, ["crictl", "kubelet"]);
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let on = |reference: &str| {
        let mut all = document["dependencies"].as_array().unwrap().iter();
        let found = all.find(|entry| entry["ref"] == reference).unwrap();
        found["dependsOn"].to_string()
    };
    assert_eq!(
        on("node@1"),
        r#"["pkg:golang/crictl@v1","pkg:golang/kubelet@v1"]"#
    );
    assert_eq!(
        on("pkg:golang/kubelet@v1"),
        r#"["pkg:golang/golang.org/x/net@v0.50.0"]"#
    );
}

#[test]
fn a_program_that_is_a_module_of_another_stays_a_program() {
    let image = ImageId {
        name: "node".into(),
        version: "1".into(),
    };
    let module = go::Module {
        path: "github.com/coredns/coredns".into(),
        version: "v1".into(),
    };
    let module = Component::module(&module);
    let program = |name: &str, purl: &str| Component {
        parts: vec![module.clone()],
        ..Component::program(name, "v1", purl, "ab")
    };
    let coredns = module.reference.clone();
    let text = text(
        &image,
        1_780_000_000,
        [
            program("coredns", &coredns),
            program("kubelet", "pkg:golang/kubelet@v1"),
        ],
    )
    .unwrap();
    let read = components(&text).unwrap();
    assert_eq!(read.len(), 2);
    assert!(read.iter().all(|c| c.part_of().next().is_none()));
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let dependencies = document["dependencies"].as_array().unwrap();
    assert!(
        dependencies
            .iter()
            .all(|entry| entry["ref"] != coredns.as_str())
    );
    let mut names = dependencies.iter();
    let kubelet = names.find(|entry| entry["ref"] == "pkg:golang/kubelet@v1");
    assert_eq!(kubelet.unwrap()["dependsOn"][0], coredns.as_str());
}
