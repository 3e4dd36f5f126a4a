//! A worker that was off until its certificate ended.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use namespace_tests::lab::Lab;

use crate::control_plane::{OBJECT, PODS, READY};
use crate::join::ticket;

/// How long the certificates are valid that the cluster signs.
const VALIDITY: Duration = Duration::from_secs(60);
/// The administrator's kubeadm.
const KUBEADM: &str = "KUBECONFIG=/etc/kubernetes/admin.conf kubeadm";

/// It joins again with a token that is valid, waits and says so while there is none, and is the same Node.
pub(crate) fn a_worker_whose_certificate_has_ended_joins_again(lab: &mut Lab) -> Result<()> {
    let signs = format!(
        "{OBJECT}[controller-manager]\nargs = {{ cluster-signing-duration = \"{}s\" }}\n",
        VALIDITY.as_secs()
    );
    let mut first = lab.control_plane("cp1", 11, &signs)?;
    first.start(&lab.hub)?;
    first.wait_ready(READY)?;
    let ticket = ticket(&first)?;
    let mut worker = lab.worker("w1", 21, &ticket.object("lab", false))?;
    worker.start(&lab.hub)?;
    worker.wait_ready(READY)?;
    let identity = "get node w1 -o jsonpath='{.metadata.uid}'";
    let before = first.kubectl(identity)?;
    worker.cut()?;
    sleep(VALIDITY + Duration::from_secs(5));

    let (id, _) = ticket.token.split_once('.').context("a token")?;
    first.run(&format!("{KUBEADM} token delete {id}"))?;
    worker.start(&lab.hub)?;
    let waits = "slipway-node status | grep 'is not signed for the token'";
    worker.wait_for("the word of the token", waits, PODS)?;
    worker
        .run(
            "! openssl x509 -checkend 0 -noout -in /var/lib/kubelet/pki/kubelet-client-current.pem",
        )
        .context("the certificate has not ended")?;
    first.run(&format!("{KUBEADM} token create {}", ticket.token))?;
    worker.wait_ready(READY)?;
    worker
        .run("openssl x509 -checkend 0 -noout -in /var/lib/kubelet/pki/kubelet-client-current.pem")
        .context("the certificate is not a new one")?;
    let after = first.kubectl(identity)?;
    ensure!(
        before == after,
        "it is another Node: {before}, then {after}"
    );
    Ok(())
}
