//! The kubelet's credential providers in the finished tree: the kubelet ends at its start where a plugin that its configuration
//! names is absent, and on a node nobody could bring the program any more.

use std::fs;

use cluster::credential_providers::{self, Programs};
use cluster::report::Position;
use image::kubelet::{CREDENTIAL_PROVIDER_PROGRAMS, CREDENTIAL_PROVIDERS, reaches_on_host};

use super::found::Found;
use crate::layer::Kind;
use crate::layer::merge::resolve;
use crate::recipe::{FileKind, Mistake, Mistakes, Place, Recipe};

/// Adds the mistakes of the configuration, if the tree has one.
pub(super) fn check(recipe: &Recipe, with_files: &Found, mistakes: &mut Mistakes) {
    if !with_files.has(CREDENTIAL_PROVIDERS) {
        return;
    }
    let places = &recipe.places;
    let keys = ["files", CREDENTIAL_PROVIDERS, "content"];
    let mut files = recipe.files.iter();
    let file = files.find(|file| file.path == CREDENTIAL_PROVIDERS);
    let read = file.and_then(|file| match &file.kind {
        FileKind::Content(content) => Some((String::from_utf8(content.clone()).ok()?, None)),
        FileKind::Source(source) => Some((fs::read_to_string(source).ok()?, Some(source))),
        _ => None,
    });
    let Some((text, source)) = read else {
        mistakes.add(Mistake::of(
            places.written_key(&keys[..2]),
            format!("{CREDENTIAL_PROVIDERS} is not a text of the recipe"),
            "expected a CredentialProviderConfig as `content` or `source`",
        ));
        return;
    };
    let programs = programs(with_files);
    let Err(report) = credential_providers::check(&text, CREDENTIAL_PROVIDER_PROGRAMS, &programs)
    else {
        return;
    };
    let number = source.map(|source| mistakes.file(source.clone(), text.clone()));
    for mistake in report.mistakes {
        let part = mistake.at.map_or(0..0, |at| bytes(&text, at));
        let place = match number {
            Some(number) => Some(Place::new(number, &part)),
            None => places.inside(&keys, &text, &part),
        };
        let found = match mistake.field.as_str() {
            "" => mistake.message,
            field => format!("{field}: {}", mistake.message),
        };
        mistakes.add(Mistake::of(place, found, ""));
    }
}

/// The bytes from a position to the end of its line.
fn bytes(text: &str, at: Position) -> std::ops::Range<usize> {
    let mut lines = text.split_inclusive('\n');
    let before: usize = lines
        .by_ref()
        .take(at.line.saturating_sub(1))
        .map(str::len)
        .sum();
    let line = lines.next().unwrap_or_default().trim_end();
    let inside: usize = line
        .chars()
        .take(at.column.saturating_sub(1))
        .map(char::len_utf8)
        .sum();
    before + inside..before + line.len()
}

/// The executable files in the folder of the plugins, links followed.
fn programs(found: &Found) -> Programs {
    let mut programs = Programs::default();
    let names = found.below_folder(CREDENTIAL_PROVIDER_PROGRAMS);
    for name in names.filter(|name| !name.contains('/')) {
        let path = format!("{CREDENTIAL_PROVIDER_PROGRAMS}/{name}");
        let Ok(end) = resolve(&found.tree, &path, true) else {
            continue;
        };
        let is_program = found.tree.get(&end).is_some_and(|entry| {
            matches!(entry.kind, Kind::File(_) | Kind::HardLink(_)) && entry.mode & 0o111 != 0
        });
        if !is_program {
            continue;
        }
        let read_link = |path: &str| match &found.tree.get(path)?.kind {
            Kind::Symlink(target) => Some(target.clone()),
            _ => None,
        };
        let list = match reaches_on_host(&path, read_link) {
            true => &mut programs.present,
            false => &mut programs.outside,
        };
        list.push(name.to_owned());
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Entry;
    use crate::steps::layers::found::tests::found;
    use crate::steps::layers::words::tests::{KERNEL, recipe};

    const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: registry-login
  matchImages: [registry.example]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
";

    /// The mistakes with this file of the recipe and these programs.
    fn report(file: &str, programs: Vec<Entry>) -> String {
        let text = format!("{KERNEL}[files.'{CREDENTIAL_PROVIDERS}']\n{file}");
        let (folder, recipe) = recipe(&text, &[("providers.yaml", CONFIG)]);
        let mut entries = programs;
        entries.push(Entry::file(CREDENTIAL_PROVIDERS, 0o644, CONFIG));
        let mut mistakes = recipe.places.mistakes();
        check(&recipe, &found(entries), &mut mistakes);
        let report = mistakes.render(false);
        report.replace(folder.path().to_str().unwrap(), "")
    }

    #[test]
    fn a_plugin_and_each_link_to_it_must_be_in_the_kubelets_container() {
        let program = format!("{CREDENTIAL_PROVIDER_PROGRAMS}/registry-login");
        let content = format!("content = \"\"\"\n{CONFIG}\"\"\"\n");
        for outside in [
            vec![
                Entry::file("/usr/bin/registry-login", 0o755, "x"),
                Entry::symlink(program.clone(), "/usr/bin/registry-login"),
            ],
            vec![
                Entry::file("/usr/libexec/kubernetes/login", 0o755, "x"),
                Entry::symlink("/etc/alternatives/login", "/usr/libexec/kubernetes/login"),
                Entry::symlink(program.clone(), "/etc/alternatives/login"),
            ],
        ] {
            let report = report(&content, outside);
            for expected in [
                "a link to a file that the kubelet's container does not have",
                "/a.toml:12:9\n",
            ] {
                assert!(report.contains(expected), "{report}");
            }
        }
    }

    #[test]
    fn a_plugin_must_be_an_executable_of_the_image() {
        let program = |name: &str| format!("{CREDENTIAL_PROVIDER_PROGRAMS}/{name}");
        let content = format!("content = \"\"\"\n{CONFIG}\"\"\"\n");
        let good = [
            vec![Entry::file(program("registry-login"), 0o755, "x")],
            vec![
                Entry::file("/usr/libexec/kubernetes/login", 0o755, "x"),
                Entry::symlink(program("registry-login"), "../login"),
            ],
        ];
        for programs in good {
            assert_eq!(report(&content, programs), "");
        }
        for (entry, expected) in [
            (
                Entry::file(program("registry-logon"), 0o755, "x"),
                "did you mean \"registry-logon\"?",
            ),
            (
                Entry::file(program("registry-login"), 0o644, "x"),
                "that folder has none",
            ),
            (
                Entry::symlink(program("registry-login"), "/nowhere"),
                "that folder has none",
            ),
        ] {
            // In the recipe, and in a file beside it: at the same word.
            for (file, place) in [
                (content.as_str(), "/a.toml:12:9\n"),
                ("source = 'providers.yaml'\n", "/providers.yaml:4:9\n"),
            ] {
                let report = report(file, vec![entry.clone()]);
                let word = "no executable \"registry-login\"";
                for expected in [word, expected, place] {
                    assert!(report.contains(expected), "{expected}\n{report}");
                }
            }
        }
        let link = report("link = '/nowhere'\n", Vec::new());
        assert!(link.contains("is not a text of the recipe"), "{link}");
    }
}
