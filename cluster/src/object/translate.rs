//! A cluster object's fields, copied into kubeadm's documents.

use std::collections::BTreeMap;

use serde_json::Value;

use super::cloud;
use super::dns::{self, Placed};
use super::image::Image;
use super::kubelet_image::{self, KubeletImage};
use super::metrics_server;
use super::words::{Document, Shape, WORDS, Word};
use super::{Cni, cni};
use crate::components::goes_with;
use crate::documents::Documents;
use crate::report::{Position, Report};
use crate::validate::wrong_label;
use crate::wording::nearest;
use crate::yaml::{Content, Node};

/// The subnet of pods of a bridge, if the object names none.
const PODS: &str = "10.244.0.0/16";
/// The components whose feature gates are an argument.
const GATED: [&str; 3] = ["apiServer", "controllerManager", "scheduler"];

/// The documents, and what is not in them.
pub(super) struct Translation {
    pub(super) documents: Documents,
    pub(super) version: Option<String>,
    pub(super) cni: Cni,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) kubelet_image: Option<KubeletImage>,
    pub(super) sentinel: bool,
    /// Whether the cluster has metrics-server.
    pub(super) metrics_server: bool,
    /// The cloud, and its controller's own configuration.
    pub(super) cloud_provider: Option<&'static str>,
    pub(super) cloud_config: Option<String>,
    /// The addresses of `[dns]`.
    pub(super) dns: Vec<Placed>,
    /// Whether the object names bootstrap tokens.
    pub(super) has_tokens: bool,
    /// Whether the images are those that the node's image brings.
    pub(super) uses_image: bool,
}

/// Copies the fields of an object.
pub(super) fn translate(root: &Node, image: &Image, report: &mut Report) -> Translation {
    let mut translation = Translation {
        documents: Documents {
            init: Some(table(root.at)),
            cluster: Some(table(root.at)),
            kubelet: Some(table(root.at)),
            proxy: Some(table(root.at)),
            join: None,
        },
        version: None,
        cni: Cni::Bridge,
        labels: BTreeMap::new(),
        kubelet_image: None,
        sentinel: false,
        metrics_server: false,
        cloud_provider: None,
        cloud_config: None,
        dns: Vec::new(),
        has_tokens: matches!(root.get("tokens").map(|node| &node.content), Some(Content::List(all)) if !all.is_empty()),
        uses_image: !image.images.is_empty() && root.get("image-repository").is_none(),
    };
    let mut found = Vec::new();
    collect(root, "", &mut found, report);
    // Whole tables first, a field of its own counts more; feature gates last, an argument of that name counts more.
    found.sort_by_key(|(word, _)| match word.shape {
        Shape::Fields => 0,
        Shape::Own => 2,
        _ => 1,
    });
    for (word, node) in found {
        translation.take(word, node, report);
    }
    translation.defaults();
    translation
}

/// The fields of a table, and of the tables in it. Unknown ones are refused with the nearest word.
fn collect<'a>(
    node: &'a Node,
    prefix: &str,
    found: &mut Vec<(&'static Word, &'a Node)>,
    report: &mut Report,
) {
    let Content::Map(entries) = &node.content else {
        let field = prefix.trim_end_matches('.');
        report.refuse_at(field, node.at, "expected a table");
        return;
    };
    for (key, value) in entries {
        let name = format!("{prefix}{key}");
        let inside = format!("{name}.");
        if let Some(word) = WORDS.iter().find(|word| word.name == name) {
            found.push((word, value));
        } else if WORDS.iter().any(|word| word.name.starts_with(&inside)) {
            collect(value, &inside, found, report);
        } else {
            report.refuse_at(&name, value.at, unknown(prefix, key));
        }
    }
}

fn unknown(prefix: &str, key: &str) -> String {
    let known = WORDS.iter().filter_map(|word| {
        let rest = word.name.strip_prefix(prefix)?;
        rest.split('.').next()
    });
    match nearest(key, known) {
        Some(near) => format!("unknown field; did you mean {near:?}?"),
        None => "unknown field".to_owned(),
    }
}

impl Translation {
    fn take(&mut self, word: &Word, node: &Node, report: &mut Report) {
        if word.name == "version" {
            self.version = node.text().map(str::to_owned);
        }
        let Some((document, path)) = word.to else {
            self.own(word.name, node, report);
            return;
        };
        let content = match (word.shape, &node.content) {
            (Shape::Not, Content::Bool(yes)) => Content::Bool(!yes),
            (Shape::Several, Content::List(items)) => Content::Text(joined(items)),
            (Shape::Arguments, content) => arguments(word.name, content, node.at, report),
            (Shape::Tokens, content) => tokens(content),
            (Shape::Fields, Content::Map(entries)) => {
                for (name, node) in entries {
                    self.put(document, name, node.clone(), true);
                }
                return;
            }
            (Shape::Fields, _) => {
                report.refuse_at(word.name, node.at, "expected a table");
                return;
            }
            (_, content) => content.clone(),
        };
        let at = node.at;
        self.put(document, path, Node { at, content }, true);
    }

