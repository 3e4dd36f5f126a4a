//! Which texts are YAML, which are not, and the positions of errors.

use super::*;

fn read(text: &str) -> Json {
    parse(text.as_bytes(), "t").unwrap()
}

fn refused(text: &[u8]) -> (u32, u32, String) {
    let report = parse(text, "t").unwrap_err();
    let entry = &report.entries[0];
    let at = entry.at.as_ref().unwrap();
    (at.line, at.column, entry.message.clone())
}

#[test]
fn values_have_their_places() {
    let json = read("# c\na: 1\nb:\n  - x\n  - \"y\"\n");
    let Value::Object(entries) = &json.value else {
        panic!()
    };
    assert_eq!(
        (
            entries[1].0.as_str(),
            entries[1].1.line,
            entries[1].1.column
        ),
        ("b", 3, 1)
    );
    let Value::List(items) = &entries[1].2.value else {
        panic!()
    };
    assert_eq!((items[1].at.line, items[1].at.column), (5, 5));
    assert_eq!(items[0].value, Value::Plain("x".into()));
    assert_eq!(items[1].value, Value::Text("y".into()));
    assert_eq!(read("").value, Value::Null);
    // A byte order mark and carriage returns do not shift positions.
    let json = read("\u{feff}a: 1\r\nb: 2\r\n");
    assert_eq!(json.value.get("b").unwrap().at.line, 2);
}

#[test]
fn anchors_and_merge_keys_work() {
    let json = read("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [{x: 9}, *a]}\nd: *a\n");
    let text = |name: &str, key: &str| match &json
        .value
        .get(name)
        .unwrap()
        .value
        .get(key)
        .unwrap()
        .value
    {
        Value::Plain(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((text("b", "x"), text("b", "y")), ("1".into(), "3".into()));
    assert_eq!((text("c", "x"), text("c", "y")), ("9".into(), "2".into()));
    assert_eq!(text("d", "y"), "2");
    // In quotes it is an ordinary key.
    assert!(read("\"<<\": 1").value.get("<<").is_some());
}

#[test]
fn what_is_no_yaml_is_refused_with_its_place() {
    let mut wrong = Vec::new();
    for (text, line, column, says) in [
        ("a: 1\na: 2\n", 2, 1, "duplicate key \"a\""),
        ("a: {b: 1, b: 2}\n", 1, 11, "duplicate key \"b\""),
        ("a:\n\tb: 1\n", 2, 2, "tab"),
        ("a: [1\n", 2, 1, "expected"),
        ("a: b: c\n", 1, 5, "mapping values"),
        ("a: *x\n", 1, 4, "unknown anchor"),
        (
            "a: &a [*a]\n",
            1,
            8,
            "an alias inside the value that it refers to",
        ),
        ("a: 1\n---\nb: 2\n", 2, 1, "second document"),
        ("? [x]\n: 1\n", 1, 3, "string as the key"),
        ("~: 1\n", 1, 1, "string as the key"),
        ("a: !thing 1\n", 1, 4, "a tag that is not known"),
        ("a: !!binary aGk=\n", 1, 4, "binary"),
        ("a: !!seq {}\n", 1, 4, "a tag that is not known"),
        ("<<: 1\n", 1, 5, "expected a mapping"),
        ("a: \"\\q\"\n", 1, 4, "escape"),
        ("a: x\u{7}\n", 1, 5, "control character"),
        ("a: 1\n\u{feff}b: 2\n", 2, 1, "byte order mark"),
    ] {
        let found = refused(text.as_bytes());
        if (found.0, found.1) != (line, column) || !found.2.contains(says) {
            wrong.push(format!("{text:?}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(
        refused(b"a: 1\nb: \xc3\x28").2,
        "the text is not UTF-8 here"
    );
    assert_eq!(
        refused(b"\xff\xfea\0").2,
        "the text is UTF-16; expected UTF-8"
    );
    assert_eq!(refused(b"a: 1\nb: \xff").0, 2);
}

#[test]
fn depth_is_bounded() {
    assert!(
        refused("[".repeat(100_000).as_bytes())
            .2
            .contains("64 deep")
    );
    assert!(
        refused("- ".repeat(100_000).as_bytes())
            .2
            .contains("64 deep")
    );
    let nested: String = (0..100).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    assert!(refused(nested.as_bytes()).2.contains("64 deep"));
    // Each alias adds a level of nesting to the one before.
    let mut chain = String::from("a0: &a0 [x]\n");
    for i in 1..100 {
        chain += &format!("a{i}: &a{i} [*a{}]\n", i - 1);
    }
    assert!(refused(chain.as_bytes()).2.contains("64 deep"));
}

#[test]
fn a_billion_laughs_are_not_heard() {
    let mut text = String::from("a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for (name, before) in [
        ("b", "a"),
        ("c", "b"),
        ("d", "c"),
        ("e", "d"),
        ("f", "e"),
        ("g", "f"),
        ("h", "g"),
    ] {
        let many = format!("*{before}, ").repeat(9);
        text += &format!("{name}: &{name} [{many}]\n");
    }
    assert!(
        refused(text.as_bytes())
            .2
            .contains("copy more than 100000 values")
    );
    let long = format!(
        "a: &a \"{}\"\nb: [{}]\n",
        "x".repeat(1 << 20),
        "*a, ".repeat(20)
    );
    assert!(refused(long.as_bytes()).2.contains("16 MiB of text"));
    // The few aliases of a usual config are far below the limit.
    let few = format!("a: &a [1, 2]\nb: [{}]\n", "*a, ".repeat(1000));
    assert!(parse(few.as_bytes(), "t").is_ok());
}
