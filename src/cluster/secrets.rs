//! The secrets of a cluster, made on the workstation and kept beside its object, encrypted by age
//! (<https://age-encryption.org/v1>) for the administrator's own identity.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use age::secrecy::ExposeSecret as _;
use age::x25519::{Identity, Recipient};
use anyhow::{Context, Result, ensure};
use cluster::certs::{self, Authority, KeyKind};
use cluster::config::Config;
use cluster::discovery::{Pin, Token};
use cluster::pki::{self, Renewal, Wanted};
use serde::{Deserialize, Serialize};

use crate::host::atomic_file;

/// The version of the file's form.
const VERSION: u32 = 1;
/// The file's ending, in place of the object's.
const ENDING: &str = "secrets.age";

/// The secrets of a cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Secrets {
    version: u32,
    /// The cluster that they belong to.
    pub cluster: String,
    /// The bootstrap token by which nodes join.
    pub token: String,
    /// Authorities and the key of service accounts, PEM, by their paths below `/etc/kubernetes/pki`.
    pub pki: BTreeMap<String, String>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Secrets");
        shown
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl Secrets {
    /// Makes the secrets of a new cluster.
    ///
    /// # Errors
    /// If the object asks for keys that cannot be made.
    pub fn make(config: &Config, now: SystemTime) -> Result<Self> {
        let folder = &config.cluster.certificates_dir;
        let authorities = certs::authorities(config);
        let wanted = Wanted {
            folder,
            accounts: KeyKind::of_config(config),
            certificates: &authorities,
            kubeconfigs: &[],
            renewal: Renewal::Ended,
            since: None,
        };
        let files = pki::make(wanted, now)?.into_iter();
        let below = |path: String| {
            path.trim_start_matches(folder)
                .trim_start_matches('/')
                .to_owned()
        };
        Ok(Self {
            version: VERSION,
            cluster: config.cluster.cluster_name.clone(),
            token: token()?,
            pki: files.map(|file| (below(file.path), file.text)).collect(),
        })
    }

    /// The file beside an object.
    #[must_use]
    pub fn file(object: &Path) -> PathBuf {
        object.with_extension(ENDING)
    }

    /// Writes the secrets of an object's cluster, encrypted.
    ///
    /// # Errors
    /// A file that is there already: it may hold the only keys of a cluster.
    pub fn write(&self, object: &Path, recipient: &Recipient) -> Result<PathBuf> {
        let path = Self::file(object);
        ensure!(
            !path.exists(),
            "{} is there already, with the keys of a cluster; it is not replaced",
            path.display()
        );
        let text = age::encrypt(recipient, &serde_json::to_vec(self)?)?;
        atomic_file::create(&path, 0o600, |file| Ok(file.write_all(&text)?))?;
        Ok(path)
    }

    /// Reads the secrets of an object's cluster.
    ///
    /// # Errors
    /// Another identity, another cluster.
    pub fn read(object: &Path, cluster: &str, identity: &Identity) -> Result<Self> {
        let path = Self::file(object);
        let about = || {
            format!(
                "reading the secrets of the cluster {cluster:?}, {}",
                path.display()
            )
        };
        let encrypted = fs::read(&path).with_context(about)?;
        let text = age::decrypt(identity, &encrypted).with_context(about)?;
        let secrets: Self = serde_json::from_slice(&text).with_context(about)?;
        ensure!(
            secrets.cluster == cluster,
            "{} holds the secrets of the cluster {:?}, and the object names {cluster:?}",
            path.display(),
            secrets.cluster
        );
        Ok(secrets)
    }

    /// A file of theirs.
    ///
    /// # Errors
    /// If it is not among them.
    pub fn pki(&self, path: &str) -> Result<&str> {
        let found = self.pki.get(path).map(String::as_str);
        found.with_context(|| {
            format!(
                "the secrets of the cluster {:?} have no {path}",
                self.cluster
            )
        })
    }

    /// The pin of the cluster's authority, as kubeadm's `--discovery-token-ca-cert-hash` takes it.
    ///
    /// # Errors
    /// If the secrets have no certificate.
    pub fn pin(&self) -> Result<String> {
        let certificate = self.pki(&format!("{}.crt", Authority::Kubernetes.file()))?;
        Pin::of_pem(certificate)
            .map(|pin| pin.to_string())
            .context("the certificate of the cluster's authority cannot be read")
    }
}

