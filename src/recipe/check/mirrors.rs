//! `[containerd]`: mirrors of registries, which become `hosts.toml` files.
//!
//! <https://github.com/containerd/containerd/blob/release/1.7/docs/hosts.md>

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use fetch::docker_hub;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::files::{FileEntry, FileKind};
use super::names::Rule;
use crate::format::certificate;
use crate::node_files::CONTAINERD_REGISTRIES;
use crate::recipe::mistakes::{Mistake, Place};
use crate::recipe::tree::Node;

/// containerd's word for every registry without a folder of its own.
const ALL: &str = "_default";
/// Docker's registry has another name in references than its servers have.
const DOCKER_SERVERS: [&str; 3] = [docker_hub::HOST, docker_hub::OLDER_NAME, "hub.docker.com"];

/// A release of containerd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerdRelease {
    /// Debian's.
    #[default]
    #[serde(rename = "1.7")]
    Of17,
    /// Upstream's, which pods with volumes of images need.
    #[serde(rename = "2.2")]
    Of22,
}

/// What containerd is and knows at boot.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawContainerd {
    /// The release of containerd: "1.7" (Debian's package) or "2.2" (with its shim and ctr compiled from its Go module, in place of the
    /// package's). Default: 1.7.
    pub release: Option<ContainerdRelease>,
    /// Servers that containerd asks in place of a registry, in this order, and then the registry itself.
    pub mirrors: Vec<RawMirror>,
}

/// Mirrors of one registry. Several of these tables may be about the same one.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawMirror {
    /// The registry as references name it, as "docker.io" or "registry.example:5000"; "_default" for all others. Required.
    pub registry: Option<String>,
    /// URLs of the mirrors, without user and password; /v2 is added to their paths. Required.
    pub endpoints: Vec<String>,
    /// What the mirrors are asked for: "pull" (content by its digest), "resolve" (which digest a tag has). Default: both.
    pub capabilities: Vec<Capability>,
    /// Files of certificate authorities in PEM that the mirrors' certificates may be of too; paths relative to this recipe.
    pub ca: Vec<String>,
    /// Whether endpoints may be http. Default: false.
    pub plain_http: Option<bool>,
    /// Whether the path of an endpoint is that of the whole API, to which no /v2 is added. Default: false.
    pub override_path: Option<bool>,
    /// Whether the registry itself is asked for what no mirror has; not to be given with "_default". Default: true.
    pub fallback: Option<bool>,
}

/// What a mirror is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Capability {
    /// Content by its digest.
    Pull,
    /// The digest of a tag.
    Resolve,
}

impl Capability {
    const fn word(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Resolve => "resolve",
        }
    }
}

/// The file of one registry in the making.
#[derive(Default)]
struct Hosts {
    text: String,
    /// The endpoints that are in it, with their places.
    endpoints: BTreeMap<String, Place>,
    /// Settings of the last endpoint.
    last: Option<(String, String)>,
    is_alone: bool,
    /// Certificates in PEM, by the name of their file.
    authorities: BTreeMap<String, String>,
}

/// The release of containerd.
pub(super) fn release(
    check: &mut Check<'_>,
    raw: &RawContainerd,
    has_containerd: bool,
) -> ContainerdRelease {
    let release = raw.release.unwrap_or_default();
    if let Some(node) = check.find("containerd.release")
        && !has_containerd
    {
        let place = node.place.clone();
        check.add(Mistake::at(
            &place,
            "a release of containerd in a recipe without [kubernetes]",
            "expected [kubernetes]: its images have containerd",
        ));
    }
    if release == ContainerdRelease::Of22 {
        let found = "Debian has no containerd 2.2: it is compiled";
        check.compiled("containerd.release", found);
    }
    release
}

