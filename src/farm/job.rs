//! How the Jobs run: the image of the builder, its resources and rights, and where results and credentials are.

use serde_json::{Value, json};

use super::environment::OUTPUT;

/// The capabilities of a build: owners and rights of files, and for the programs that it starts
/// namespaces with mounts and a loopback interface.
const CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_ADMIN",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_ADMIN",
    "SYS_CHROOT",
];
/// Seconds after which a build is ended.
const DEADLINE: u32 = 2 * 3600;
/// Seconds for which a finished Job is kept, for its log.
const KEPT: u32 = 24 * 3600;
/// Attempts after the first one: of an image that cannot be built a second one says the same.
const RETRIES: u32 = 1;
/// Paths in the builder's container.
const INPUT: &str = "/input";
const CACHE: &str = "/cache";
const SECRET: &str = "/signing-key";

/// The settings of all Jobs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The builder's image: one with the program `slipway` in its search path.
    pub image: String,
    /// The namespace; none: the one that they are applied in.
    pub namespace: Option<String>,
    /// The PersistentVolumeClaim that outputs are written to.
    pub claim: String,
    /// The Secret whose entries become the environment: credentials of buckets.
    pub credentials: Option<String>,
    /// The Secret with a signing key, under the name `key`.
    pub signing_key: Option<String>,
    /// The remote cache, and the public keys that count.
    pub cache: Option<(String, Vec<String>)>,
    /// The server of buckets and its region, if it is not AWS.
    pub buckets: Option<(String, String)>,
    /// Variables of the builder's environment, by name and value.
    pub environment: Vec<(String, String)>,
    /// Processors.
    pub cpus: u16,
    /// Memory, MiB.
    pub memory: u32,
    /// Room of the cache, MiB.
    pub disk: u32,
}

impl Settings {
    /// The specification of a Job that builds `recipe` of the ConfigMaps `inputs`, each a name and items of keys and paths.
    pub(super) fn spec(
        &self,
        recipe: &str,
        inputs: &[(String, &[Value])],
        labels: &Value,
    ) -> Value {
        json!({
            "backoffLimit": RETRIES,
            "activeDeadlineSeconds": DEADLINE,
            "ttlSecondsAfterFinished": KEPT,
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "containers": [self.container(recipe)],
                    "volumes": self.volumes(inputs),
                },
            },
        })
    }

    fn container(&self, recipe: &str) -> Value {
        let mut container = json!({
            "name": "build",
            "image": self.image,
            "command": ["slipway", "build", "--locked", "--output", OUTPUT, format!("{INPUT}/{recipe}")],
            "env": self.environment(),
            "resources": self.resources(),
            "securityContext": {
                "runAsUser": 0,
                "runAsGroup": 0,
                "privileged": false,
                "capabilities": { "drop": ["ALL"], "add": CAPABILITIES },
                // The default profiles refuse mounts.
                "appArmorProfile": { "type": "Unconfined" },
                "seccompProfile": { "type": "Unconfined" },
            },
            "volumeMounts": self.mounts(),
        });
        if let Some(secret) = &self.credentials {
            container["envFrom"] = json!([{ "secretRef": { "name": secret } }]);
        }
        container
    }

    fn environment(&self) -> Value {
        let mut all = vec![("SLIPWAY_CACHE", CACHE.to_owned())];
        if let Some((url, keys)) = &self.cache {
            all.push(("SLIPWAY_REMOTE_CACHE", url.clone()));
            all.push(("SLIPWAY_REMOTE_CACHE_KEYS", keys.join(" ")));
            if self.signing_key.is_some() {
                let path = format!("{SECRET}/key");
                all.push(("SLIPWAY_REMOTE_CACHE_SIGNING_KEY", path));
            }
        }
        if let Some((endpoint, region)) = &self.buckets {
            all.push(("AWS_ENDPOINT_URL_S3", endpoint.clone()));
            all.push(("AWS_REGION", region.clone()));
        }
        let passed = self
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()));
        all.into_iter()
            .chain(passed)
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect()
    }

    fn resources(&self) -> Value {
        let (cpus, memory) = (self.cpus.to_string(), quantity(self.memory));
        json!({
            "requests": { "cpu": cpus, "memory": memory, "ephemeral-storage": quantity(self.disk) },
            // Of processors a build takes what is there.
            "limits": { "memory": memory },
        })
    }

    fn mounts(&self) -> Value {
        let mut all = vec![
            json!({ "name": "input", "mountPath": INPUT, "readOnly": true }),
            json!({ "name": "cache", "mountPath": CACHE }),
            json!({ "name": "output", "mountPath": OUTPUT }),
        ];
        if self.signing_key.is_some() {
            all.push(json!({ "name": "signing-key", "mountPath": SECRET, "readOnly": true }));
        }
        all.into()
    }

    fn volumes(&self, inputs: &[(String, &[Value])]) -> Value {
        let sources = inputs
            .iter()
            .map(|(name, items)| json!({ "configMap": { "name": name, "items": items } }));
        let sources: Value = sources.collect();
        let mut all = vec![
            json!({ "name": "input", "projected": { "sources": sources } }),
            json!({ "name": "cache", "emptyDir": { "sizeLimit": quantity(self.disk) } }),
            json!({ "name": "output", "persistentVolumeClaim": { "claimName": self.claim } }),
        ];
        if let Some(secret) = &self.signing_key {
            // A key that others can read is refused.
            let secret = json!({ "secretName": secret, "defaultMode": 0o400 });
            all.push(json!({ "name": "signing-key", "secret": secret }));
        }
        all.into()
    }
}

/// Mebibytes as Kubernetes itself writes them: in the largest unit that has no fraction.
fn quantity(mebibytes: u32) -> String {
    match mebibytes % 1024 {
        0 => format!("{}Gi", mebibytes / 1024),
        _ => format!("{mebibytes}Mi"),
    }
}
