//! YAML as kubeadm reads and writes it, by the rules of Go's `sigs.k8s.io/yaml`.

mod read;
mod scalar;
mod write;

pub use read::{Content, Node, document, split};
pub use write::write;