/// Adds the files of the mirrors to the recipe's.
pub(super) fn check(
    check: &mut Check<'_>,
    raw: &RawContainerd,
    has_containerd: bool,
    files: &mut Vec<(FileEntry, Place)>,
) {
    let mirrors = &raw.mirrors;
    let items = check
        .find("containerd.mirrors")
        .map_or(&[][..], Node::items);
    if let (Some(first), false) = (items.first(), has_containerd) {
        check.add(Mistake::at(
            &first.place,
            "a mirror of a registry in a recipe without [kubernetes]",
            "expected [kubernetes]: its images have the containerd that reads it",
        ));
    }
    let mut all: BTreeMap<String, (Hosts, Place)> = BTreeMap::new();
    for (raw, item) in mirrors.iter().zip(items) {
        if let Some(registry) = registry(check, raw, item) {
            let (hosts, _) = all
                .entry(registry.to_owned())
                .or_insert_with(|| (Hosts::default(), item.place.clone()));
            add(check, raw, item, hosts);
        }
    }
    for (registry, (hosts, place)) in all {
        let folder = format!("{CONTAINERD_REGISTRIES}/{registry}");
        let mut contents = vec![("hosts.toml".to_owned(), hosts.whole())];
        contents.extend(hosts.authorities);
        for (name, content) in contents {
            write(check, files, &format!("{folder}/{name}"), content, &place);
        }
    }
    files.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
}

/// Adds a file, unless the recipe has one of its own there.
fn write(
    check: &mut Check<'_>,
    files: &mut Vec<(FileEntry, Place)>,
    path: &str,
    content: String,
    place: &Place,
) {
    if let Some((_, own)) = files.iter().find(|(file, _)| file.path == path) {
        let mistake = Mistake::at(
            own,
            format!("{path} is also what [[containerd.mirrors]] makes"),
            "expected one of both",
        );
        check.add(mistake.also(place, "the mirrors of this registry"));
        return;
    }
    let entry = FileEntry {
        path: path.to_owned(),
        kind: FileKind::Content(content.into_bytes()),
        mode: 0o644,
        user: "root".to_owned(),
        group: "root".to_owned(),
        origin: check.mistakes.position(place),
    };
    files.push((entry, place.clone()));
}

