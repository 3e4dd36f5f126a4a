//! The objects by which further control planes get the shared keys, as of `kubeadm init phase upload-certs`: the sealed files
//! in a secret, a token that owns it and so ends it, and a role of nodes that join.
//!
//! The token is a clock: it may be used for nothing. The controller manager removes it once it has expired, and the garbage
//! collector then removes what it owns.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::rbac::{group, reader_of};
use super::{NEW_NODES, Object};
use crate::discovery::Token;
use crate::duration::Duration;

/// How long the upload lasts.
pub const LIFE: Duration = Duration::hours(2);
/// The namespace of all of it.
const NAMESPACE: &str = "kube-system";
/// The secret of the sealed files.
const NAME: &str = "kubeadm-certs";
/// The role and its binding.
const ROLE: &str = "kubeadm:kubeadm-certs";
/// What the token is for, in kubeadm's words, by which its users know it.
const DESCRIPTION: &str = "Proxy for managing TTL for the kubeadm-certs secret";

/// The secret of the token that ends the upload at a time, RFC 3339.
#[must_use]
pub fn owner(token: &Token, expires: &str) -> Value {
    let text = token.text();
    let (id, secret) = text.split_once('.').unwrap_or((&text, ""));
    json!({
        "apiVersion": "v1",
        "data": {
            "description": STANDARD.encode(DESCRIPTION),
            "expiration": STANDARD.encode(expires),
            "token-id": STANDARD.encode(id),
            "token-secret": STANDARD.encode(secret),
        },
        "kind": "Secret",
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": NAMESPACE},
        "type": "bootstrap.kubernetes.io/token",
    })
}

/// The secret of the sealed files, by their names in it. `owner` is the token's secret as the API server has it: with a
/// `metadata.uid`.
#[must_use]
pub fn secret(sealed: Map<String, Value>, owner: &Value) -> Value {
    let reference = json!({
        "apiVersion": "v1",
        "blockOwnerDeletion": true,
        "controller": true,
        "kind": "Secret",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    });
    json!({
        "apiVersion": "v1",
        "data": sealed,
        "kind": "Secret",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "ownerReferences": [reference]},
        "type": "Opaque",
    })
}

/// The role that reads the secret, and its binding to nodes that join.
#[must_use]
pub fn readers() -> [Value; 2] {
    let objects = reader_of("secrets", NAMESPACE, ROLE, NAME, &[group(NEW_NODES)]);
    objects.map(|Object { value, .. }| value)
}

/// The token of a secret if a node can join by it at this time, RFC 3339 in UTC: it authenticates, it signs `cluster-info`, it is
/// of the group that may read the upload, and it has not expired. With it its end; none if it has none.
#[must_use]
pub fn joining(secret: &Value, now: &str) -> Option<(Token, Option<String>)> {
    let text = |key: &str| {
        let bytes = STANDARD.decode(secret["data"][key].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    let yes = |usage: &str| text(&format!("usage-bootstrap-{usage}")).as_deref() == Some("true");
    let groups = text("auth-extra-groups").unwrap_or_default();
    let end = text("expiration");
    // Times of one form in UTC are ordered as texts.
    let ended = end.as_deref().is_some_and(|end| end <= now);
    let fits = yes("authentication")
        && yes("signing")
        && groups.split(',').any(|group| group == NEW_NODES)
        && !ended;
    let token = format!("{}.{}", text("token-id")?, text("token-secret")?);
    fits.then(|| Token::parse(&token))
        .flatten()
        .map(|token| (token, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that kubeadm writes, by its reference and its objects in a cluster.
    #[test]
    fn an_upload_has_kubeadms_objects() {
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let mut made = owner(&token, "2026-11-23T20:00:00Z");
        assert_eq!(made["metadata"]["name"], "bootstrap-token-abcdef");
        assert_eq!(
            made["data"]["expiration"],
            STANDARD.encode("2026-11-23T20:00:00Z")
        );
        // Nobody can authenticate by it.
        assert_eq!(made["data"].as_object().unwrap().len(), 4);
        assert_eq!(joining(&made, "2026-11-23T18:00:00Z"), None);
        made["metadata"]["uid"] = "1-2".into();
        let sealed = Map::from_iter([("etcd-ca.key".to_owned(), json!("AA=="))]);
        let secret = secret(sealed, &made);
        let expected = json!({
            "apiVersion": "v1",
            "data": {"etcd-ca.key": "AA=="},
            "kind": "Secret",
            "metadata": {
                "name": "kubeadm-certs",
                "namespace": "kube-system",
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "blockOwnerDeletion": true,
                    "controller": true,
                    "kind": "Secret",
                    "name": "bootstrap-token-abcdef",
                    "uid": "1-2",
                }],
            },
            "type": "Opaque",
        });
        assert_eq!(secret, expected);
        let [role, binding] = readers();
        let rule = json!([{
            "apiGroups": [""],
            "resourceNames": ["kubeadm-certs"],
            "resources": ["secrets"],
            "verbs": ["get"],
        }]);
        assert_eq!(role["rules"], rule);
        assert_eq!(role["metadata"]["name"], "kubeadm:kubeadm-certs");
        assert_eq!(binding["roleRef"]["name"], "kubeadm:kubeadm-certs");
        let group = "system:bootstrappers:kubeadm:default-node-token";
        assert_eq!(
            binding["subjects"],
            json!([{"kind": "Group", "name": group}])
        );
    }

    #[test]
    fn a_token_is_shown_for_a_join_only_if_a_node_can_join_by_it() {
        let now = "2026-11-23T18:00:00Z";
        let fields = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("usage-bootstrap-signing", "true"),
            (
                "auth-extra-groups",
                "system:bootstrappers:x,system:bootstrappers:kubeadm:default-node-token",
            ),
            ("expiration", "2026-11-23T18:00:01Z"),
        ];
        let encoded = |(name, text): (&str, &str)| (name.to_owned(), STANDARD.encode(text).into());
        let good = json!({"data": fields.map(encoded).into_iter().collect::<Map<_, _>>()});
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        assert_eq!(
            joining(&good, now),
            Some((token, Some("2026-11-23T18:00:01Z".to_owned())))
        );
        for (name, text) in [
            ("usage-bootstrap-authentication", "false"),
            ("usage-bootstrap-signing", ""),
            ("auth-extra-groups", "system:bootstrappers:x"),
            ("expiration", now),
            ("token-secret", "short"),
        ] {
            let mut bad = good.clone();
            bad["data"][name] = STANDARD.encode(text).into();
            assert_eq!(joining(&bad, now), None, "{name}");
        }
    }
}
