//! Complete recipes: those of this repository, the rules of `extends`, and a recipe with every mistake.

mod reserved;
mod root;
mod variants;

use std::fs;
use std::path::{Path, PathBuf};

use image::node::{EtcdFind, EtcdFormat, Role};

mod archives;
mod ca;
mod containers;
mod debs;
mod extends;
mod files;
mod keys;
mod mirrors;
mod runs;
mod trees;
mod words;

use super::{
    Choice, CniPlugins, FileKind, KubeletSource, KubernetesTool, Platform, Recipe, load, load_as,
};

fn ours(name: &str) -> Recipe {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("recipes")
        .join(name);
    load(&path).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)))
}

/// Loads a recipe from files in a temporary folder.
fn written(files: &[(&str, &str)]) -> Result<Recipe, String> {
    written_as(files, &Choice::default())
}

/// Loads what is wanted of a recipe from files in a temporary folder.
fn written_as(files: &[(&str, &str)], choice: &Choice) -> Result<Recipe, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    load_as(&folder.path().join(files[0].0), choice).map_err(|mistakes| {
        let prefix = format!("{}/", folder.path().display());
        mistakes.render(false).replace(&prefix, "")
    })
}

/// The inputs of the output's key and of the lock's digest.
fn hashed(recipe: &Recipe) -> (String, String) {
    let output = serde_json::to_string(recipe).unwrap();
    (
        output,
        serde_json::to_string(&recipe.lock_request()).unwrap(),
    )
}

const SMALL: &str = r#"
    image = { name = "a", version = "1" }
    kernel = { package = "linux-image-amd64", platforms = ["qemu"], cmdline = ["a", "b"] }
"#;

#[test]
fn every_recipe_of_the_repository_is_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    let mut names: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
        .collect();
    names.sort();
    assert!(names.len() >= 5, "{names:?}");
    for path in names {
        if let Err(mistakes) = load(&path) {
            panic!("{}", mistakes.render(false));
        }
    }
}

#[test]
fn the_demo_is_a_control_plane_with_its_etcd_disk() {
    let demo = ours("demo.toml");
    assert_eq!(demo.image.name, "demo");
    assert_eq!(demo.image.version, ours("node.toml").image.version);
    assert_eq!(demo.node.role, Role::ControlPlane);
    let etcd = demo.node.etcd.unwrap();
    assert_eq!(etcd.find(), Ok(EtcdFind::Serial("etcd".into())));
    assert_eq!(etcd.format, EtcdFormat::IfBlank);
    let kubernetes = demo.kubernetes.unwrap();
    assert_eq!(kubernetes.version, "1.36");
    assert_eq!(kubernetes.kubelet.last(), Some(&KubeletSource::GoModule));
}

#[test]
fn each_recipe_has_its_kernel_and_artifact() {
    for (name, kernel, platform, artifact) in [
        ("aws.toml", "linux-image-cloud-amd64", "aws", "aws"),
        ("gce.toml", "linux-image-cloud-amd64", "gce", "gce"),
        ("metal.toml", "linux-image-amd64", "metal", "pxe"),
    ] {
        let recipe = ours(name);
        let platform = Platform::named(platform).unwrap();
        assert_eq!(recipe.kernel.package, kernel, "{name}");
        assert!(recipe.kernel.platforms.contains(&platform), "{name}");
        let artifacts: Vec<&str> = recipe.artifacts.iter().map(|kind| kind.name()).collect();
        assert!(artifacts.contains(&artifact), "{name}");
    }
}

#[test]
fn sectors_are_of_512_or_4096_bytes_and_the_esp_has_room_in_them() {
    let with = |disk: &str| written(&[("a.toml", &format!("{SMALL}\n[disk]\n{disk}"))]);
    let sector = |disk: &str| with(disk).unwrap().sector.bytes();
    assert_eq!([sector(""), sector("sector-size = 512")], [512, 512]);
    assert_eq!(sector("sector-size = 4096"), 4096);
    let wrong = |disk: &str| with(disk).unwrap_err();
    let line = SMALL.lines().count() + 3;
    let text = wrong("sector-size = 1024");
    assert!(
        text.contains(&format!("a.toml:{line}:15")) && text.contains("expected 512, or 4096"),
        "{text}"
    );
    // FAT32 has a least number of clusters, and none is smaller than a sector.
    let text = wrong("esp = '256 MiB'\nsector-size = 4096");
    assert!(text.contains("at least 257 MiB"), "{text}");
    assert_eq!(sector("esp = '257 MiB'\nsector-size = 4096"), 4096);
    // Disks of clouds have no others than 512 bytes.
    let artifact = |kind: &str| format!("sector-size = 4096\n[[artifacts]]\nkind = '{kind}'");
    for kind in ["aws", "gce"] {
        let text = wrong(&artifact(kind));
        assert!(
            text.contains(&format!("a.toml:{line}:15")) && text.contains(&format!("`{kind}`")),
            "{text}"
        );
    }
    assert_eq!(sector(&artifact("qcow2")), 4096);
}

