use super::*;

const DISK: u64 = 1024 * MIB;
const RANDOM: Guid = Guid([7; 16]);
const TYPE: Guid = Guid([8; 16]);

/// A disk of 1 GiB with these partitions: number, label, start and size in MiB.
fn disk(partitions: &[(u32, &str, u64, u64)]) -> Table {
    let mut table = Table::empty(512, DISK, Guid([1; 16])).unwrap();
    table.sound = true;
    for (number, label, start, size) in partitions {
        let entry = Entry {
            guid: Guid([u8::try_from(*number).unwrap(); 16]),
            label: (*label).to_owned(),
            ..new_entry(start * 2048, (start + size) * 2048 - 1)
        };
        table.entries.insert(*number, entry);
    }
    table
}

fn want(number: u32) -> PartitionSpec {
    PartitionSpec {
        at: format!("p{number}"),
        number,
        exists: true,
        ..PartitionSpec::default()
    }
}

fn planned(table: &Table, wanted: &[PartitionSpec]) -> Result<PlannedTable, Vec<String>> {
    plan(table, wanted, &BTreeSet::new(), &mut || RANDOM)
}

/// Start in MiB and size in sectors.
fn span(outcome: &PlannedTable, number: u32) -> (u64, u64) {
    let entry = &outcome.table.entries[&number];
    (entry.first / 2048, entry.last + 1 - entry.first)
}

/// The operator notes' table, row by row.
#[test]
fn the_matrix_of_present_wanted_and_wipe() {
    let empty = disk(&[]);
    let full = disk(&[(1, "data", 1, 100)]);
    let entry = |exists, wipe, label: &str| PartitionSpec {
        exists,
        wipe,
        label: exists.then(|| label.to_owned()),
        ..want(1)
    };
    for (table, wanted, expected) in [
        (
            &empty,
            entry(false, false, ""),
            Some(PartitionAction::Absent),
        ),
        (
            &empty,
            entry(false, true, ""),
            Some(PartitionAction::Absent),
        ),
        (
            &empty,
            entry(true, false, "data"),
            Some(PartitionAction::Create),
        ),
        (
            &empty,
            entry(true, true, "data"),
            Some(PartitionAction::Create),
        ),
        (&full, entry(false, false, ""), None),
        (&full, entry(false, true, ""), Some(PartitionAction::Delete)),
        (
            &full,
            entry(true, false, "data"),
            Some(PartitionAction::Keep),
        ),
        (
            &full,
            entry(true, true, "data"),
            Some(PartitionAction::Keep),
        ),
        (&full, entry(true, false, "other"), None),
        (
            &full,
            entry(true, true, "other"),
            Some(PartitionAction::Recreate),
        ),
    ] {
        let outcome = planned(table, std::slice::from_ref(&wanted));
        let action = outcome.as_ref().ok().map(|outcome| outcome.actions[0].1);
        assert_eq!(action, expected, "{wanted:?}: {outcome:?}");
        let there = outcome.is_ok_and(|outcome| outcome.table.entries.contains_key(&1));
        let should = matches!(
            expected,
            Some(PartitionAction::Create | PartitionAction::Keep | PartitionAction::Recreate)
        );
        assert_eq!(there, should, "{wanted:?}");
    }
}

#[test]
fn each_attribute_that_is_given_must_match() {
    let table = disk(&[(1, "data", 1, 100)]);
    for (wanted, found) in [
        (
            PartitionSpec {
                label: Some("x".into()),
                ..want(1)
            },
            "label \"x\"; found \"data\"",
        ),
        (
            PartitionSpec {
                start: Some(2),
                ..want(1)
            },
            "start 2 MiB; found 1 MiB",
        ),
        (
            PartitionSpec {
                size: Some(99),
                ..want(1)
            },
            "size 99 MiB",
        ),
        (
            PartitionSpec {
                guid: Some(TYPE),
                ..want(1)
            },
            "GUID 08080808",
        ),
        (
            PartitionSpec {
                type_guid: Some(TYPE),
                ..want(1)
            },
            "type 08080808",
        ),
        // Only a partition that differs in size alone is resized.
        (
            PartitionSpec {
                size: Some(99),
                label: Some("x".into()),
                resize: true,
                ..want(1)
            },
            "label \"x\"",
        ),
    ] {
        let wrong = planned(&table, &[wanted]).unwrap_err();
        assert_eq!(wrong.len(), 1);
        assert!(
            wrong[0].starts_with("p1: partition 1 does not match"),
            "{wrong:?}"
        );
        assert!(wrong[0].contains(found), "{wrong:?}");
    }
    let all = PartitionSpec {
        label: Some("data".into()),
        start: Some(1),
        size: Some(100),
        guid: Some(Guid([1; 16])),
        type_guid: Some(TYPE_LINUX),
        ..want(1)
    };
    let outcome = planned(&table, &[all]).unwrap();
    assert_eq!(outcome.actions, [(1, PartitionAction::Keep)]);
    assert_eq!(outcome.table, table);
}

