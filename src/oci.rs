//! OCI images: writes layouts and archives, reads layouts, pulls by reference.
//!
//! Formats: <https://github.com/opencontainers/image-spec/tree/v1.1.1> (`image-layout.md`, `manifest.md`, `config.md`)
//! and <https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md>.

mod read;
mod reference;
mod registry;
mod types;
mod write;

pub use read::{Pulled, read_layout};
pub use reference::Reference;
pub use registry::pull;
pub use types::{Descriptor, Index, Manifest, RunConfig};
pub use write::{Blob, Image, layer, layer_of_tar, write_archive, write_layout};

/// A folder of an OCI layout that is named by a digest's algorithm.
const BLOBS: &str = "blobs/sha256";
/// The file that says that a folder is a layout.
const LAYOUT: &str = "oci-layout";
/// Its content.
const LAYOUT_TEXT: &str = "{\"imageLayoutVersion\":\"1.0.0\"}";
/// The file that names the images of a layout.
const INDEX: &str = "index.json";
