//! The files of a control plane: keys, certificates, kubeconfigs, static pods, the kubelet's configuration, the network
//! of pods.
//!
//! A sequence that may be cut at any point and begins anew: the journal is written before the first file, each file as a
//! whole, a key before its certificate. What is there and valid is kept, so that a second boot writes nothing.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use cluster::address::{self, IpVersion};
use cluster::certs::{Authority, KeyKind, certificates};
use cluster::kubeconfigs::kubeconfigs;
use cluster::kubelet;
use cluster::object::balancer::SERVER_NAME;
use cluster::object::{Cni, Object};
use cluster::pki::{self, KeyFile, Progress, Renewal, Wanted};
use cluster::static_pods::{self, ETCD as ETCD_MANIFEST, File};
use cluster::yaml;

use data_encoding::HEXLOWER;
use image::kubelet::{FIRST_KUBECONFIG, KUBECONFIG};
use image::node::EtcdIdentity;
use image::paths::{CLUSTER, ETCD, ETCD_IDENTITY, RUN_API_SERVER, RUN_NODE_LOCK};
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::cni;
use crate::journal::Journal;
use crate::lock::lock;
use crate::object::Bootstrap;
use crate::{identity, pinned_kubelet, this_boot};

/// The kubeconfig of a cluster's first moments, below `/etc/kubernetes`.
const FIRST: &str = "super-admin.conf";
/// The kubelet's kubeconfig there.
const KUBELET: &str = "kubelet.conf";
/// The static pods that read their kubeconfig once, at their start, and end if no API server answers then. The API server and etcd read their certificates again, and
/// the kubelet makes its own.
const READ_ONCE: [(&str, &str); 2] = [
    (
        "kube-controller-manager",
        "/etc/kubernetes/controller-manager.conf",
    ),
    ("kube-scheduler", "/etc/kubernetes/scheduler.conf"),
];
/// The folder of etcd's data below its `data-dir`.
const MEMBER: &str = "member";

/// Writes the files of a first control plane that are not there or not up to date. `place` is called before the static pods are
/// written, and says whether etcd may start.
///
/// # Errors
/// Keys or data of another cluster: nothing is changed then. What `place` says.
pub(crate) fn prepare(
    world: &World,
    bootstrap: &Bootstrap,
    place: impl FnOnce(&mut Journal) -> Result<()>,
) -> Result<()> {
    let object = &bootstrap.object;
    let journal = Journal::read(world)?;
    let progress = match &journal {
        None => Progress::Fresh,
        Some(journal) if journal.authority.is_none() => Progress::Begun,
        Some(_) => Progress::Done,
    };
    refuse_another(world, object, journal.as_ref())?;
    refuse_renamed(world, object, progress)?;
    refuse_another_version(world, object)?;
    let mut journal = journal.unwrap_or_else(|| Journal::new(object.name()));
    files(world, bootstrap, progress, &mut journal)?;
    place(&mut journal)?;
    // Last: the kubelet starts what it finds here.
    manifests(world, bootstrap, &journal)
}

/// Writes all files but the static pods.
///
/// # Errors
/// What is there and cannot be kept.
pub(crate) fn files(
    world: &World,
    bootstrap: &Bootstrap,
    progress: Progress,
    journal: &mut Journal,
) -> Result<()> {
    let object = &bootstrap.object;
    let _alone = alone(world)?;
    let keys = keys(world, object, progress, renewal(progress))?;
    if progress == Progress::Fresh {
        journal.write(world)?;
    }
    write_keys(world, &keys)?;
    if journal.authority.is_none() {
        journal.authority = fingerprint(world, object)?;
        journal.write(world)?;
    }
    network(world, object)?;
    kubelet_files(world, bootstrap)
}

/// Writes the kubelet's files, for the kubelet that was chosen last.
///
/// # Errors
/// Names the file.
pub(crate) fn kubelet_files(world: &World, bootstrap: &Bootstrap) -> Result<()> {
    let Bootstrap { object, host } = bootstrap;
    let version = pinned_kubelet::version(world);
    let files = kubelet::files_beside_pods(&object.config, host, version.as_ref());
    let instance = kubelet::instance_config(&object.config);
    for File { path, text } in files.into_iter().chain(instance) {
        write_changed(world, &path, &text, 0o644)?;
    }
    Ok(())
}

/// Notes that the API server of this boot answers, and writes the static pods that wait for it.
///
/// # Errors
/// Names the file.
pub(crate) fn served(world: &World, bootstrap: &Bootstrap, journal: &Journal) -> Result<()> {
    let file = world.in_run(RUN_API_SERVER);
    fs::write(&file, "").with_context(|| format!("writing {}", file.display()))?;
    manifests(world, bootstrap, journal)
}

