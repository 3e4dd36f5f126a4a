//! Addons as they are read.

use super::*;

fn folder(name: &str, source: Source, files: &[(&str, &str)]) -> Folder {
    let path = format!("/addons/{name}");
    Folder {
        name: name.to_owned(),
        source,
        files: files
            .iter()
            .map(|(name, content)| File {
                name: (*name).to_owned(),
                path: format!("{path}/{name}"),
                content: content.as_bytes().to_vec(),
            })
            .collect(),
        path,
    }
}

fn map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n")
}

fn names(addon: &Addon) -> Vec<&str> {
    let name = |object| -> &str { Value::as_str(object).unwrap_or_default() };
    let all = addon.objects.iter();
    all.map(|object| name(&object["metadata"]["name"]))
        .collect()
}

#[test]
fn objects_are_in_the_order_of_files_and_then_of_kinds_and_have_the_labels_of_their_addon() {
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d", "labels": {"a": "b"}, "creationTimestamp": null}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}, "status": {}}]}"#;
    let yaml = format!("# a comment\n---\n{}---\n{}", map("b"), map("c"));
    let files = [
        ("2.json", list),
        ("1.yaml", yaml.as_str()),
        ("3.yml", "# nothing\n"),
    ];
    let addons = read(vec![folder("x", Source::Image, &files)]);
    assert!(addons.refused.is_empty(), "{:?}", addons.refused);
    let addon = &addons.valid[0];
    assert_eq!(names(addon), ["n", "b", "c", "d"]);
    assert_eq!(addon.hash.len(), 32);
    let labels = &addon.objects[3]["metadata"]["labels"];
    let expected = serde_json::json!({"a": "b", ADDON: "x", HASH: addon.hash});
    assert_eq!(*labels, expected);
    assert!(addon.objects[0].get("status").is_none());
    assert!(
        addon.objects[3]["metadata"]
            .get("creationTimestamp")
            .is_none()
    );
}

#[test]
fn the_hash_is_of_the_objects_and_not_of_how_they_are_written() {
    let hash = |files: &[(&str, &str)]| {
        read(vec![folder("x", Source::Image, files)]).valid[0]
            .hash
            .clone()
    };
    let (a, b) = (map("a"), map("b"));
    let first = hash(&[("1.yaml", &a), ("2.yaml", &b)]);
    assert_eq!(
        first,
        hash(&[
            ("x.yaml", &format!("# c\n{a}---\n{b}")),
            ("addon.toml", "wait = false")
        ])
    );
    assert_ne!(first, hash(&[("1.yaml", &a)]));
    assert_ne!(
        first,
        hash(&[("1.yaml", &format!("{a}data:\n  x: y\n")), ("2.yaml", &b)])
    );
}

#[test]
fn the_config_hides_the_images_addon_of_the_same_name() {
    let (a, b) = (map("a"), map("b"));
    let image = || folder("x", Source::Image, &[("1.yaml", &a), ("wrong.txt", "")]);
    let config = || folder("x", Source::Config, &[("1.yaml", &b)]);
    for folders in [vec![image(), config()], vec![config(), image()]] {
        let addons = read(folders);
        assert!(addons.refused.is_empty());
        assert_eq!(names(&addons.valid[0]), ["b"]);
    }
    let empty = read(vec![image(), folder("x", Source::Config, &[])]);
    assert_eq!(names(&empty.valid[0]), [""; 0]);
}