/// The registry's name, if it is one.
fn registry<'r>(check: &mut Check<'_>, raw: &'r RawMirror, item: &Node) -> Option<&'r str> {
    let Some(name) = raw.registry.as_deref() else {
        let lost = |gone: &String| gone == "containerd.mirrors[].registry";
        if !check.gone.iter().any(lost) {
            check.add(Mistake::at(
                &item.place,
                "mirrors without their `registry`",
                "expected registry = \"docker.io\", or \"_default\" for every other one",
            ));
        }
        return None;
    };
    let place = &item.at(&["registry"])?.place;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-:".contains(c);
    let port = name.split_once(':').map(|(_, port)| port);
    let is_host = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
        && port.is_none_or(|port| port.parse::<u16>().is_ok());
    if name == ALL || (is_host && !DOCKER_SERVERS.contains(&name)) {
        return Some(name);
    }
    let mistake = Mistake::at(
        place,
        format!("{name:?} is not the registry of a reference"),
        "expected a host with its port, if it has one, as \"docker.io\", or \"_default\"",
    );
    let rest = name.split_once("://").map_or(name, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    check.add(match host {
        "*" => mistake.help(format!("every other registry is {ALL:?}")),
        host if DOCKER_SERVERS.contains(&host) => {
            mistake.help(format!("references call it {:?}", docker_hub::NAME))
        }
        host if host != name && !host.is_empty() => mistake.help(format!("did you mean {host:?}?")),
        _ => mistake,
    });
    None
}

/// Adds the endpoints of a table to the file of their registry.
fn add(check: &mut Check<'_>, raw: &RawMirror, item: &Node, hosts: &mut Hosts) {
    let at = |key: &str| item.at(&[key]).unwrap_or(item).place.clone();
    if raw.endpoints.is_empty()
        && !check
            .gone
            .iter()
            .any(|gone| gone.starts_with("containerd.mirrors[].endpoints"))
    {
        check.add(Mistake::at(
            &at("endpoints"),
            "a registry without endpoints of mirrors",
            "expected endpoints = [\"https://mirror.example\"]",
        ));
    }
    if raw.registry.as_deref() == Some(ALL) && raw.fallback.is_some() {
        check.add(Mistake::at(
            &at("fallback"),
            format!("`fallback` with {ALL:?}"),
            "expected it with the name of a registry: another server cannot stand for all of them",
        ));
    }
    hosts.is_alone |= raw.fallback == Some(false);
    let settings = settings(check, raw, item, hosts);
    let endpoints = item.at(&["endpoints"]).map_or(&[][..], Node::items);
    for (endpoint, node) in raw.endpoints.iter().zip(endpoints) {
        if !is_endpoint(check, raw, endpoint, &node.place) {
            continue;
        }
        let endpoint = endpoint.trim_end_matches('/');
        if let Some(before) = hosts
            .endpoints
            .insert(endpoint.to_owned(), node.place.clone())
        {
            let found = format!("{endpoint} is given twice for this registry");
            let mistake = Mistake::at(&node.place, found, "expected each mirror once");
            check.add(mistake.also(&before, "first given here"));
        }
        // Writing to a text cannot fail.
        write!(hosts.text, "\n[host.\"{endpoint}\"]\n{settings}").ok();
        hosts.last = Some((endpoint.to_owned(), settings.clone()));
    }
}

/// The lines below an endpoint.
fn settings(check: &mut Check<'_>, raw: &RawMirror, item: &Node, hosts: &mut Hosts) -> String {
    let all = [Capability::Pull, Capability::Resolve];
    let wanted = match raw.capabilities.as_slice() {
        [] => &all[..],
        some => some,
    };
    let words: Vec<String> = wanted
        .iter()
        .map(|capability| format!("\"{}\"", capability.word()))
        .collect();
    let mut text = format!("capabilities = [{}]\n", words.join(", "));
    let mut pem = String::new();
    let items = item.at(&["ca"]).map_or(&[][..], Node::items);
    for (file, node) in raw.ca.iter().zip(items) {
        let path = check.host_path(&node.place, file);
        let read = fs::read(&path).map_err(anyhow::Error::from);
        match read.and_then(|text| certificate::read(&text)) {
            Ok(found) => pem.extend(found.into_iter().map(|one| one.pem)),
            Err(error) => check.add(Mistake::at(
                &node.place,
                format!("{} is not usable: {error:#}", path.display()),
                "expected a file of certificates in PEM, relative to this recipe",
            )),
        }
    }
    if !pem.is_empty() {
        let name = format!("ca-{}.pem", hosts.authorities.len() + 1);
        text += &format!("ca = \"{name}\"\n");
        hosts.authorities.insert(name, pem);
    }
    if raw.override_path == Some(true) {
        text += "override_path = true\n";
    }
    text
}

/// Whether it is the URL of a mirror by which the recipe allows to ask.
fn is_endpoint(check: &mut Check<'_>, raw: &RawMirror, endpoint: &str, place: &Place) -> bool {
    if let Err(why) = Rule::Url.check(endpoint) {
        check.add(why.mistake(place));
        return false;
    }
    if endpoint.contains(['"', '\\', '?', '#']) {
        check.add(Mistake::at(
            place,
            format!("{endpoint:?} is not the URL of a mirror"),
            "expected scheme, host and path",
        ));
        return false;
    }
    if endpoint.starts_with("http://") && raw.plain_http != Some(true) {
        let mistake = Mistake::at(
            place,
            "this mirror is asked by plain http, and anybody on the way can answer for a tag",
            "expected https://, or plain-http = true beside the endpoints",
        );
        check.add(mistake);
        return false;
    }
    true
}

impl Hosts {
    /// The text of the file. containerd asks the hosts in its order, then `server`, which is the registry if none is given; it has
    /// no word for no server, so that without a fallback the last mirror is asked once more.
    fn whole(&self) -> String {
        let head = "# Made from [[containerd.mirrors]] of the recipe.\n";
        match (&self.last, self.is_alone) {
            (Some((endpoint, settings)), true) => {
                format!("{head}server = \"{endpoint}\"\n{settings}{}", self.text)
            }
            _ => format!("{head}{}", self.text),
        }
    }
}
