//! The etcd volume: found by a stable name, formatted only when provably blank, recorded for the kubelet's gate.

// Floor: search
pub mod find;

// Floor: identity, records
pub mod identity;
pub mod note;
pub mod own;

// Floor: the release of etcd that the data needs
pub mod release;

// Floor: the node
mod context;

// Floor: formatting
mod format;

// Floor: acceptance
mod accept;

// Floor: mounting
pub mod volume;
