//! Kubelet: the container that it runs in, and what it needs of the node around it.

mod container;
mod node;

pub use container::{container_image, container_layer};
pub use node::{containers_layer, node_layer};