/// A bootstrap token, as kubeadm's.
pub(super) fn token() -> Result<String> {
    let token = Token::random().context("the host has no random numbers")?;
    Ok(token.text())
}

/// The administrator's identity in this file, which is made if it is missing.
///
/// # Errors
/// If the file cannot be written, or holds no identity.
pub fn identity(path: &Path) -> Result<Identity> {
    let about = || format!("reading {}", path.display());
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match create(path) {
            // Another program made it meanwhile, and encrypts for it.
            Err(error) if atomic_file::is_there(&error) => {
                fs::read_to_string(path).with_context(about)?
            }
            made => return made,
        },
        Err(error) => return Err(error).with_context(about),
    };
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'));
    let identity = line.and_then(|line| line.parse().ok());
    identity.with_context(|| {
        format!(
            "{} holds no identity of age (AGE-SECRET-KEY-1…)",
            path.display()
        )
    })
}

fn create(path: &Path) -> Result<Identity> {
    let identity = Identity::generate();
    let text = format!(
        "# public key: {}\n{}\n",
        identity.to_public(),
        identity.to_string().expose_secret()
    );
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    atomic_file::create(path, 0o600, |file| Ok(file.write_all(text.as_bytes())?))?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::cluster::object::ClusterFile;

    #[test]
    fn secrets_are_kept_for_their_identity_and_their_cluster_alone() {
        let folder = tempfile::tempdir().unwrap();
        let object = folder.path().join("blue.toml");
        let config = ClusterFile::create(&object, &ClusterFile::template("blue").unwrap())
            .unwrap()
            .config()
            .clone();
        let key = folder.path().join("config/age.key");
        let own = identity(&key).unwrap();
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let secrets = Secrets::make(&config, SystemTime::now()).unwrap();
        let names: Vec<_> = secrets.pki.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "ca.crt",
                "ca.key",
                "etcd/ca.crt",
                "etcd/ca.key",
                "front-proxy-ca.crt",
                "front-proxy-ca.key",
                "sa.key",
                "sa.pub",
            ]
        );
        let file = secrets.write(&object, &own.to_public()).unwrap();
        let bytes = fs::read(&file).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("PRIVATE KEY"));
        let again = identity(&key).unwrap();
        assert!(Secrets::read(&object, "blue", &again).unwrap() == secrets);
        let error = Secrets::read(&object, "red", &again)
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("the secrets of the cluster \"blue\", and the object names \"red\""),
            "{error}"
        );
        let stranger = identity(&folder.path().join("other")).unwrap();
        let error = format!(
            "{:#}",
            Secrets::read(&object, "blue", &stranger).unwrap_err()
        );
        assert!(error.contains("blue.secrets.age"), "{error}");
        // What is there is the cluster.
        let error = secrets
            .write(&object, &own.to_public())
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("it is not replaced"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }

    /// Secrets that were encrypted for one that another program then replaced could never be read again.
    #[test]
    fn programs_that_begin_at_once_have_one_identity() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("config/age.key");
        let start = std::sync::Barrier::new(8);
        let public = || identity(&key).unwrap().to_public().to_string();
        let found: Vec<String> = std::thread::scope(|scope| {
            let begin = |_| {
                scope.spawn(|| {
                    start.wait();
                    public()
                })
            };
            let threads: Vec<_> = (0..8).map(begin).collect();
            let all = threads.into_iter();
            all.map(|thread| thread.join().unwrap()).collect()
        });
        let kept = public();
        assert!(found.iter().all(|one| *one == kept), "{found:?}: {kept}");
    }

    #[test]
    fn tokens_are_of_the_form_that_the_api_server_takes() {
        let (one, other) = (token().unwrap(), token().unwrap());
        assert!(Token::parse(&one).is_some(), "{one}");
        assert_ne!(one, other);
    }
}