    fn own(&mut self, name: &str, node: &Node, report: &mut Report) {
        match name {
            "cni" => self.cni = cni(node, report),
            "feature-gates" => self.gates(node, report),
            // Tables that are read as a whole, `super::join` and `super::balancer`.
            table if table.starts_with("join.") || table.starts_with("balancer.") => {}
            "sentinel" => match node.content {
                Content::Bool(sentinel) => self.sentinel = sentinel,
                _ => report.refuse_at(name, node.at, "expected true or false"),
            },
            "dns.addresses" => self.dns(node, report),
            cloud::PROVIDER => self.cloud(node, report),
            cloud::CONFIG => self.cloud_config = Some(cloud::config(node, report)),
            metrics_server::FIELD => self.metrics_server(node, report),
            "kubelet.image" => self.kubelet_image = kubelet_image::read(node, report),
            _ => self.labels = labels(name, node, report),
        }
    }

    /// kubeadm has no field for the Service's addresses. A kubelet's own `clusterDNS` counts more: it may lead to a cache of
    /// names on the node.
    fn dns(&mut self, node: &Node, report: &mut Report) {
        self.dns = dns::read(node, report);
        let item = |placed: &Placed| Node {
            at: placed.at,
            content: Content::Text(placed.address.to_string()),
        };
        let content = Content::List(self.dns.iter().map(item).collect());
        let at = node.at;
        self.put(Document::Kubelet, "clusterDNS", Node { at, content }, false);
    }

    /// metrics-server trusts kubelets by the cluster's authority, so each requests a certificate of it.
    fn metrics_server(&mut self, node: &Node, report: &mut Report) {
        self.metrics_server = metrics_server::read(node, report);
        if self.metrics_server {
            let requests = from_value(&true.into(), node.at);
            self.put(Document::Kubelet, metrics_server::REQUESTS, requests, false);
        }
    }

    /// The kubelet has its node wait for the cloud's controller.
    fn cloud(&mut self, node: &Node, report: &mut Report) {
        self.cloud_provider = cloud::provider(node, report);
        if self.cloud_provider.is_some() {
            let (name, value) = cloud::ARGUMENT;
            let list = "nodeRegistration.kubeletExtraArgs";
            self.argument_of(Document::Init, list, name, value);
        }
    }

    /// Feature gates are an argument of the control plane's components, and a field of the kubelet's and kube-proxy's.
    fn gates(&mut self, node: &Node, report: &mut Report) {
        let Content::Map(gates) = &node.content else {
            report.refuse_at(
                "feature-gates",
                node.at,
                "expected a table of names to true or false",
            );
            return;
        };
        let mut text = Vec::new();
        for (name, gate) in gates {
            match gate.content {
                Content::Bool(on) => text.push(format!("{name}={on}")),
                _ => {
                    let field = format!("feature-gates.{name}");
                    report.refuse_at(&field, gate.at, "expected true or false");
                }
            }
        }
        for component in GATED {
            self.argument(component, "feature-gates", &text.join(","));
        }
        for document in [Document::Kubelet, Document::Proxy] {
            self.put(document, "featureGates", node.clone(), false);
        }
    }

    /// Adds an argument to a component, unless the object has it.
    pub(super) fn argument(&mut self, component: &str, name: &str, value: &str) {
        let path = format!("{component}.extraArgs");
        self.argument_of(Document::Cluster, &path, name, value);
    }

    /// The same for a list of arguments at a path of a document.
    fn argument_of(&mut self, document: Document, path: &str, name: &str, value: &str) {
        let document = self.document(document);
        let at = document.at;
        let list = Node {
            at,
            content: Content::List(Vec::new()),
        };
        let arguments = entry(document, path, list);
        let Content::List(arguments) = &mut arguments.content else {
            return;
        };
        let given = |node: &Node| node.get("name").and_then(Node::text) == Some(name);
        if !arguments.iter().any(given) {
            arguments.push(argument(name, value, at));
        }
    }

    fn defaults(&mut self) {
        if self.cni.has_subnets() {
            self.set(Document::Cluster, "networking.podSubnet", PODS.into());
        }
        self.set(
            Document::Cluster,
            "encryptionAlgorithm",
            "ECDSA-P256".into(),
        );
    }

    /// Sets a field that the object leaves open, unless a kubelet would end by it beside what the object has.
    pub(super) fn set(&mut self, document: Document, path: &str, value: Value) {
        let there = &*self.document(document);
        let given = |name: &str| Some(there.get(name)?.content.value());
        if document == Document::Kubelet && !goes_with(path, &value, given) {
            return;
        }
        let node = from_value(&value, there.at);
        self.put(document, path, node, false);
    }

    /// Sets a field whatever the object has.
    pub(super) fn replace(&mut self, document: Document, path: &str, value: Value) {
        let node = from_value(&value, self.document(document).at);
        self.put(document, path, node, true);
    }

