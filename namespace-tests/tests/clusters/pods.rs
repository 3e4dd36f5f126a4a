//! Pods of the tests.

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
  - {{ name: usr, hostPath: {{ path: /usr/lib/slipway/kubelet/rootfs/usr }} }}
"
    )
}
