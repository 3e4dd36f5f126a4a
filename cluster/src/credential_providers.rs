//! The kubelet's configuration of credential provider plugins, by the kubelet's own rules, and the plugins that it names.
//!
//! <https://kubernetes.io/docs/reference/config-api/kubelet-credentialprovider.v1/>. The kubelet ends at its start where one of
//! them is broken.

use crate::duration::Duration;
use crate::report::Report;
use crate::wording::{either, nearest};
use crate::yaml::{self, Content, Node};

/// The kind of the document.
const KIND: &str = "CredentialProviderConfig";
/// Its versions.
const VERSIONS: [&str; 3] = [
    "kubelet.config.k8s.io/v1",
    "kubelet.config.k8s.io/v1beta1",
    "kubelet.config.k8s.io/v1alpha1",
];
/// The versions of what the kubelet says to a plugin.
const PLUGIN_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];

/// The executable files in the folder of the plugins, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// Those that the kubelet's container has.
    pub present: Vec<String>,
    /// Links to files of the host that it does not have.
    pub outside: Vec<String>,
}

/// Checks the configuration; `folder` is where the plugins lie, and `programs` are those there.
///
/// # Errors
/// All mistakes, each with its field and its position.
pub fn check(text: &str, folder: &str, programs: &Programs) -> Result<(), Report> {
    let mut report = Report::default();
    let root = yaml::document(text, 0, &mut report);
    if let Some(root) = root.filter(|root| root.content != Content::Null) {
        one_of(&root, "", "kind", &[KIND], &mut report);
        one_of(&root, "", "apiVersion", &VERSIONS, &mut report);
        match root.get("providers").map(|node| &node.content) {
            Some(Content::List(all)) if !all.is_empty() => {
                providers(all, folder, programs, &mut report);
            }
            _ => report.refuse_at(
                "providers",
                root.at,
                "expected a list with at least one plugin",
            ),
        }
    } else if report.mistakes.is_empty() {
        report.refuse("", format!("it is empty, expected a {KIND}"));
    }
    match report.mistakes.is_empty() {
        true => Ok(()),
        false => Err(report),
    }
}

fn providers(all: &[Node], folder: &str, programs: &Programs, report: &mut Report) {
    let mut names = Vec::new();
    for (number, provider) in all.iter().enumerate() {
        let field = format!("providers.{number}.");
        let at = |key: &str| provider.get(key).map_or(provider.at, |node| node.at);
        let name = provider
            .get("name")
            .and_then(Node::text)
            .unwrap_or_default();
        let place = format!("{field}name");
        if let Some(wrong) = wrong_name(name) {
            report.refuse_at(&place, at("name"), format!("{name:?}: {wrong}"));
        } else if names.contains(&name) {
            report.refuse_at(&place, at("name"), format!("{name:?} is there twice"));
        } else if !programs.present.iter().any(|program| program == name) {
            report.refuse_at(&place, at("name"), absent(name, folder, programs));
        }
        names.push(name);
        one_of(provider, &field, "apiVersion", &PLUGIN_VERSIONS, report);
        if !matches!(provider.get("matchImages").map(|node| &node.content), Some(Content::List(all)) if !all.is_empty())
        {
            let message = "expected at least one pattern of images";
            report.refuse_at(&format!("{field}matchImages"), at("matchImages"), message);
        }
        let duration = provider.get("defaultCacheDuration").and_then(Node::text);
        if duration
            .and_then(Duration::parse)
            .is_none_or(|duration| duration.0 < 0)
        {
            let message = "expected a duration, as 12h";
            let place = format!("{field}defaultCacheDuration");
            report.refuse_at(&place, at("defaultCacheDuration"), message);
        }
    }
}

/// What a name of a plugin must not be: it is the name of its file.
fn wrong_name(name: &str) -> Option<&'static str> {
    match name {
        "" | "." | ".." => Some("expected the name of the plugin's program"),
        name if name.contains(['/', ' ']) => {
            Some("expected the program's name, without a slash or a space")
        }
        _ => None,
    }
}

