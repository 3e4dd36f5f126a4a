//! `certs upload`: the shared keys for further control planes, and the fields of their cluster objects.

use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use cluster::discovery::{Pin, Token};
use cluster::objects::upload::joining;
use cluster::shared_keys::{CertificateKey, FILES};
use linux::world::World;
use serde_json::json;

use crate::administrator;
use crate::journal::SHARED;
use crate::key_upload::{self, SECRETS};
use crate::object::{self, Bootstrap};
use crate::unset_clock::Reading;
use api::Api;

/// The secrets of bootstrap tokens.
const TOKENS: &str = "?fieldSelector=type%3Dbootstrap.kubernetes.io%2Ftoken";

/// The options of the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options<'a> {
    /// The certificate key, as it was given.
    key: Option<&'a str>,
    json: bool,
    dry_run: bool,
}

impl<'a> Options<'a> {
    /// Reads them; none if one is not known.
    pub(crate) fn read(words: &[&'a str]) -> Option<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--certificate-key" => options.key = Some(words.next()?),
                "--json" => options.json = true,
                "--dry-run" => options.dry_run = true,
                _ => return None,
            }
        }
        Some(options)
    }
}

/// What a further control plane needs.
struct Words {
    endpoint: String,
    token: Option<(Token, Option<String>)>,
    pin: Pin,
    key: CertificateKey,
    expires: String,
}

/// Uploads the keys, and gives what further control planes need.
///
/// # Errors
/// A node that is not a control plane, a key of another form, a file that is missing, and what the API server says.
pub(crate) fn upload(world: &World, options: &Options<'_>) -> Result<String> {
    let bootstrap =
        object::read(world, std::time::Duration::ZERO)?.context("this node has no cluster")?;
    ensure!(
        bootstrap.object.join.is_none(),
        "this node is a worker: it does not have the keys that control planes share"
    );
    let api = administrator::api(world, &bootstrap)?;
    run(world, &api, &bootstrap, options, &Reading::now(world))
}

fn run(
    world: &World,
    api: &Api,
    bootstrap: &Bootstrap,
    options: &Options<'_>,
    now: &Reading,
) -> Result<String> {
    let key = key(bootstrap, options)?;
    let texts = key_upload::shared(world, &bootstrap.object)?;
    let pin = Pin::of_pem(&texts[0]).context("the certificate of the cluster's authority")?;
    let url = bootstrap.object.config.control_plane_url();
    // Asked first: whoever may not read secrets is refused before anything is changed.
    let token = token(api, now.wall)?;
    if options.dry_run {
        return dry(api, options);
    }
    let words = Words {
        endpoint: url.trim_start_matches("https://").to_owned(),
        token,
        pin,
        expires: key_upload::upload_by(world, api, &texts, &key, now)?,
        key,
    };
    Ok(match options.json {
        true => as_json(&words),
        false => as_text(&words),
    })
}

/// The key that was given, that of the object, or a new one.
fn key(bootstrap: &Bootstrap, options: &Options<'_>) -> Result<CertificateKey> {
    let own = &bootstrap.object.config.init.certificate_key;
    let given = options
        .key
        .or_else(|| Some(own.as_str()).filter(|own| !own.is_empty()));
    match given {
        // The message does not repeat it: it is secret.
        Some(text) => CertificateKey::parse(text)
            .context("--certificate-key is not a certificate key; expected 64 hexadecimal digits"),
        None => CertificateKey::random().context("the system has no random numbers"),
    }
}

/// The token by which a node can join for the longest time.
fn token(api: &Api, now: SystemTime) -> Result<Option<(Token, Option<String>)>> {
    let list = api.get(&format!("{SECRETS}{TOKENS}"))?.unwrap_or_default();
    let now = key_upload::shown(now);
    let secrets = list["items"].as_array().into_iter().flatten();
    let tokens = secrets.filter_map(|secret| joining(secret, &now));
    Ok(tokens.max_by_key(|(_, end)| (end.is_none(), end.clone())))
}

fn dry(api: &Api, options: &Options<'_>) -> Result<String> {
    let there = api.get(SHARED)?;
    let verb = match there {
        Some(_) => "replaced",
        None => "made",
    };
    if options.json {
        let value = json!({"dryRun": true, "files": FILES, "replaces": there.is_some()});
        return Ok(format!("{value}\n"));
    }
    let owner = format!("{SECRETS}/bootstrap-token-*");
    Ok(format!(
        "{owner} would be made: it ends the upload after two hours\n\
         {SHARED} would be {verb}, with {}, sealed\n\
         the role kubeadm:kubeadm-certs and its binding in kube-system would be applied\n",
        FILES.join(", ")
    ))
}

fn as_json(words: &Words) -> String {
    let (token, end) = words.token.clone().unzip();
    let value = json!({
        "certificateKey": words.key.text(),
        "expires": words.expires,
        "endpoint": words.endpoint,
        "caHashes": [words.pin.to_string()],
        "token": token.map(|token| token.text()),
        "tokenExpires": end.flatten(),
    });
    format!("{value}\n")
}

/// A part of a cluster object.
fn as_text(words: &Words) -> String {
    let token = match &words.token {
        Some((token, end)) => {
            let until = end.as_deref().unwrap_or("it is deleted");
            format!("token = \"{}\"  # until {until}", token.text())
        }
        None => "# token: the cluster has none that a node can join by; kubeadm token create, or slipway cluster \
                 join-config --fresh-token, makes one"
            .to_owned(),
    };
    format!(
        "# The keys that control planes share are in the cluster until {}, sealed by this certificate key. Keep it\n\
         # secret: with a token it opens them. The cluster object of a further control plane has\n\
         endpoint = \"{}\"\n[join]\n{token}\nca-hashes = [\"{}\"]\ncertificate-key = \"{}\"\n",
        words.expires,
        words.endpoint,
        words.pin,
        words.key.text()
    )
}

#[cfg(test)]
mod tests;
