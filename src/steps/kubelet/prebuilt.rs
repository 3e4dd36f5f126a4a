//! Container images that others built: pulled by digest or read from an OCI layout, and merged into one folder of the root
//! each.

use anyhow::{Context, Error, Result};
use fetch::Failure;
use image::container_images::{ContainerImage as Listed, folder};

use crate::host::cache::Key;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::layer::{Entry, Kind};
use crate::lock::{LockedRecipe, objects};
use crate::oci::{self, Merged, Pulled, Reference};
use crate::recipe::{Mistake, Prebuilt, PrebuiltFrom};

/// An image for the root.
pub(super) struct Made {
    /// What the node tells containerd.
    pub(super) listed: Listed,
    /// Its files, below its folder of the root.
    pub(super) entries: Vec<Entry>,
    /// Digest of its manifest, which may be one of an index.
    pub(super) digest: String,
    /// Hash of its content.
    pub(super) key: Key,
}

/// Makes those of the release that a lock has from the registry, with their components, and those of the recipe.
///
/// # Errors
/// As [`make`]; images of the recipe that their source does not have are its mistakes, reported together.
pub(super) fn make_all<'l>(
    session: &Session,
    locked: &'l LockedRecipe,
    architecture: &str,
) -> Result<Vec<(Option<&'l str>, Made)>> {
    let recipe = &locked.recipe;
    let mut all = Vec::new();
    for (name, reference) in &locked.lock.images {
        let from = PrebuiltFrom::Oci(reference.clone());
        let made = make(
            session,
            locked,
            &Prebuilt { from, name: None },
            architecture,
        )?;
        all.push((Some(name.as_str()), made));
    }
    let mut mistakes = recipe.places.mistakes();
    for (number, wanted) in recipe.prebuilt.iter().enumerate() {
        match make(session, locked, wanted, architecture) {
            Ok(made) => all.push((None, made)),
            Err(error) if is_absent(&wanted.from, &error) => mistakes.add(Mistake::of(
                recipe.places.item(&["containers", "prebuilt"], number),
                format!("{error:#}"),
                "expected the digest of an image in its registry, or the name of one in its layout",
            )),
            Err(error) => return Err(error),
        }
    }
    mistakes.none()?;
    Ok(all)
}

/// Whether an image is not what the recipe says, rather than its registry away.
fn is_absent(from: &PrebuiltFrom, error: &Error) -> bool {
    match from {
        PrebuiltFrom::Layout(_) => true,
        PrebuiltFrom::Oci(_) => error.chain().any(|cause| {
            let failure = cause.downcast_ref::<Failure>();
            matches!(failure, Some(Failure::Status { code: 404, .. }))
        }),
    }
}

/// Pulls or reads an image and merges its layers.
///
/// # Errors
/// If its source does not have it, has other bytes than its digest's, or it is no image for this architecture.
pub(super) fn make(
    session: &Session,
    locked: &LockedRecipe,
    wanted: &Prebuilt,
    architecture: &str,
) -> Result<Made> {
    let names = names(wanted)?;
    let step = session.progress.step(&format!("image {}", names[0]));
    let about = || format!("taking the container image {}", names[0]);
    if let PrebuiltFrom::Oci(reference) = &wanted.from {
        objects::bring_image(session, locked, reference, &|bytes| step.advance(bytes))
            .with_context(about)?;
    }
    let image = take(session, wanted, architecture, &step).with_context(about)?;
    let merged = Merged::cached(&session.cache, &image, architecture, &step);
    let (merged, key, hit) = merged.with_context(about)?;
    step.done(hit, None);
    let folder = folder(&merged.documents.chain_id);
    Ok(Made {
        entries: below(&folder, merged.entries),
        digest: image.digest,
        listed: Listed {
            names,
            manifest: merged.documents.manifest,
            config: merged.documents.config,
            chain_id: merged.documents.chain_id,
            folder,
        },
        key,
    })
}

fn take(session: &Session, wanted: &Prebuilt, architecture: &str, step: &Step) -> Result<Pulled> {
    match &wanted.from {
        PrebuiltFrom::Oci(reference) => {
            let reference: Reference = reference.parse().map_err(anyhow::Error::msg)?;
            oci::pull(session, &reference, architecture, step)
        }
        PrebuiltFrom::Layout(folder) => {
            let name = wanted.name.as_deref().unwrap_or_default();
            oci::read_layout(folder, name, architecture)
        }
    }
}

/// The names by which pods find it: the recipe's, else the reference's own; and with the digest, if it has one.
pub(super) fn names(wanted: &Prebuilt) -> Result<Vec<String>> {
    let (text, digest) = match &wanted.from {
        PrebuiltFrom::Oci(text) => match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text.as_str(), None),
        },
        PrebuiltFrom::Layout(_) => ("", None),
    };
    let name = wanted.name.as_deref().unwrap_or(text);
    // A colon before the last slash is of the registry's port.
    let (repository, tag) = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
        _ => (name, None),
    };
    let tagged = tag.map(|tag| format!("{repository}:{tag}"));
    let pinned = digest.map(|digest| format!("{repository}@{digest}"));
    let names: Vec<String> = tagged.into_iter().chain(pinned).collect();
    for name in &names {
        name.parse::<Reference>().map_err(anyhow::Error::msg)?;
    }
    anyhow::ensure!(!names.is_empty(), "an image without a name");
    Ok(names)
}

/// The files of an image below its folder of the root, with that folder.
pub(super) fn below(folder: &str, entries: Vec<Entry>) -> Vec<Entry> {
    let top = Entry::directory(folder, 0o755);
    let moved = entries.into_iter().map(|mut entry| {
        entry.path.insert_str(0, folder);
        if let Kind::HardLink(target) = &mut entry.kind {
            target.insert_str(0, folder);
        }
        entry
    });
    std::iter::once(top).chain(moved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_its_own_name_and_that_of_its_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let oci = |text: String, name: Option<&str>| Prebuilt {
            from: PrebuiltFrom::Oci(text),
            name: name.map(str::to_owned),
        };
        for (wanted, expected) in [
            (
                oci(format!("r.example:5000/a/b:v1@{digest}"), None),
                vec![
                    "r.example:5000/a/b:v1".to_owned(),
                    format!("r.example:5000/a/b@{digest}"),
                ],
            ),
            (
                oci(format!("r.example:5000/b@{digest}"), None),
                vec![format!("r.example:5000/b@{digest}")],
            ),
            (
                oci(
                    format!("mirror.example/b:v1@{digest}"),
                    Some("r.example/b:v2"),
                ),
                vec!["r.example/b:v2".to_owned(), format!("r.example/b@{digest}")],
            ),
            (
                Prebuilt {
                    from: PrebuiltFrom::Layout("/layout".into()),
                    name: Some("r.example/b:v1".to_owned()),
                },
                vec!["r.example/b:v1".to_owned()],
            ),
        ] {
            assert_eq!(names(&wanted).unwrap(), expected);
        }
    }

    #[test]
    fn links_between_files_follow_them_into_the_images_folder() {
        let mut link = Entry::file("/bin/b", 0o755, "");
        link.kind = Kind::HardLink("/bin/a".to_owned());
        let moved = below("/images/x", vec![Entry::file("/bin/a", 0o755, ""), link]);
        let paths: Vec<&str> = moved.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["/images/x", "/images/x/bin/a", "/images/x/bin/b"]);
        assert_eq!(moved[2].kind, Kind::HardLink("/images/x/bin/a".to_owned()));
    }
}
