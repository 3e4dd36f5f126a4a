//! References of container images that containerd and the kubelet can use
//! (grammar: <https://pkg.go.dev/github.com/distribution/reference>).

use std::net::Ipv6Addr;

use fetch::docker_hub;
use image::container_images::REGISTRY;

/// The most characters of a registry and a repository together.
const LONGEST: usize = 255;

/// Checks a name with a tag, by which pods find an image: `registry.example:5000/group/name:tag`.
pub(super) fn is_name(text: &str) -> Result<(), &'static str> {
    if text.contains('@') {
        return Err("it has a digest");
    }
    let Name {
        registry,
        repository,
        tag,
    } = parsed(text)?;
    // containerd looks for the names that pods give by other ones, and would not find an image by these.
    match registry {
        REGISTRY => Err("slipway.local/ is for the images that Slipway itself makes"),
        docker_hub::OLDER_NAME => {
            Err("containerd looks for the images of that registry as docker.io/…")
        }
        docker_hub::NAME if !repository.contains('/') => {
            Err("containerd looks for it as docker.io/library/NAME")
        }
        _ => tag.map(drop).ok_or("it has no tag"),
    }
}

/// Checks a reference with a digest by which pods find the image too, without the digest if it has a tag.
pub(super) fn is_pinned_name(text: &str) -> Result<(), &'static str> {
    is_pinned(text)?;
    let (name, _) = text.split_once('@').unwrap_or_default();
    let Name { tag, .. } = parsed(name)?;
    match tag {
        Some(_) => is_name(name),
        None => is_name(&format!("{name}:0")),
    }
}

/// Checks a reference with a digest, which an image is pulled by.
pub(super) fn is_pinned(text: &str) -> Result<(), &'static str> {
    let (name, digest) = text
        .split_once('@')
        .ok_or("it has no digest, and a tag may change")?;
    parsed(name)?;
    let digits = digest.strip_prefix("sha256:").unwrap_or_default();
    let good = digits.len() == 64
        && digits
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    good.then_some(()).ok_or("its digest is not a SHA-256")
}

/// The parts of a name without a digest.
struct Name<'n> {
    registry: &'n str,
    repository: &'n str,
    tag: Option<&'n str>,
}

fn parsed(name: &str) -> Result<Name<'_>, &'static str> {
    let (registry, rest) = name.split_once('/').ok_or("it names no registry")?;
    if !registry.contains(['.', ':']) && registry != "localhost" {
        return Err("it names no registry");
    }
    if !is_registry(registry) {
        return Err("its registry is not a host with or without a port");
    }
    let (repository, tag) = match rest.rsplit_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (rest, None),
    };
    let plain = |c: char| is_letter(c) || "._-/".contains(c);
    if repository.is_empty() || !repository.chars().all(plain) || repository.contains("..") {
        return Err("it has other characters than a-z 0-9 . _ - /");
    }
    if !repository.split('/').all(is_part) {
        return Err("a part of its path is not of the form a-z 0-9 with . _ __ - between");
    }
    if registry.len() + 1 + repository.len() > LONGEST {
        return Err("it has more than 255 characters before the tag");
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("its tag is not 1 to 128 of A-Z a-z 0-9 _ . -, the first one no . or -");
    }
    Ok(Name {
        registry,
        repository,
        tag,
    })
}

