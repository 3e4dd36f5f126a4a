//! References of container images.

/// Checks a name with a tag: `registry.example:5000/group/name:tag`.
pub(super) fn is_name(text: &str) -> Result<(), &'static str> {
    if text.contains('@') {
        return Err("it has a digest");
    }
    match repository(text)?.rsplit_once(':') {
        Some((_, tag)) if !tag.is_empty() && !tag.contains('/') => Ok(()),
        _ => Err("it has no tag"),
    }
}

/// Checks a reference with a digest.
pub(super) fn is_pinned(text: &str) -> Result<(), &'static str> {
    let (name, digest) = text
        .split_once('@')
        .ok_or("it has no digest, and a tag may change")?;
    repository(name)?;
    let digits = digest.strip_prefix("sha256:").unwrap_or_default();
    let good = digits.len() == 64
        && digits
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    good.then_some(()).ok_or("its digest is not a SHA-256")
}

/// What follows the registry.
fn repository(name: &str) -> Result<&str, &'static str> {
    let (registry, rest) = name.split_once('/').ok_or("it names no registry")?;
    let plain = rest
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "._-/:".contains(c));
    match registry.contains(['.', ':']) || registry == "localhost" {
        false => Err("it names no registry"),
        true if rest.is_empty() || !plain || rest.contains("..") => {
            Err("it has other characters than a-z 0-9 . _ - /")
        }
        true => Ok(rest),
    }
}
