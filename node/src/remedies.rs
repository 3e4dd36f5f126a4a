//! What to do about what a node waits for, where that is known.

use image::kubelet::{CREDENTIAL_PROVIDERS, UNIT};
use image::paths::{CLUSTER, NODE_SETTINGS};

/// Why a node is not Ready, as far as it decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble<'a> {
    /// The file system that is mounted here is full.
    Disk(&'a str),
    /// The cluster object has mistakes.
    Object,
    /// The etcd volume is not there.
    Volume,
    /// The configuration of credential providers has mistakes.
    CredentialProviders,
    /// The kubelet fails again and again.
    Kubelet,
    /// A node that joins waits for this.
    Join(&'a str),
    /// A node that begins its cluster waits for this.
    Begin(&'a str),
}

/// What to do where the balancer has no API server.
const NO_SERVER: &str = "start a control plane: the row `API servers` of `slipway-node status` says why each is not ready";

/// Parts of a line of what is waited for, and what to do; the first that fits counts. `docs/cluster.md` tells what they mean.
const WAITS: [(&str, &str); 9] = [
    (
        "is not signed for the token",
        "make a new token, `slipway cluster join-config --fresh-token`, and put it into [join] of /etc/slipway/cluster.toml",
    ),
    (
        "not with the secret in join.token",
        "put the whole token of the cluster into [join] of /etc/slipway/cluster.toml",
    ),
    (
        "the cluster's authority has the public key",
        "correct endpoint or ca-hashes in /etc/slipway/cluster.toml: one of them is of another cluster",
    ),
    (
        "that is Ready: another machine has this name",
        "give this node another name ([node] name in /etc/slipway/cluster.toml), or stop the other machine; if this one was installed anew, wait a minute",
    ),
    (
        "the machine's clock says",
        "set the clock if it is wrong (`timedatectl`, and a time server in /etc/systemd/timesyncd.conf); the node goes on by itself",
    ),
    (
        "is not approved yet",
        "on a control plane: `kubectl get csr`, then `kubectl certificate approve NAME`",
    ),
    // The balancer closes a connection that no API server takes, before or after it has got the first bytes.
    ("tls handshake eof", NO_SERVER),
    ("Connection reset by peer", NO_SERVER),
    (
        "cni plugin not initialized",
        "give the cluster a network of pods: an addon, or cni = \"bridge\" in its object",
    ),
];

/// What to do; none if that is not known, or if waiting is enough.
pub(crate) fn remedy(trouble: Trouble<'_>) -> Option<String> {
    let known = |line: &str| {
        let mut all = WAITS.iter();
        let found = all.find(|(part, _)| line.contains(part));
        found.map(|(_, remedy)| (*remedy).to_owned())
    };
    match trouble {
        Trouble::Disk(path) => Some(format!(
            "`du -xh -d 3 {path}` says what fills it; the node goes on by itself once there is room"
        )),
        Trouble::Object => Some(format!(
            "correct {CLUSTER}: the kubelet's next start reads it"
        )),
        Trouble::Volume => Some(format!(
            "attach the volume that [etcd] in {NODE_SETTINGS} names, and reboot"
        )),
        Trouble::CredentialProviders => Some(format!(
            "correct {CREDENTIAL_PROVIDERS}, or remove it; its plugins come with the image"
        )),
        Trouble::Kubelet => Some(format!("`journalctl -u {UNIT}` says why")),
        Trouble::Begin(line) => known(line),
        Trouble::Join(line) => known(line).or_else(|| {
            // A control plane's own API server is only not up yet.
            line.contains("Connection refused").then(|| {
                format!("start a control plane that answers at the endpoint of {CLUSTER}, or correct it there")
            })
        }),
    }
}

#[cfg(test)]
mod tests {
    use cluster::discovery::Refusal;

    use super::*;

    #[test]
    fn each_trouble_has_its_remedy() {
        let pins = Refusal::NotPinned {
            expected: Vec::new(),
            found: Vec::new(),
        };
        for (trouble, expected) in [
            (Trouble::Object, Some("/etc/slipway/cluster.toml")),
            (Trouble::Volume, Some("/etc/slipway/node.toml")),
            (
                Trouble::CredentialProviders,
                Some("/etc/kubernetes/credential-providers.yaml"),
            ),
            (Trouble::Kubelet, Some("`journalctl -u kubelet.service`")),
            (
                Trouble::Join("its request csr-1 is not approved yet"),
                Some("kubectl certificate approve"),
            ),
            (Trouble::Join("Connection refused"), Some("endpoint")),
            (Trouble::Begin("Connection refused"), None),
            (
                Trouble::Join(&Refusal::NotSigned("a".to_owned(), Vec::new()).to_string()),
                Some("--fresh-token"),
            ),
            (
                Trouble::Join(&Refusal::WrongSignature("a".to_owned()).to_string()),
                Some("the whole token"),
            ),
            (Trouble::Join(&pins.to_string()), Some("ca-hashes")),
            (
                Trouble::Join(
                    "the cluster has a node \"w1\" that is Ready: another machine has this name, or",
                ),
                Some("another name"),
            ),
            (
                Trouble::Begin("KubeletNotReady: cni plugin not initialized"),
                Some("cni = \"bridge\""),
            ),
            (
                Trouble::Join("https://127.0.0.1:7443/readyz: tls handshake eof"),
                Some("API servers"),
            ),
            (Trouble::Join("something else"), None),
        ] {
            let found = remedy(trouble);
            let fits = match (&found, expected) {
                (Some(found), Some(expected)) => found.contains(expected),
                (None, None) => true,
                _ => false,
            };
            assert!(fits, "{trouble:?}: {found:?}");
        }
    }
}
