//! OCI images: layouts and archives that other tools can read.
