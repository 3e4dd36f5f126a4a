//! The etcd volume: found by a stable name, formatted only when provably blank, recorded for the kubelet's gate.

// Floor: search
pub mod find;

// Floor: identity
pub mod identity;

// Floor: format and mount
pub mod volume;
