//! Pods of the tests.

use anyhow::{Result, ensure};
use image::kubelet::ADMIN_KUBECONFIG;
use image::paths::KUBELET_ROOTFS;
use namespace_tests::node::Node;

use crate::control_plane::PODS;

/// A pod `on-NODE` with the label `app: web`, that answers on port 8080 by what a program of the node makes: the images have no shell.
pub(crate) fn serving(node: &str, program: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{ name: on-{node}, labels: {{ app: web }} }}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: slipway.local/pause:baked
    imagePullPolicy: Never
    command: [/usr/bin/bash, -c]
    args: ['exec socat TCP6-LISTEN:8080,ipv6-v6only=0,fork,reuseaddr \"SYSTEM:{program}\"']
    readinessProbe: {{ tcpSocket: {{ port: 8080 }}, periodSeconds: 1 }}
    volumeMounts: [{{ name: usr, mountPath: /usr, readOnly: true }}]
  volumes:
  - {{ name: usr, hostPath: {{ path: {KUBELET_ROOTFS}/usr }} }}
"
    )
}

/// A pod `words` of the image that the recipe composes of packages: what its program says of its path and its user.
const OF_PACKAGES: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: words }
spec:
  restartPolicy: Never
  containers:
  - name: words
    image: registry.example/tools:1
    imagePullPolicy: Never
    args: [-Rnr, 'env.PATH, (inputs | select(startswith("Uid:")))', /proc/self/status]
"#;

/// An image of packages is known to containerd without an import, and its programs run as the user of the recipe.
pub(crate) fn an_image_of_packages_runs(node: &Node) -> Result<()> {
    node.run(&format!(
        "kubectl --kubeconfig {ADMIN_KUBECONFIG} apply -f - <<'END'\n{OF_PACKAGES}\nEND"
    ))?;
    let ended = format!(
        "kubectl --kubeconfig {ADMIN_KUBECONFIG} get pod words -o jsonpath='{{.status.phase}}' | grep -E 'Succeeded|Failed'"
    );
    let phase = node.wait_for("the pod of the image of packages", &ended, PODS)?;
    let said = node.kubectl("logs words")?;
    ensure!(phase.trim() == "Succeeded", "the pod {phase}: {said}");
    let path = said.lines().next().unwrap_or_default();
    ensure!(path.starts_with("/usr/local/sbin:"), "it said {said}");
    let user = said.lines().nth(1).unwrap_or_default();
    ensure!(user.starts_with("Uid:\t1000\t1000\t"), "it said {said}");
    Ok(())
}
