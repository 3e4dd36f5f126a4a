//! Mirrors from recipes, the environment and files of apt in all their forms.

use super::*;

#[path = "../../../build/mirror.rs"]
mod build_script;

fn apt(files: &[(&str, &str)]) -> Host {
    Host {
        apt: files
            .iter()
            .map(|(name, text)| (Path::new("/etc/apt").join(name), (*text).to_owned()))
            .collect(),
        ..Host::default()
    }
}

fn found(host: &Host) -> (String, String) {
    let mirrors = Mirrors::find(None, None, host).unwrap();
    (mirrors.main, mirrors.security)
}

const PARAGRAPHS: &str = "\
Types: deb deb-src
# an old place: http://old.example/debian
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://updates.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

#[test]
fn both_forms_of_apt_are_read() {
    let lines = "\
# deb http://comment.example/debian trixie main
deb-src http://source.example/debian trixie main
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian/ trixie main contrib # the mirror
deb\thttp://updates.example/debian-security trixie-security main
";
    let expected = (
        "http://mirror.example/debian".to_owned(),
        "http://updates.example/debian-security".to_owned(),
    );
    assert_eq!(found(&apt(&[("sources.list", lines)])), expected);
    assert_eq!(
        found(&apt(&[("sources.list.d/debian.sources", PARAGRAPHS)])),
        expected
    );
    let one = PARAGRAPHS.replace(
        "Components: main\nSigned",
        "Components: main\nEnabled: yes\nSigned",
    );
    assert_eq!(
        found(&apt(&[("sources.list.d/debian.sources", &one)])),
        expected
    );
}

#[test]
fn one_paragraph_may_hold_everything() {
    let text = "Types: deb\nURIs: http://all.example/mix\nSuites: trixie trixie-security\n  trixie-updates\nComponents: main non-free\n";
    let all = "http://all.example/mix".to_owned();
    assert_eq!(
        found(&apt(&[("sources.list.d/x.sources", text)])),
        (all.clone(), all)
    );
}

