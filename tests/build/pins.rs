//! Pins of a lock: what moves, and what does not.

use std::fs;
use std::path::PathBuf;

use super::servers::run;
use super::{LOCK, Place, RECIPE};

/// A place whose recipe has just been locked: the lock's path, and its text.
fn freshly_locked(deep: &str) -> (Place, PathBuf, String) {
    let place = Place::new(deep, None);
    let (done, said) = run(&place, &LOCK);
    assert!(done, "{said}");
    let lock = place.folder.join("recipes/small.lock");
    let fresh = fs::read_to_string(&lock).unwrap();
    (place, lock, fresh)
}

/// A package more in a recipe moves no other pin: not one that the archive has a newer version of, not one that it does not have any
/// more and the cache has. One that can be had nowhere is named and taken anew; `--renew=NAME` moves one package, `--renew` all.
#[test]
fn a_package_more_moves_no_other_pin() {
    let (place, lock, fresh) = freshly_locked("pins");
    // An earlier version of one package, which is in no index; its file is the present one's, which says another version.
    let (name, version) = ("base-passwd", "0~earlier");
    let line = fresh
        .lines()
        .find(|line| line.contains("name = \"base-passwd\""))
        .unwrap();
    let (head, tail) = line.split_once("version = \"").unwrap();
    let (present, tail) = tail.split_once('"').unwrap();
    let digest = head.split_once("sha256 = \"").unwrap().1.split('"').next();
    let (gone, other) = ("00".repeat(32), digest.unwrap());
    let earlier = format!("{head}version = \"{version}\"{tail}").replace(other, &gone);
    let path = "pool/main/b/base-passwd/";
    let earlier = earlier.replace(path, "pool/main/b/gone/");
    fs::write(&lock, fresh.replace(line, &earlier)).unwrap();
    let recipe = RECIPE.replace("packages = [", "packages = [\"jq\", ");
    assert_ne!(recipe, RECIPE);
    fs::write(place.folder.join("recipes/small.toml"), recipe).unwrap();
    let (done, said) = run(&place, &LOCK);
    assert!(done, "{said}");
    assert!(
        said.contains(&format!("a pin cannot be kept: {name} {version}")),
        "{said}"
    );
    assert!(
        said.contains("+ jq ") && said.contains("+ libjq1 "),
        "{said}"
    );
    let changed = format!("~ {name} {version} → {present}");
    assert!(said.contains(&changed), "{said}");
    let now = fs::read_to_string(&lock).unwrap();
    // Whatever was pinned before and is not that package is there to the byte.
    let pins = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains("sha256 = "));
        lines
            .filter(|line| !line.contains(name))
            .map(str::to_owned)
            .collect()
    };
    let now = pins(&now);
    for pin in pins(&fresh) {
        assert!(now.contains(&pin), "{pin} moved");
    }
    let (done, said) = run(&place, &["lock", "recipes/small.toml", "--renew=jqq"]);
    assert!(!done && said.contains("the nearest name is jq"), "{said}");
    let (done, said) = run(&place, &["lock", "recipes/small.toml", "--renew=jq"]);
    assert!(done && said.contains("no pin changed"), "{said}");
    fs::write(place.folder.join("old.lock"), &fresh).unwrap();
    let (done, said) = run(
        &place,
        &[
            "--quiet",
            "lock",
            "recipes/small.toml",
            "--diff",
            "old.lock",
        ],
    );
    assert!(
        done && said.contains("+ jq ") && !said.contains("base-passwd"),
        "{said}"
    );
}

/// A mirror that is behind the last lock's is an error, unless it is asked for: it may be a replay of an old state.
#[test]
fn a_mirror_that_is_behind_the_last_lock_is_refused() {
    let (place, lock, fresh) = freshly_locked("behind");
    let line = fresh
        .lines()
        .find(|line| line.contains("suite = \"trixie-security\""))
        .unwrap();
    let (head, tail) = line.split_once("date = 1").unwrap();
    let later = fresh.replace(line, &format!("{head}date = 2{tail}"));
    fs::write(&lock, &later).unwrap();
    let renew = ["lock", "recipes/small.toml", "--renew"];
    let (done, said) = run(&place, &renew);
    assert!(!done && said.contains("trixie-security is of"), "{said}");
    assert_eq!(fs::read_to_string(&lock).unwrap(), later);
    let asked = [
        "--quiet",
        "lock",
        "recipes/small.toml",
        "--renew",
        "--older",
    ];
    let (done, said) = run(&place, &asked);
    assert!(done && said.contains("warning: this mirror's"), "{said}");
    assert_eq!(fs::read_to_string(&lock).unwrap(), fresh);
}

/// Another version of Slipway, whose lists of its own tools differ, neither breaks `--locked` nor moves what the image is made of.
#[test]
fn other_tools_of_slipway_leave_a_lock_valid() {
    let (place, lock, fresh) = freshly_locked("tools");
    let line = fresh
        .lines()
        .find(|line| line.starts_with("tools-digest = "))
        .unwrap();
    // As of a version that had no tool to run images with.
    let (before, rest) = fresh.split_once("\"tools-run\" = [").unwrap();
    let (_, after) = rest.split_once("]\n").unwrap();
    let other = format!("{before}{after}").replace(line, "tools-digest = \"other\"");
    fs::write(&lock, &other).unwrap();
    let (done, said) = run(
        &place,
        &["--quiet", "lock", "recipes/small.toml", "--locked"],
    );
    assert!(done && said.contains("tools-run"), "{said}");
    assert!(said.contains("warning: the lock's tools"), "{said}");
    assert_eq!(fs::read_to_string(&lock).unwrap(), other);
    let (done, said) = run(&place, &LOCK);
    assert!(done && said.contains("(tools-run)"), "{said}");
    assert_eq!(fs::read_to_string(&lock).unwrap(), fresh);
}
