//! A cluster that a node brought up is one of kubeadm's: its tools read, check, renew and extend it.

use std::fs;

use anyhow::{Context, Result, ensure};
use image::kubelet::ADMIN_KUBECONFIG;
use qemu_tests::lab::Lab;
use qemu_tests::running::Running;
use qemu_tests::timeouts;

use crate::cluster::{of_recipe, wait_ready};

/// What kubeadm says of a certificate or an authority that it does not find or cannot read.
const MISSING: [&str; 2] = ["!MISSING!", "<invalid>"];
/// All certificates, kubeconfigs and authorities of a control plane with its own etcd.
const CERTIFICATES: [&str; 13] = [
    "admin.conf",
    "apiserver",
    "apiserver-etcd-client",
    "apiserver-kubelet-client",
    "controller-manager.conf",
    "etcd-healthcheck-client",
    "etcd-peer",
    "etcd-server",
    "front-proxy-client",
    "scheduler.conf",
    "super-admin.conf",
    "etcd-ca",
    "front-proxy-ca",
];
/// Its check makes a Job whose image, pause of upstream's registry, is not in this image.
const PLAN: &str =
    "kubeadm upgrade plan $(kubeadm version -o short) --ignore-preflight-errors=CreateJob";

/// kubeadm finds each certificate, reads the cluster's configuration, finds it well and its components' versions, makes
/// tokens, and renews a certificate that the API server then serves with.
pub(crate) fn its_tools_read_a_cluster_of_ours(lab: &mut Lab) -> Result<()> {
    let (image, node, options) = of_recipe(lab, "qemu-tests/kubeadm")?;
    let running = lab.boot(&node, &options)?;
    wait_ready(&running)?;
    certificates(&running)?;
    plan(&running)?;
    tokens(&running)?;
    renewal(&running)?;
    running.power_off()?;
    fs::remove_dir_all(&image.out).context("removing the image")
}

fn kubeadm(running: &Running, command: &str) -> Result<String> {
    running.run_within(
        &format!("export KUBECONFIG={ADMIN_KUBECONFIG}\n{command} 2>&1"),
        timeouts::READY,
    )
}

fn certificates(running: &Running) -> Result<()> {
    let said = kubeadm(running, "kubeadm certs check-expiration")?;
    for word in MISSING {
        ensure!(!said.contains(word), "{word} in {said}");
    }
    for name in CERTIFICATES {
        let found = said
            .lines()
            .any(|line| line.split_whitespace().next() == Some(name));
        ensure!(found, "{name} is not in {said}");
    }
    Ok(())
}

fn plan(running: &Running) -> Result<()> {
    let said = kubeadm(running, PLAN)?;
    let version = kubeadm(running, "kubeadm version -o short")?;
    let version = version.trim();
    // kubeadm finds nothing to upgrade: it is of the cluster's own version.
    for line in [
        format!("Cluster version: {}", version.trim_start_matches('v')),
        format!("Target version: {version}"),
    ] {
        ensure!(said.contains(&line), "{line:?} is not in {said}");
    }
    let complaint = said.lines().find(|line| {
        ["could not", "[FATAL]", "unknown field", "lacks"]
            .iter()
            .any(|word| line.contains(word))
    });
    ensure!(complaint.is_none(), "{complaint:?} in {said}");
    Ok(())
}

fn tokens(running: &Running) -> Result<()> {
    let made = kubeadm(running, "kubeadm token create --print-join-command")?;
    let pin = made
        .split_whitespace()
        .any(|word| word.starts_with("sha256:"));
    ensure!(
        made.contains("kubeadm join ") && pin,
        "no way to join: {made}"
    );
    let token = made
        .split_whitespace()
        .skip_while(|word| *word != "--token")
        .nth(1);
    let token = token.context("finding the token")?.to_owned();
    let listed = kubeadm(running, "kubeadm token list")?;
    ensure!(listed.contains(&token), "{token} is not in {listed}");
    Ok(())
}

fn renewal(running: &Running) -> Result<()> {
    const SERIAL: &str = "kubeadm certs check-expiration -o json | grep -c notValidAfter; sha256sum /etc/kubernetes/pki/apiserver.crt";
    let before = kubeadm(running, SERIAL)?;
    kubeadm(running, "kubeadm certs renew apiserver")?;
    let after = kubeadm(running, SERIAL)?;
    ensure!(
        before != after,
        "the API server's certificate is the same: {after}"
    );
    certificates(running)?;
    // Ours reads what kubeadm wrote.
    let ours = kubeadm(running, "slipway-node certs")?;
    ensure!(ours.contains("apiserver"), "{ours}");
    Ok(())
}
