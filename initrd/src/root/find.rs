//! Finds the partitions of a root hash: by their GUIDs, on the disk that the loader started from.

use std::fs::File;

use anyhow::{Result, bail};
use image::guid::Guid;
use image::layout::{self, SectorSize, root_guid, verity_guid};
use image::manifest::Manifest;
use image::verity::RootHash;

use super::Halves;
use image::fault::Fault;
use linux::block::{Disk, Partition};
use linux::disk_identity;
use linux::gpt::Table;
use linux::world::World;

/// Both halves and their disk, once both exist.
///
/// # Errors
/// If two disks have them and the loader does not name its own.
pub(super) fn among(
    world: &World,
    disks: &[Disk],
    hash: &RootHash,
    loader: Option<Guid>,
    manifest: &Manifest,
) -> Result<Option<(Halves, Disk)>> {
    let complete = |disk: &&Disk| {
        let data = one(disk, root_guid(hash), manifest.architecture.root_type())?;
        let tree = one(disk, verity_guid(hash), manifest.architecture.verity_type())?;
        let halves = Halves {
            data: data.name.clone(),
            tree: tree.name.clone(),
        };
        Some((halves, (*disk).clone()))
    };
    let mut found: Vec<_> = disks
        .iter()
        .filter(|disk| loader.is_none_or(|guid| has(disk, guid)))
        .filter_map(|disk| complete(&disk))
        .collect();
    if found.len() > 1 {
        let names: Vec<String> = found.iter().map(|(_, disk)| describe(disk)).collect();
        let kernels: Vec<&str> = found.iter().map(|(_, disk)| disk.name.as_str()).collect();
        if let Some(name) = disk_identity::shared_by(world, &kernels) {
            bail!(
                Fault::new("the root is there by several paths to one disk (multipath), which are not supported")
                    .expected(format!("one path to the disk with the partitions of roothash={hash}"))
                    .found(format!("{}, which are all the disk {name}", names.join(" and ")))
                    .fix("let the storage present the disk by one path: mask the other paths, or leave multipath to the hypervisor or the adapter")
            );
        }
        bail!(
            Fault::new("more than one disk holds the root that the command line names")
                .expected(format!("one disk with the partitions of roothash={hash}"))
                .found(names.join(" and "))
                .fix("detach the copy, or boot by UEFI, where the boot loader names the disk it started from")
        );
    }
    Ok(found.pop())
}

/// The fault that no disk has the root, with the partitions that were found. Reads the disks once more.
pub(super) fn absent(disks: &[Disk], hash: &RootHash, loader: Option<Guid>) -> Fault {
    if let Some(fault) = disks.iter().find_map(|disk| for_other_sectors(disk, hash)) {
        return fault;
    }
    let seen: Vec<String> = disks.iter().map(describe).collect();
    let mut expected = format!(
        "partitions with the GUIDs {} (root) and {} (hash tree)",
        root_guid(hash),
        verity_guid(hash)
    );
    if let Some(guid) = loader {
        expected += &format!(" on the disk of the loader's partition {guid}");
    }
    Fault::new("the root is on no disk of this machine")
        .expected(expected)
        .found(if seen.is_empty() {
            "no disk at all".to_owned()
        } else {
            seen.join(", ")
        })
        .fix("attach the disk, add its driver to [kernel] modules in the recipe, or write the image again")
}

/// The fault that the image on a disk, with the root, is for disks with other sectors. The kernel then sees no partitions.
fn for_other_sectors(disk: &Disk, hash: &RootHash) -> Option<Fault> {
    let file = File::open(&disk.path).ok()?;
    let is_ours = |sector: &SectorSize| {
        let table = Table::read(&file, sector.bytes(), disk.size).ok();
        let guid = root_guid(hash);
        table.is_some_and(|table| table.entries.values().any(|entry| entry.guid == guid))
    };
    let others = SectorSize::ALL.into_iter();
    let written = others
        .filter(|sector| sector.bytes() != disk.sector)
        .find(is_ours)?
        .bytes();
    let (name, has) = (&disk.name, disk.sector);
    Some(
        Fault::new(format!(
            "the image on {name} is for disks with sectors of another size"
        ))
        .expected(format!(
            "a disk with logical sectors of {written} bytes, which the image's partition table counts in"
        ))
        .found(format!("{name} with sectors of {has} bytes"))
        .fix(format!(
            "build the image with sector-size = {has} in [disk] of the recipe, or write it to a disk with sectors of {written} bytes"
        )),
    )
}

fn one(disk: &Disk, guid: Guid, type_guid: Guid) -> Option<&Partition> {
    disk.partitions
        .iter()
        .find(|part| part.guid == Some(guid) && part.type_guid == Some(type_guid))
}

fn has(disk: &Disk, guid: Guid) -> bool {
    disk.partitions.iter().any(|part| part.guid == Some(guid))
}

fn describe(disk: &Disk) -> String {
    let serial = disk.serial.as_deref().unwrap_or("none");
    let parts: Vec<&str> = disk.partitions.iter().map(|p| p.label.as_str()).collect();
    format!(
        "{} (serial {serial}, {} MiB, partitions: {})",
        disk.name,
        disk.size / layout::MIB,
        if !parts.is_empty() {
            parts.join(" ")
        } else if has_damaged_table(disk) {
            "none can be read, since both copies of its GPT are damaged".to_owned()
        } else {
            "none".to_owned()
        }
    )
}

/// Whether the disk had a GPT, of which neither copy is valid any more.
fn has_damaged_table(disk: &Disk) -> bool {
    File::open(&disk.path).is_ok_and(|file| {
        Table::is_announced(&file) && Table::read(&file, disk.sector, disk.size).is_err()
    })
}