/// Writes the static pods: of a further control plane whose member of etcd does not vote yet, etcd's alone. Those that end
/// without an API server are there once this boot's has answered: the kubelet would start them again and again, after pauses
/// that double, and they would be in such a pause when it answers.
///
/// # Errors
/// Names the file.
pub(crate) fn manifests(world: &World, bootstrap: &Bootstrap, journal: &Journal) -> Result<()> {
    let _alone = alone(world)?;
    write_manifests(world, bootstrap, journal)
}

fn write_manifests(world: &World, bootstrap: &Bootstrap, journal: &Journal) -> Result<()> {
    let member = journal.member.as_ref();
    let mut config = bootstrap.object.config.clone();
    config.etcd_members = member.map(|member| member.initial_cluster.clone());
    static_pods::ends_soon(&mut config);
    for (pod, kubeconfig) in READ_ONCE {
        if let Ok(text) = fs::read(world.in_initrd(kubeconfig)) {
            let hash = sha256(&text);
            config.kubeconfigs.insert(pod, hash[..16].to_owned());
        }
    }
    let only_etcd = member.is_some_and(|member| !member.promoted);
    for (path, manifest) in static_pods::manifests(&config, &bootstrap.host) {
        if path != ETCD_MANIFEST && only_etcd {
            // Of a member that lost its data there is one of before.
            atomic_file::remove(&world.in_initrd(&path))
                .with_context(|| format!("removing {path}"))?;
            continue;
        }
        if !serves(world) && follows(&path) {
            atomic_file::remove(&world.in_initrd(&path))
                .with_context(|| format!("removing {path}"))?;
            // The bring-up may have seen the API server and written the file before it was removed.
            if !serves(world) {
                continue;
            }
        }
        write_changed(world, &path, &with_uid(manifest), 0o600)?;
    }
    Ok(())
}

/// A manifest with the uid of its pod, another one for every other manifest: the kubelet makes one otherwise, and what is started
/// ahead of it would be another pod.
fn with_uid(mut manifest: Value) -> String {
    let hash = sha256(yaml::write(&manifest).as_bytes());
    manifest["metadata"]["uid"] = hash[..32].into();
    yaml::write(&manifest)
}

/// Whether the API server has answered on this boot.
pub(crate) fn serves(world: &World) -> bool {
    world.in_run(RUN_API_SERVER).exists()
}

/// Whether this is the file of a static pod that ends without an API server.
fn follows(path: &str) -> bool {
    let name = Path::new(path).file_stem();
    READ_ONCE.iter().any(|(pod, _)| name == Some(pod.as_ref()))
}

/// Before a bootstrap is finished what its config brought counts, however short its life is.
fn renewal(progress: Progress) -> Renewal {
    match progress {
        Progress::Done => Renewal::Soon,
        _ => Renewal::Ended,
    }
}

fn write_keys(world: &World, keys: &[KeyFile]) -> Result<()> {
    keys.iter().try_for_each(|file| {
        let mode = if file.secret { 0o600 } else { 0o644 };
        write(world, &file.path, &file.text, mode)
    })
}

/// The address of this node's API server with its port, by its manifest.
fn known_address(world: &World) -> Option<String> {
    let manifest = fs::read_to_string(world.in_initrd(static_pods::API_SERVER)).ok()?;
    let mut lines = manifest.lines().map(str::trim);
    let known =
        lines.find_map(|line| line.strip_prefix(static_pods::ADDRESS)?.strip_prefix(": "))?;
    Some(known.trim_matches(['"', '\'']).to_owned())
}

/// Why nothing is to be made anew while the kubelet runs: the machine has another address than its API server, for a while or for good.
pub(crate) fn moved(world: &World, object: &Object) -> Option<String> {
    let known = known_address(world)?;
    let now = object.config.init.local_api_endpoint.host_and_port();
    (known != now).then(|| {
        format!(
            "the API server of this node has the address {known}, and the machine's is {now} now: its certificates and static pods follow \
             at the next start of the kubelet; nothing is changed"
        )
    })
}

