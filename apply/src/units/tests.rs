use super::*;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A root with these files below `/usr/lib/systemd/system`.
fn root(units: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let system = folder.path().join("usr/lib/systemd/system");
    fs::create_dir_all(&system).unwrap();
    fs::create_dir_all(folder.path().join("etc/systemd/system")).unwrap();
    fs::create_dir_all(folder.path().join("var")).unwrap();
    for (name, text) in units {
        fs::create_dir_all(system.join(name).parent().unwrap()).unwrap();
        fs::write(system.join(name), text).unwrap();
    }
    folder
}

fn planned(root: &Path, units: &str) -> (Units, Vec<String>, Vec<String>) {
    let text = format!(r#"{{"ignition":{{"version":"3.5.0"}},"systemd":{{"units":{units}}}}}"#);
    let (config, _) = ignition::Config::parse(text.as_bytes(), "t").unwrap();
    let (mut wrong, mut warnings) = (vec![], vec![]);
    let tree = Tree::open(root, crate::target::Rules::NODE).unwrap();
    let units = plan(
        &config.model().unwrap(),
        &tree,
        &[],
        &mut wrong,
        &mut warnings,
    );
    (units, wrong, warnings)
}

fn links(units: &Units) -> Vec<(&str, &str)> {
    units
        .links
        .iter()
        .map(|(link, target)| {
            (
                link.strip_prefix("/etc/systemd/system/").unwrap(),
                target.as_str(),
            )
        })
        .collect()
}

const INSTALL: &str = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n";

#[test]
fn enabling_makes_the_links_of_systemctl() {
    let root = root(&[
        (
            "a.service",
            "[Install]\nWantedBy=multi-user.target\nRequiredBy=b.target\nAlias=z.service\nAlso=c.socket\n",
        ),
        ("c.socket", "[Install]\nWantedBy=sockets.target\n"),
        (
            "t@.service",
            "[Install]\nWantedBy=getty.target\nAlias=alias-%i.service\nDefaultInstance=tty1\n",
        ),
        ("d.service", "[Service]\nExecStart=/bin/true\n"),
        (
            "d.service.d/10-install.conf",
            "[Install]\nWantedBy=x.target\n",
        ),
    ]);
    let (units, wrong, warnings) = planned(
        root.path(),
        r#"[{"name":"a.service","enabled":true},{"name":"t@ttyS0.service","enabled":true},
            {"name":"t@.service","enabled":true},{"name":"d.service","enabled":true}]"#,
    );
    assert_eq!((wrong, warnings), (vec![], vec![]));
    let lib = |name: &str| format!("/usr/lib/systemd/system/{name}");
    let (a, c, t, d) = (
        lib("a.service"),
        lib("c.socket"),
        lib("t@.service"),
        lib("d.service"),
    );
    assert_eq!(
        links(&units),
        [
            ("alias-ttyS0.service", t.as_str()),
            ("alias-tty1.service", &t),
            ("b.target.requires/a.service", &a),
            ("getty.target.wants/t@tty1.service", &t),
            ("getty.target.wants/t@ttyS0.service", &t),
            ("multi-user.target.wants/a.service", &a),
            ("sockets.target.wants/c.socket", &c),
            ("x.target.wants/d.service", &d),
            ("z.service", &a),
        ]
        .into_iter()
        .collect::<BTreeMap<_, _>>()
        .into_iter()
        .collect::<Vec<_>>()
    );
    assert_eq!(
        units.preset,
        "enable a.service\nenable d.service\nenable t@.service\nenable t@.service ttyS0\n"
    );
}

#[test]
fn a_unit_of_the_config_is_enabled_by_its_own_text() {
    let root = root(&[]);
    let text = format!(
        r#"[{{"name":"x.service","enabled":true,"contents":{INSTALL:?},
             "dropins":[{{"name":"a.conf","contents":"[Install]\nWantedBy=more.target\n"}}]}}]"#
    );
    let (units, wrong, _) = planned(root.path(), &text);
    assert!(wrong.is_empty(), "{wrong:?}");
    let own = "/etc/systemd/system/x.service";
    assert_eq!(
        links(&units),
        [
            ("more.target.wants/x.service", own),
            ("multi-user.target.wants/x.service", own)
        ]
    );
    assert_eq!(units.files.len(), 2);
}

