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

/// The newest of these releases that satisfies the recipe.
pub(super) fn newest<'a>(
    releases: impl IntoIterator<Item = &'a str>,
    wanted: &str,
) -> Option<&'a str> {
    releases
        .into_iter()
        .filter(|release| fits(release, wanted))
        .max_by_key(|release| parse(release))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_patch_of_the_minor_is_taken() {
        let list = [
            "v1.35.9",
            "v1.36.0",
            "v1.36.9",
            "v1.36.10",
            "v1.36.11-rc.0",
            "v1.37.0",
        ];
        for (wanted, expected) in [
            ("1.36", Some("v1.36.10")),
            ("1.36.9", Some("v1.36.9")),
            ("1.36.1", None),
            ("1.3", None),
            ("1.34", None),
        ] {
            assert_eq!(newest(list, wanted), expected, "{wanted}");
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
