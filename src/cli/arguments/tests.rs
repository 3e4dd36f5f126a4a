//! The command line as a whole, and every command that the documents name.

use clap::{CommandFactory as _, Parser as _};

use super::Cli;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn what_only_reads_needs_no_namespace() {
    for (words, needs) in [
        (&["inspect", "out"][..], false),
        (&["timeline", "boot.jsonl"], false),
        (&["timeline", "/"], true),
        (&["cache", "show"], false),
        (&["cache", "prune"], true),
        (&["lock", "a.toml", "--locked"], false),
        (&["lock", "a.toml"], true),
        (&["build", "a.toml", "--dry-run"], false),
        (&["build", "a.toml"], true),
    ] {
        let cli = Cli::try_parse_from([&["slipway"], words].concat()).unwrap();
        assert_eq!(cli.command.starts_programs(), needs, "{words:?}");
    }
}

#[test]
fn every_command_in_the_documents_is_one() {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![top.join("README.md"), top.join("CONTRIBUTING.md")];
    for entry in std::fs::read_dir(top.join("docs")).unwrap() {
        pages.push(entry.unwrap().path());
    }
    let mut found = 0;
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|end| end == "md"))
    {
        let text = std::fs::read_to_string(page).unwrap();
        // Lines of code blocks, and texts between backticks; `slipway …` alone names a command without its
        // arguments.
        let lines = text.lines().filter(|line| line.starts_with("slipway "));
        let spans = text.split('`').filter(|span| {
            span.starts_with("slipway ") && !span.contains('\n') && !span.contains('…')
        });
        for command in lines.chain(spans) {
            let words = command
                .split(" > ")
                .next()
                .unwrap_or(command)
                .split_whitespace();
            let words: Vec<&str> = words
                .take_while(|word| *word != "#" && *word != "\\")
                .collect();
            let missing = |error: &clap::Error| {
                error.kind() == clap::error::ErrorKind::MissingRequiredArgument
                    || error.kind() == clap::error::ErrorKind::DisplayHelp
                    || error.kind()
                        == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            };
            if let Err(error) = Cli::try_parse_from(&words)
                && !missing(&error)
            {
                panic!("{}: {command}\n{error}", page.display());
            }
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}
