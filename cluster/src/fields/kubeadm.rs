//! `InitConfiguration`, `ClusterConfiguration` and `JoinConfiguration` of `kubeadm.k8s.io/v1beta4`.

use super::{GATES, INT32, TAINT, TEXTS};
use crate::schema::{Field, Kind};

/// `InitConfiguration`.
pub(crate) const INIT: &[Field] = &[
    Field::nonzero("bootstrapTokens", Kind::List(&Kind::Object(TOKEN))),
    Field::nonzero("dryRun", Kind::Bool),
    Field::always("nodeRegistration", Kind::Object(NODE_REGISTRATION)),
    Field::always("localAPIEndpoint", Kind::Object(ENDPOINT)),
    Field::nonzero("certificateKey", Kind::Text),
    Field::nonzero("skipPhases", TEXTS),
    Field::given(
        "patches",
        Kind::Object(&[Field::nonzero("directory", Kind::Text)]),
    ),
    Field::given("timeouts", Kind::Object(TIMEOUTS)),
];

/// `ClusterConfiguration`.
pub(crate) const CLUSTER: &[Field] = &[
    Field::always("etcd", Kind::Object(ETCD)),
    Field::always("networking", Kind::Object(NETWORKING)),
    Field::nonzero("kubernetesVersion", Kind::Text),
    Field::nonzero("controlPlaneEndpoint", Kind::Text),
    Field::always("apiServer", Kind::Object(API_SERVER)),
    Field::always("controllerManager", Kind::Object(COMPONENT)),
    Field::always("scheduler", Kind::Object(COMPONENT)),
    Field::always("dns", Kind::Object(DNS)),
    Field::always(
        "proxy",
        Kind::Object(&[Field::nonzero("disabled", Kind::Bool)]),
    ),
    Field::nonzero("certificatesDir", Kind::Text),
    Field::nonzero("imageRepository", Kind::Text),
    Field::nonzero("featureGates", GATES),
    Field::nonzero("clusterName", Kind::Text),
    Field::nonzero("encryptionAlgorithm", Kind::Text),
    Field::given("certificateValidityPeriod", Kind::Duration),
    Field::given("caCertificateValidityPeriod", Kind::Duration),
];

/// `JoinConfiguration`. What it has in common with `InitConfiguration` is read as that.
pub(crate) const JOIN: &[Field] = &[
    Field::nonzero("dryRun", Kind::Bool),
    Field::always("nodeRegistration", Kind::Any),
    Field::always("caCertPath", Kind::Text),
    Field::always("discovery", Kind::Object(DISCOVERY)),
    Field::given("controlPlane", Kind::Object(CONTROL_PLANE)),
    Field::nonzero("skipPhases", Kind::Any),
    Field::given("patches", Kind::Any),
    Field::given("timeouts", Kind::Any),
];

const DISCOVERY: &[Field] = &[
    Field::given(
        "bootstrapToken",
        Kind::Object(&[
            // Read apart: a message must not repeat it.
            Field::always("token", Kind::Text),
            Field::nonzero("apiServerEndpoint", Kind::Text),
            Field::nonzero("caCertHashes", TEXTS),
            Field::nonzero("unsafeSkipCAVerification", Kind::Bool),
        ]),
    ),
    Field::given(
        "file",
        Kind::Object(&[Field::always("kubeConfigPath", Kind::Text)]),
    ),
    Field::nonzero("tlsBootstrapToken", Kind::Text),
];

const CONTROL_PLANE: &[Field] = &[
    Field::always("localAPIEndpoint", Kind::Any),
    Field::nonzero("certificateKey", Kind::Text),
];

const TOKEN: &[Field] = &[
    Field::always("token", Kind::Token),
    Field::nonzero("description", Kind::Text),
    Field::given("ttl", Kind::Duration),
    Field::given("expires", Kind::Text),
    Field::nonzero("usages", TEXTS),
    Field::nonzero("groups", TEXTS),
];

const NODE_REGISTRATION: &[Field] = &[
    Field::nonzero("name", Kind::Text),
    Field::nonzero("criSocket", Kind::Text),
    Field::always("taints", Kind::List(&Kind::Object(TAINT))),
    Field::nonzero("kubeletExtraArgs", ARGS),
    Field::nonzero("ignorePreflightErrors", TEXTS),
    Field::nonzero("imagePullPolicy", Kind::Text),
    Field::given("imagePullSerial", Kind::Bool),
];

