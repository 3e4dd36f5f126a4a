//! Docker's registry: its name in references, its older name, and the host that answers for it.
//!
//! <https://github.com/distribution/reference/blob/v0.6.0/normalize.go>

/// Its name in references.
pub const NAME: &str = "docker.io";
/// Its older name, which clients turn into the other one.
pub const OLDER_NAME: &str = "index.docker.io";
/// The host that answers for it: that of its name has web pages.
pub const HOST: &str = "registry-1.docker.io";

/// The host that answers for the registry of a reference, `HOST[:PORT]`.
#[must_use]
pub fn host_of(registry: &str) -> &str {
    match registry {
        NAME => HOST,
        host => host,
    }
}