    fn put(&mut self, document: Document, path: &str, node: Node, over: bool) {
        let found = entry(self.document(document), path, node.clone());
        if over {
            *found = node;
        }
    }

    fn document(&mut self, document: Document) -> &mut Node {
        let documents = &mut self.documents;
        let slot = match document {
            Document::Init => &mut documents.init,
            Document::Cluster => &mut documents.cluster,
            Document::Kubelet => &mut documents.kubelet,
            Document::Proxy => &mut documents.proxy,
        };
        slot.get_or_insert_with(|| table(Position { line: 1, column: 1 }))
    }
}

fn table(at: Position) -> Node {
    let content = Content::Map(Vec::new());
    Node { at, content }
}

/// The node at a path, made of `new` if it is not there. What is no table on the way becomes one: the object has no field
/// there.
fn entry<'a>(root: &'a mut Node, path: &str, new: Node) -> &'a mut Node {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    if !matches!(root.content, Content::Map(_)) {
        root.content = Content::Map(Vec::new());
    }
    let Content::Map(entries) = &mut root.content else {
        unreachable!("it is a table");
    };
    let found = entries.iter().position(|(key, _)| key == name);
    let at = found.unwrap_or(entries.len());
    if found.is_none() {
        let node = if rest.is_empty() {
            new.clone()
        } else {
            table(new.at)
        };
        entries.push((name.to_owned(), node));
    }
    let inner = &mut entries[at].1;
    if rest.is_empty() {
        inner
    } else {
        entry(inner, rest, new)
    }
}

fn from_value(value: &Value, at: Position) -> Node {
    let content = match value {
        Value::Null => Content::Null,
        Value::Bool(bool) => Content::Bool(*bool),
        Value::Number(number) => match number.as_i128() {
            Some(int) => Content::Int(int),
            None => Content::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Content::Text(text.clone()),
        Value::Array(items) => {
            Content::List(items.iter().map(|item| from_value(item, at)).collect())
        }
        Value::Object(map) => {
            let entry = |(name, value): (&String, &Value)| (name.clone(), from_value(value, at));
            Content::Map(map.iter().map(entry).collect())
        }
    };
    Node { at, content }
}

fn joined(items: &[Node]) -> String {
    let texts: Vec<&str> = items
        .iter()
        .map(|item| item.text().unwrap_or("?"))
        .collect();
    texts.join(",")
}

/// `{name = value}`, where a value is text, a number, a truth value or a list of them, as kubeadm's list.
fn arguments(field: &str, content: &Content, at: Position, report: &mut Report) -> Content {
    let Content::Map(entries) = content else {
        report.refuse_at(field, at, "expected a table of arguments");
        return Content::List(Vec::new());
    };
    let mut list = Vec::new();
    for (name, node) in entries {
        let values = match &node.content {
            Content::List(items) => items.iter().collect(),
            _ => vec![node],
        };
        for value in values {
            match scalar(&value.content) {
                Some(text) => list.push(argument(name, &text, value.at)),
                None => {
                    let message = "expected text, a number, true, false, or a list of them";
                    report.refuse_at(&format!("{field}.{name}"), value.at, message);
                }
            }
        }
    }
    Content::List(list)
}

/// A value of an argument as text, if it can be one.
pub(super) fn scalar(content: &Content) -> Option<String> {
    match content {
        Content::Text(text) => Some(text.clone()),
        Content::Bool(bool) => Some(bool.to_string()),
        Content::Int(int) => Some(int.to_string()),
        Content::Float(float) => Some(float.to_string()),
        _ => None,
    }
}

fn argument(name: &str, value: &str, at: Position) -> Node {
    let text = |text: &str| Node {
        at,
        content: Content::Text(text.to_owned()),
    };
    let content = Content::Map(vec![
        ("name".to_owned(), text(name)),
        ("value".to_owned(), text(value)),
    ]);
    Node { at, content }
}

/// A list of tokens, each as text or as kubeadm's table.
fn tokens(content: &Content) -> Content {
    let Content::List(items) = content else {
        return content.clone();
    };
    let token = |item: &Node| match item.content {
        Content::Text(_) => Node {
            at: item.at,
            content: Content::Map(vec![("token".to_owned(), item.clone())]),
        },
        _ => item.clone(),
    };
    Content::List(items.iter().map(token).collect())
}

fn labels(field: &str, node: &Node, report: &mut Report) -> BTreeMap<String, String> {
    let Content::Map(entries) = &node.content else {
        report.refuse_at(field, node.at, "expected a table of names to text");
        return BTreeMap::new();
    };
    let mut labels = BTreeMap::new();
    for (name, node) in entries {
        let refusal = match node.text() {
            Some(text) => {
                labels.insert(name.clone(), text.to_owned());
                wrong_label(name, text)
            }
            None => Some("expected text".to_owned()),
        };
        if let Some(message) = refusal {
            report.refuse_at(&format!("{field}.{name}"), node.at, message);
        }
    }
    labels
}
