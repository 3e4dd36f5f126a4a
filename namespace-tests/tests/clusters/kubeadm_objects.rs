//! A cluster of ours beside one that `kubeadm init` made of the same configuration: every object, file and certificate, field by field.
//!
//! Ours comes first. The documents of its maps (`kubeadm-config`, `kubelet-config`, `kube-proxy`) are kubeadm's configuration, on a node
//! of the same name and address, so that whatever differs is a difference of the two programs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use cluster::report::Report;
use cluster::yaml;
use namespace_tests::lab::Lab;
use namespace_tests::node::Node;
use serde_json::{Value, json};

use crate::control_plane::{OBJECT, PODS, READY};
use crate::kubeadm::{LAST_AT_INIT, init_configuration, kubeadm, patch_etcd};

mod declared;

use declared::DECLARED;

/// Every kind that kubeadm makes objects of, and all objects of these kinds.
const KINDS: &str = "configmap,secret,serviceaccount,service,daemonset.apps,deployment.apps,role,rolebinding,clusterrole,clusterrolebinding,node,pod";
/// Fields that servers make: another value in every cluster.
const SERVERS: [&str; 6] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "generation",
    "status",
];
/// Files that kubeadm writes beside certificates.
const FILES: &str = "cd /; for file in etc/kubernetes/manifests/*.yaml etc/kubernetes/*.conf var/lib/kubelet/config.yaml var/lib/kubelet/instance-config.yaml var/lib/kubelet/kubeadm-flags.env; do printf '=== /%s %s\\n' $file $(stat -c %a $file); cat $file; done";
/// What a certificate says, but for numbers and keys; its validity as seconds.
const CERTIFICATES: &str = r"cd /etc/kubernetes/pki
of() { openssl x509 -noout -subject -issuer -ext basicConstraints,keyUsage,extendedKeyUsage,subjectAltName 2>/dev/null; }
for file in *.crt etc*/*.crt; do
  echo === $file $(stat -c %a $file)
  of < $file
  openssl x509 -noout -text -in $file | grep -E 'Public Key Algorithm|Public-Key|ASN1 OID'
  start=$(date -d ''$(openssl x509 -noout -startdate -dateopt iso_8601 -in $file | cut -d= -f2 | tr ' ' T) +%s)
  end=$(date -d ''$(openssl x509 -noout -enddate -dateopt iso_8601 -in $file | cut -d= -f2 | tr ' ' T) +%s)
  echo hours: $(((end - start) / 3600))
done
for file in *.key *.pub etc*/*.key; do echo === $file $(stat -c %a $file); head -n 1 $file; done
cd ..
for file in *.conf; do
  echo === $file
  grep -o 'client-certificate-data: .*' $file | cut -d' ' -f2 | base64 -d 2>/dev/null | of || true
done";

/// The objects, files and certificates of both are the same, but for what is declared; and what is declared is still so.
pub(crate) fn ours_are_those_of_kubeadm_but_for_what_is_declared(lab: &mut Lab) -> Result<()> {
    let object = format!("endpoint = \"10.77.0.11:6443\"\n{OBJECT}");
    let mut ours = lab.control_plane("cp1", 11, &object)?;
    ours.start(&lab.hub)?;
    ours.wait_ready(READY)?;
    let config = init(&ours)?;
    let network = ours.run("cat /etc/cni/net.d/10-slipway.conflist")?;
    let found = facts(&ours)?;
    drop(ours);

    let mut theirs = lab.runtime("cp1", 11, true)?;
    theirs.start(&lab.hub)?;
    theirs.write_running("/etc/cni/net.d/10-slipway.conflist", &network)?;
    theirs.write_running("/run/kubeadm.yaml", &config)?;
    patch_etcd(&theirs, LAST_AT_INIT)?;
    kubeadm(
        &mut theirs,
        "kubeadm init --config /run/kubeadm.yaml --ignore-preflight-errors all",
    )?;
    compare(&facts(&theirs)?, &found)
}