/// Makes the certificates and kubeconfigs of a finished control plane anew, as `renewal` says, and starts what reads its own
/// once. A cut between a key and its certificate is found by the next call: the two do not fit.
///
/// # Errors
/// A control plane that is not finished, and another cluster's keys.
pub(crate) fn renew(
    world: &World,
    bootstrap: &Bootstrap,
    renewal: Renewal,
    dry_run: bool,
) -> Result<Vec<String>> {
    let object = &bootstrap.object;
    let _alone = alone(world)?;
    let journal = Journal::read(world)?;
    refuse_another(world, object, journal.as_ref())?;
    refuse_renamed(world, object, Progress::Done)?;
    if let Some(why) = moved(world, object) {
        bail!("{why}");
    }
    let journal = journal.filter(|journal| journal.authority.is_some());
    let journal = journal.context("the bootstrap of this control plane is not finished")?;
    let keys = keys(world, object, Progress::Done, renewal)?;
    if !dry_run {
        write_keys(world, &keys)?;
        write_manifests(world, bootstrap, &journal)?;
    }
    Ok(keys.into_iter().map(|file| file.path).collect())
}

/// The keys, certificates and kubeconfigs that have to be written.
fn keys(
    world: &World,
    object: &Object,
    progress: Progress,
    renewal: Renewal,
) -> Result<Vec<KeyFile>> {
    let config = &object.config;
    let mut kubeconfigs = kubeconfigs(config);
    let of_kubelet = kubeconfigs
        .iter_mut()
        .find(|kubeconfig| kubeconfig.file == KUBELET && object.balancer.enabled);
    if let Some(kubeconfig) = of_kubelet {
        kubeconfig.server = object.balancer.url();
        kubeconfig.server_name = Some(SERVER_NAME.to_owned());
    }
    let first = world.in_initrd(FIRST_KUBECONFIG);
    if object.further.is_some() || progress == Progress::Done && !first.exists() {
        // It works before any role is bound, which the first control plane has done. Who took it away from there later wants it away.
        kubeconfigs.retain(|kubeconfig| kubeconfig.file != FIRST);
    }
    let there = |path: &str| fs::read_to_string(world.in_initrd(path)).ok();
    let wanted = Wanted {
        folder: &config.cluster.certificates_dir,
        accounts: KeyKind::of_config(config),
        certificates: &certificates(config),
        kubeconfigs: &kubeconfigs,
        renewal,
        since: Some(built(world)?),
    };
    let files = pki::complete(wanted, SystemTime::now(), progress, &there)?;
    for file in files.iter().filter(|_| progress == Progress::Done) {
        tracing::info!("{} is made anew", file.path);
    }
    Ok(files)
}

/// The image's time, which has passed: the clock of a machine may be wrong by years when it makes its certificates.
///
/// # Errors
/// If the image's manifest cannot be read.
pub(crate) fn built(world: &World) -> Result<SystemTime> {
    let since = Duration::from_secs(this_boot::manifest(world)?.epoch);
    let built = SystemTime::UNIX_EPOCH.checked_add(since);
    built.context("the image's time is beyond what this system counts")
}

/// Refuses to begin where another cluster is.
///
/// # Errors
/// Names the other cluster, and where it was found.
pub(crate) fn refuse_another(
    world: &World,
    object: &Object,
    journal: Option<&Journal>,
) -> Result<()> {
    let name = object.name();
    if let Some(journal) = journal {
        journal.refuse_another(name, false)?;
        if let Some(expected) = &journal.authority {
            let found = fingerprint(world, object)?;
            ensure!(
                found.is_none() || found.as_ref() == Some(expected),
                "{} is not the authority that this node's cluster {name:?} began with: SHA-256 {}, expected {expected}; \
                 nothing is changed",
                authority(object),
                found.unwrap_or_default()
            );
        }
    }
    refuse_data(world, object, journal)
}

/// Refuses a finished control plane whose kubelet has the certificate of another node: its member of etcd, its Node and its certificates have
/// that name, and the API server would not let the kubelet register this one.
fn refuse_renamed(world: &World, object: &Object, progress: Progress) -> Result<()> {
    let name = &object.config.init.node_registration.name;
    let known = identity::node(world).filter(|_| progress == Progress::Done);
    if let Some(known) = known.filter(|known| known != name) {
        bail!(
            "this node is {known:?} in its cluster ({KUBECONFIG}), and its name is {name:?} now; nothing is changed: \
             give it its name back ([node] name in {CLUSTER}, or its host name), or reset it and let it join as another one"
        );
    }
    Ok(())
}

