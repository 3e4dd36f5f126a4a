//! The etcd disk: found by a stable name, formatted only when provably blank, proven to the kubelet gate.
