//! The identity of a worker: the kubelet's kubeconfig with the certificate that the cluster gave it.

use std::fs;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use cluster::discovery::AUTHORITY;
use cluster::identity::{Fault, check};
use cluster::kubeconfigs::{self, Given};
use cluster::object::balancer::{LISTEN, SERVER_NAME};
use image::kubelet::{BOOTSTRAP_KUBECONFIG, KUBECONFIG};
use linux::atomic_file;
use linux::world::World;

use api::{Api, Server};

/// An identity that is valid.
#[derive(Debug)]
pub(crate) struct Identity {
    server: String,
    server_name: Option<String>,
    authority: String,
    certificate: String,
    key: String,
}

impl Identity {
    /// The client of the control plane with this identity.
    ///
    /// # Errors
    /// If the certificates or the key do not parse.
    pub(crate) fn api(&self) -> Result<Api> {
        let server = Server {
            url: &self.server,
            name: self.server_name.as_deref(),
        };
        Api::with_certificate(server, &self.authority, &self.certificate, &self.key)
            .with_context(|| format!("reading {KUBECONFIG}"))
    }
}

/// The identity of the node with this name, or the reason why it has to get one.
///
/// # Errors
/// If it is another node's or another cluster's.
pub(crate) fn read(world: &World, node: &str) -> Result<Result<Identity, String>> {
    let Some(text) = text(world, KUBECONFIG)? else {
        return Ok(Err(format!("{KUBECONFIG} does not exist")));
    };
    let Some(given) = kubeconfigs::read(&text) else {
        return Ok(Err(format!("{KUBECONFIG} is not a kubeconfig")));
    };
    let Some((certificate, key)) = pair(world, &given)? else {
        return Ok(Err(format!("{KUBECONFIG} has no certificate")));
    };
    let known = self::text(world, AUTHORITY)?.unwrap_or_default();
    let authority = given.authority.unwrap_or_else(|| known.clone());
    match check(
        &certificate,
        &format!("{authority}\n{known}"),
        node,
        SystemTime::now(),
    ) {
        Ok(()) => Ok(Ok(Identity {
            server_name: given.server_name.or_else(|| name(&given.server)),
            server: given.server,
            authority,
            certificate,
            key,
        })),
        Err(fault @ (Fault::Absent | Fault::Expired)) => {
            Ok(Err(format!("the certificate of {KUBECONFIG} {fault}")))
        }
        Err(fault) => bail!(
            "the certificate of {KUBECONFIG} {fault}, and this is node {node:?}; nothing is changed"
        ),
    }
}

/// The URL of the API server in the kubelet's kubeconfig, or in the one by which it requests a certificate.
pub(crate) fn server(world: &World) -> Option<String> {
    let mut files = [KUBECONFIG, BOOTSTRAP_KUBECONFIG].into_iter();
    files.find_map(|path| Some(given(world, path)?.server))
}

/// The name of the node that the certificate of the kubelet's kubeconfig is for: kubeadm may have given it one that is not the host's.
pub(crate) fn node(world: &World) -> Option<String> {
    let (certificate, _) = pair(world, &given(world, KUBECONFIG)?).ok()??;
    cluster::identity::node(&certificate)
}

fn given(world: &World, path: &str) -> Option<Given> {
    kubeconfigs::read(&text(world, path).ok()??)
}

/// The name of the certificate of an API server at this URL, if it is reached by the balancer. The kubelet writes its kubeconfig
/// without that name.
fn name(server: &str) -> Option<String> {
    let local = format!("https://{LISTEN}:");
    server.starts_with(&local).then(|| SERVER_NAME.to_owned())
}

/// The certificate and its key, PEM: of the kubeconfig, or of the files that it names.
fn pair(world: &World, given: &Given) -> Result<Option<(String, String)>> {
    let part = |data: &Option<String>, file: &Option<String>| match (data, file) {
        (Some(data), _) => Ok(Some(data.clone())),
        (None, Some(file)) => text(world, file),
        (None, None) => Ok(None),
    };
    let certificate = part(&given.certificate, &given.certificate_file)?;
    Ok(certificate.zip(part(&given.key, &given.key_file)?))
}

fn text(world: &World, path: &str) -> Result<Option<String>> {
    let file = world.in_initrd(path);
    let about = || format!("reading {}", file.display());
    // The kubelet's certificate is a link.
    let Ok(file) = fs::canonicalize(&file) else {
        return Ok(None);
    };
    let text = atomic_file::read(&file).with_context(about)?;
    text.map(String::from_utf8).transpose().with_context(about)
}
