//! `[files]` with `url` and with `template`: what is right, and each mistake at its place.

use super::{SMALL, written, written_as};
use crate::recipe::{Choice, FileKind, Recipe};

const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn with(text: &str) -> Result<Recipe, String> {
    let text = format!("{SMALL}\n{text}\n");
    written(&[
        ("a.toml", text.as_str()),
        ("site.conf", "one\nzone {{ zone }} of {{ image.name }}\n"),
        ("bad.conf", "one\nzone {{ zonne }}\n"),
    ])
}

/// The content of the first file.
fn first(recipe: &Recipe) -> String {
    match &recipe.files[0].kind {
        FileKind::Content(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_of_a_server_is_known_by_its_hash_alone() {
    let of = |host: &str, mode: &str| {
        let upper = SUM.to_uppercase();
        let text = format!(
            "[files.'/usr/bin/tool']\nurl = 'https://{host}/tool?v=1'\nsha256 = '{upper}'\n{mode}"
        );
        with(&text).unwrap()
    };
    let recipe = of("a.example", "mode = '0755'");
    let (download, origin) = recipe.downloads().next().unwrap();
    assert_eq!(download.url, "https://a.example/tool?v=1");
    assert_eq!(download.sha256, SUM);
    assert!(origin.ends_with("a.toml:5:8"), "{origin}");
    assert_eq!(recipe.files[0].mode, 0o755);
    let key = |recipe: &Recipe| serde_json::to_string(&recipe.files).unwrap();
    assert_eq!(key(&of("a.example", "")), key(&of("b.example", "")));
    assert_ne!(key(&recipe), key(&of("a.example", "")));
}

#[test]
fn templates_have_the_variables_of_recipe_variant_and_command_line() {
    let text = format!(
        "{SMALL}\n[variables]\nzone = 'eu-1'\nrack = 'r1'\n\
         [variants.west.variables]\nzone = 'us-2'\n\
         [files.'/etc/site']\ntemplate = true\n\
         content = '{{{{ zone }}}}/{{{{ rack }}}} {{{{ image.version }}}}'\n"
    );
    let choice = |variant: Option<&str>, settings: &[&str]| Choice {
        variant: variant.map(str::to_owned),
        settings: settings.iter().map(|set| (*set).to_owned()).collect(),
    };
    let read = |choice: &Choice| first(&written_as(&[("a.toml", &text)], choice).unwrap());
    assert_eq!(read(&choice(Some("west"), &[])), "us-2/r1 1");
    let set = ["variables.rack=7", "image.version=2"];
    assert_eq!(read(&choice(Some("west"), &set)), "us-2/7 2");
    let source =
        "variables = { zone = 'eu-1' }\n[files.'/etc/site']\nsource = 'site.conf'\ntemplate = true";
    assert_eq!(first(&with(source).unwrap()), "one\nzone eu-1 of a\n");
    // Without the word nothing is replaced.
    let plain = "[files.'/etc/site']\ncontent = '{{ zone }}'";
    assert_eq!(first(&with(plain).unwrap()), "{{ zone }}");
}

#[test]
fn each_mistake_is_shown_at_its_place() {
    let file = "[files.'/etc/x']\n";
    let url = "url = 'https://a.example/x'\n";
    let sum = format!("sha256 = '{SUM}'\n");
    for (text, place, words) in [
        (format!("{file}{url}"), "a.toml:6:7", "without its `sha256`"),
        (
            format!("{file}{url}sha256 = 'e3b0'"),
            "a.toml:7:10",
            "is not a SHA-256",
        ),
        (
            format!("{file}url = 'ftp://a.example/x'\n{sum}"),
            "a.toml:6:7",
            "is not a URL",
        ),
        (
            format!("{file}{url}{sum}content = ''"),
            "a.toml:5:8",
            "content and url at once",
        ),
        (
            format!("{file}content = ''\n{sum}"),
            "a.toml:7:10",
            "`sha256` of a file that has none of url",
        ),
        (
            format!("{file}{url}{sum}template = true"),
            "a.toml:8:12",
            "`template` of a file that has none of content, source",
        ),
        (
            format!("[files.'/etc/modprobe.d/x.conf']\n{url}{sum}"),
            "a.toml:6:7",
            "its content is checked with the recipe",
        ),
        (
            format!(
                "variables = {{ zone = 'x' }}\n{file}content = \"a {{{{ zon }}}}\"\ntemplate = true"
            ),
            "a.toml:7:14",
            "did you mean `zone`?",
        ),
        (
            format!("{file}source = 'bad.conf'\ntemplate = true"),
            "bad.conf:2:6",
            "there is no variable `zonne`",
        ),
        (
            "variables = { '1a' = 'x' }".to_owned(),
            "a.toml:5:15",
            "is not the name of a variable",
        ),
        (
            "variables = { a = 1 }".to_owned(),
            "a.toml:5:19",
            "write it in quotes: \"1\"",
        ),
    ] {
        let report = with(&text).unwrap_err();
        assert!(report.contains(place), "{text}\n{report}");
        assert!(report.contains(words), "{text}\n{report}");
        assert!(!report.contains(" mistakes"), "{text}\n{report}");
    }
    let secret = format!("{file}url = 'https://me:hunter2@a.example/x'\n{sum}");
    let report = with(&secret).unwrap_err();
    assert!(report.contains("has a user or a password"), "{report}");
    assert!(!report.contains("hunter2"), "{report}");
}

#[test]
fn paths_of_a_tree_are_held_to_what_those_of_files_are() {
    let trees = |files: &[&str]| {
        let text = format!("{SMALL}\n[overlay]\ntrees = ['a', 'b']\n");
        let mut all = vec![("a.toml", text.as_str()), ("a/etc/good", ""), ("b/x", "")];
        all.extend(files.iter().map(|file| (*file, "")));
        written(&all)
    };
    trees(&["b/var/lib/x", "b/opt/x", "b/usr/local/bin/x"]).unwrap();
    for (file, words) in [
        ("b/run/app/x", "/run/app/x would never be seen"),
        ("b/tmp/x", "/tmp/x would never be seen"),
        ("b/opt/a\nb", "\"/opt/a\\nb\" has a control character"),
        ("b/etc/a\tb", "\"/etc/a\\tb\" has a control character"),
        ("b/opt", "/opt cannot be of the recipe"),
    ] {
        let report = trees(&[file]).unwrap_err();
        assert!(report.contains("a.toml:6:15"), "{file:?}\n{report}");
        assert!(report.contains(words), "{file:?}\n{report}");
        assert!(!report.contains(" mistakes"), "{file:?}\n{report}");
    }
    let report = trees(&["a/run/1", "a/run/2", "a/tmp/3", "b/run/4"]).unwrap_err();
    for words in [
        "a.toml:6:10",
        "/run/1 would",
        "and 2 more like it",
        "/run/4 would",
        "2 mistakes",
    ] {
        assert!(report.contains(words), "{words}\n{report}");
    }
}
