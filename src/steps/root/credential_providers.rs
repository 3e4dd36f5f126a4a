//! The kubelet's credential providers in the finished tree: the kubelet ends at its start where a plugin that its configuration
//! names is absent, and on a node nobody could bring the program any more.

use std::fs;

use anyhow::{Context, Result, bail};
use cluster::credential_providers;
use image::kubelet::{CREDENTIAL_PROVIDER_PROGRAMS, CREDENTIAL_PROVIDERS};

use crate::layer::{Entry, Kind, Source};
use crate::steps::merge::{Tree, resolve};

/// Checks the configuration, if the tree has one.
///
/// # Errors
/// All its mistakes, with their lines.
pub(super) fn check(entries: &[Entry]) -> Result<()> {
    let Some(found) = entries
        .iter()
        .find(|entry| entry.path == CREDENTIAL_PROVIDERS)
    else {
        return Ok(());
    };
    let text = match &found.kind {
        Kind::File(Source::Bytes(bytes)) => bytes.clone(),
        Kind::File(Source::Path(path)) => {
            fs::read(path).with_context(|| format!("reading {}", path.display()))?
        }
        _ => bail!(
            "{CREDENTIAL_PROVIDERS} is not a file of the recipe, expected a CredentialProviderConfig"
        ),
    };
    let text =
        String::from_utf8(text).with_context(|| format!("reading {CREDENTIAL_PROVIDERS}"))?;
    let Err(report) =
        credential_providers::check(&text, CREDENTIAL_PROVIDER_PROGRAMS, &programs(entries))
    else {
        return Ok(());
    };
    let lines: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
    bail!(
        "{CREDENTIAL_PROVIDERS} of the recipe is refused:\n  {}",
        lines.join("\n  ")
    )
}

/// The names of the executable files in the folder of the plugins, links followed.
fn programs(entries: &[Entry]) -> Vec<String> {
    let tree: Tree = entries
        .iter()
        .map(|entry| (entry.path.clone(), entry.clone()))
        .collect();
    let folder = format!("{CREDENTIAL_PROVIDER_PROGRAMS}/");
    let names = entries
        .iter()
        .filter_map(|entry| entry.path.strip_prefix(&folder));
    names
        .filter(|name| !name.contains('/'))
        .filter(|name| {
            let path = resolve(&tree, &format!("{folder}{name}"), true);
            let program = path.ok().and_then(|path| tree.get(&path));
            program.is_some_and(|entry| {
                matches!(entry.kind, Kind::File(_) | Kind::HardLink(_)) && entry.mode & 0o111 != 0
            })
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: registry-login
  matchImages: [registry.example]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
";

    #[test]
    fn a_plugin_must_be_an_executable_of_the_image() {
        let program = |name: &str| format!("{CREDENTIAL_PROVIDER_PROGRAMS}/{name}");
        let config = Entry::file(CREDENTIAL_PROVIDERS, 0o644, CONFIG);
        check(&[Entry::directory("/", 0o755)]).unwrap();
        check(&[
            config.clone(),
            Entry::file(program("registry-login"), 0o755, "x"),
        ])
        .unwrap();
        check(&[
            config.clone(),
            Entry::file("/usr/bin/registry-login", 0o755, "x"),
            Entry::symlink(program("registry-login"), "/usr/bin/registry-login"),
        ])
        .unwrap();
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
            let error = check(&[config.clone(), entry]).unwrap_err().to_string();
            assert!(
                error.contains("no executable \"registry-login\"")
                    && error.contains("(line 4, column 9)"),
                "{error}"
            );
            assert!(error.contains(expected), "{error}");
        }
    }
}