fn absent(name: &str, folder: &str, programs: &Programs) -> String {
    if programs.outside.iter().any(|program| program == name) {
        return format!(
            "{folder}/{name} is a link to a file that the kubelet's container does not have, expected the program itself"
        );
    }
    let present = &programs.present;
    let hint = match nearest(name, present.iter().map(String::as_str)) {
        Some(near) => format!("; did you mean {near:?}?"),
        None if present.is_empty() => "; that folder has none".to_owned(),
        None => format!("; there are {}", present.join(", ")),
    };
    format!("{folder} has no executable {name:?}{hint}")
}

fn one_of(node: &Node, prefix: &str, key: &str, known: &[&str], report: &mut Report) {
    let found = node.get(key);
    if !found
        .and_then(Node::text)
        .is_some_and(|text| known.contains(&text))
    {
        let at = found.map_or(node.at, |node| node.at);
        report.refuse_at(
            &format!("{prefix}{key}"),
            at,
            format!("expected {}", either(known)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: ecr-credential-provider
  matchImages: [\"*.dkr.ecr.*.amazonaws.com\"]
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
";

    fn checked(text: &str) -> Vec<String> {
        let programs = Programs {
            present: vec!["ecr-credential-provider".to_owned(), "gcp".to_owned()],
            outside: vec!["acr".to_owned()],
        };
        let report = check(text, "/p", &programs).err().unwrap_or_default();
        report.mistakes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_one_passes_as_yaml_and_as_json() {
        assert_eq!(checked(GOOD), [""; 0]);
        let json = r#"{"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [
            {"name": "gcp", "matchImages": ["gcr.io"], "defaultCacheDuration": "1m", "apiVersion": "credentialprovider.kubelet.k8s.io/v1"}]}"#;
        assert_eq!(checked(json), [""; 0]);
    }

    #[test]
    fn a_plugin_without_a_program_is_named_with_its_line_and_the_nearest_name() {
        let text = GOOD.replace("name: ecr-", "name: erc-");
        assert_eq!(
            checked(&text),
            [
                "providers.0.name: /p has no executable \"erc-credential-provider\"; did you mean \"ecr-credential-provider\"? (line 4, column 9)"
            ]
        );
        let report = check(GOOD, "/p", &Programs::default()).unwrap_err();
        assert!(report.mistakes[0].message.ends_with("that folder has none"));
    }

    #[test]
    fn a_link_out_of_the_kubelets_container_is_named_as_one() {
        let text = GOOD.replace("name: ecr-credential-provider", "name: acr");
        assert_eq!(
            checked(&text),
            [
                "providers.0.name: /p/acr is a link to a file that the kubelet's container does not have, expected the program itself \
                 (line 4, column 9)"
            ]
        );
    }

    #[test]
    fn what_the_kubelet_refuses_is_refused_all_at_once() {
        let more = format!("{GOOD}- name: ../sh\n- name: ecr-credential-provider\n");
        let found = checked(&more);
        for expected in [
            "providers.1.name: \"../sh\": expected the program's name",
            "providers.1.matchImages: expected at least one",
            "providers.1.defaultCacheDuration: expected a duration",
            "providers.1.apiVersion: expected credentialprovider",
            "providers.2.name: \"ecr-credential-provider\" is there twice",
        ] {
            assert!(
                found.iter().any(|line| line.starts_with(expected)),
                "{expected}: {found:#?}"
            );
        }
        for (text, expected) in [
            ("", "it is empty"),
            ("kind: [", "not valid YAML"),
            (
                "kind: CredentialProviderConfig\n",
                "providers: expected a list",
            ),
        ] {
            let found = checked(text);
            assert!(
                found.iter().any(|line| line.contains(expected)),
                "{text}: {found:?}"
            );
        }
    }
}
