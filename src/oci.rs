//! OCI images: writes layouts and the documents of unpacked images, reads layouts, pulls by reference, merges
//! layers.
//!
//! Formats: <https://github.com/opencontainers/image-spec/tree/v1.1.1> (`image-layout.md`, `manifest.md`, `config.md`)
//! and <https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md>.

// Floor: documents
mod types;

// Floor: layouts
mod read;
mod write;

// Floor: references
mod reference;

// Floor: registries
mod registry;

// Floor: layers as files
mod merge;

// Floor: unpacked images
mod merged;

pub use merged::Merged;
pub use read::{Pulled, read_layout};
pub use reference::{Reference, has_login};
pub use registry::{Stored, pull, stored};
pub use types::RunConfig;
pub use write::{
    Blob, Image, Unpacked, layer, layer_of_tar, unpacked, write_archive, write_layout,
};
