//! The names of the baked images: each leads to one image, whoever brings it.

use std::collections::BTreeMap;

use anyhow::Result;
use image::kubelet::{ETCD_IMAGE, FLANNEL_IMAGE, KUBE_PROXY_IMAGE, PAUSE_IMAGE};

use super::contents::Wanted;
use crate::recipe::{Mistake, Mistakes, Place, Prebuilt, PrebuiltFrom, Recipe};
use crate::steps::kubelet::prebuilt;

/// An image with its names.
struct Named {
    names: Vec<String>,
    /// What brings it, for messages.
    by: String,
    /// Where the recipe asks for it.
    place: Option<Place>,
}

/// Refuses a name of two images, before any of them is pulled or made: only here the images of the release are known by their names.
/// `of_release` are those of the lock, component and reference; `built` are those that the build makes in their place.
///
/// # Errors
/// All names that two images have, as [`Mistakes`]; or a text that is not a reference to a container image.
pub(super) fn check(
    recipe: &Recipe,
    of_release: &BTreeMap<String, String>,
    built: &[Wanted<'_>],
) -> Result<()> {
    let places = &recipe.places;
    let listed = |name: &str| places.word(&["containers", "images"], name);
    let mut all = Vec::new();
    for wanted in built {
        let name = wanted.image.name();
        all.push(Named {
            names: wanted.names.clone(),
            by: format!("the image {name} that the build makes"),
            place: listed(name),
        });
    }
    for (name, reference) in of_release {
        let from = PrebuiltFrom::Oci(reference.clone());
        let mut names = prebuilt::names(&Prebuilt { from, name: None })?;
        names.extend(baked(name));
        all.push(Named {
            names,
            by: format!("the image {name} of the Kubernetes release"),
            place: listed(name),
        });
    }
    for (number, wanted) in recipe.prebuilt.iter().enumerate() {
        all.push(Named {
            names: prebuilt::names(wanted)?,
            by: "an image of `containers.prebuilt`".to_owned(),
            place: places.item(&["containers", "prebuilt"], number),
        });
    }
    for (number, wanted) in recipe.composed.iter().enumerate() {
        all.push(Named {
            names: vec![wanted.name.clone()],
            by: "an image of `containers.composed`".to_owned(),
            place: places.item(&["containers", "composed"], number),
        });
    }
    Ok(once(recipe.places.mistakes(), &all).none()?)
}

/// Adds a mistake for each name that an image has and an earlier one has too. Two with one digest in one repository are the same image.
fn once(mut mistakes: Mistakes, all: &[Named]) -> Mistakes {
    let is_pinned = |name: &&String| name.contains('@');
    for (number, later) in all.iter().enumerate() {
        for earlier in &all[..number] {
            let has = |name: &&String| earlier.names.contains(*name);
            if later.names.iter().filter(is_pinned).any(|name| has(&name)) {
                continue;
            }
            for name in later.names.iter().filter(has) {
                let (one, two) = (&earlier.by, &later.by);
                let mistake = Mistake::of(
                    later.place.clone(),
                    format!("{one} and {two} have the name {name}"),
                    "expected each name once: a pod has one image by it",
                );
                mistakes.add(match &earlier.place {
                    Some(place) => mistake.also(place, "the other image"),
                    None => mistake,
                });
            }
        }
    }
    mistakes
}

/// The names by which the node's own settings, and what runs on all nodes, look for a component's image, wherever it comes from.
pub(super) fn baked(component: &str) -> impl Iterator<Item = String> {
    let baked = [PAUSE_IMAGE, ETCD_IMAGE, KUBE_PROXY_IMAGE, FLANNEL_IMAGE].into_iter();
    let baked = baked.filter(move |baked| short(baked) == component);
    baked.map(str::to_owned)
}

/// The name of an image without registry and tag.
fn short(name: &str) -> &str {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.split([':', '@']).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe;
    use crate::recipe::ContainerImage;

    /// Checks the names beside an image kube-scheduler that is built, and the release's own pause.
    fn checked(containers: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        let text = format!(
            "image = {{ name = 'a', version = '1' }}\nkernel = {{ package = 'linux-image-amd64', platforms = ['qemu'] }}\n\
             kubernetes = {{ version = '1.36', kubelet = [{{ go-module = true }}] }}\n{containers}"
        );
        std::fs::write(&path, text).unwrap();
        let recipe = recipe::load(&path).map_err(|mistakes| mistakes.render(false))?;
        let program = crate::lock::kubelet::Program {
            version: "v1.36.3".to_owned(),
            sha256: "0".to_owned(),
            path: "/components".into(),
        };
        let components = BTreeMap::from([("kube-scheduler".to_owned(), program)]);
        let built = ContainerImage::KubeScheduler;
        let built = super::super::contents::wanted(built, &[], &components).unwrap();
        let of_release = format!("registry.k8s.io/pause:3.10@sha256:{}", "a".repeat(64));
        let of_release = BTreeMap::from([("pause".to_owned(), of_release)]);
        check(&recipe, &of_release, &[built]).map_err(|error| {
            let mistakes = error.downcast::<Mistakes>().unwrap();
            mistakes.render(false)
        })
    }

    #[test]
    fn a_name_of_the_releases_images_is_no_other_images() {
        let pinned =
            |digit: &str| format!("registry.k8s.io/pause:3.10@sha256:{}", digit.repeat(64));
        let composed =
            "[[containers.composed]]\nname = 'registry.k8s.io/pause:3.10'\npackages = ['jq']\n";
        let prebuilt =
            |digit: &str| format!("containers.prebuilt = [{{ oci = '{}' }}]\n", pinned(digit));
        for (containers, by, place) in [
            (composed.to_owned(), "composed", "a.toml:4:"),
            (prebuilt("b"), "prebuilt", "a.toml:4:24"),
        ] {
            let said = checked(&containers).unwrap_err();
            let expected = format!(
                "the image pause of the Kubernetes release and an image of `containers.{by}` have the name registry.k8s.io/pause:3.10"
            );
            assert!(
                said.contains(&expected) && said.contains(place),
                "{place}: {said}"
            );
        }
        // The same image, only asked for twice.
        checked(&prebuilt("a")).unwrap();
        checked(&composed.replace("3.10", "3.11")).unwrap();
    }

    #[test]
    fn a_name_of_what_the_build_makes_is_no_other_images() {
        let named = |name: &str, by: &str| Named {
            names: vec![name.to_owned()],
            by: by.to_owned(),
            place: None,
        };
        let all = [named("r.example/a:1", "one"), named("r.example/a:1", "two")];
        let said = once(Mistakes::default(), &all).render(false);
        assert!(
            said.contains("one and two have the name r.example/a:1"),
            "{said}"
        );
        let all = [named("r.example/a:1", "one"), named("r.example/a:2", "two")];
        assert!(once(Mistakes::default(), &all).is_empty());
    }

    #[test]
    fn a_name_without_registry_and_tag_is_the_components() {
        for name in [
            PAUSE_IMAGE,
            "registry.example:5000/pause@sha256:a",
            "r.example/a/pause:3.10",
        ] {
            assert_eq!(short(name), "pause");
        }
        assert_eq!(short(ETCD_IMAGE), "etcd");
        for (component, name) in [("kube-proxy", KUBE_PROXY_IMAGE), ("flannel", FLANNEL_IMAGE)] {
            assert_eq!(baked(component).collect::<Vec<_>>(), [name]);
        }
        assert_eq!(baked("coredns").next(), None);
    }
}
