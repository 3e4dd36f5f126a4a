//! Volumes that the kubelet, in its container, mounts by programs of the container and of the host.

use std::fs;

use anyhow::{Context, Result, ensure};
use image::kubelet::{ADMIN_KUBECONFIG, PAUSE_IMAGE};
use qemu_tests::lab::Lab;
use qemu_tests::running::Running;
use qemu_tests::timeouts;

use crate::cluster::{expect, of_recipe, wait_ready};

/// The recipe of the image with open-iscsi, a target and a server of NFS.
const IMAGE: &str = "qemu-tests/volumes";
/// Makes what the servers give, and starts them.
const SERVERS: &str = r"
set -e
mkdir -p /var/srv/nfs
[ -e /var/srv/disk ] || truncate -s 64M /var/srv/disk
systemctl restart nfs-server tgt
showmount -e --no-headers 127.0.0.1 || exportfs -v
tgtadm --mode target --op show | grep -A2 iqn.2026-11.test:disk
";
/// A pod that writes to both volumes. pause's image has no shell; that of the kubelet's container is lent to it.
const POD: &str = r#"
until kubectl get serviceaccount default >/dev/null 2>&1; do sleep 1; done
kubectl apply -f - <<'END'
apiVersion: v1
kind: Pod
metadata: { name: writer }
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: writer
    image: @IMAGE@
    imagePullPolicy: Never
    command: [/usr/bin/bash, -ec]
    args: ['echo by-nfs >/nfs/word; echo by-iscsi >/disk/word; sync; exec sleep infinity']
    readinessProbe: { exec: { command: [/usr/bin/test, -e, /disk/word] }, periodSeconds: 2 }
    volumeMounts:
    - { name: usr, mountPath: /usr, readOnly: true }
    - { name: nfs, mountPath: /nfs }
    - { name: disk, mountPath: /disk }
  volumes:
  - { name: usr, hostPath: { path: /usr/lib/slipway/kubelet/rootfs/usr } }
  - { name: nfs, nfs: { server: 127.0.0.1, path: /var/srv/nfs } }
  - { name: disk, iscsi: { targetPortal: '127.0.0.1:3260', iqn: 'iqn.2026-11.test:disk', lun: 1, fsType: ext4 } }
END
kubectl wait --for=condition=Ready pod/writer --timeout=240s
"#;
/// What the pod wrote, as the server of NFS has it, and as another reader of the same session finds it.
const WRITTEN: &str = r"
cat /var/srv/nfs/word
kubectl exec writer -- /usr/bin/cat /disk/word
iscsiadm -m session | grep -c iqn.2026-11.test:disk
";
/// Removes the pod, and waits until nothing of its volumes is mounted and the session is closed.
const REMOVED: &str = r"
kubectl delete pod writer --timeout=120s >/dev/null
for i in {1..60}; do
  left=$(findmnt -rno TARGET | grep -E 'kubernetes.io~nfs|iscsi'; iscsiadm -m session 2>/dev/null)
  [[ -z $left ]] && { echo nothing; exit; }
  sleep 1
done
echo $left
";

/// A pod has a volume by NFS and one by iSCSI, formats and fills it, and leaves neither a mount nor a session; after a restart the
/// target's disk has what was written.
pub(crate) fn a_pod_has_volumes_by_nfs_and_iscsi(lab: &mut Lab) -> Result<()> {
    let (image, node, options) = of_recipe(lab, IMAGE)?;
    let running = lab.boot(&node, &options)?;
    wait_ready(&running)?;
    let name = running.run("cat /etc/iscsi/initiatorname.iscsi")?;
    ensure!(name.contains("InitiatorName=iqn."), "{name}");
    writes(&running)?;
    expect(&running, &as_admin(WRITTEN), "by-nfs\nby-iscsi\n1")
        .with_context(|| journal(&running))?;
    expect(&running, &as_admin(REMOVED), "nothing").with_context(|| journal(&running))?;
    running.power_off()?;

    let running = lab.boot(&node, &options)?;
    wait_ready(&running).context("after a restart")?;
    expect(&running, "cat /etc/iscsi/initiatorname.iscsi", &name).context("after a restart")?;
    writes(&running).context("after a restart")?;
    expect(&running, &as_admin(WRITTEN), "by-nfs\nby-iscsi\n1")
        .with_context(|| journal(&running))?;
    // A node that goes down while its pods have such volumes comes to an end.
    running.power_off()?;
    fs::remove_dir_all(&image.out).context("removing the image")
}

/// A script whose kubectl is the administrator's.
fn as_admin(script: &str) -> String {
    format!("export KUBECONFIG={ADMIN_KUBECONFIG}\n{script}")
}

fn writes(running: &Running) -> Result<()> {
    running.run(SERVERS)?;
    let pod = as_admin(&POD.replace("@IMAGE@", PAUSE_IMAGE));
    let made = running.run_within(&pod, timeouts::READY);
    made.with_context(|| journal(running)).map(drop)
}

/// What the kubelet and the daemon said of it.
fn journal(running: &Running) -> String {
    let script = "kubectl describe pod writer | tail -n 20
         journalctl -b --no-pager -o short-monotonic -u kubelet -u iscsid -u tgt -u nfs-server -u rpc-statd | tail -n 60";
    running
        .ask(&as_admin(script))
        .map_or_else(|error| error.to_string(), |answer| answer.output)
}