#[test]
fn a_partition_is_resized_in_place_and_keeps_what_it_is() {
    let table = disk(&[(1, "data", 1, 100), (2, "next", 201, 100)]);
    let sized = |size| PartitionSpec {
        size: Some(size),
        resize: true,
        ..want(1)
    };
    for (size, sectors) in [(150, 150 * 2048), (50, 50 * 2048), (0, 200 * 2048)] {
        let outcome = planned(&table, &[sized(size)]).unwrap();
        assert_eq!(outcome.actions, [(1, PartitionAction::Resize)]);
        assert_eq!(span(&outcome, 1), (1, sectors));
        assert_eq!(outcome.table.entries[&1].guid, Guid([1; 16]));
    }
    let wrong = planned(&table, &[sized(300)]).unwrap_err();
    assert!(
        wrong[0].contains("300 MiB at 1 MiB, where 200 MiB are free"),
        "{wrong:?}"
    );
    // A neighbour that is deleted frees its space.
    let gone = PartitionSpec {
        exists: false,
        wipe: true,
        ..want(2)
    };
    let outcome = planned(&table, &[sized(300), gone]).unwrap();
    assert_eq!(span(&outcome, 1), (1, 300 * 2048));
}

#[test]
fn zero_is_the_begin_and_the_end_of_the_largest_free_stretch() {
    // 100 MiB are free at 101 MiB, and all behind 301 MiB.
    let table = disk(&[(1, "a", 1, 100), (2, "b", 201, 100)]);
    let end = table.last_usable + 1;
    for (start, size, expected) in [
        (Some(0), Some(0), (301, end - 301 * 2048)),
        (None, None, (301, end - 301 * 2048)),
        (Some(0), Some(10), (301, 10 * 2048)),
        (Some(101), Some(0), (101, 100 * 2048)),
        (Some(150), Some(10), (150, 10 * 2048)),
    ] {
        let outcome = planned(
            &table,
            &[PartitionSpec {
                start,
                size,
                ..want(3)
            }],
        )
        .unwrap();
        assert_eq!(span(&outcome, 3), expected, "{start:?} {size:?}");
    }
}

#[test]
fn a_second_run_finds_what_the_first_one_made() {
    let chosen = |number: u32, label: &str, size| PartitionSpec {
        label: Some(label.to_owned()),
        start: Some(0),
        size: Some(size),
        ..want(number)
    };
    for wanted in [
        vec![chosen(1, "a", 100), chosen(2, "b", 0)],
        vec![chosen(0, "a", 100), chosen(0, "b", 0)],
        vec![chosen(0, "a", 100), chosen(1, "b", 0)],
        vec![chosen(0, "a", 100), chosen(1, "b", 50)],
        vec![chosen(0, "x", 0), chosen(5, "q", 100)],
        vec![
            PartitionSpec {
                start: None,
                ..chosen(0, "a", 100)
            },
            PartitionSpec {
                size: None,
                ..chosen(0, "b", 0)
            },
        ],
    ] {
        let first = planned(&disk(&[]), &wanted);
        let Ok(first) = first else {
            // The partition with a number takes all space, and nothing remains for the other.
            assert_eq!(wanted[1].number, 1, "{first:?}");
            continue;
        };
        // As a journal knows them.
        let noted = wanted.iter().map(|spec| {
            let mut made = first.table.entries.iter();
            let its = made.find(|(_, entry)| Some(&entry.label) == spec.label.as_ref());
            PartitionSpec {
                earlier: its.map(|(number, _)| *number),
                ..spec.clone()
            }
        });
        for wanted in [wanted.clone(), noted.collect()] {
            let second = planned(&first.table, &wanted).unwrap();
            assert!(
                second
                    .actions
                    .iter()
                    .all(|(_, action)| *action == PartitionAction::Keep),
                "{wanted:?}"
            );
            assert_eq!(second.table, first.table);
        }
    }
}

