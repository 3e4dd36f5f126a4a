//! The ways by which kube-proxy leads to services.

use std::fs;

use anyhow::{Context, Result};
use image::kubelet::ADMIN_KUBECONFIG;
use qemu_tests::lab::Lab;
use qemu_tests::running::Running;
use qemu_tests::timeouts;

use crate::cluster::{expect, of_recipe, wait_ready};

/// The recipe of the image with kube-proxy.
const IMAGE: &str = "recipes/cluster";
/// Sets the mode, as a user of a running cluster does, and waits for the pod that has it.
const SET: &str = r#"
kubectl -n kube-system get configmap kube-proxy -o yaml | sed 's/^\( *\)mode: .*/\1mode: "@MODE@"/' | kubectl apply -f - >/dev/null
kubectl -n kube-system rollout restart daemonset/kube-proxy >/dev/null
kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=240s >/dev/null
"#;
/// Makes a service of the API server with a name and an address that no earlier mode knew; prints the mode that kube-proxy has, and
/// what the API server answers at that address.
const LEADS: &str = r#"
kubectl apply -f - >/dev/null <<END
apiVersion: v1
kind: Service
metadata: { name: by-@MODE@ }
spec: { ports: [{ port: 443, targetPort: 6443 }] }
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: by-@MODE@, labels: { kubernetes.io/service-name: by-@MODE@ } }
addressType: IPv4
ports: [{ port: 6443 }]
endpoints: [{ addresses: [$(kubectl get nodes -o jsonpath='{.items[0].status.addresses[0].address}')] }]
END
address=$(kubectl get service by-@MODE@ -o jsonpath='{.spec.clusterIP}')
answer() {
  exec 3<>/dev/tcp/$1/$2 || return
  printf 'GET %s HTTP/1.0\r\n\r\n' $3 >&3
  timeout 10 cat <&3
}
for i in {1..60}; do
  mode=$(answer 127.0.0.1 10249 /proxyMode 2>/dev/null | tail -n1)
  [[ -n $mode ]] && break
  sleep 1
done
echo "$mode"
for i in {1..60}; do
  found=$(kubectl --server https://$address --tls-server-name kubernetes get --raw /readyz 2>&1) && break
  sleep 1
done
echo "$found"
"#;

/// A service is reached by nftables, which is the object's own choice, and by iptables and IPVS once they are set.
pub(crate) fn services_are_reached_in_each_mode(lab: &mut Lab) -> Result<()> {
    let (image, node, options) = of_recipe(lab, IMAGE)?;
    let running = lab.boot(&node, &options)?;
    wait_ready(&running)?;
    for mode in ["nftables", "iptables", "ipvs", "nftables"] {
        running
            .run_within(&as_admin(SET, mode), timeouts::READY)
            .with_context(|| journal(&running, mode))?;
        expect(&running, &as_admin(LEADS, mode), &format!("{mode}\nok"))
            .with_context(|| journal(&running, mode))?;
    }
    running.power_off()?;
    fs::remove_dir_all(&image.out).context("removing the image")
}

/// A script whose kubectl is the administrator's.
fn as_admin(script: &str, mode: &str) -> String {
    format!("export KUBECONFIG={ADMIN_KUBECONFIG}\n{script}").replace("@MODE@", mode)
}

fn journal(running: &Running, mode: &str) -> String {
    let script = "kubectl -n kube-system get pods; kubectl -n kube-system logs --tail=40 daemonset/kube-proxy";
    running
        .ask(&as_admin(script, mode))
        .map_or_else(|error| error.to_string(), |answer| answer.output)
}
