//! Paths of the image at which nothing of a recipe would be seen.

/// Folders under mounts of a running node: files of an image there would be hidden.
const COVERED: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/tmp"];

/// The reason why a path would be hidden on a running node.
pub(crate) fn covered(path: &str) -> Option<(String, &'static str)> {
    let below = |folder: &&&str| {
        path.strip_prefix(**folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let folder = COVERED.iter().find(below)?;
    let found = format!("{path} would never be seen: {folder} is mounted over on a running node");
    Some((
        found,
        "expected a path in /etc, /usr or another folder of the image",
    ))
}
