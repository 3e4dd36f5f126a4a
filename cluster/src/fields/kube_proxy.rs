//! `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`. What kube-proxy would end for is refused where a node is
//! to run by it: words and ranges are those of `pkg/proxy/apis/config/validation`.

use super::{BIT, GATES, INT32, LOGGING, OOM_SCORE, TEXTS};
use crate::schema::{Field, Kind};

/// `KubeProxyConfiguration`.
pub(crate) const KUBE_PROXY: &[Field] = &[
    Field::nonzero("featureGates", GATES),
    Field::always("clientConnection", Kind::Object(CLIENT_CONNECTION)),
    Field::nonzero("logging", Kind::Object(LOGGING)),
    Field::always("hostnameOverride", Kind::Text),
    Field::always("bindAddress", Kind::Text),
    Field::always("healthzBindAddress", Kind::Text),
    Field::always("metricsBindAddress", Kind::Text),
    Field::always("bindAddressHardFail", Kind::Bool),
    Field::always("enableProfiling", Kind::Bool),
    Field::always("showHiddenMetricsForVersion", Kind::Text),
    Field::always("mode", Kind::OneOf(&["iptables", "ipvs", "nftables"])),
    Field::always("iptables", Kind::Object(IPTABLES)),
    Field::always("ipvs", Kind::Object(IPVS)),
    Field::always("nftables", Kind::Object(NFTABLES)),
    Field::always("winkernel", Kind::Object(WINKERNEL)),
    Field::always(
        "detectLocalMode",
        Kind::OneOf(&[
            "BridgeInterface",
            "ClusterCIDR",
            "InterfaceNamePrefix",
            "NodeCIDR",
        ]),
    ),
    Field::always("detectLocal", Kind::Object(DETECT_LOCAL)),
    Field::always("clusterCIDR", Kind::Text),
    Field::always("nodePortAddresses", TEXTS),
    Field::nullable("oomScoreAdj", OOM_SCORE),
    Field::always("conntrack", Kind::Object(CONNTRACK)),
    Field::always("configSyncPeriod", Kind::Duration),
    Field::always("portRange", Kind::Text),
    Field::nonzero("windowsRunAsService", Kind::Bool),
];

const CLIENT_CONNECTION: &[Field] = &[
    Field::always("kubeconfig", Kind::Text),
    Field::always("acceptContentTypes", Kind::Text),
    Field::always("contentType", Kind::Text),
    Field::always("qps", Kind::Single),
    Field::always("burst", INT32),
];

const IPTABLES: &[Field] = &[
    Field::nullable("masqueradeBit", BIT),
    Field::always("masqueradeAll", Kind::Bool),
    Field::nullable("localhostNodePorts", Kind::Bool),
    Field::always("syncPeriod", Kind::Duration),
    Field::always("minSyncPeriod", Kind::Duration),
];

const IPVS: &[Field] = &[
    Field::always("syncPeriod", Kind::Duration),
    Field::always("minSyncPeriod", Kind::Duration),
    Field::always(
        "scheduler",
        Kind::OneOf(&[
            "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq",
        ]),
    ),
    Field::always("excludeCIDRs", TEXTS),
    Field::always("strictARP", Kind::Bool),
    Field::always("tcpTimeout", Kind::Duration),
    Field::always("tcpFinTimeout", Kind::Duration),
    Field::always("udpTimeout", Kind::Duration),
];

const NFTABLES: &[Field] = &[
    Field::nullable("masqueradeBit", BIT),
    Field::always("masqueradeAll", Kind::Bool),
    Field::always("syncPeriod", Kind::Duration),
    Field::always("minSyncPeriod", Kind::Duration),
];

const WINKERNEL: &[Field] = &[
    Field::always("networkName", Kind::Text),
    Field::always("sourceVip", Kind::Text),
    Field::always("enableDSR", Kind::Bool),
    Field::always("rootHnsEndpointName", Kind::Text),
    Field::always("forwardHealthCheckVip", Kind::Bool),
];

const DETECT_LOCAL: &[Field] = &[
    Field::always("bridgeInterface", Kind::Text),
    Field::always("interfaceNamePrefix", Kind::Text),
];

const CONNTRACK: &[Field] = &[
    Field::nullable("maxPerCore", INT32),
    Field::nullable("min", INT32),
    Field::nullable("tcpEstablishedTimeout", Kind::Duration),
    Field::nullable("tcpCloseWaitTimeout", Kind::Duration),
    Field::always("tcpBeLiberal", Kind::Bool),
    Field::always("udpTimeout", Kind::Duration),
    Field::always("udpStreamTimeout", Kind::Duration),
];