#[cfg(test)]
mod tests {
    use image::layout::{Architecture, Sizes};
    use image::manifest::{CONTRACT, ImageId};
    use image::node::NodeSettings;

    use super::*;

    const HASH: RootHash = RootHash([0xab; 32]);

    fn manifest() -> Manifest {
        Manifest {
            contract: CONTRACT,
            image: ImageId {
                name: "demo".into(),
                version: "1".into(),
            },
            architecture: Architecture::X86_64,
            kernel: "6.12".into(),
            epoch: 0,
            sizes: Sizes::default(),
            kubernetes: None,
            platforms: Vec::new(),
            node: NodeSettings::default(),
        }
    }

    fn disk(name: &str, esp: u8) -> Disk {
        let part = |number: u32, guid: Guid, type_guid: Guid| Partition {
            number,
            name: format!("{name}{number}"),
            path: format!("/dev/{name}{number}").into(),
            label: format!("p{number}"),
            guid: Some(guid),
            type_guid: Some(type_guid),
            ..Partition::default()
        };
        Disk {
            name: name.into(),
            path: format!("/dev/{name}").into(),
            size: 1 << 30,
            sector: 512,
            partitions: vec![
                part(1, Guid([esp; 16]), layout::TYPE_ESP),
                part(2, root_guid(&HASH), layout::TYPE_ROOT_X86_64),
                part(3, verity_guid(&HASH), layout::TYPE_ROOT_VERITY_X86_64),
            ],
            ..Disk::default()
        }
    }

    #[test]
    fn two_copies_are_refused_by_both_names_unless_the_loader_says_which() {
        let disks = [disk("vda", 1), disk("vdb", 2)];
        let error = among(&World::real(), &disks, &HASH, None, &manifest())
            .unwrap_err()
            .to_string();
        assert!(error.contains("vda") && error.contains("vdb"), "{error}");
        let loader = Some(Guid([2; 16]));
        let (halves, found) = among(&World::real(), &disks, &HASH, loader, &manifest())
            .unwrap()
            .unwrap();
        assert_eq!((halves.data.as_str(), found.name.as_str()), ("vdb2", "vdb"));
    }

    #[test]
    fn an_image_for_other_sectors_is_named_with_both_sizes_and_the_recipes_key() {
        for (written, has) in [(512, 4096), (4096, 512)] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let size = 64 * layout::MIB;
            file.as_file().set_len(size).unwrap();
            let mut table = linux::samples::table(written, size);
            table.write(file.as_file()).unwrap();
            let found = Disk {
                path: file.path().to_owned(),
                size,
                sector: has,
                partitions: Vec::new(),
                ..disk("sda", 1)
            };
            let fault = || absent(std::slice::from_ref(&found), &HASH, None);
            assert_eq!(fault().what, "the root is on no disk of this machine");
            table.entries.get_mut(&3).unwrap().guid = root_guid(&HASH);
            table.write(file.as_file()).unwrap();
            let fault = fault();
            let expected = format!("a disk with logical sectors of {written} bytes");
            assert!(fault.expected.unwrap().starts_with(&expected));
            assert_eq!(
                fault.found.unwrap(),
                format!("sda with sectors of {has} bytes")
            );
            let key = format!("sector-size = {has} in [disk]");
            assert!(fault.fix.unwrap().contains(&key));
        }
    }

    #[test]
    fn a_disk_with_two_damaged_tables_is_told_from_one_without_partitions() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let size = 64 * layout::MIB;
        file.as_file().set_len(size).unwrap();
        let found = Disk {
            path: file.path().to_owned(),
            size,
            partitions: Vec::new(),
            ..disk("sda", 1)
        };
        let said = || {
            absent(std::slice::from_ref(&found), &HASH, None)
                .found
                .unwrap()
        };
        assert!(said().ends_with("partitions: none)"), "{}", said());
        let table = linux::samples::table(512, size);
        table.write(file.as_file()).unwrap();
        for at in [512, size - 512] {
            assert!(said().ends_with("partitions: none)"), "{}", said());
            file.as_file().write_all_at(&[0; 512], at).unwrap();
        }
        assert!(said().contains("both copies of its GPT"), "{}", said());
    }

    #[test]
    fn two_paths_to_the_disk_of_the_root_are_told_from_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), linux::world::Clock::Real);
        for name in ["sda", "sdb"] {
            let device = world.sys.join("block").join(name).join("device");
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("wwid"), "naa.5000c500a1b2c3d4\n").unwrap();
        }
        // The loader's partition is on both.
        let disks = [disk("sda", 1), disk("sdb", 1)];
        let error = among(&world, &disks, &HASH, Some(Guid([1; 16])), &manifest()).unwrap_err();
        let text = error.to_string();
        for word in ["(multipath)", "sda", "sdb", "wwn 5000c500a1b2c3d4"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn half_a_root_or_another_type_is_none() {
        let mut half = disk("vda", 1);
        half.partitions.pop();
        assert_eq!(
            among(&World::real(), &[half.clone()], &HASH, None, &manifest()).unwrap(),
            None
        );
        let mut other = disk("vda", 1);
        other.partitions[1].type_guid = Some(layout::TYPE_LINUX);
        assert_eq!(
            among(&World::real(), &[other], &HASH, None, &manifest()).unwrap(),
            None
        );
        let fault = absent(&[half], &HASH, None).to_string();
        assert!(fault.contains("vda (serial none"), "{fault}");
    }
}
