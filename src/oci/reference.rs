//! References to images, as `registry.example:5000/group/name:tag@sha256:…`.

use std::fmt;
use std::str::FromStr;

/// A reference with the registry's name: there is no default registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Host, with port if one is given.
    pub registry: String,
    /// Path of the repository.
    pub repository: String,
    /// Tag or digest that selects the manifest; the digest if both are given.
    pub version: String,
}

impl Reference {
    /// The same image by the digest of its manifest.
    #[must_use]
    pub fn at(&self, digest: &str) -> Self {
        Self {
            version: digest.to_owned(),
            ..self.clone()
        }
    }

    /// The digest, if the reference has one.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        self.version.contains(':').then_some(self.version.as_str())
    }
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "{text:?} is not an image reference: {why}; expected REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…"
            )
        };
        if has_login(text) {
            return Err(
                "an image reference has a user or a password; `docker login` keeps them".to_owned(),
            );
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let (registry, path) = name
            .split_once('/')
            .ok_or_else(|| wrong("it names no registry"))?;
        if !(registry.contains(['.', ':']) || registry == "localhost") {
            return Err(wrong("it names no registry"));
        }
        let (repository, tag) = match path.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (path, None),
        };
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
        if repository.is_empty() || !repository.chars().all(plain) || repository.contains("..") {
            return Err(wrong(
                "its repository has other characters than a-z 0-9 . _ - /",
            ));
        }
        if let Some(digest) = digest
            && super::read::sha256(digest).is_err()
        {
            return Err(wrong(
                "its digest is not of the form sha256: and 64 hexadecimal digits",
            ));
        }
        let version = digest.or(tag).ok_or_else(|| wrong("it has no tag"))?;
        if version.is_empty() || version.contains('/') {
            return Err(wrong("its tag is empty or has a slash"));
        }
        Ok(Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            version: version.to_owned(),
        })
    }
}

/// Whether a reference begins with a user or a password, which messages must not show.
#[must_use]
pub fn has_login(text: &str) -> bool {
    let registry = text.split_once('/').map(|(registry, _)| registry);
    registry.is_some_and(|registry| registry.contains('@'))
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.digest().is_some() { '@' } else { ':' };
        write!(
            f,
            "{}/{}{mark}{}",
            self.registry, self.repository, self.version
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, registry, repository, version) in [
            ("images.example/a/b:v1", "images.example", "a/b", "v1"),
            ("localhost:5000/k:1.2", "localhost:5000", "k", "1.2"),
            (&format!("r.example/k@{digest}"), "r.example", "k", &digest),
            (
                &format!("r.example/k:v1@{digest}"),
                "r.example",
                "k",
                &digest,
            ),
        ] {
            let found: Reference = text.parse().unwrap();
            assert_eq!(
                (&*found.registry, &*found.repository, &*found.version),
                (registry, repository, version)
            );
        }
        for wrong in [
            "kubelet:v1",
            "lib/kubelet:v1",
            "r.example/k",
            "r.example/K:1",
            "r.example/k@sha256:1",
            "r.example/k:",
            "r.example/../k:1",
            "joe:secret@r.example/k:1",
        ] {
            let why = wrong.parse::<Reference>().unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn a_reference_prints_as_it_is_read() {
        let reference: Reference = "r.example/k:v1".parse().unwrap();
        assert_eq!(reference.to_string(), "r.example/k:v1");
        let digest = format!("sha256:{}", "a".repeat(64));
        let pinned = reference.at(&digest).to_string();
        assert_eq!(pinned, format!("r.example/k@{digest}"));
        assert_eq!(
            pinned.parse::<Reference>().unwrap().digest(),
            Some(&*digest)
        );
    }
}
