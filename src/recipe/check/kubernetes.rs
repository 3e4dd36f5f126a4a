//! `[kubernetes]`: the kubelet's version and sources.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::names::{self, Rule};
use crate::oci::has_login;
use crate::recipe::mistakes::{Mistake, Place, nearest};
use crate::recipe::tree::{Node, Value};

/// The newest Kubernetes minor release that works with the containerd of the Debian suite.
pub const NEWEST_KUBERNETES_MINOR: u32 = 36;

/// The kubelet.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawKubernetes {
    /// "1.36" for the newest patch release of the release table, or "1.36.3". Required.
    pub version: Option<String>,
    /// Where the program comes from; the first source that answers is taken, and locked. Required.
    pub kubelet: Vec<RawKubeletSource>,
    /// Whether a later source may take the place of the first: "prefer" (the first one that answers, with a warning if that is not the
    /// first of all), or "require" (the first, or an error). Default: prefer.
    pub sources: Option<Fallback>,
    /// Packages of the kubelet's container, beside the essential ones.
    pub container_packages: Vec<String>,
    /// Programs of the same release in the node's /usr/bin, and crictl, whose version the release names.
    pub tools: Vec<KubernetesTool>,
    /// Where the CNI plugins come from that /opt/cni/bin links to: "debian" (the package containernetworking-plugins) or "release" (the
    /// version that the release of Kubernetes is tested with). Default: the recipe's own files and packages.
    pub cni_plugins: Option<CniPlugins>,
    /// The server of the releases of crictl and the CNI plugins. Default: `https://github.com`.
    pub github: Option<String>,
}

/// Where the CNI plugins come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CniPlugins {
    /// Debian's package.
    Debian,
    /// Their own release, or their Go module.
    Release,
}

/// Whether a source that does not answer has others in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Fallback {
    /// The next one is asked.
    Prefer,
    /// That is an error.
    Require,
}

/// A program of the Kubernetes release that people call on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KubernetesTool {
    /// The client of the API.
    Kubectl,
    /// Upstream's program that makes and joins clusters.
    Kubeadm,
    /// The client of the container runtime's socket.
    Crictl,
}

impl KubernetesTool {
    /// The program's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubectl => "kubectl",
            Self::Kubeadm => "kubeadm",
            Self::Crictl => "crictl",
        }
    }
}

/// A source of the kubelet: exactly one key is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawKubeletSource {
    /// URL of the program on a release server, with {version} (as v1.36.3), {arch} (as amd64) and {program} in it.
    pub release: Option<String>,
    /// The program as a file; a path relative to this recipe.
    pub file: Option<String>,
    /// Reference of an OCI image that holds the program.
    pub oci: Option<String>,
    /// Compile the Go module k8s.io/kubernetes, when true.
    pub go_module: Option<bool>,
}

/// The kubelet of the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kubernetes {
    /// `1.36` (the newest patch release of the release table) or `1.36.3`.
    pub version: String,
    /// The sources of the program; the first one that answers is taken.
    #[serde(skip)]
    pub kubelet: Vec<KubeletSource>,
    /// Packages of the kubelet's container, beside the essential ones.
    pub container_packages: Vec<String>,
    /// Programs in the node's `/usr/bin`, of the same release or of the version that it names.
    pub tools: Vec<KubernetesTool>,
    /// Where the CNI plugins come from, if not from the recipe's own files and packages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_plugins: Option<CniPlugins>,
    /// The server of the releases of crictl and the CNI plugins.
    #[serde(skip)]
    pub github: String,
}

impl Kubernetes {
    /// Whether it has programs with releases of their own.
    #[must_use]
    pub fn takes_own_releases(&self) -> bool {
        self.cni_plugins == Some(CniPlugins::Release)
            || self.tools.contains(&KubernetesTool::Crictl)
    }
}

/// A source of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KubeletSource {
    /// A release server: a URL in which `{version}` (as `v1.36.3`), `{arch}` (as `amd64`) and `{program}` (as `kubelet`)
    /// are replaced.
    Release {
        /// The URL.
        url: String,
    },
    /// A program of the building host.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// An OCI image that holds the program.
    Oci {
        /// Its reference.
        reference: String,
    },
    /// The Go module, compiled with the Go toolchain of the tools tree.
    GoModule,
}

/// Where crictl and the CNI plugins are published.
const GITHUB: &str = "https://github.com";

/// Placeholders of a release URL.
const PLACEHOLDERS: [&str; 3] = ["version", "arch", "program"];

pub(super) fn check(check: &mut Check<'_>, raw: RawKubernetes) -> Kubernetes {
    let RawKubernetes {
        version: given,
        kubelet: sources,
        sources: fallback,
        container_packages,
        tools,
        cni_plugins,
        github,
    } = raw;
    match given.as_deref() {
        Some(text) => {
            if let Err(mistake) = version(text, &check.place("kubernetes.version")) {
                check.add(*mistake);
            }
        }
        None => check.missing(
            "kubernetes.version",
            "expected version = \"1.36\" in [kubernetes]",
        ),
    }
    if sources.is_empty() {
        check.missing(
            "kubernetes.kubelet",
            "expected kubelet = [{ release = \"…\" }, …] in [kubernetes]",
        );
    }
    check.list("kubernetes.container-packages", Rule::Package);
    check.unique("kubernetes.tools");
    check.text("kubernetes.github", Rule::Url);
    let items = check
        .find("kubernetes.kubelet")
        .map_or(&[][..], Node::items);
    let mut kubelet: Vec<KubeletSource> = sources
        .iter()
        .zip(items)
        .filter_map(|(raw, item)| source(check, raw, item))
        .collect();
    if fallback == Some(Fallback::Require) {
        kubelet.truncate(1);
    }
    Kubernetes {
        version: given.unwrap_or_default(),
        kubelet,
        container_packages,
        tools,
        cni_plugins,
        github: github.unwrap_or_else(|| GITHUB.to_owned()),
    }
}

