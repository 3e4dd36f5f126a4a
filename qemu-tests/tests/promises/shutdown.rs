//! A shutdown as a user asks for it, by systemd-logind, which the kubelet holds up until the pods have ended.

use anyhow::{Context, Result, ensure};
use image::kubelet::ADMIN_KUBECONFIG;
use image::paths::CLUSTER;
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;
use serde_json::json;
use slipway::vm::agent::data_url;

use crate::cluster::{OBJECT, expect, wait_ready};

/// Longer than logind allows by itself, so that its limit has to be raised for the kubelet.
const GRACE: &str = "[kubelet]\nconfig = { shutdownGracePeriod = \"90s\", shutdownGracePeriodCriticalPods = \"45s\" }\n";
/// A pod that takes a while to end, and writes when; one that ends for no signal.
const PODS: &str = r#"
until kubectl get serviceaccount default >/dev/null 2>&1; do sleep 1; done
mkdir -p /var/log/shutdown
pod() {
  kubectl apply -f - >/dev/null <<END
apiVersion: v1
kind: Pod
metadata: { name: $1 }
spec:
  terminationGracePeriodSeconds: 300
  volumes:
  - { name: usr, hostPath: { path: /usr/lib/slipway/kubelet/rootfs/usr } }
  - { name: log, hostPath: { path: /var/log/shutdown } }
  containers:
  - name: main
    image: slipway.local/pause:baked
    imagePullPolicy: Never
    command: [/usr/bin/bash, -c, "$2"]
    volumeMounts:
    - { name: usr, mountPath: /usr, readOnly: true }
    - { name: log, mountPath: /log }
END
}
pod polite "trap 'echo asked > /log/polite; sleep 5; echo ended >> /log/polite; exit 0' TERM; while :; do sleep 1; done"
pod stubborn "trap '' TERM; while :; do date +%s > /log/stubborn; sleep 1; done"
kubectl wait --for=condition=Ready pod/polite pod/stubborn --timeout=240s >/dev/null && echo ready
"#;
/// What the kubelet holds up a shutdown with, and logind's limit, µs.
const HELD: &str = "systemd-inhibit --list --no-legend --no-pager | grep -o 'kubelet.*delay' | tr -s ' '
busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec";
/// What a user types, once the agent has answered.
const POWER_OFF: &str =
    "(sleep 0.3; date +%s > /var/log/shutdown/begin; systemctl poweroff) >/dev/null 2>&1 &";
/// What the boot before left: the polite pod's words, and whether the stubborn one ran on for 20 s at least.
const LEFT: &str = r#"
cat /var/log/shutdown/polite
ran=$(( $(cat /var/log/shutdown/stubborn) - $(cat /var/log/shutdown/begin) ))
(( ran >= 20 && ran <= 90 )) && echo 'was waited for' || echo "ran $ran s"
"#;

/// The kubelet of a node with a grace period of 90 s is waited for: a pod ends in its own time, one that does not has the time for
/// ordinary pods, and the file systems are in order afterwards.
pub(crate) fn a_shutdown_waits_for_the_pods(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let object = format!("{OBJECT}{GRACE}");
    let options = BootOptions {
        config: Some(json!({
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [{
                "path": CLUSTER,
                "mode": 0o600,
                "contents": { "source": data_url(object.as_bytes()) },
            }]},
        })),
        ..BootOptions::default()
    };
    let mut running = lab.boot(&node, &options)?;
    wait_ready(&running)?;
    let held = running.run(HELD)?;
    ensure!(
        held.contains("kubelet") && held.contains("t 90000000"),
        "a shutdown is held up by {held:?}"
    );
    let ready = running.run_within(&as_admin(PODS), timeouts::READY)?;
    ensure!(ready.trim() == "ready", "the pods: {ready}");
    running.run(POWER_OFF)?;
    running.vm.wait_end(timeouts::SHUTDOWN)?;
    drop(running);

    let running = lab.boot(&node, &options)?;
    running.wait_agent()?;
    expect(&running, LEFT, "asked\nended\nwas waited for").with_context(|| journal(&running))?;
    running.power_off()
}

fn as_admin(script: &str) -> String {
    format!("export KUBECONFIG={ADMIN_KUBECONFIG}\n{script}")
}

fn journal(running: &Running) -> String {
    let script = "journalctl -b -1 --no-pager -o short-monotonic -u kubelet -u systemd-logind | grep -iv 'probe' | tail -n 60";
    running
        .ask(script)
        .map_or_else(|error| error.to_string(), |answer| answer.output)
}
