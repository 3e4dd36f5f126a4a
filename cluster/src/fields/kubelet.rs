//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`. What the kubelet would end for is refused where a node is to
//! run by it: words and ranges are those of `pkg/kubelet/apis/config/validation`, and of the managers of processors, memory and topology.

use super::{
    AMOUNT, BIT, GATES, INT32, INT64, LOGGING, OOM_SCORE, PERCENT, PORT, TAINT, TEXT_MAP, TEXTS,
};
use crate::schema::{Field, Kind};

/// What the kubelet can enforce.
const ENFORCED: Kind = Kind::OneOf(&[
    "none",
    "pods",
    "kube-reserved",
    "kube-reserved-compressible",
    "system-reserved",
    "system-reserved-compressible",
]);

/// `KubeletConfiguration`, in the order of Go's type.
pub(crate) const KUBELET: &[Field] = &[
    Field::given("enableServer", Kind::Bool),
    Field::nonzero("staticPodPath", Kind::Text),
    Field::nonzero("podLogsDir", Kind::Text),
    Field::nonzero("syncFrequency", Kind::Duration),
    Field::nonzero("fileCheckFrequency", Kind::Duration),
    Field::nonzero("httpCheckFrequency", Kind::Duration),
    Field::nonzero("staticPodURL", Kind::Text),
    Field::nonzero("staticPodURLHeader", Kind::Map(&TEXTS)),
    Field::nonzero("address", Kind::Text),
    Field::nonzero("port", PORT),
    Field::nonzero("readOnlyPort", PORT),
    Field::nonzero("tlsCertFile", Kind::Text),
    Field::nonzero("tlsPrivateKeyFile", Kind::Text),
    Field::nonzero("tlsCipherSuites", TEXTS),
    Field::nonzero(
        "tlsMinVersion",
        Kind::OneOf(&[
            "VersionTLS10",
            "VersionTLS11",
            "VersionTLS12",
            "VersionTLS13",
        ]),
    ),
    Field::nonzero("tlsCurvePreferences", Kind::List(&INT32)).since(36),
    Field::nonzero("rotateCertificates", Kind::Bool),
    Field::nonzero("serverTLSBootstrap", Kind::Bool),
    Field::nonzero("authentication", Kind::Object(AUTHENTICATION)),
    Field::nonzero("authorization", Kind::Object(AUTHORIZATION)),
    Field::given("registryPullQPS", AMOUNT),
    Field::nonzero("registryBurst", AMOUNT),
    Field::nonzero(
        "imagePullCredentialsVerificationPolicy",
        Kind::OneOf(&[
            "AlwaysVerify",
            "NeverVerify",
            "NeverVerifyAllowlistedImages",
            "NeverVerifyPreloadedImages",
        ]),
    )
    .since(33),
    Field::nonzero("preloadedImagesVerificationAllowlist", TEXTS).since(33),
    Field::given("eventRecordQPS", AMOUNT),
    Field::nonzero("eventBurst", AMOUNT),
    Field::given("enableDebuggingHandlers", Kind::Bool),
    Field::nonzero("enableContentionProfiling", Kind::Bool),
    Field::given("healthzPort", PORT),
    Field::nonzero("healthzBindAddress", Kind::Text),
    Field::given("oomScoreAdj", OOM_SCORE),
    Field::nonzero("clusterDomain", Kind::Text),
    Field::nonzero("clusterDNS", TEXTS),
    Field::nonzero("streamingConnectionIdleTimeout", Kind::Duration),
    Field::nonzero("nodeStatusUpdateFrequency", Kind::Duration),
    Field::nonzero("nodeStatusReportFrequency", Kind::Duration),
    Field::nonzero("nodeLeaseDurationSeconds", AMOUNT),
    Field::nonzero("imageMinimumGCAge", Kind::Duration),
    Field::nonzero("imageMaximumGCAge", Kind::Duration),
    Field::given("imageGCHighThresholdPercent", PERCENT),
    Field::given("imageGCLowThresholdPercent", PERCENT),
    Field::nonzero("volumeStatsAggPeriod", Kind::Duration),
    Field::nonzero("kubeletCgroups", Kind::Text),
    Field::nonzero("systemCgroups", Kind::Text),
    Field::nonzero("cgroupRoot", Kind::Text),
    Field::given("cgroupsPerQOS", Kind::Bool),
    Field::nonzero("cgroupDriver", Kind::OneOf(&["cgroupfs", "systemd"])),
    Field::nonzero("cpuManagerPolicy", Kind::OneOf(&["none", "static"])),
    Field::given("singleProcessOOMKill", Kind::Bool),
    Field::nonzero("cpuManagerPolicyOptions", TEXT_MAP),
    Field::nonzero("cpuManagerReconcilePeriod", Kind::Duration),
    Field::nonzero("memoryManagerPolicy", Kind::OneOf(&["None", "Static"])),
    Field::nonzero(
        "topologyManagerPolicy",
        Kind::OneOf(&["none", "best-effort", "restricted", "single-numa-node"]),
    ),
    Field::nonzero("topologyManagerScope", Kind::OneOf(&["container", "pod"])),
    Field::nonzero("topologyManagerPolicyOptions", TEXT_MAP),
    Field::nonzero("qosReserved", TEXT_MAP),
    Field::nonzero("runtimeRequestTimeout", Kind::Duration),
    Field::nonzero(
        "hairpinMode",
        Kind::OneOf(&["hairpin-veth", "none", "promiscuous-bridge"]),
    ),
    Field::nonzero("maxPods", AMOUNT),
    Field::nonzero("podCIDR", Kind::Text),
    Field::given("podPidsLimit", INT64),
    Field::given("resolvConf", Kind::Text),
    Field::nonzero("runOnce", Kind::Bool),
    Field::given("cpuCFSQuota", Kind::Bool),
    Field::given("cpuCFSQuotaPeriod", Kind::Duration),
    Field::given("nodeStatusMaxImages", Kind::Int(-1, i32::MAX as i64)),
    Field::nonzero("maxOpenFiles", INT64),
    Field::nonzero("contentType", Kind::Text),
    Field::given("kubeAPIQPS", AMOUNT),
    Field::nonzero("kubeAPIBurst", AMOUNT),
    Field::given("serializeImagePulls", Kind::Bool),
    Field::given("maxParallelImagePulls", Kind::Int(1, i32::MAX as i64)),
    Field::nonzero("evictionHard", TEXT_MAP),
    Field::nonzero("evictionSoft", TEXT_MAP),
    Field::nonzero("evictionSoftGracePeriod", TEXT_MAP),
    Field::nonzero("evictionPressureTransitionPeriod", Kind::Duration),
    Field::nonzero("evictionMaxPodGracePeriod", INT32),
    Field::nonzero("evictionMinimumReclaim", TEXT_MAP),
    Field::given("mergeDefaultEvictionSettings", Kind::Bool).since(33),
    Field::nonzero("podsPerCore", AMOUNT),
    Field::given("enableControllerAttachDetach", Kind::Bool),
    Field::nonzero("protectKernelDefaults", Kind::Bool),
    Field::given("makeIPTablesUtilChains", Kind::Bool),
    Field::given("iptablesMasqueradeBit", BIT),
    Field::given("iptablesDropBit", BIT),
    Field::nonzero("featureGates", GATES),
    Field::given("failSwapOn", Kind::Bool),
    Field::nonzero(
        "memorySwap",
        Kind::Object(&[Field::nonzero(
            "swapBehavior",
            Kind::OneOf(&["LimitedSwap", "NoSwap"]),
        )]),
    ),
    Field::nonzero("containerLogMaxSize", Kind::Text),
    Field::given("containerLogMaxFiles", Kind::Int(2, i32::MAX as i64)),
    Field::given("containerLogMaxWorkers", Kind::Int(1, i32::MAX as i64)),
    Field::given("containerLogMonitorInterval", Kind::Duration),
    Field::nonzero(
        "configMapAndSecretChangeDetectionStrategy",
        Kind::OneOf(&["Cache", "Get", "Watch"]),
    ),
    Field::nonzero("systemReserved", TEXT_MAP),
    Field::nonzero("kubeReserved", TEXT_MAP),
    Field::nonzero("reservedSystemCPUs", Kind::Text),
    Field::nonzero("showHiddenMetricsForVersion", Kind::Text),
    Field::nonzero("systemReservedCgroup", Kind::Text),
    Field::nonzero("kubeReservedCgroup", Kind::Text),
    Field::nonzero("enforceNodeAllocatable", Kind::List(&ENFORCED)),
    Field::nonzero("allowedUnsafeSysctls", TEXTS),
    Field::nonzero("volumePluginDir", Kind::Text),
    Field::nonzero("providerID", Kind::Text),
    Field::nonzero("kernelMemcgNotification", Kind::Bool),
    Field::nonzero("logging", Kind::Object(LOGGING)),
    Field::given("enableSystemLogHandler", Kind::Bool),
    Field::given("enableSystemLogQuery", Kind::Bool),
    Field::nonzero("shutdownGracePeriod", Kind::Duration),
    Field::nonzero("shutdownGracePeriodCriticalPods", Kind::Duration),
    Field::nonzero(
        "shutdownGracePeriodByPodPriority",
        Kind::List(&Kind::Object(SHUTDOWN)),
    ),
    Field::nonzero("crashLoopBackOff", Kind::Object(CRASH_LOOP)),
    Field::nonzero("reservedMemory", Kind::List(&Kind::Object(RESERVED_MEMORY))),
    Field::given("enableProfilingHandler", Kind::Bool),
    Field::given("enableDebugFlagsHandler", Kind::Bool),
    Field::given("seccompDefault", Kind::Bool),
    Field::given("memoryThrottlingFactor", Kind::Float),
    Field::nonzero(
        "memoryReservationPolicy",
        Kind::OneOf(&["None", "TieredReservation"]),
    )
    .since(36),
    Field::nonzero("registerWithTaints", Kind::List(&Kind::Object(TAINT))),
    Field::given("registerNode", Kind::Bool),
    Field::given("tracing", Kind::Object(TRACING)),
    Field::given("localStorageCapacityIsolation", Kind::Bool),
    Field::always("containerRuntimeEndpoint", Kind::Text),
    Field::nonzero("imageServiceEndpoint", Kind::Text),
    Field::given("failCgroupV1", Kind::Bool),
    Field::given(
        "userNamespaces",
        Kind::Object(&[Field::given("idsPerPod", INT64)]),
    )
    .since(33),
];

