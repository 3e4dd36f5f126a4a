//! Answers of a batch: one line of JSON for each case.
//!
//! A case has `name`, `kubeadm` (a version) and `config` (YAML documents). Its answer has the same `name`, `rc` (0, or 1 if
//! the configuration is refused), and either `error` (a list of messages) or what kubeadm's dry run shows: `objects`
//! (`action`, `resource`, `group`, and `object` as YAML), `files` by their paths, `certs` and `kubeconfigs` by their files.
//! What only a real bootstrap makes (the body of a certificate, a token's end) is `X`.

use serde_json::{Map, Value, json};

use crate::certs::{Certificate, KeyKind, Usage};
use crate::config;
use crate::duration::Duration;
use crate::host::Host;
use crate::kubeconfigs::Kubeconfig;
use crate::objects::{Action, Moment, Object};
use crate::render::{Rendered, render};
use crate::yaml;

/// The name of the host of a batch: another one than that of any node, so that the kubelet is given the node's name.
const HOST: &str = "localhost";

/// The answer to a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The line of JSON.
    pub line: String,
    /// What kubeadm takes with a warning, each with the case's name.
    pub warnings: Vec<String>,
}

/// The answer to a line.
///
/// # Errors
/// What the line lacks.
pub fn answer(line: &str) -> Result<Answer, String> {
    let case: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    let text = |key: &str| {
        let text = case[key].as_str();
        text.ok_or_else(|| format!("expected text as {key:?}"))
    };
    let host = Host::debian(HOST);
    let (mut answer, warnings) = match config::read(text("config")?, text("kubeadm")?, &host) {
        Ok(config) => (shown(&render(&config, &host, &DryRun)), config.warnings),
        Err(report) => {
            let errors: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
            (json!({"rc": 1, "error": errors}), report.warnings)
        }
    };
    let name = text("name")?;
    answer["name"] = name.into();
    let warnings = warnings.iter().map(|warning| format!("{name}: {warning}"));
    Ok(Answer {
        line: answer.to_string(),
        warnings: warnings.collect(),
    })
}

/// The moment of a bootstrap that does not take place.
struct DryRun;

impl Moment for DryRun {
    fn authority(&self) -> String {
        "X".to_owned()
    }

    fn expiry(&self, _: Duration) -> String {
        "X".to_owned()
    }

    fn token(&self) -> String {
        "xxxxxx.xxxxxxxxxxxxxxxx".to_owned()
    }
}

fn shown(rendered: &Rendered) -> Value {
    let objects: Vec<Value> = rendered.objects.iter().map(object).collect();
    let files = rendered
        .files
        .iter()
        .map(|file| (file.path.clone(), file.text.as_str().into()));
    let certificates = rendered.certificates.iter().map(|certificate| {
        (
            format!("{}.crt", certificate.file),
            shown_certificate(&certificate.certificate),
        )
    });
    let kubeconfigs = rendered
        .kubeconfigs
        .iter()
        .map(|file| (file.file.to_owned(), kubeconfig(file)));
    json!({
        "rc": 0,
        "objects": objects,
        "files": files.collect::<Map<_, _>>(),
        "certs": certificates.collect::<Map<_, _>>(),
        "kubeconfigs": kubeconfigs.collect::<Map<_, _>>(),
    })
}

fn object(object: &Object) -> Value {
    let action = match object.action {
        Action::Create => "CREATE",
        Action::Patch => "PATCH",
    };
    json!({
        "action": action,
        "resource": object.resource(),
        "group": object.group(),
        "object": yaml::write(&object.value).trim_end(),
    })
}

fn shown_certificate(certificate: &Certificate) -> Value {
    let organisation = certificate
        .organisation
        .as_ref()
        .map(|name| format!(",O={name}"));
    let authority = certificate.usage == Usage::Authority;
    let key_usage: &[&str] = if authority {
        &["digital_signature", "key_cert_sign", "key_encipherment"]
    } else {
        &["digital_signature", "key_encipherment"]
    };
    let ext_usage: Option<&[&str]> = match certificate.usage {
        Usage::Authority => None,
        Usage::Client => Some(&["clientAuth"]),
        Usage::Server => Some(&["serverAuth"]),
        Usage::Peer => Some(&["clientAuth", "serverAuth"]),
    };
    let key = match certificate.key {
        KeyKind::Ecdsa(bits) => format!("ecsecp{bits}r1"),
        KeyKind::Rsa(bits) => format!("rsa{bits}"),
    };
    json!({
        "subject": format!("CN={}{}", certificate.name, organisation.unwrap_or_default()),
        "issuer": format!("CN={}", certificate.issuer.name()),
        "key": key,
        "hours": certificate.validity.seconds() / 3600,
        "key_usage": key_usage,
        "ext_usage": ext_usage,
        "ca": authority,
        "sans": (!certificate.names.is_empty()).then_some(&certificate.names),
    })
}

fn kubeconfig(file: &Kubeconfig) -> Value {
    json!({
        "server": file.server,
        "cluster": file.cluster,
        "context": {
            "context": {"cluster": file.cluster, "user": file.user},
            "name": file.context(),
        },
        "user": file.user,
        "cert": shown_certificate(&file.certificate),
    })
}
