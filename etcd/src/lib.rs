//! The etcd volume: found by a stable name, formatted only when provably blank, proven to the kubelet's gate.

// Floor: search
pub mod find;

// Floor: identity
pub mod identity;

// Floor: format and mount
pub mod volume;