fn is_letter(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Whether a text is a host's name or address, with or without a port.
fn is_registry(text: &str) -> bool {
    let in_brackets = text.strip_prefix('[').and_then(|text| text.split_once(']'));
    let (is_host, rest) = match in_brackets {
        Some((address, rest)) => (address.parse::<Ipv6Addr>().is_ok(), rest),
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (text[..end].split('.').all(is_label), &text[end..])
        }
    };
    let is_port = |port: &str| {
        port.bytes().all(|digit| digit.is_ascii_digit()) && port.parse::<u16>().is_ok()
    };
    is_host && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

/// Whether a text is a part of a host's name.
fn is_label(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    !text.is_empty() && text.chars().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether a text is a part of a repository's path: letters and digits, and one `.`, one or two `_` or any number of `-` between them.
fn is_part(text: &str) -> bool {
    let separator = |between: &str| {
        matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-')
    };
    text.starts_with(is_letter) && text.ends_with(is_letter) && text.split(is_letter).all(separator)
}

fn is_tag(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    matches!(text.len(), 1..=128) && text.chars().all(plain) && !text.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_a_pod_can_use() {
        let longest = format!("r.example/{}:1", "a".repeat(LONGEST - "r.example/".len()));
        let tag = format!("r.example/a:{}", "1".repeat(128));
        for good in [
            "r.example/a:1",
            "R.example:5000/group/a.b_c__d---e:V1_.-",
            "localhost/a:_1",
            "localhost:5000/a:1",
            "127.0.0.1:5000/a:1",
            "[fd00::1]:5000/a:1",
            "docker.io/library/jq:1",
            "slipway.local:5000/a:1",
            &longest,
            &tag,
        ] {
            assert_eq!(is_name(good), Ok(()), "{good}");
        }
        let part = "a part of its path";
        let registry = "its registry is not a host";
        let characters = "it has other characters";
        for (bad, why) in [
            ("a:1", "it names no registry"),
            ("group/a:1", "it names no registry"),
            ("r.example/a", "it has no tag"),
            ("r.example:5000/a", "it has no tag"),
            ("r.example/a@sha256:1", "it has a digest"),
            ("r.example/Group/a:1", characters),
            ("r.example/a:b:c", characters),
            ("r.example/a b:1", characters),
            ("r.example/:1", characters),
            ("r.example/a/../b:1", characters),
            ("r.example/a//b:1", part),
            ("r.example//a:1", part),
            ("r.example/a/:1", part),
            ("r.example/-a:1", part),
            ("r.example/a_.b:1", part),
            ("r.example/a___b:1", part),
            ("r.example/x:", "its tag is not"),
            ("r.example/x:.1", "its tag is not"),
            ("r.example/x:1/y", "its tag is not"),
            (&format!("{tag}1"), "its tag is not"),
            (&longest.replace(":1", "a:1"), "more than 255"),
            ("my host.example/x:1", registry),
            ("r..example/x:1", registry),
            ("r_.example/x:1", registry),
            ("-r.example/x:1", registry),
            ("r.example:/x:1", registry),
            ("r.example:+5/x:1", registry),
            ("r.example:70000/x:1", registry),
            ("[fd00::1/x:1", registry),
            ("[fd00::g]:1/x:1", registry),
            ("docker.io/jq:1", "docker.io/library/NAME"),
            ("index.docker.io/group/jq:1", "as docker.io/"),
            ("slipway.local/etcd:1", "slipway.local/ is for the images"),
        ] {
            let found = is_name(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn pinned_references_may_have_no_tag_and_the_names_of_pods_are_fewer() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let pinned = |name: &str| {
            let text = format!("{name}@{digest}");
            (is_pinned(&text).is_ok(), is_pinned_name(&text).is_ok())
        };
        for name in ["r.example/a", "r.example:5000/a/b:v1", "docker.io/group/a"] {
            assert_eq!(pinned(name), (true, true), "{name}");
        }
        for name in [
            "docker.io/jq:1",
            "docker.io/jq",
            "index.docker.io/group/jq:1",
            "index.docker.io/group/jq",
            "slipway.local/etcd:1",
        ] {
            assert_eq!(pinned(name), (true, false), "{name}");
        }
        for name in ["r.example/A", "r.example/a:b:c", "r.example/a:", "a:1"] {
            assert_eq!(pinned(name), (false, false), "{name}");
        }
        assert!(is_pinned("r.example/a:1").is_err());
        assert!(is_pinned_name("r.example/a:1").is_err());
        assert!(is_pinned("r.example/a@sha256:12").is_err());
    }
}
