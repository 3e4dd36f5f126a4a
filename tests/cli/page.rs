//! `timeline --page`: a boot's picture in the page of a build.

use slipway::layer::usage::Usage;
use slipway::publish::page::Page;

use super::{slipway, stderr, stdout};

fn page() -> Page {
    Page {
        title: "node-1.0".to_owned(),
        facts: Vec::new(),
        usage: Usage {
            name: String::new(),
            bytes: 1 << 20,
            parts: Vec::new(),
        },
        partitions: Vec::new(),
        steps: Vec::new(),
        components: Vec::new(),
        removed: Vec::new(),
        files: Vec::new(),
    }
}

#[test]
fn a_boot_is_drawn_into_the_page_of_a_build_and_a_later_one_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (html, page) = (at("report.html"), page());
    std::fs::write(&html, page.html(None).unwrap()).unwrap();
    let draw = |boot: &str, step: &str| {
        let line = format!(
            "{{\"source\":\"init\",\"name\":\"{step}\",\"start\":1000000,\"end\":3000000}}\n"
        );
        std::fs::write(at(boot), line).unwrap();
        let output = slipway(&["timeline", &at(boot), "--page", &html]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stdout(&output), format!("{html}\n"));
        let text = std::fs::read_to_string(&html).unwrap();
        assert_eq!(text.matches("<h2>Boot</h2>").count(), 1, "{text}");
        // The build's own data stay.
        assert_eq!(Page::read(&text).unwrap(), page);
        text
    };
    let first = draw("first.jsonl", "verity");
    assert!(
        first.contains("<svg") && first.contains(">verity<"),
        "{first}"
    );
    let second = draw("second.jsonl", "settle");
    assert!(
        second.contains(">settle<") && !second.contains(">verity<"),
        "{second}"
    );

    // What a program reads is JSON.
    for (option, kind) in [("--page", "page"), ("--svg", "svg")] {
        let (boot, to) = (at("first.jsonl"), at("report.html"));
        let output = slipway(&["--json", "timeline", &boot, option, &to]);
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said, serde_json::json!({ kind: to }));
    }

    // Another file is left alone.
    std::fs::write(&html, "<html></html>").unwrap();
    let output = slipway(&["timeline", &at("first.jsonl"), "--page", &html]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("expected the page report.html of a build"),
        "{}",
        stderr(&output)
    );
    assert_eq!(std::fs::read_to_string(&html).unwrap(), "<html></html>");
}
