//! A new bootstrap token of a running cluster: that of the cluster's beginning is valid for a day.

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use api::Api;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use cluster::duration::{Duration, time_after};
use cluster::kubeconfigs;
use cluster::objects::{self, Moment};
use serde_json::{Value, json};

use super::object::ClusterFile;
use super::secrets::{self, Secrets};

/// Now, for objects of a cluster.
struct Now<'a> {
    secrets: &'a Secrets,
    now: SystemTime,
}

impl Moment for Now<'_> {
    fn authority(&self) -> String {
        let authority = self.secrets.pki.get("ca.crt");
        BASE64_STANDARD.encode(authority.map_or("", String::as_str))
    }

    fn expiry(&self, validity: Duration) -> String {
        BASE64_STANDARD.encode(time_after(self.now, validity))
    }

    fn token(&self) -> String {
        // The object has one.
        String::new()
    }
}

/// Makes a token in the cluster that this kubeconfig leads to, valid as long as those of the object, and gives it.
///
/// # Errors
/// If the API server does not answer, or refuses.
pub fn fresh(file: &ClusterFile, secrets: &Secrets, kubeconfig: &str) -> Result<String> {
    let token = secrets::token()?;
    let object = object(file, secrets, &token, SystemTime::now())?;
    let server = kubeconfigs::read(kubeconfig)
        .context("not a kubeconfig")?
        .server;
    Api::new(kubeconfig, &server)?
        .apply(&api::path(&object), &object)
        .context("making a bootstrap token")?;
    Ok(token)
}

/// The secret by which the API server knows a token.
fn object(file: &ClusterFile, secrets: &Secrets, token: &str, now: SystemTime) -> Result<Value> {
    let mut fields = file.fields();
    fields.insert("tokens".to_owned(), json!([token]));
    let text = serde_json::to_string(&fields)?;
    let with_token = ClusterFile::parse(file.path(), &text)?;
    let objects = objects::objects(with_token.config(), &Now { secrets, now });
    let mut values = objects.into_iter().map(|object| object.value);
    values
        .find(|value| value["type"] == "bootstrap.kubernetes.io/token")
        .context("the object's token has no secret")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration as Time;

    use super::*;

    #[test]
    fn a_new_token_is_the_secret_that_kubeadm_makes() {
        let text = "name = \"blue\"\nendpoint = \"api.example.test\"\n";
        let file = ClusterFile::parse(Path::new("blue.toml"), text).unwrap();
        let now = SystemTime::UNIX_EPOCH + Time::from_secs(1_800_000_000);
        let secrets = Secrets::make(file.config(), now).unwrap();
        let object = object(&file, &secrets, "abcdef.0123456789abcdef", now).unwrap();
        let path = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";
        assert_eq!(api::path(&object), path);
        let field = |name: &str| {
            let text = object["data"][name].as_str().unwrap_or_default();
            String::from_utf8(BASE64_STANDARD.decode(text).unwrap()).unwrap()
        };
        for (name, value) in [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            // A day later.
            ("expiration", "2027-01-16T08:00:00Z"),
            ("usage-bootstrap-authentication", "true"),
            ("usage-bootstrap-signing", "true"),
            (
                "auth-extra-groups",
                "system:bootstrappers:kubeadm:default-node-token",
            ),
        ] {
            assert_eq!(field(name), value, "{name}");
        }
    }
}