/// kubeadm's configuration, of the maps of a cluster.
fn init(ours: &Node) -> Result<String> {
    let map = |name: &str, key: &str| {
        ours.kubectl(&format!(
            "-n kube-system get configmap {name} -o jsonpath='{{.data.{key}}}'"
        ))
    };
    let all = [
        init_configuration(ours),
        map("kubeadm-config", "ClusterConfiguration")?,
        map("kubelet-config", "kubelet")?,
        map("kube-proxy", r"config\.conf")?,
    ];
    Ok(all.join("\n---\n"))
}

/// Everything of a cluster that is compared: a path of a field to its value.
fn facts(node: &Node) -> Result<BTreeMap<String, String>> {
    let kubectl = "kubectl --kubeconfig /etc/kubernetes/admin.conf";
    for (what, script) in [
        (
            "CoreDNS and kube-proxy",
            format!(
                "{kubectl} -n kube-system rollout status ds/kube-proxy deploy/coredns --timeout=1s"
            ),
        ),
        (
            "the mirrors of the static pods",
            format!(
                "[ $({kubectl} -n kube-system get pod -l tier=control-plane -o name | wc -l) = 4 ]"
            ),
        ),
        (
            "the token's signature",
            format!(
                "{kubectl} -n kube-public get configmap cluster-info -o jsonpath={{.data.jws-kubeconfig-abcdef}} | grep -q ."
            ),
        ),
    ] {
        node.wait_for(what, &script, PODS)?;
    }
    let mut facts = BTreeMap::new();
    let text = node.kubectl(&format!("get {KINDS} -A -o json"))?;
    let list: Value = serde_json::from_str(&text).context("reading the cluster's objects")?;
    let items = list["items"].as_array().context("a list of objects")?;
    for item in items.iter().filter(|item| is_compared(item)) {
        let path = [
            item["kind"].as_str().unwrap_or_default(),
            item["metadata"]["namespace"].as_str().unwrap_or_default(),
            item["metadata"]["name"].as_str().unwrap_or_default(),
        ];
        let path: Vec<&str> = path.into_iter().filter(|part| !part.is_empty()).collect();
        flatten(&path.join("/"), &without_servers(item.clone()), &mut facts);
    }
    ensure!(facts.len() > 1000, "the cluster has {} fields", facts.len());
    for (name, body) in sections(&node.run(FILES)?) {
        let name = named("file", &name, &mut facts);
        match name.ends_with(".env") {
            true => flatten(&name, &body.into(), &mut facts),
            false => flatten(&name, &document(&body)?, &mut facts),
        }
    }
    for (name, body) in sections(&node.run(CERTIFICATES)?) {
        let name = named("certificate", &name, &mut facts);
        for (field, value) in said(&body) {
            facts.insert(format!("{name} {field}"), value);
        }
    }
    Ok(facts)
}

/// Pods of controllers have names that nobody chose.
fn is_compared(item: &Value) -> bool {
    item["kind"] != "Pod"
        || !item["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null()
}

/// An object without what servers make of it.
fn without_servers(mut item: Value) -> Value {
    if let Some(fields) = item.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = item["metadata"].as_object_mut() {
        metadata.retain(|name, _| !SERVERS.contains(&name.as_str()));
    }
    for owner in item["metadata"]["ownerReferences"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        owner["uid"] = json!("X");
    }
    // Of a file, or of the time at which the kubelet read it: the files are compared themselves.
    for annotation in ["hash", "mirror", "seen"] {
        let at = format!("/metadata/annotations/kubernetes.io~1config.{annotation}");
        if let Some(value) = item.pointer_mut(&at) {
            *value = json!("X");
        }
    }
    if let Some(value) = item.pointer_mut("/data/expiration") {
        *value = json!("X");
    }
    item
}

/// Texts of kubeadm's files, by their names with their modes: what follows `=== NAME`.
fn sections(text: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("=== ") {
            Some(name) => all.push((name.to_owned(), String::new())),
            None => {
                if let Some((_, body)) = all.last_mut() {
                    *body += line;
                    *body += "\n";
                }
            }
        }
    }
    all
}