#[test]
fn a_kernel_that_wants_signatures_gets_modules_with_signatures() {
    let with = |kernel: &str| {
        let child = format!("extends = 'p.toml'\n{kernel}\n");
        written(&[("a.toml", &child), ("p.toml", SMALL)])
    };
    for (word, key) in [
        ("lockdown=integrity", "lockdown = \"integrity\""),
        ("module.sig_enforce=1", "module-signatures = true"),
        ("module.sig_enforce", "module-signatures = true"),
    ] {
        let text = with(&format!("kernel.cmdline = ['{word}']")).unwrap_err();
        assert!(text.contains(&format!("expected {key}")), "{text}");
    }
    for keeping in ["lockdown = 'integrity'", "module-signatures = true"] {
        let both = format!("kernel.{keeping}\nkernel.cmdline = ['module.sig_enforce']");
        assert!(with(&both).is_ok(), "{keeping}");
    }
    let twice = "kernel.lockdown = 'integrity'\nkernel.cmdline = ['lockdown=confidentiality']";
    assert!(with(twice).is_err());
}

/// Regenerate the expected text with `SNAPSHOTS=overwrite cargo test -p slipway --lib recipe`.
#[test]
fn all_mistakes_are_shown_at_once_each_at_its_place() {
    let mistakes = load(Path::new("src/recipe/tests/wrong.toml")).unwrap_err();
    // The list comes from the table: a new platform does not change the expected text.
    let names: Vec<String> = Platform::all()
        .map(|platform| format!("`{}`", platform.name()))
        .collect();
    let text = mistakes.render(false);
    snapbox::assert_data_eq!(
        text.replace(&names.join(", "), "{every platform}"),
        snapbox::file!["tests/wrong.txt"].raw()
    );
}

#[test]
fn words_about_sources_are_checked_in_their_places() {
    let kubernetes = "[kubernetes]\nversion = '1.36.3'\nkubelet = [{ release = 'http://a.example/{version}/{arch}/{program}' }, { go-module = true }]\n";
    let with = |kubernetes_too: &str, debian: &str| {
        let text = format!("{SMALL}{kubernetes}{kubernetes_too}\n[debian]\n{debian}\n");
        written(&[("a.toml", &text)])
    };
    let sources = |recipe: &Recipe| recipe.kubernetes.as_ref().unwrap().kubelet.len();
    let plain = with("", "").unwrap();
    assert_eq!(sources(&plain), 2);
    assert_eq!(sources(&with("sources = 'prefer'", "").unwrap()), 2);
    let recipe = with(
        "sources = 'require'",
        "snapshots = ['debian']\nmax-age = 30",
    )
    .unwrap();
    assert_eq!(sources(&recipe), 1);
    assert_eq!(recipe.debian.snapshots, ["debian"]);
    assert_eq!(recipe.debian.max_age, Some(30));
    for (kubernetes, debian, words) in [
        ("sources = 'requir'", "", "`require`"),
        ("", "snapshots = ['debain']", "did you mean `debian`?"),
        ("", "max-age = '30 days'", "max-age"),
        ("", "max-age = -1", "-1"),
    ] {
        let report = with(kubernetes, debian).unwrap_err();
        assert!(
            report.contains(words) && report.contains("a.toml:"),
            "{report}"
        );
    }
}

#[test]
fn all_syntax_errors_of_all_files_come_at_once() {
    let report = written(&[
        ("a.toml", "extends = 'b.toml'\n[image\n[debian]\nx = 1 2\n"),
        ("b.toml", "x = = 1"),
    ])
    .unwrap_err();
    assert!(report.contains("a.toml:2"), "{report}");
    assert!(report.contains("a.toml:4"), "{report}");
    assert!(report.contains("b.toml:1"), "{report}");
}

