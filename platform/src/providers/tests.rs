//! Properties of every row of the table.

use std::fs;
use std::path::Path;

use image::modules::{BOND, MEDIA, UDF, VLAN};
use image::platform::PlatformId;

use super::{TABLE, by_id};
use crate::medium::Medium;

#[test]
fn ids_and_recipe_names_are_sorted_and_unique() {
    let ids: Vec<&str> = TABLE.iter().map(|provider| provider.id).collect();
    assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
    let mut names: Vec<&str> = TABLE.iter().filter_map(|row| row.recipe_name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for id in ids {
        assert_eq!(by_id(id).unwrap().id, id);
        assert_eq!(id.parse(), Ok(PlatformId::of(id)));
    }
}

#[test]
fn an_unknown_platform_is_refused_with_those_that_exist() {
    let error = by_id("gce").unwrap_err();
    assert!(
        error.contains("\"gce\"") && error.contains("gcp"),
        "{error}"
    );
}

#[test]
fn every_row_is_complete() {
    for row in TABLE {
        assert!(row.summary.ends_with('.'), "{row}: {:?}", row.summary);
        if row.recipe_name.is_some() {
            assert!(!row.drivers.is_empty(), "{row}: no drivers");
        }
    }
}

#[test]
fn the_initramfs_can_read_each_platforms_media() {
    for row in TABLE {
        for medium in row.media {
            let needed: &[&str] = match medium {
                Medium::Labels(_) => MEDIA,
                Medium::Disc(_) => &["sr_mod", UDF],
            };
            for name in needed {
                assert!(row.drivers.contains(name), "{row}: {name}");
            }
            // A drive with labels may describe the network.
            if let Medium::Labels(_) = medium {
                assert!([BOND, VLAN].iter().all(|name| row.drivers.contains(name)));
            }
        }
    }
    // The command line may name a file system with the config.
    let metal = by_id("metal").unwrap();
    assert!(MEDIA.iter().all(|name| metal.drivers.contains(name)));
}

#[test]
fn each_platform_has_its_line_in_the_docs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/platforms.md");
    let page = fs::read_to_string(page).unwrap();
    // Other tables of the page begin with another word.
    let tables = page
        .split("\n\n")
        .filter(|part| part.starts_with("| Platform |"));
    let rows = tables
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("| `"));
    let documented: Vec<&str> = rows.filter_map(|line| line.split('`').next()).collect();
    // The sources of configs, then the names of the etcd disk. `file` is for tests, which have no such disk.
    let ids: Vec<&str> = TABLE.iter().map(|provider| provider.id).collect();
    let disks = ids.iter().filter(|id| **id != "file");
    let both: Vec<&str> = ids.iter().chain(disks).copied().collect();
    assert_eq!(documented, both, "the tables in docs/platforms.md");
}
