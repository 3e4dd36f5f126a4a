//! Manual pages: one for the program and one for each command, made of the same arguments as the help.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use clap::{Command, CommandFactory as _};

use super::arguments::{self, Cli};

/// Prints a page, or with `list` the names of all.
pub(crate) fn print(page: &str, list: bool) -> Result<()> {
    let pages = pages();
    if list {
        let names: String = pages.keys().map(|name| format!("{name}\n")).collect();
        return arguments::print(&names);
    }
    let text = pages
        .get(page)
        .or_else(|| pages.get(&format!("slipway-{page}")))
        .with_context(|| format!("there is no page {page}: `slipway manual --list` names all"))?;
    arguments::print(text)
}

/// All pages by their names, in the language of man(7).
fn pages() -> BTreeMap<String, String> {
    let mut program = Cli::command();
    // Gives each command its whole name.
    program.build();
    let mut pages = BTreeMap::new();
    add(program, &mut pages);
    pages
}

/// Adds the pages of a command and of those below it.
fn add(command: Command, pages: &mut BTreeMap<String, String>) {
    for below in command.get_subcommands() {
        if !below.is_hide_set() {
            add(below.clone(), pages);
        }
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let name = name.to_owned();
    let mut text = Vec::new();
    // A page is written into memory, which does not fail; a test reads all of them.
    clap_mangen::Man::new(command)
        .render(&mut text)
        .unwrap_or_default();
    pages.insert(name, String::from_utf8_lossy(&text).into_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page and completions are made of the arguments themselves, so a page is out of date nowhere; each command has one.
    #[test]
    fn every_command_has_a_page_with_its_options_and_is_completed() {
        let pages = pages();
        let mut commands = vec![("slipway".to_owned(), Cli::command())];
        let mut script = Vec::new();
        clap_complete::generate(
            clap_complete::Shell::Bash,
            &mut Cli::command(),
            "slipway",
            &mut script,
        );
        let script = String::from_utf8(script).unwrap();
        let mut seen = 0;
        while let Some((name, command)) = commands.pop() {
            let text = &pages[&name];
            assert!(script.contains(command.get_name()), "{name}");
            for argument in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(long) = argument.get_long() else {
                    continue;
                };
                let escaped = long.replace('-', "\\-");
                assert!(text.contains(&escaped), "{name} has no --{long}");
                assert!(script.contains(&format!("--{long}")), "{name} --{long}");
            }
            seen += 1;
            let below = command
                .get_subcommands()
                .filter(|below| !below.is_hide_set());
            commands
                .extend(below.map(|below| (format!("{name}-{}", below.get_name()), below.clone())));
        }
        assert_eq!(seen, pages.len());
        assert!(seen > 20, "{seen}");
        assert!(pages["slipway"].contains("SLIPWAY_CACHE_SIZE"));
    }
}