#[test]
fn all_mistakes_of_all_files_are_found_at_once_with_file_line_and_column() {
    let addons = read(vec![
        folder(
            "bad",
            Source::Image,
            &[
                (
                    "1.yaml",
                    "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  generateName: x-\n---\nkind: [a]\nmetadata: {name: a, namespace: 1}\n",
                ),
                ("2.yaml", "a: [1\n"),
                ("3.yaml", "- a\n"),
                (
                    "4.json",
                    "{\"apiVersion\": \"a/b/c\", \"kind\": \"K\", \"kind\": \"K\", \"metadata\": {\"name\": \"n\", \"labels\": 1}}",
                ),
                ("addon.toml", "wait = 1\ndepends = [\"good\", \"goood\"]\n"),
                ("notes.txt", ""),
            ],
        ),
        folder("Upper", Source::Config, &[]),
        folder("good", Source::Image, &[("1.yaml", &map("a"))]),
    ]);
    assert_eq!(addons.valid.len(), 1);
    let mistakes: Vec<String> = addons
        .refused
        .iter()
        .flat_map(|refused| &refused.mistakes)
        .map(ToString::to_string)
        .collect();
    for expected in [
        "/addons/bad/1.yaml:4:17: metadata.name: expected a name",
        "/addons/bad/1.yaml:6:1: apiVersion: expected text, as in",
        "/addons/bad/1.yaml:6:7: kind: expected text, as in",
        "/addons/bad/1.yaml:7:32: metadata.namespace: expected the name of a namespace",
        "/addons/bad/2.yaml:",
        "/addons/bad/3.yaml:1:1: expected an object of Kubernetes",
        "/addons/bad/4.json:1:16: apiVersion: expected text",
        "/addons/bad/4.json:1:38: duplicate key \"kind\": expected each key once",
        "metadata.labels: expected names with values",
        "/addons/bad/addon.toml:1:8: wait: expected true or false",
        "/addons/bad/addon.toml:2:20: depends: there is no addon \"goood\"; did you mean \"good\"?",
        "/addons/bad/notes.txt: expected .yaml, .yml, .json or addon.toml",
        "/addons/Upper: \"Upper\" is not a name of an addon",
    ] {
        assert!(
            mistakes.iter().any(|mistake| mistake.contains(expected)),
            "{expected}: {mistakes:#?}"
        );
    }
    assert_eq!(mistakes.len(), 13, "{mistakes:#?}");
}

#[test]
fn an_object_that_is_there_twice_and_a_circle_are_refused_with_their_places() {
    let (a, both) = (map("a"), format!("{}---\n{}", map("b"), map("b")));
    let addons = read(vec![
        folder("a", Source::Image, &[("1.yaml", &a)]),
        folder("b", Source::Config, &[("1.yaml", &a)]),
        folder("c", Source::Image, &[("1.yaml", &both)]),
        folder("d", Source::Image, &[("addon.toml", "depends = [\"e\"]")]),
        folder("e", Source::Image, &[("addon.toml", "depends = [\"d\"]")]),
        folder("f", Source::Image, &[("addon.toml", "depends = [\"a\"]")]),
    ]);
    let valid: Vec<&str> = addons
        .valid
        .iter()
        .map(|addon| addon.name.as_str())
        .collect();
    assert_eq!(valid, ["a", "f"]);
    let mistakes: Vec<String> = addons
        .refused
        .iter()
        .flat_map(|refused| &refused.mistakes)
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        mistakes,
        [
            "/addons/b/1.yaml:1:1: ConfigMap a is also at /addons/a/1.yaml:1:1; expected each object once",
            "/addons/c/1.yaml:6:1: ConfigMap b is also at /addons/c/1.yaml:1:1; expected each object once",
            "/addons/d/addon.toml:1:12: depends: a circle of dependencies among d, e",
            "/addons/e/addon.toml:1:12: depends: a circle of dependencies among d, e",
        ]
    );
}

/// Each of the two would take the object from the other one at every boot.
#[test]
fn an_object_without_a_namespace_is_the_one_of_the_default_namespace() {
    let within = |namespace: &str| {
        let line = format!("metadata:\n  namespace: {namespace}\n");
        map("a").replace("metadata:\n", &line)
    };
    for (namespace, is_twin) in [("default", true), ("other", false)] {
        let one = folder("one", Source::Image, &[("1.yaml", &map("a"))]);
        let other = folder("other", Source::Config, &[("1.yaml", &within(namespace))]);
        let mistakes = check(vec![one, other]);
        assert_eq!(mistakes.len(), usize::from(is_twin), "{mistakes:?}");
    }
}

#[test]
fn the_folders_of_a_recipe_are_checked_without_their_dependencies() {
    let needs = ("addon.toml", "depends = [\"of-the-config\"]");
    let good = folder("a", Source::Image, &[("1.yaml", &map("a")), needs]);
    let bad = folder("b", Source::Image, &[("1.yaml", "kind: ConfigMap\n")]);
    assert!(check(vec![good.clone()]).is_empty());
    let mistakes = check(vec![good, bad]);
    let all = mistakes
        .iter()
        .all(|mistake| mistake.file == "/addons/b/1.yaml");
    assert!(all && mistakes.len() == 2, "{mistakes:?}");
}
