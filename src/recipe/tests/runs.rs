//! `[[build.run]]`: what is right, and each mistake at its place.

use super::{SMALL, written};
use crate::recipe::Recipe;

fn with(text: &str) -> Result<Recipe, String> {
    let text = format!("{SMALL}\n{text}\n");
    written(&[
        ("a.toml", text.as_str()),
        ("tools/setup.sh", "true"),
        ("more/setup.sh", "false"),
        ("data/x", ""),
    ])
}

#[test]
fn programs_have_inputs_by_their_names() {
    let recipe = with(
        "[[build.run]]\nname = 'one'\ncommand = ['sh', 'setup.sh']\ninputs = ['tools/setup.sh', 'data']\n\
         environment = { ZONE = 'eu' }\n[[build.run]]\nname = 'two'\ncommand = ['true']\n",
    )
    .unwrap();
    let [one, two] = recipe.runs.as_slice() else {
        panic!("{:?}", recipe.runs)
    };
    let names: Vec<&String> = one.inputs.keys().collect();
    assert_eq!(names, ["data", "setup.sh"]);
    assert_eq!(one.environment["ZONE"], "eu");
    assert!(one.origin.ends_with("a.toml:5:1"), "{}", one.origin);
    assert!(two.inputs.is_empty());
}

#[test]
fn each_mistake_is_shown_at_its_place() {
    let run = "[[build.run]]\nname = 'one'\n";
    let good = format!("{run}command = ['true']\n");
    for (text, place, words) in [
        (
            "[[build.run]]\ncommand = ['true']".to_owned(),
            "a.toml:5:1",
            "without a name",
        ),
        (run.to_owned(), "a.toml:5:1", "without a command"),
        (
            format!("{run}command = []"),
            "a.toml:7:11",
            "without a command",
        ),
        (
            format!("{run}command = 'true'"),
            "a.toml:7:11",
            "write it as a list: [\"true\"]",
        ),
        (
            "[[build.run]]\nname = 'One'\ncommand = ['true']".to_owned(),
            "a.toml:6:8",
            "is not the name of a program",
        ),
        (format!("{good}{good}"), "a.toml:9:8", "are called one"),
        (
            format!("{good}inputs = ['none']"),
            "a.toml:8:11",
            "No such file",
        ),
        (
            format!("{good}inputs = ['tools/setup.sh', 'more/setup.sh']"),
            "a.toml:8:29",
            "two inputs are called setup.sh",
        ),
        (
            format!("{good}environment = {{ 'A-B' = 'x' }}"),
            "a.toml:8:15",
            "is not the name of a variable",
        ),
        (
            format!("{good}shell = 'sh'"),
            "a.toml:8:1",
            "unknown key `shell`",
        ),
        (
            "[build]\nruns = []".to_owned(),
            "a.toml:6:1",
            "did you mean `run`?",
        ),
    ] {
        let report = with(&text).unwrap_err();
        assert!(report.contains(place), "{text}\n{report}");
        assert!(report.contains(words), "{text}\n{report}");
        assert!(!report.contains(" mistakes"), "{text}\n{report}");
    }
}
