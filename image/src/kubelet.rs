//! The kubelet's container: the one table of mounts that makes both the OCI spec and the mount targets in the image.

/// Whether and how mounts cross a bind, as in `mount_namespaces(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Both ways.
    Shared,
    /// From the host into the container only.
    Slave,
    /// Neither way.
    Private,
}