/// Refuses an address of another IP version than that of services where this node's API server had one of it. A lease may come minutes
/// after a router's advertisement, as after a power cut of the DHCP server too; an API server with the other address ends at its start, and
/// would do so until somebody starts the kubelet anew. A machine that never had one is taken as it is.
///
/// # Errors
/// Names both addresses. The next start looks again.
pub(crate) fn refuse_another_version(world: &World, object: &Object) -> Result<()> {
    let Some(wanted) = object.wanted_version() else {
        return Ok(());
    };
    let known = known_address(world).unwrap_or_default();
    let host = address::host_and_port(&known).ok();
    let had = host.and_then(|(host, _)| address::parse(host));
    ensure!(
        had.map(IpVersion::of) != Some(wanted),
        "this machine has no default route of {wanted} now, and the API server of this node has the address {known}: with {} it would \
         end at its start, since the first subnet of services is of {wanted}; nothing is changed, and the kubelet's next start looks again",
        object.config.init.local_api_endpoint.advertise_address
    );
    Ok(())
}

/// Waits until no other process of this program writes keys, certificates or static pods, and keeps others from it until this ends:
/// what two of them decide by the same files does not fit together.
fn alone(world: &World) -> Result<fs::File> {
    lock(world, RUN_NODE_LOCK)
}

/// Refuses etcd data of another cluster, and data whose keys are not here.
fn refuse_data(world: &World, object: &Object, journal: Option<&Journal>) -> Result<()> {
    let Some(local) = &object.config.cluster.etcd.local else {
        return Ok(());
    };
    if local.data_dir == ETCD
        && let Some(other) = volume_cluster(world)?.filter(|cluster| cluster != object.name())
    {
        bail!(
            "the etcd volume at {ETCD} belongs to the cluster {other:?}, and {CLUSTER} names {:?}; nothing is changed",
            object.name()
        );
    }
    let data = world.in_initrd(&local.data_dir).join(MEMBER);
    let keys = world.in_initrd(&authority(object));
    ensure!(
        journal.is_some() || keys.exists() || !data.exists(),
        "{} holds the data of a cluster whose keys are not on this node ({} does not exist); nothing is changed: \
         restore the keys, or name an empty etcd volume",
        data.display(),
        authority(object)
    );
    Ok(())
}

/// The cluster that the etcd volume's identity file names, if it has one.
fn volume_cluster(world: &World) -> Result<Option<String>> {
    let file = world.in_initrd(ETCD).join(ETCD_IDENTITY);
    let about = || format!("reading the etcd volume's identity, {}", file.display());
    let Some(text) = atomic_file::read(&file).with_context(about)? else {
        return Ok(None);
    };
    let identity: EtcdIdentity = serde_json::from_slice(&text).with_context(about)?;
    Ok(Some(identity.cluster))
}

/// The file of the certificate of the cluster's authority.
pub(crate) fn authority(object: &Object) -> String {
    let folder = &object.config.cluster.certificates_dir;
    format!("{folder}/{}.crt", Authority::Kubernetes.file())
}

fn fingerprint(world: &World, object: &Object) -> Result<Option<String>> {
    let file = world.in_initrd(&authority(object));
    let text = atomic_file::read(&file).with_context(|| format!("reading {}", file.display()))?;
    Ok(text.map(|text| sha256(&text)))
}

/// SHA-256, hexadecimal.
pub(crate) fn sha256(content: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(content))
}

/// The network of pods: of the cluster's first node with the subnets of that until the API server knows its own. A file of the config
/// counts, whatever it holds. A further one has none before its subnets are known: pods that start earlier would have addresses of the
/// first node's, and the bridge its gateway's.
fn network(world: &World, object: &Object) -> Result<()> {
    let file = world.in_initrd(cni::FILE);
    match object.cni {
        Cni::Bridge if !file.exists() && object.further.is_none() => {
            cni::write(world, &object.first_pod_subnets(), None).map(drop)
        }
        Cni::Flannel => cni::withdraw(world),
        Cni::Bridge | Cni::None => Ok(()),
    }
}

/// Writes a file atomically, unless it is there with this text.
///
/// # Errors
/// Names the file.
pub(crate) fn write_changed(world: &World, path: &str, text: &str, mode: u32) -> Result<()> {
    let there = fs::read(world.in_initrd(path)).ok();
    if there.as_deref() == Some(text.as_bytes()) {
        return Ok(());
    }
    write(world, path, text, mode)
}

/// Writes a file atomically.
///
/// # Errors
/// Names the file.
pub(crate) fn write(world: &World, path: &str, text: &str, mode: u32) -> Result<()> {
    let file = world.in_initrd(path);
    folder(file.parent().unwrap_or(Path::new("/")), 0o755)?;
    atomic_file::write(&file, text.as_bytes(), mode)
        .with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests;
