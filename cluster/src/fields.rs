//! The fields of the kinds, as Go's types declare them.

mod kube_proxy;
mod kubeadm;
mod kubelet;

pub(crate) use kube_proxy::KUBE_PROXY;
pub(crate) use kubeadm::{CLUSTER, INIT, JOIN};
pub(crate) use kubelet::KUBELET;

use crate::schema::{Field, Kind};

const INT32: Kind = Kind::Int(i32::MIN as i64, i32::MAX as i64);
const INT64: Kind = Kind::Int(i64::MIN, i64::MAX);
/// An amount of 32 bits that is not negative.
const AMOUNT: Kind = Kind::Int(0, i32::MAX as i64);
/// A port, or 0 for none or for the default.
const PORT: Kind = Kind::Int(0, 65535);
const PERCENT: Kind = Kind::Int(0, 100);
/// A bit of a packet's mark.
const BIT: Kind = Kind::Int(0, 31);
const OOM_SCORE: Kind = Kind::Int(-1000, 1000);
const TEXTS: Kind = Kind::List(&Kind::Text);
const TEXT_MAP: Kind = Kind::Map(&Kind::Text);
const GATES: Kind = Kind::Map(&Kind::Bool);

/// A taint of a node.
const TAINT: &[Field] = &[
    Field::always("key", Kind::Text),
    Field::nonzero("value", Kind::Text),
    Field::always(
        "effect",
        Kind::OneOf(&["NoExecute", "NoSchedule", "PreferNoSchedule"]),
    ),
    Field::given("timeAdded", Kind::Text),
];

/// The logging of a component.
const LOGGING: &[Field] = &[
    Field::nonzero("format", Kind::OneOf(&["json", "text"])),
    Field::always("flushFrequency", Kind::Nanoseconds),
    Field::always("verbosity", Kind::Int(0, u32::MAX as i64)),
    Field::nonzero("vmodule", Kind::List(&Kind::Object(VMODULE))),
    Field::nonzero("options", Kind::Object(LOG_OPTIONS)),
];

const VMODULE: &[Field] = &[
    Field::always("filePattern", Kind::Text),
    Field::always("verbosity", Kind::Int(0, u32::MAX as i64)),
];

const LOG_OPTIONS: &[Field] = &[
    Field::nonzero("text", Kind::Object(LOG_ROUTING)),
    Field::nonzero("json", Kind::Object(LOG_ROUTING)),
];

const LOG_ROUTING: &[Field] = &[
    Field::nonzero("splitStream", Kind::Bool),
    Field::always("infoBufferSize", Kind::Quantity),
];
