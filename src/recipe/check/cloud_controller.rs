//! Versions of Amazon's cloud controller, each of which is for one minor release of Kubernetes.

use super::containers::{Containers, ImagesFrom};
use super::{Check, ContainerImage, kubernetes};
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

/// The version for each minor release (<https://github.com/kubernetes/cloud-provider-aws#compatibility-with-kubernetes>).
const VERSIONS: [(&str, &str); 3] = [
    ("1.34", "v1.34.4"),
    ("1.35", "v1.35.3"),
    ("1.36", "v1.36.2"),
];

/// The version of Amazon's cloud controller for a release of Kubernetes, as `v1.36.3`, or a minor one, as `1.36`.
///
/// # Errors
/// If none is known, with what was expected.
pub fn aws_cloud_controller(release: &str) -> Result<&'static str, [String; 2]> {
    let minor = release.trim_start_matches('v');
    let is_it = |known: &str| {
        let rest = minor.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let found = VERSIONS.iter().find(|(known, _)| is_it(known));
    found.map(|(_, version)| *version).ok_or_else(|| {
        let name = ContainerImage::AwsCloudControllerManager.name();
        [
            format!("no {name} is known for Kubernetes {release}"),
            format!(
                "expected a patch release of {}",
                VERSIONS.map(|(known, _)| known).join(", ")
            ),
        ]
    })
}

/// Checks that the image of Amazon's cloud controller, if the build makes it, has a version for the recipe's Kubernetes.
pub(super) fn check(check: &mut Check<'_>, containers: &Containers, version: Option<&str>) {
    let image = ContainerImage::AwsCloudControllerManager;
    let is_made = containers.images.contains(&image) && containers.images_from == ImagesFrom::Build;
    let Some(version) = version.filter(|_| is_made) else {
        return;
    };
    let place = check.place("kubernetes.version");
    // A version that is wrong anyway is reported once.
    if kubernetes::version(version, &place).is_err() {
        return;
    }
    if let Err([found, expected]) = aws_cloud_controller(version) {
        let items = check.find("containers.images").map_or(&[][..], Node::items);
        let item = items.iter().find(|item| item.text() == Some(image.name()));
        let mistake = Mistake::at(&place, found, expected);
        check.add(match item {
            Some(item) => mistake.also(&item.place, "the image is made because of this"),
            None => mistake,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_of_its_minor_release() {
        for (minor, version) in VERSIONS {
            assert!(version.starts_with(&format!("v{minor}.")), "{version}");
            for release in [minor.to_owned(), format!("v{minor}.9")] {
                assert_eq!(aws_cloud_controller(&release), Ok(version), "{release}");
            }
        }
        for release in ["1.3", "1.33.1", "v1.340.0", ""] {
            assert!(aws_cloud_controller(release).is_err(), "{release}");
        }
    }
}
