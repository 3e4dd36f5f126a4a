//! Paths of the image at which nothing of a recipe would be seen.

/// Folders under mounts of a running node: files of an image there would be hidden.
const COVERED: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/tmp"];

/// Links to such folders that systemd makes at boot where nothing is (its lines of tmpfiles.d(5)): a folder in the place of one would stay,
/// and programs would not find what others have in `/run`.
pub(super) const LINKS: [(&str, &str); 2] = [("/var/lock", "/run/lock"), ("/var/run", "/run")];

/// The reason why a path would be hidden on a running node.
pub(crate) fn covered(path: &str) -> Option<(String, &'static str)> {
    const EXPECTED: &str = "expected a path in /etc, /usr or another folder of the image";
    let below = |folder: &&&str| {
        path.strip_prefix(**folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let behind = |(link, _): &&(&str, &str)| {
        let rest = path.strip_prefix(link);
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    if let Some((link, target)) = LINKS.iter().find(behind) {
        let found =
            format!("{path} would never be seen: {link} leads to {target} on a running node");
        return Some((found, EXPECTED));
    }
    let folder = COVERED.iter().find(below)?;
    let found = format!("{path} would never be seen: {folder} is mounted over on a running node");
    Some((found, EXPECTED))
}