#[test]
fn entries_that_are_off_or_not_debians_are_skipped() {
    let disabled = PARAGRAPHS.replace("mirror.example", "off.example") + "Enabled: no\n";
    let disabled = disabled.replacen("Components: main\n", "Components: main\nEnabled: no\n", 1);
    let others = "\
deb https://vendor.example/apt bookworm main
deb [signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example/stable/debian bookworm main
deb https://vendor.example/linux/debian bookworm stable
deb https://vendor.example/debian bookworm-pgdg main
deb https://vendor.example/node nodistro main
deb cdrom:[Debian]/ bookworm main
deb file:/srv/debian bookworm main
deb http://real.example/debian bookworm main
deb http://real.example/debian-security bookworm/updates main
";
    let host = apt(&[
        ("sources.list", others),
        ("sources.list.d/debian.sources", &disabled),
    ]);
    assert_eq!(
        found(&host),
        (
            "http://real.example/debian".to_owned(),
            "http://real.example/debian-security".to_owned()
        )
    );
}

#[test]
fn an_entry_signed_by_debians_keyring_is_the_surest() {
    let host = apt(&[
        (
            "sources.list",
            "deb http://maybe.example/debian bookworm main\ndeb http://maybe.example/debian-security bookworm-security main",
        ),
        ("sources.list.d/debian.sources", PARAGRAPHS),
    ]);
    assert_eq!(found(&host).0, "http://mirror.example/debian");
    assert_eq!(found(&host).1, "http://updates.example/debian-security");
}

#[test]
fn recipe_then_environment_then_apt() {
    let mut host = apt(&[("sources.list.d/debian.sources", PARAGRAPHS)]);
    host.mirror = Some("https://env.example/d/".to_owned());
    let find = |main, security, host: &Host| {
        let mirrors = Mirrors::find(main, security, host).unwrap();
        (mirrors.main, mirrors.main_from, mirrors.security)
    };
    let (main, from, security) = find(Some("http://recipe.example/d"), None, &host);
    assert_eq!(
        (main.as_str(), from.as_str()),
        ("http://recipe.example/d", "the recipe")
    );
    assert_eq!(security, "http://updates.example/debian-security");
    let (main, from, _) = find(None, None, &host);
    assert_eq!(main, "https://env.example/d");
    assert_eq!(from, "the variable SLIPWAY_DEBIAN_MIRROR");
    host.mirror = None;
    host.security = Some("http://env.example/s".to_owned());
    let (main, from, security) = find(None, None, &host);
    assert_eq!(main, "http://mirror.example/debian");
    assert_eq!(from, "/etc/apt/sources.list.d/debian.sources");
    assert_eq!(security, "http://env.example/s");
}

#[test]
fn the_security_archive_is_looked_for_beside_the_other() {
    let host = Host {
        mirror: Some("http://env.example/pub/debian".to_owned()),
        ..Host::default()
    };
    assert_eq!(found(&host).1, "http://env.example/pub/debian-security");
    let host = Host {
        mirror: Some("http://env.example/other".to_owned()),
        ..Host::default()
    };
    let error = Mirrors::find(None, None, &host).unwrap_err().to_string();
    assert!(error.contains(SECURITY_VARIABLE), "{error}");
}

#[test]
fn a_list_of_mirrors_that_apt_names_is_read() {
    let sources = "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: trixie trixie-updates\n\
                   Components: main\n\nTypes: deb\nURIs: mirror+file:///etc/apt/mirrors/debian-security.list\n\
                   Suites: trixie-security\nComponents: main\n";
    let mut host = apt(&[("sources.list.d/debian.sources", sources)]);
    let paths = mirror_list::paths(&host.apt);
    assert_eq!(paths.len(), 2, "{paths:?}");
    host.lists = paths
        .into_iter()
        .zip([
            "http://a.example/debian/\n",
            "http://a.example/debian-security\n",
        ])
        .map(|(path, text)| (path, text.to_owned()))
        .collect();
    let found = Mirrors::find(None, None, &host).unwrap();
    assert_eq!(found.main, "http://a.example/debian");
    assert_eq!(found.security, "http://a.example/debian-security");
    assert_eq!(found.main_from, "/etc/apt/sources.list.d/debian.sources");
    // A list that is not there is no mirror.
    host.lists.clear();
    assert!(Mirrors::find(None, None, &host).is_err());
}

#[test]
fn the_programs_own_mirror_is_the_last_that_is_asked() {
    let own = Host {
        default: Some("http://own.example/debian/".to_owned()),
        ..Host::default()
    };
    let found = Mirrors::find(None, None, &own).unwrap();
    assert_eq!(found.main, "http://own.example/debian");
    assert!(found.main_from.contains("own setting"));
    let set = Host {
        mirror: Some("http://env.example/debian".to_owned()),
        ..own
    };
    let found = Mirrors::find(None, None, &set).unwrap();
    assert_eq!(found.main, "http://env.example/debian");
    let compiled = option_env!("SLIPWAY_DEFAULT_MIRROR").filter(|url| !url.is_empty());
    assert_eq!(Host::here().default.as_deref(), compiled);
}

/// What the build script takes, each build does.
#[test]
fn a_program_is_not_compiled_with_a_mirror_that_no_build_could_use() {
    for (url, good) in [
        ("http://own.example/debian", true),
        ("https://own.example:8443/folder/debian/", true),
        ("http://[2001:db8::1]/debian", true),
        ("ftp://own.example/debian", false),
        ("file:///srv/debian", false),
        ("own.example/debian", false),
        ("/srv/debian", false),
        ("http:own.example/debian", false),
        ("HTTP//own.example/debian", false),
        (" http://own.example/debian", false),
        ("http://", false),
        ("https:// ", false),
        ("http:///debian", false),
    ] {
        assert_eq!(build_script::is_usable(url), good, "{url}");
        let own = Host {
            default: Some(url.to_owned()),
            ..Host::default()
        };
        let found = Mirrors::find(None, None, &own);
        assert!(found.is_ok() || !good, "{url}: {found:?}");
    }
}

#[test]
fn without_any_word_the_error_says_what_to_set() {
    let error = Mirrors::find(None, None, &Host::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(MIRROR_VARIABLE)
            && error.contains("no apt configuration")
            && error.contains("debian.org/mirror/list"),
        "{error}"
    );
    let ubuntu = apt(&[(
        "sources.list",
        "deb http://archive.example/ubuntu noble main",
    )]);
    let error = Mirrors::find(None, None, &ubuntu).unwrap_err().to_string();
    assert!(error.contains("/etc/apt/sources.list"), "{error}");
    let error = Mirrors::find(Some("ftp://x"), None, &Host::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ftp://x") && error.contains("the recipe"),
        "{error}"
    );
}

#[test]
fn apts_folder_is_read_in_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let parts = folder.path().join("sources.list.d");
    std::fs::create_dir(&parts).unwrap();
    for name in ["b.list", "a.sources", "c.list.save", "d.sources"] {
        std::fs::write(parts.join(name), name).unwrap();
    }
    let read: Vec<String> = apt::files(folder.path())
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    assert_eq!(read, ["a.sources", "b.list", "d.sources"]);
}

#[test]
fn a_file_of_apt_with_bytes_that_are_no_utf8_is_read() {
    let folder = tempfile::tempdir().unwrap();
    // `ü` in Latin-1.
    let text = b"# f\xfcr alle\ndeb http://mirror.example/debian trixie main\n";
    std::fs::write(folder.path().join("sources.list"), text).unwrap();
    let host = Host {
        apt: apt::files(folder.path()),
        security: Some("http://mirror.example/security".to_owned()),
        ..Host::default()
    };
    assert_eq!(found(&host).0, "http://mirror.example/debian");
}

#[test]
fn the_snapshot_archive_is_the_variable_s_or_on_the_mirror_s_server() {
    let mut host = Host {
        mirror: Some("http://mirror.example:8080/linux/debian".to_owned()),
        security: Some("http://mirror.example/security".to_owned()),
        ..Host::default()
    };
    let snapshot = |host: &Host| Mirrors::find(None, None, host).map(|found| found.snapshot);
    let beside = "http://mirror.example:8080/archive/{archive}/{time}";
    assert_eq!(snapshot(&host).unwrap(), beside);
    host.snapshot = Some("https://snapshots.example/{archive}/{time}/".to_owned());
    let own = "https://snapshots.example/{archive}/{time}";
    assert_eq!(snapshot(&host).unwrap(), own);
    host.snapshot = Some("snapshots.example".to_owned());
    let error = snapshot(&host).unwrap_err().to_string();
    assert!(error.contains(SNAPSHOT_VARIABLE), "{error}");
}