const ENDPOINT: &[Field] = &[
    Field::nonzero("advertiseAddress", Kind::Text),
    Field::nonzero("bindPort", INT32),
];

const TIMEOUTS: &[Field] = &[
    Field::given("controlPlaneComponentHealthCheck", Kind::Duration),
    Field::given("kubeletHealthCheck", Kind::Duration),
    Field::given("kubernetesAPICall", Kind::Duration),
    Field::given("etcdAPICall", Kind::Duration),
    Field::given("tlsBootstrap", Kind::Duration),
    Field::given("discovery", Kind::Duration),
    Field::given("upgradeManifests", Kind::Duration),
];

const ARGS: Kind = Kind::List(&Kind::Object(&[
    Field::always("name", Kind::Text),
    Field::always("value", Kind::Text),
]));

const ENVS: Kind = Kind::List(&Kind::Object(&[
    Field::always("name", Kind::Text),
    Field::nonzero("value", Kind::Text),
    Field::given("valueFrom", Kind::Object(SOURCE)),
]));

/// Where an environment variable's value is taken from: `EnvVarSource` of the core group.
const SOURCE: &[Field] = &[
    Field::given("fieldRef", Kind::Object(POD_FIELD)),
    Field::given("resourceFieldRef", Kind::Object(RESOURCE_FIELD)),
    Field::given("configMapKeyRef", Kind::Object(KEY)),
    Field::given("secretKeyRef", Kind::Object(KEY)),
    Field::given("fileKeyRef", Kind::Object(FILE_KEY)).since(34),
];

const POD_FIELD: &[Field] = &[
    Field::nonzero("apiVersion", Kind::Text),
    Field::always("fieldPath", Kind::Text),
];

const RESOURCE_FIELD: &[Field] = &[
    Field::nonzero("containerName", Kind::Text),
    Field::always("resource", Kind::Text),
    Field::always("divisor", Kind::Quantity),
];

const KEY: &[Field] = &[
    Field::nonzero("name", Kind::Text),
    Field::always("key", Kind::Text),
    Field::given("optional", Kind::Bool),
];

const FILE_KEY: &[Field] = &[
    Field::always("volumeName", Kind::Text),
    Field::always("path", Kind::Text),
    Field::always("key", Kind::Text),
    Field::given("optional", Kind::Bool),
];

const VOLUMES: Kind = Kind::List(&Kind::Object(&[
    Field::always("name", Kind::Text),
    Field::always("hostPath", Kind::Text),
    Field::always("mountPath", Kind::Text),
    Field::nonzero("readOnly", Kind::Bool),
    Field::nonzero("pathType", Kind::Text),
]));

const COMPONENT: &[Field] = &[
    Field::nonzero("extraArgs", ARGS),
    Field::nonzero("extraVolumes", VOLUMES),
    Field::nonzero("extraEnvs", ENVS),
];

const API_SERVER: &[Field] = &[
    Field::nonzero("extraArgs", ARGS),
    Field::nonzero("extraVolumes", VOLUMES),
    Field::nonzero("extraEnvs", ENVS),
    Field::nonzero("certSANs", TEXTS),
];

const ETCD: &[Field] = &[
    Field::given("local", Kind::Object(LOCAL_ETCD)),
    Field::given("external", Kind::Object(EXTERNAL_ETCD)),
];

const LOCAL_ETCD: &[Field] = &[
    Field::nonzero("imageRepository", Kind::Text),
    Field::nonzero("imageTag", Kind::Text),
    Field::always("dataDir", Kind::Text),
    Field::nonzero("extraArgs", ARGS),
    Field::nonzero("extraEnvs", ENVS),
    Field::nonzero("serverCertSANs", TEXTS),
    Field::nonzero("peerCertSANs", TEXTS),
];

const EXTERNAL_ETCD: &[Field] = &[
    Field::always("endpoints", TEXTS),
    Field::nonzero("httpEndpoints", TEXTS).since(35),
    Field::always("caFile", Kind::Text),
    Field::always("certFile", Kind::Text),
    Field::always("keyFile", Kind::Text),
];

const NETWORKING: &[Field] = &[
    Field::nonzero("serviceSubnet", Kind::Text),
    Field::nonzero("podSubnet", Kind::Text),
    Field::nonzero("dnsDomain", Kind::Text),
];

const DNS: &[Field] = &[
    Field::nonzero("imageRepository", Kind::Text),
    Field::nonzero("imageTag", Kind::Text),
    Field::nonzero("disabled", Kind::Bool),
];
