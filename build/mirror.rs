//! Judges the mirror that a distributor of the program sets when it is compiled: a build script and a test of `src/debian/mirror` share it.

/// Whether a build could use this URL: one by http or https, of a server.
pub(crate) fn is_usable(url: &str) -> bool {
    let is_server = |rest: &str| !rest.trim().is_empty() && !rest.starts_with('/');
    ["http://", "https://"]
        .iter()
        .any(|scheme| url.strip_prefix(scheme).is_some_and(is_server))
}
