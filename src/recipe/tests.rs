//! Complete recipes: those of this repository, the rules of `extends`, and a recipe with every mistake.

mod reserved;
mod root;
mod variants;

use std::fs;
use std::path::{Path, PathBuf};

use image::node::{EtcdFind, EtcdFormat, Role};

mod archives;
mod ca;
mod debs;
mod files;
mod mirrors;
mod runs;
mod trees;
mod words;

use super::{
    Choice, CniPlugins, FileKind, KubeletSource, KubernetesTool, Platform, PrebuiltFrom, Recipe,
    SET_ETCD, SET_ROOT, load, load_as,
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
fn tables_merge_values_replace_and_names_are_added() {
    let child = r#"
        extends = "base/parent.toml"
        image.version = "2"
        kernel.cmdline = ["-a", "c"]
        kernel.platforms = ["aws"]
        [files."/etc/x"]
        link = "y"
    "#;
    let parent =
        format!("{SMALL}\n[files.'/etc/x']\ncontent = 'x'\n[files.'/etc/z']\nsource = 'z'\n");
    let recipe = written(&[
        ("child.toml", child),
        ("base/parent.toml", &parent),
        ("base/z", "from beside the parent"),
    ])
    .unwrap();
    assert_eq!(
        (recipe.image.name.as_str(), recipe.image.version.as_str()),
        ("a", "2")
    );
    assert_eq!(recipe.kernel.cmdline, ["b", "c"]);
    assert_eq!(recipe.kernel.platforms, [Platform::named("aws").unwrap()]);
    assert_eq!(recipe.files[0].kind, FileKind::Link("y".into()));
    let FileKind::Source(source) = &recipe.files[1].kind else {
        panic!("{:?}", recipe.files[1]);
    };
    assert!(source.ends_with("base/z"), "{}", source.display());
    assert_eq!(recipe.parts.len(), 2);
}

#[test]
fn everything_inherited_is_taken_away_by_a_star() {
    let child = "extends = 'p.toml'\nkernel.cmdline = ['-*', 'z']";
    let recipe = written(&[("c.toml", child), ("p.toml", SMALL)]).unwrap();
    assert_eq!(recipe.kernel.cmdline, ["z"]);
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
fn an_inherited_file_is_taken_back() {
    let parent =
        format!("{SMALL}[files.'/etc/a']\ncontent = 'a'\n[files.'/usr/bin/b']\nremove = true\n");
    let child = "extends = 'p.toml'\n[files.'/usr/bin/b']\nremove = false\n";
    let recipe = written(&[("c.toml", child), ("p.toml", &parent)]).unwrap();
    let paths: Vec<&str> = recipe.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["/etc/a"]);
    let wrong = child.replace("/usr/bin/b", "/etc/b");
    let report = written(&[("c.toml", &wrong), ("p.toml", &parent)]).unwrap_err();
    for expected in [
        "c.toml:2:8",
        "which is not inherited",
        "did you mean `/etc/a`?",
    ] {
        assert!(report.contains(expected), "{expected}\n{report}");
    }
    let both = format!("{child}content = 'b'\n");
    let report = written(&[("c.toml", &both), ("p.toml", &parent)]).unwrap_err();
    assert!(report.contains("content and remove at once"), "{report}");
}

#[test]
fn where_words_are_written_is_in_no_key() {
    let moved = format!("# One line more.\n\n{}", SMALL.replace("    ", "  "));
    let keys = |text: &str| {
        let recipe = written(&[("a.toml", text)]).unwrap();
        let whole = serde_json::to_string(&recipe).unwrap();
        (whole, recipe.lock_request())
    };
    assert_eq!(keys(SMALL), keys(&moved));
}

#[test]
fn recipes_that_extend_each_other_are_refused_with_the_circle() {
    let report = written(&[
        ("a.toml", "extends = 'b.toml'"),
        ("b.toml", "extends = 'a.toml'"),
    ])
    .unwrap_err();
    assert!(report.contains("a.toml → b.toml → a.toml"), "{report}");
}

#[test]
fn the_nearest_recipe_is_offered() {
    let report = written(&[("a.toml", "extends = 'nod.toml'"), ("node.toml", "")]).unwrap_err();
    assert!(report.contains("did you mean `node.toml`?"), "{report}");
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
    let names = |recipe: &Recipe| recipe.sets().iter().map(|set| set.name).collect::<Vec<_>>();
    let small = written(&[("a.toml", SMALL)]).unwrap();
    assert_eq!(
        names(&small),
        ["tools-build", "root", "kernel", "tools-run"]
    );
    let demo = names(&ours("demo.toml"));
    for wanted in ["kubelet", "tools-go", "etcd"] {
        assert!(demo.contains(&wanted), "{demo:?}");
    }
}

/// The inputs of the output's key and of the lock's digest.
fn hashed(recipe: &Recipe) -> (String, String) {
    let output = serde_json::to_string(recipe).unwrap();
    (
        output,
        serde_json::to_string(&recipe.lock_request()).unwrap(),
    )
}

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
fn metrics_server_is_compiled_and_needs_no_package() {
    let text = |sources: &str, from: &str| {
        let text = format!(
            "{SMALL}\n[kubernetes]\nversion = '1.36'\nkubelet = [{sources}]\n[containers]\nimages-from = '{from}'\nimages = ['pause', 'metrics-server']\n"
        );
        written(&[("a.toml", &text)])
    };
    let server = "{ release = 'https://k8s.example/{version}/{program}' }";
    let both = format!("{server}, {{ go-module = true }}");
    for (sources, from, expected) in [
        (server, "build", "expected { go-module = true }"),
        (&*both, "registry", "metrics-server's image in `prebuilt`"),
    ] {
        let report = text(sources, from).unwrap_err();
        assert!(report.contains(expected), "{report}");
    }
    let recipe = text(&both, "build").unwrap();
    assert_eq!(recipe.components(), ["metrics-server".to_owned()].into());
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

#[test]
fn a_change_is_in_the_outputs_key_and_as_far_as_it_concerns_the_lock_in_its_digest() {
    let parent =
        format!("{SMALL}\nkubernetes = {{ version = '1.36', kubelet = [{{ go-module = true }}] }}");
    let with = |change: &str| {
        let child = format!("extends = 'parent.toml'\n{change}\n");
        let files = [
            ("a.toml", child.as_str()),
            ("parent.toml", &parent),
            ("kubelet", ""),
        ];
        hashed(&written(&files).unwrap_or_else(|report| panic!("{report}")))
    };
    let (output, lock) = with("");
    for (change, in_output, in_lock) in [
        ("debian.packages = ['nano']", true, true),
        ("debian.backports = ['nano']", true, true),
        ("kernel.package = 'linux-image-cloud-amd64'", true, true),
        ("kubernetes.version = '1.35'", true, true),
        ("containers.images = ['pause', 'etcd']", true, true),
        (
            "containers = { images = ['pause', 'etcd'], images-from = 'registry' }",
            true,
            true,
        ),
        ("kubernetes.tools = ['crictl']", true, true),
        ("kubernetes.cni-plugins = 'release'", true, true),
        ("kubernetes.cni-plugins = 'debian'", true, true),
        (
            "containers = { images = ['pause', 'etcd'], etcd = '3.6' }",
            true,
            true,
        ),
        ("containerd.release = '2.2'", true, true),
        ("containerd.release = '1.7'", false, false),
        // Of use only with a program that it has.
        ("kubernetes.github = 'http://x.example'", false, false),
        ("debian.docs = true", true, false),
        ("disk.var-minimum = '8 GiB'", true, false),
        ("artifacts = [{ kind = 'aws' }]", true, false),
        (
            "node = { role = 'control-plane', etcd = { serial = 'x' } }",
            true,
            false,
        ),
        ("files.'/etc/x'.content = 'x'", true, false),
        // Sources of inputs. The lock pins the kubelet that a source gave, and the root's key contains it.
        ("kubernetes.kubelet = [{ file = 'kubelet' }]", false, true),
        (
            "debian.mirror = 'http://mirror.example/debian'",
            false,
            false,
        ),
        (
            "debian.security-mirror = 'http://mirror.example/debian'",
            false,
            false,
        ),
        (
            "debian.snapshots = ['http://mirror.example/debian']",
            false,
            false,
        ),
    ] {
        let changed = with(change);
        assert_eq!(changed.0 != output, in_output, "the output, by {change}");
        assert_eq!(changed.1 != lock, in_lock, "the lock, by {change}");
    }
}

#[test]
fn the_recipes_folder_is_in_no_key() {
    let text = format!(
        "{SMALL}\nfiles.'/etc/x'.source = 'x'\nignition.config = 'base.ign'\n\
         kubernetes = {{ version = '1.36', kubelet = [{{ file = 'kubelet' }}] }}"
    );
    let config = r#"{"ignition": {"version": "3.4.0"}}"#;
    let files = [
        ("a.toml", text.as_str()),
        ("x", "x"),
        ("base.ign", config),
        ("kubelet", ""),
    ];
    // Each call has a folder with another name.
    let [one, other] = [0, 1].map(|_| hashed(&written(&files).unwrap()));
    assert_eq!(one, other);
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
