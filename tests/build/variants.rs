//! Several images of one recipe, and what one has otherwise than the other.

use std::fs;

use super::Place;
use super::servers::run;

/// What makes two images of the small recipe.
const VARIANTS: &str = "
[variants.plain]

[variants.more.debian]
packages = [\"jq\"]

[variants.more.files.\"/etc/motd\"]
content = \"more\\n\"
mode = \"0600\"
";

#[test]
fn one_run_builds_all_variants_and_diff_says_what_differs() {
    let place = Place::new("variants", None);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let text = text.split("[[artifacts]]").next().unwrap();
    fs::write(&recipe, format!("{text}{VARIANTS}")).unwrap();
    let recipe = recipe.to_str().unwrap();
    let out = place.folder.join("out");
    let folder = |name: &str| out.join(name).to_str().unwrap().to_owned();

    let words = [
        "--json",
        "build",
        recipe,
        "-o",
        out.to_str().unwrap(),
        "--set",
        "image.version=2",
    ];
    let (built, said) = run(&place, &words);
    assert!(built, "{said}");
    let (plain, more) = (folder("small-plain-2"), folder("small-more-2"));
    for folder in [&plain, &more] {
        assert!(fs::exists(format!("{folder}/disk.raw")).unwrap(), "{said}");
    }
    assert!(place.folder.join("recipes/small.more.lock").is_file());

    let (equal, said) = run(&place, &["diff", "--exit-code", &plain, &plain]);
    assert!(equal && said.contains("no difference"), "{said}");
    let (equal, said) = run(
        &place,
        &["--json", "-q", "diff", "--exit-code", &plain, &more],
    );
    assert!(!equal, "{said}");
    let (_, json) = said.split_at(said.find('{').unwrap());
    let found: serde_json::Value = serde_json::from_str(json).unwrap();
    let names = |key: &str, name: &str| -> Vec<String> {
        let list = found[key].as_array().unwrap().iter();
        list.map(|item| item[name].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("packages", "name"), ["jq", "libjq1", "libonig5"]);
    let files = names("files", "path");
    assert!(files.contains(&"/usr/bin/jq".to_owned()), "{files:?}");
    let list = found["files"].as_array().unwrap();
    let motd = list
        .iter()
        .find(|file| file["path"] == "/etc/motd")
        .unwrap();
    assert_eq!(motd["what"], serde_json::json!(["content", "mode"]));
    assert_eq!(motd["to"], 5);
    // Nothing else is another one: only what the packages bring, what lists them, and the image's own names.
    let known = |path: &String| {
        [
            "jq",
            "onig",
            "/etc/motd",
            "/etc/ld.so.cache",
            "/usr/lib/os-release",
            "/usr/lib/slipway/packages",
        ]
        .iter()
        .any(|known| path.contains(known))
    };
    let others: Vec<_> = files.iter().filter(|path| !known(path)).collect();
    assert!(others.is_empty(), "{others:?}");
}
