//! `coreos-metadata`: the platform's metadata by the names of Container Linux. Templates of Cluster API for AWS, OpenStack and
//! others take the node's name from there (<https://www.flatcar.org/docs/latest/provisioning/ignition/dynamic-data/>).

use std::os::unix::fs::symlink;

use anyhow::{Context, Result};
use image::paths::{RUN_METADATA, RUN_METADATA_COREOS, RUN_METADATA_FLATCAR};
use linux::atomic_file;
use linux::mount::folder;
use linux::world::World;

use crate::object;

/// Afterburn's prefixes of names, and Container Linux's; the first that fits counts.
const PREFIXES: [(&str, &str); 3] = [
    ("AFTERBURN_AWS_", "COREOS_EC2_"),
    ("AFTERBURN_GCP_", "COREOS_GCE_"),
    ("AFTERBURN_", "COREOS_"),
];
/// The name of the machine, where no platform has one.
const NAME: &str = "COREOS_CUSTOM_HOSTNAME";

/// Writes the file, and the link to it.
///
/// # Errors
/// If the metadata cannot be read, or the file cannot be written.
pub(crate) fn run(world: &World) -> Result<()> {
    let from = world.in_run(RUN_METADATA);
    let text = atomic_file::read(&from).with_context(|| format!("reading {}", from.display()))?;
    let text = String::from_utf8(text.unwrap_or_default())
        .with_context(|| format!("reading {}", from.display()))?;
    let mut renamed: String = text.lines().filter_map(renamed).collect();
    renamed += &format!("{NAME}={}\n", object::name(world)?);
    let file = world.in_run(RUN_METADATA_COREOS);
    let about = || format!("writing {}", file.display());
    folder(file.parent().with_context(about)?, 0o755)?;
    atomic_file::write(&file, renamed.as_bytes(), 0o644).with_context(about)?;
    let link = world.in_run(RUN_METADATA_FLATCAR);
    atomic_file::remove(&link)
        .and_then(|()| symlink(file.file_name().unwrap_or_default(), &link))
        .with_context(|| format!("making the link {}", link.display()))
}

/// A line with its other name; none for a line that is not Afterburn's.
fn renamed(line: &str) -> Option<String> {
    let found = PREFIXES.iter().find_map(|(own, other)| {
        let rest = line.strip_prefix(own)?;
        Some(format!("{other}{rest}\n"))
    });
    found.filter(|_| line.contains('='))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use image::paths::HOSTNAME;
    use linux::world::Clock;

    use super::*;
    use crate::samples::put;

    #[test]
    fn the_names_are_those_of_container_linux() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        put(&world.in_initrd(HOSTNAME), "ip-10-0-0-5\n");
        run(&world).unwrap();
        let read = |path: &str| fs::read_to_string(world.in_run(path)).unwrap();
        assert_eq!(
            read(RUN_METADATA_COREOS),
            "COREOS_CUSTOM_HOSTNAME=ip-10-0-0-5\n"
        );
        put(
            &world.in_run(RUN_METADATA),
            "SLIPWAY_PLATFORM=aws\nAFTERBURN_AWS_HOSTNAME=ip-10-0-0-5.ec2.internal\nAFTERBURN_GCP_HOSTNAME=\"g c\"\nAFTERBURN_OPENSTACK_HOSTNAME=o\n",
        );
        for _ in 0..2 {
            run(&world).unwrap();
            let expected = "COREOS_EC2_HOSTNAME=ip-10-0-0-5.ec2.internal\nCOREOS_GCE_HOSTNAME=\"g c\"\nCOREOS_OPENSTACK_HOSTNAME=o\nCOREOS_CUSTOM_HOSTNAME=ip-10-0-0-5\n";
            assert_eq!(read(RUN_METADATA_COREOS), expected);
            assert_eq!(read(RUN_METADATA_FLATCAR), expected);
        }
    }
}