#[test]
fn number_zero_is_the_next_free_number_after_those_that_are_named() {
    let table = disk(&[(1, "a", 1, 100), (3, "c", 201, 100)]);
    let sized = |number| PartitionSpec {
        size: Some(10),
        ..want(number)
    };
    let outcome = planned(&table, &[sized(0), sized(2), sized(0)]).unwrap();
    let made: Vec<u32> = outcome.actions.iter().map(|(number, _)| *number).collect();
    assert_eq!(made, [2, 4, 5]);
    assert_eq!(outcome.table.entries[&4].guid, RANDOM);
    assert_eq!(outcome.table.entries[&4].type_guid, TYPE_LINUX);
    // The number of a deleted partition is free again.
    let gone = PartitionSpec {
        exists: false,
        wipe: true,
        ..want(1)
    };
    let outcome = planned(&table, &[sized(0), gone]).unwrap();
    assert_eq!(
        outcome.actions,
        [(1, PartitionAction::Delete), (1, PartitionAction::Create)]
    );
}

#[test]
fn what_is_in_use_is_not_changed_and_may_be_kept() {
    let table = disk(&[(1, "data", 1, 100)]);
    let busy = BTreeSet::from([1]);
    let plan = |wanted: PartitionSpec| plan(&table, &[wanted], &busy, &mut || RANDOM);
    let kept = plan(PartitionSpec {
        label: Some("data".into()),
        ..want(1)
    })
    .unwrap();
    assert_eq!(kept.actions, [(1, PartitionAction::Keep)]);
    for wanted in [
        PartitionSpec {
            exists: false,
            wipe: true,
            ..want(1)
        },
        PartitionSpec {
            label: Some("x".into()),
            wipe: true,
            ..want(1)
        },
        PartitionSpec {
            size: Some(200),
            resize: true,
            ..want(1)
        },
    ] {
        let wrong = plan(wanted).unwrap_err();
        assert!(wrong[0].contains("in use"), "{wrong:?}");
    }
    let beside = plan(PartitionSpec {
        size: Some(10),
        ..want(2)
    })
    .unwrap();
    assert_eq!(beside.actions, [(2, PartitionAction::Create)]);
}

#[test]
fn all_mistakes_of_a_disk_are_told_at_once() {
    let table = disk(&[(1, "a", 1, 100), (2, "b", 201, 100)]);
    let wrong = planned(
        &table,
        &[
            PartitionSpec {
                exists: false,
                ..want(1)
            },
            PartitionSpec {
                label: Some("x".into()),
                ..want(2)
            },
        ],
    )
    .unwrap_err();
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    let wrong = planned(
        &table,
        &[
            PartitionSpec {
                start: Some(50),
                size: Some(10),
                ..want(3)
            },
            PartitionSpec {
                start: Some(5000),
                ..want(4)
            },
            PartitionSpec {
                start: Some(110),
                size: Some(100),
                ..want(5)
            },
        ],
    )
    .unwrap_err();
    for (i, text) in [
        "partition 1 (\"a\") occupies it",
        "outside",
        "91 MiB are free",
    ]
    .iter()
    .enumerate()
    {
        assert!(wrong[i].contains(text), "{wrong:?}");
    }
}

#[test]
fn partitions_of_disks_with_large_sectors_begin_on_mebibytes() {
    let table = Table::empty(4096, DISK, Guid([1; 16])).unwrap();
    let outcome = planned(
        &table,
        &[
            PartitionSpec {
                size: Some(10),
                ..want(1)
            },
            want(2),
        ],
    )
    .unwrap();
    let entry = &outcome.table.entries[&1];
    assert_eq!((entry.first, entry.last), (256, 256 * 11 - 1));
    let entry = &outcome.table.entries[&2];
    assert_eq!((entry.first, entry.last), (256 * 11, table.last_usable));
}
