//! kube-scheduler.

use serde_json::json;

use super::{Pod, command, credentials, environment};
use crate::arguments::{arg, merged};
use crate::config::Config;
use crate::host::Host;
use crate::images;
use crate::probes::Target;
use crate::types::argument;
use crate::volumes::Volumes;

/// Its kubeconfig.
const KUBECONFIG: &str = "/etc/kubernetes/scheduler.conf";

pub(super) fn pod(config: &Config, host: &Host) -> Pod {
    let scheduler = &config.cluster.scheduler;
    let target =
        Target::https(argument(&scheduler.extra_args, "bind-address").unwrap_or("127.0.0.1"));
    let volumes = Volumes::scheduler(config);
    let own = vec![
        arg("authentication-kubeconfig", KUBECONFIG),
        arg("authorization-kubeconfig", KUBECONFIG),
        arg("bind-address", "127.0.0.1"),
        arg("kubeconfig", KUBECONFIG),
        arg("leader-elect", "true"),
    ];
    Pod {
        name: "kube-scheduler",
        image: images::kubernetes(config, "kube-scheduler"),
        command: command("kube-scheduler", merged(own, &scheduler.extra_args)),
        annotations: credentials(config, "kube-scheduler"),
        env: environment(&host.proxies, &scheduler.extra_envs),
        port: 10259,
        probes: vec![
            ("livenessProbe", target.liveness("/livez")),
            ("readinessProbe", target.readiness("/readyz")),
            ("startupProbe", target.startup("/livez", config)),
        ],
        requests: json!({"cpu": "100m"}),
        mounts: volumes.mounts(),
        volumes: volumes.volumes(),
    }
}
