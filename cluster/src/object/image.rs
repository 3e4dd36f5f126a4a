//! The node's image, as far as an object is read with it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// What the node's image brings, where the object says nothing.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The version of Kubernetes, as `v1.36.3`.
    pub version: String,
    /// Whether the node's kubelet is of this version: on a workstation nobody knows on which image an object will be.
    pub has_kubelet: bool,
    /// Names of components to the full references of their images.
    pub images: BTreeMap<String, String>,
    /// Names of those of them that run on all nodes to a name that leads to each node's own one, whichever version that is.
    pub baked: BTreeMap<String, String>,
    /// Whether these are all of them: an object is also read where nobody knows on which image it will be.
    pub known: bool,
    /// Fields of the kubelet's configuration that this system needs.
    pub kubelet: Map<String, Value>,
    /// A folder for FlexVolume plugins that can be written.
    pub flexvolume: String,
}

impl Image {
    /// The reference of a component's image by the name that leads to each node's own one, if it has such a name.
    pub(super) fn own_reference(&self, name: &str) -> Option<String> {
        let baked = self.baked.get(name);
        baked.or_else(|| self.images.get(name)).cloned()
    }
}