#[test]
fn an_overlay_gives_its_files_links_and_empty_folders() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("etc/empty")).unwrap();
    fs::write(tree.join("etc/file"), "one").unwrap();
    fs::write(tree.join("etc/over"), "two").unwrap();
    std::os::unix::fs::symlink("file", tree.join("etc/link")).unwrap();
    let text = format!("{SMALL}\noverlay.trees = ['tree']\nfiles.'/etc/over'.content = 'three'\n");
    let path = folder.path().join("a.toml");
    fs::write(&path, text).unwrap();
    let recipe = load(&path).unwrap();
    let kinds: Vec<_> = recipe
        .files
        .iter()
        .map(|file| (file.path.as_str(), file.mode, file.kind.clone()))
        .collect();
    let expected = [
        ("/etc/empty", 0o755, FileKind::Directory),
        ("/etc/file", 0o644, FileKind::Source(tree.join("etc/file"))),
        ("/etc/link", 0o777, FileKind::Link("file".into())),
        ("/etc/over", 0o644, FileKind::Content(b"three".to_vec())),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn mistakes_of_a_config_are_shown_in_it() {
    let text = format!("{SMALL}\nignition.config = 'base.ign'\n");
    let report =
        written(&[("a.toml", &text), ("base.ign", "{\n  \"ignition\": ,\n}")]).unwrap_err();
    assert!(report.contains("base.ign:2:"), "{report}");
    assert!(report.contains("a.toml:"), "{report}");
    let config = r#"{"ignition": {"version": "3.4.0"}, "storage": {"files": [
        {"path": "relative"}]}}"#;
    let report = written(&[("a.toml", &text), ("base.ign", config)]).unwrap_err();
    assert!(report.contains("base.ign:2:"), "{report}");
    assert!(report.contains("$.storage.files.0.path"), "{report}");
}

#[test]
fn mistakes_of_an_addon_are_mistakes_of_the_recipe_that_brings_it() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n";
    let text = |addon: &str| {
        let file = "[files.\"/etc/slipway/addons/b/1.yaml\"]";
        format!("{SMALL}\noverlay.trees = ['tree']\n{file}\ncontent = '''\n{addon}'''\n")
    };
    let manifest = "tree/usr/lib/slipway/addons/a/1.yaml";
    let settings = "tree/usr/lib/slipway/addons/a/addon.toml";
    let good = text(&map.replace("name: a", "name: b"));
    let needs = "depends = ['of-a-config']";
    written(&[("a.toml", &good), (manifest, map), (settings, needs)]).unwrap();
    let bad = text("kind: ConfigMap\n");
    let range = "kubernetes = '1.36'";
    let report = written(&[
        ("a.toml", &bad),
        (manifest, "a: [1\n"),
        (settings, range),
        ("tree/usr/lib/slipway/addons/a/sub/2.yaml", map),
        ("tree/usr/lib/slipway/addons/loose", map),
    ])
    .unwrap_err();
    for expected in [
        "tree/usr/lib/slipway/addons/a/1.yaml:2:1: not valid YAML",
        "tree/usr/lib/slipway/addons/a/addon.toml:1:14: kubernetes: expected a range",
        "tree/usr/lib/slipway/addons/a/sub/2.yaml: expected .yaml",
        "tree/usr/lib/slipway/addons/loose: expected .yaml",
        "files.\"/etc/slipway/addons/b/1.yaml\":1:1: apiVersion: expected text",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
}

