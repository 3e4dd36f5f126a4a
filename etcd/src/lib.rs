//! The etcd volume: found by a stable name, formatted only when provably blank, proven to the kubelet's gate.

// Floor: which volume
pub mod find;

// Floor: whose
pub mod identity;

// Floor: the volume
pub mod volume;