/// An empty drop-in hides one of the same name, for example the image's.
#[test]
fn an_empty_drop_in_is_written_and_an_absent_one_is_not() {
    let root = root(&[("x.service", INSTALL)]);
    let text = r#"[{"name":"x.service","contents":"","dropins":[{"name":"a.conf","contents":""},{"name":"b.conf"}]}]"#;
    let (units, wrong, _) = planned(root.path(), text);
    assert!(wrong.is_empty(), "{wrong:?}");
    let files: Vec<_> = units.files.iter().collect();
    let path = "/etc/systemd/system/x.service.d/a.conf".to_owned();
    assert_eq!(files, [(&path, &Vec::new())]);
}

#[test]
fn what_does_not_exist_is_not_enabled() {
    let root = root(&[("static.service", "[Service]\n"), ("t@.service", INSTALL)]);
    let (_, wrong, warnings) = planned(
        root.path(),
        r#"[{"name":"none.service","enabled":true},{"name":"static.service","enabled":true},
            {"name":"t@.service","enabled":true},{"name":"none2.service","enabled":false}]"#,
    );
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(
        wrong[0].contains("none.service does not exist"),
        "{wrong:?}"
    );
    assert!(wrong[1].contains("DefaultInstance"), "{wrong:?}");
    assert!(
        warnings[0].contains("static.service has no [Install]"),
        "{warnings:?}"
    );
}

/// As Ignition does, which writes the contents and then the link in their place.
#[test]
fn the_contents_of_a_masked_unit_are_left_out_with_a_warning() {
    let root = root(&[]);
    let text = format!(r#"[{{"name":"x.service","mask":true,"contents":{INSTALL:?}}}]"#);
    let (units, wrong, warnings) = planned(root.path(), &text);
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(links(&units), [("x.service", "/dev/null")]);
    assert!(units.files.is_empty());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("x.service is masked"), "{warnings:?}");
}

#[test]
fn masks_are_set_and_lifted_and_disabling_removes_links() {
    let root = root(&[
        ("a.service", INSTALL),
        ("m.service", INSTALL),
        ("l.service", INSTALL),
    ]);
    let system = root.path().join("etc/systemd/system");
    fs::create_dir(system.join("multi-user.target.wants")).unwrap();
    let target = "/usr/lib/systemd/system/a.service";
    symlink(target, system.join("multi-user.target.wants/a.service")).unwrap();
    symlink(target, system.join("alias.service")).unwrap();
    symlink("/dev/null", system.join("l.service")).unwrap();
    symlink("/dev/null", system.join("other.service")).unwrap();
    let (units, wrong, _) = planned(
        root.path(),
        r#"[{"name":"a.service","enabled":false},{"name":"m.service","mask":true},
            {"name":"l.service","mask":false,"enabled":true}]"#,
    );
    assert!(wrong.is_empty(), "{wrong:?}");
    let tree = crate::provision::tests::tree(root.path());
    for _ in 0..2 {
        units.apply(&tree).unwrap();
        tree.finish().unwrap();
        assert!(!system.join("alias.service").is_symlink());
        assert!(
            !system
                .join("multi-user.target.wants/a.service")
                .is_symlink()
        );
        assert!(!system.join("l.service").is_symlink());
        assert!(system.join("other.service").is_symlink());
        assert_eq!(
            fs::read_link(system.join("m.service")).unwrap(),
            Path::new("/dev/null")
        );
        assert!(
            system
                .join("multi-user.target.wants/l.service")
                .is_symlink()
        );
    }
    let preset = fs::read_to_string(
        root.path()
            .join("etc/systemd/system-preset/20-ignition.preset"),
    );
    assert_eq!(preset.unwrap(), "disable a.service\nenable l.service\n");
}