#[test]
fn mistakes_of_a_baked_cluster_object_are_mistakes_of_the_recipe() {
    let recipe = |object: &str| {
        let kubernetes = "kubernetes = { version = \"1.36\", kubelet = [{ go-module = true }] }";
        let node =
            "node = { role = \"control-plane\", etcd = { serial = \"e\", cluster = \"c\" } }";
        let file = "[files.\"/etc/slipway/cluster.toml\"]";
        format!("{SMALL}\n{kubernetes}\n{node}\n{file}\ncontent = '''\n{object}'''\n")
    };
    let good =
        "name = \"blue\"\nversion = \"v1.36.3\"\n[api-server]\nargs = { profiling = false }\n";
    written(&[("a.toml", &recipe(good))]).unwrap();
    let bad = good
        .replace("profiling = false", "insecure-port = 0")
        .replace("blue", "Blue!");
    let report = written(&[("a.toml", &recipe(&bad))]).unwrap_err();
    for expected in [
        "files.\"/etc/slipway/cluster.toml\": ",
        "has no flag --insecure-port any more; in its place: api-server.port (line 4, column ",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    let report = written(&[("a.toml", &recipe("version = \"1.35.4\"\n"))]).unwrap_err();
    assert!(
        report.contains("version: 1.35.4 is not in the image, whose recipe has 1.36"),
        "{report}"
    );
}

#[test]
fn a_butane_config_is_baked_as_ignition_with_the_files_beside_it() {
    let text = format!("{SMALL}\nignition.config = 'base.bu'\n");
    let butane = "variant: slipway\nversion: 1.0.0\nstorage:\n  files:\n    - path: /etc/a\n      contents:\n        local: a.txt\n";
    let recipe = written(&[("a.toml", &text), ("base.bu", butane), ("a.txt", "A")]).unwrap();
    let baked = recipe.ignition.unwrap();
    let json: serde_json::Value = serde_json::from_slice(&baked.text).unwrap();
    assert_eq!(json["ignition"]["version"], "3.6.0");
    assert_eq!(json["storage"]["files"][0]["contents"]["source"], "data:,A");
    let report = written(&[("a.toml", &text), ("base.bu", butane)]).unwrap_err();
    assert!(report.contains("base.bu:7:"), "{report}");
    assert!(
        report.contains("$.storage.files.0.contents.local"),
        "{report}"
    );
}

#[test]
fn sets_follow_the_recipe() {
    let names = |recipe: &Recipe| -> Vec<String> {
        let sets = recipe.sets().into_iter();
        sets.map(|set| set.name.into_owned()).collect()
    };
    let small = written(&[("a.toml", SMALL)]).unwrap();
    assert_eq!(
        names(&small),
        ["tools-build", "root", "kernel", "tools-run"]
    );
    let demo = names(&ours("demo.toml"));
    for wanted in ["kubelet", "tools-go", "etcd"] {
        assert!(demo.iter().any(|name| name == wanted), "{demo:?}");
    }
}

#[test]
fn a_fallback_of_the_kubelet_is_allowed_or_an_error() {
    let sources = |words: &str| {
        let text = format!(
            "{SMALL}\n[kubernetes]\nversion = '1.36'\n\
             kubelet = [{{ release = 'https://k8s.example/{{version}}/{{program}}' }}, {{ go-module = true }}]\n{words}\n"
        );
        let line = text.lines().count();
        let recipe = written(&[("a.toml", &text)]);
        (
            recipe.map(|recipe| recipe.kubernetes.unwrap().kubelet),
            line,
        )
    };
    for words in ["", "sources = 'prefer'"] {
        let (both, _) = sources(words);
        assert_eq!(both.unwrap().len(), 2, "{words}");
    }
    let (first, _) = sources("sources = 'require'");
    let first = first.unwrap();
    assert!(
        matches!(&first[..], [KubeletSource::Release { .. }]),
        "{first:?}"
    );
    let (wrong, line) = sources("sources = 'requires'");
    let report = wrong.unwrap_err();
    for expected in [&*format!("a.toml:{line}:11"), "`requires`", "`require`"] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
}

/// What the kubeadm bootstrap provider's script and the templates of Cluster API call, and the kubelet's rest until kubeadm
/// starts it.
#[test]
fn the_recipe_for_cluster_api_has_what_its_scripts_call() {
    let recipe = ours("capi.toml");
    for package in ["gettext-base", "containerd", "iproute2"] {
        let found = recipe.debian.packages.iter().any(|name| name == package);
        assert!(found, "{package}");
    }
    let kubernetes = recipe.kubernetes.as_ref().unwrap();
    assert!(kubernetes.tools.contains(&KubernetesTool::Kubeadm));
    assert_eq!(recipe.cni_plugins(), Some(CniPlugins::Debian));
    let unit = image::kubelet::UNIT;
    let file = format!("/etc/systemd/system/{unit}.d/10-kubeadm.conf");
    let found = recipe
        .files
        .iter()
        .find(|entry| entry.path == file)
        .unwrap();
    // With a cluster object nobody but the kubelet's own preparation writes that file.
    for path in [image::kubelet::JOINED_CONFIG, image::paths::CLUSTER] {
        let condition = format!("ConditionPathExists=|{path}\n");
        match &found.kind {
            FileKind::Content(text) => assert!(String::from_utf8_lossy(text).contains(&condition)),
            other => panic!("{other:?}"),
        }
    }
    // A volume of Slipway's at /var/lib/etcd would not be empty, which kubeadm wants.
    assert_eq!(recipe.node.role, image::node::Role::Worker);
}

proptest::proptest! {
    /// For any input the result is a recipe or a report, never a panic.
    #[test]
    fn damaged_recipes_are_reported(
        file in 0_usize..3,
        cuts in proptest::collection::vec((0.0_f64..1.0, 0_usize..40, ".{0,6}|[\\[\\]{}=\"'#\n-]{1,3}"), 1..4),
    ) {
        let texts = [
            include_str!("../../recipes/node.toml"),
            include_str!("../../recipes/demo.toml"),
            include_str!("tests/wrong.toml"),
        ];
        let mut text: Vec<char> = texts[file].chars().collect();
        for (place, length, insert) in cuts {
            let length = length.min(text.len());
            // A position as a fraction of the rest of the text.
            let start = (0..=text.len() - length)
                .find(|at| *at as f64 >= place * (text.len() - length) as f64)
                .unwrap();
            text.splice(start..start + length, insert.chars());
        }
        let text: String = text.into_iter().collect();
        match written(&[("a.toml", &text), ("node.toml", texts[0]), ("parent.toml", SMALL)]) {
            Ok(recipe) => proptest::prop_assert!(!recipe.image.name.is_empty()),
            Err(report) => proptest::prop_assert!(report.contains("error: "), "{report}"),
        }
    }
}