/// The mistake of a text that is not a version of Kubernetes, or of a version that no image can run.
pub(super) fn version(text: &str, place: &Place) -> Result<(), Box<Mistake>> {
    let parts: Vec<Option<u32>> = text
        .split('.')
        .map(|part| part.parse().ok().filter(|_| !part.starts_with('+')))
        .collect();
    let minor = match parts.as_slice() {
        [Some(1), Some(minor)] | [Some(1), Some(minor), Some(_)] => *minor,
        _ => {
            let mistake = Mistake::at(
                place,
                format!("{text:?} is not a Kubernetes version"),
                "expected \"1.36\" or \"1.36.3\"",
            );
            return Err(Box::new(match text.strip_prefix('v') {
                Some(rest) if version(rest, place).is_ok() => {
                    mistake.help(format!("write it without the v: {rest:?}"))
                }
                _ => mistake,
            }));
        }
    };
    if minor > NEWEST_KUBERNETES_MINOR {
        let mistake = Mistake::at(
            place,
            format!(
                "Kubernetes {text} cannot run on this image: the containerd 1.7 of trixie serves kubelets up to 1.{NEWEST_KUBERNETES_MINOR}"
            ),
            format!("expected at most 1.{NEWEST_KUBERNETES_MINOR}"),
        );
        return Err(Box::new(
            mistake.help("a recipe cannot bring a newer containerd yet"),
        ));
    }
    Ok(())
}

fn source(check: &mut Check<'_>, raw: &RawKubeletSource, item: &Node) -> Option<KubeletSource> {
    let given: Vec<&str> = ["release", "file", "oci", "go-module"]
        .into_iter()
        .filter(|key| item.at(&[key]).is_some())
        .collect();
    let [key] = given.as_slice() else {
        let lost = |gone: &String| gone.starts_with("kubernetes.kubelet[]");
        if !given.is_empty() || !check.gone.iter().any(lost) {
            check.add(Mistake::at(
                &item.place,
                format!("a source of the kubelet has {} of its keys", given.len()),
                "expected exactly one of release, file, oci and go-module",
            ));
        }
        return None;
    };
    let node = item.at(&[key])?;
    match (raw, &node.value) {
        (
            RawKubeletSource {
                release: Some(url), ..
            },
            _,
        ) => {
            release(check, url, &node.place);
            Some(KubeletSource::Release { url: url.clone() })
        }
        (
            RawKubeletSource {
                file: Some(path), ..
            },
            _,
        ) => {
            let path = check.host_path(&node.place, path);
            if !path.is_file() {
                check.add(Mistake::at(
                    &node.place,
                    format!("{} is not a file", path.display()),
                    "expected the kubelet's program, relative to this recipe",
                ));
            }
            Some(KubeletSource::File { path })
        }
        (
            RawKubeletSource {
                oci: Some(reference),
                ..
            },
            _,
        ) => {
            oci(check, reference, &node.place);
            Some(KubeletSource::Oci {
                reference: reference.clone(),
            })
        }
        (_, Value::Boolean(true)) => Some(KubeletSource::GoModule),
        _ => {
            check.add(Mistake::at(
                &node.place,
                "`go-module` cannot be false",
                "expected true, or the source left out",
            ));
            None
        }
    }
}

fn release(check: &mut Check<'_>, url: &str, place: &Place) {
    if let Err(why) = Rule::Url.check(url) {
        check.add(why.mistake(place));
        return;
    }
    let names = url
        .split('{')
        .skip(1)
        .map(|rest| rest.split('}').next().unwrap_or(rest));
    let (mut versioned, mut unknown) = (false, false);
    for name in names {
        versioned |= name == "version";
        if !PLACEHOLDERS.contains(&name) {
            unknown = true;
            let mistake = Mistake::at(
                place,
                format!("`{{{name}}}` is unknown in a release URL"),
                "expected {version}, {arch} and {program}",
            );
            let near = nearest(name, PLACEHOLDERS);
            check.add(match near {
                Some(near) => mistake.help(format!("did you mean `{{{near}}}`?")),
                None => mistake,
            });
        }
    }
    if !versioned && !unknown {
        check.add(Mistake::at(
            place,
            "the release URL names no version",
            "expected {version} in it, which stands for v1.36.3 and the like",
        ));
    }
}

fn oci(check: &mut Check<'_>, reference: &str, place: &Place) {
    if has_login(reference) {
        check.add(names::of_login(place, "the reference"));
        return;
    }
    let name = reference.rsplit('/').next().unwrap_or(reference);
    let good = reference.contains('/')
        && name.contains([':', '@'])
        && reference.chars().all(|c| c.is_ascii_graphic());
    if !good {
        check.add(Mistake::at(
            place,
            format!("{reference:?} is not an image reference"),
            "expected registry/name:tag or registry/name@sha256:…",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_up_to_what_containerd_serves() {
        let place = Place::top(0);
        for good in ["1.36", "1.36.3", "1.30.0"] {
            assert!(version(good, &place).is_ok(), "{good}");
        }
        for bad in [
            "1.37", "1.37.0", "1", "2.0", "v1.36", "1.36.3.4", "1.x", "", "1.+3",
        ] {
            assert!(version(bad, &place).is_err(), "{bad}");
        }
    }
}