/// The path of a file whose section is named after it and its mode, which is a field.
fn named(kind: &str, name: &str, into: &mut BTreeMap<String, String>) -> String {
    let (name, mode) = name.split_once(' ').unwrap_or((name, "as it is"));
    let path = format!("{kind} {name}");
    into.insert(format!("{path} mode"), mode.to_owned());
    path
}

/// What OpenSSL says of a certificate or a key, by what it is about: extensions stand in any order, and so do names in them.
fn said(text: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(extension) = line.strip_prefix("X509v3 ") {
            let (name, critical) = extension.split_once(':').unwrap_or((extension, ""));
            let mut names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
            names = names.iter().map(|name| name.trim()).collect();
            names.sort_unstable();
            fields.insert(name.to_owned(), format!("{}{critical}", names.join(", ")));
        } else if let Some((name, value)) = line.split_once([':', '=']) {
            fields.insert(name.to_owned(), value.trim().to_owned());
        } else {
            fields.insert("form".to_owned(), line.to_owned());
        }
    }
    fields
}

/// What an element of a list goes by: its name, the name of a flag, or its place.
fn element(number: usize, value: &Value) -> String {
    let flag = value.as_str().filter(|text| text.starts_with("--"));
    let flag = flag.map(|text| text.split('=').next().unwrap_or(text));
    let name = flag.or_else(|| value["name"].as_str());
    name.map_or_else(|| number.to_string(), str::to_owned)
}

fn document(text: &str) -> Result<Value> {
    let mut report = Report::default();
    let node = yaml::document(text, 0, &mut report);
    let node = node.with_context(|| format!("not a document of YAML: {text}"))?;
    Ok(node.content.value())
}

/// Each field by its path. A text that is a document has fields too; one of several lines has lines.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                flatten(&format!("{path} {name}"), value, into);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (number, value) in items.iter().enumerate() {
                flatten(&format!("{path} {}", element(number, value)), value, into);
            }
        }
        Value::String(text) if text.contains("BEGIN CERTIFICATE") => {
            into.insert(path.to_owned(), "a certificate".to_owned());
        }
        Value::String(text) if is_key(path) => {
            into.insert(path.to_owned(), format!("{} bytes", text.len().min(1)));
        }
        Value::String(text)
            if text.contains("\napiVersion: ") || text.starts_with("apiVersion: ") =>
        {
            match document(text) {
                Ok(value) => flatten(path, &value, into),
                Err(_) => drop(into.insert(path.to_owned(), text.clone())),
            }
        }
        Value::String(text) if text.contains('\n') => {
            for (number, line) in text.lines().enumerate() {
                into.insert(format!("{path} line {number}"), line.to_owned());
            }
        }
        _ => drop(into.insert(path.to_owned(), value.to_string())),
    }
}

/// Random bytes: certificates, keys and signatures.
fn is_key(path: &str) -> bool {
    let name = path.rsplit(' ').next().unwrap_or_default();
    name.starts_with("jws-kubeconfig-")
        || [
            "certificate-authority-data",
            "client-certificate-data",
            "client-key-data",
        ]
        .contains(&name)
}

/// Fails with every difference that is not declared, and every declaration without a difference.
fn compare(theirs: &BTreeMap<String, String>, ours: &BTreeMap<String, String>) -> Result<()> {
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    for name in names {
        let (of_kubeadm, own) = (theirs.get(name), ours.get(name));
        if of_kubeadm == own {
            continue;
        }
        let declared = DECLARED.iter().position(|row| row.fits(name));
        match declared {
            Some(number) => {
                used.insert(number);
            }
            None => wrong.push(format!(
                "{name}: kubeadm has {}, ours {}",
                of_kubeadm.map_or("nothing", String::as_str),
                own.map_or("nothing", String::as_str)
            )),
        }
    }
    for (number, row) in DECLARED.iter().enumerate() {
        if !used.contains(&number) {
            wrong.push(format!("declared, and the same: {}", row.paths));
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}
