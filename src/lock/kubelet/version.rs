//! Kubernetes releases: `1.36` and `1.36.3`, with or without the `v`.

/// Parses a release, with or without `v`: major, minor, patch. A pre-release gives none.
pub(super) fn parse(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.strip_prefix('v').unwrap_or(text).split('.');
    let mut number = || -> Option<u32> {
        let part = parts.next()?;
        part.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| part.parse().ok())?
    };
    let release = (number()?, number()?, number()?);
    parts.next().is_none().then_some(release)
}

/// Whether a release satisfies the recipe: `1.36` accepts any patch of that minor, `1.36.3` that one only.
pub(super) fn fits(release: &str, wanted: &str) -> bool {
    let Some((major, minor, patch)) = parse(release) else {
        return false;
    };
    format!("{major}.{minor}") == wanted || format!("{major}.{minor}.{patch}") == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minor_fits_any_patch_of_it() {
        for (release, wanted, fit) in [
            ("v1.36.10", "1.36", true),
            ("v1.36.9", "1.36.9", true),
            ("v1.36.10", "1.36.1", false),
            ("v1.36.11-rc.0", "1.36", false),
            ("v1.36.3", "1.3", false),
        ] {
            assert_eq!(fits(release, wanted), fit, "{release} {wanted}");
        }
    }

    #[test]
    fn what_is_no_release_is_none() {
        for text in [
            "",
            "v1",
            "1.36",
            "1.36.3.4",
            "1.36.3-rc.1",
            "1.+36.3",
            "v1.36.",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("v1.36.3"), Some((1, 36, 3)));
    }
}