const AUTHENTICATION: &[Field] = &[
    Field::nonzero(
        "x509",
        Kind::Object(&[Field::nonzero("clientCAFile", Kind::Text)]),
    ),
    Field::nonzero("webhook", Kind::Object(AUTHENTICATION_WEBHOOK)),
    Field::nonzero(
        "anonymous",
        Kind::Object(&[Field::given("enabled", Kind::Bool)]),
    ),
];

const AUTHENTICATION_WEBHOOK: &[Field] = &[
    Field::given("enabled", Kind::Bool),
    Field::nonzero("cacheTTL", Kind::Duration),
];

const AUTHORIZATION: &[Field] = &[
    Field::nonzero("mode", Kind::OneOf(&["AlwaysAllow", "Webhook"])),
    Field::nonzero("webhook", Kind::Object(AUTHORIZATION_WEBHOOK)),
];

const AUTHORIZATION_WEBHOOK: &[Field] = &[
    Field::nonzero("cacheAuthorizedTTL", Kind::Duration),
    Field::nonzero("cacheUnauthorizedTTL", Kind::Duration),
];

const SHUTDOWN: &[Field] = &[
    Field::always("priority", INT32),
    Field::always("shutdownGracePeriodSeconds", INT64),
];

const CRASH_LOOP: &[Field] = &[Field::given("maxContainerRestartPeriod", Kind::Duration)];

const RESERVED_MEMORY: &[Field] = &[
    Field::always("numaNode", INT32),
    Field::always("limits", Kind::Map(&Kind::Quantity)),
];

const TRACING: &[Field] = &[
    Field::given("endpoint", Kind::Text),
    Field::given("samplingRatePerMillion", INT32),
];
