//! Which package a path belongs to, decided as dpkg decides it, whatever the order of the threads.
//!
//! A path of two packages belongs to the one that diverts it, or that declares to replace the other by a `Replaces`
//! with its real name and a matching version (Debian policy 7.6.1). Everything else is a conflict, with both names.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Result, ensure};

use super::package::Unpacked;
use crate::debian::relation;

/// A place in the tree: the inode of its folder, and its name there. Two paths that lead to one file through links
/// (`/bin/sh`, `/usr/bin/sh`) are one place.
pub(super) type Place = (u64, String);

/// What two packages with one path come to, where no `Replaces` and no diversion decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// A conflict, as with dpkg.
    Conflict,
    /// The later package of the list has it: for trees in which no script runs, so that nothing is diverted.
    LaterWins,
}

/// Whether a package writes a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It does, and no other package of its wave did.
    New,
    /// It does, in place of what another package of its wave has written.
    Taken,
    /// It does not: the path belongs to another package.
    Left,
}

/// The package that has a place.
#[derive(Clone, Debug)]
struct Claim {
    package: usize,
    /// The path in its archive.
    path: String,
    wave: usize,
}

/// All claims of a tree.
#[derive(Debug)]
pub(super) struct Claims {
    overlap: Overlap,
    /// The position of each package in the order of the installation.
    ranks: Vec<usize>,
    places: HashMap<Place, Claim>,
    /// Paths that a package has lost to another one.
    lost: BTreeSet<(usize, String)>,
    conflicts: BTreeSet<String>,
}

impl Claims {
    pub(super) fn new(overlap: Overlap, ranks: Vec<usize>) -> Self {
        Self {
            overlap,
            ranks,
            places: HashMap::new(),
            lost: BTreeSet::new(),
            conflicts: BTreeSet::new(),
        }
    }

    /// Claims a place for the `path` of a package; `diverter` is the package that diverts the path.
    pub(super) fn claim(
        &mut self,
        place: &Place,
        (at, path, wave): (usize, &str, usize),
        packages: &[Unpacked],
        diverter: Option<&str>,
    ) -> Verdict {
        let claim = Claim {
            package: at,
            path: path.to_owned(),
            wave,
        };
        let Some(earlier) = self.places.get(place).filter(|claim| claim.package != at) else {
            self.places.insert(place.clone(), claim);
            return Verdict::New;
        };
        let (other, theirs) = (earlier.package, earlier.path.clone());
        let taken = match earlier.wave == wave {
            true => Verdict::Taken,
            false => Verdict::New,
        };
        let (mine, others) = (&packages[at], &packages[other]);
        let diverts = |package: &Unpacked| diverter == Some(package.name());
        // The other package's file has been moved, or will be written elsewhere.
        if theirs == path && (diverts(mine) || diverts(others)) {
            self.places.insert(place.clone(), claim);
            return taken;
        }
        let later = self.ranks[at] > self.ranks[other];
        let wins = match (replaces(mine, others), replaces(others, mine)) {
            // Both replace each other: dpkg lets the one have it that is unpacked later.
            (true, true) => later,
            (true, false) => true,
            (false, true) => false,
            (false, false) if self.overlap == Overlap::LaterWins => later,
            (false, false) => {
                self.conflict(path, mine, others);
                return Verdict::Left;
            }
        };
        if wins {
            self.lost.insert((other, theirs));
            self.places.insert(place.clone(), claim);
            taken
        } else {
            self.lost.insert((at, path.to_owned()));
            Verdict::Left
        }
    }

    /// The package that has a file or a link at a place, and its wave.
    pub(super) fn owner(&self, place: &Place) -> Option<(usize, usize)> {
        let claim = self.places.get(place)?;
        Some((claim.package, claim.wave))
    }

    /// Notes a conflict of two packages.
    pub(super) fn conflict(&mut self, path: &str, one: &Unpacked, other: &Unpacked) {
        let mut both = [one, other];
        both.sort_by(|a, b| a.name().cmp(b.name()));
        self.conflicts.insert(format!(
            "/{path} is in two packages, {} and {}: neither diverts it, and neither declares that it replaces the other",
            both[0].title(),
            both[1].title()
        ));
    }

    /// Fails with all conflicts, sorted.
    pub(super) fn check(&self) -> Result<()> {
        let all: Vec<&str> = self.conflicts.iter().map(String::as_str).collect();
        ensure!(all.is_empty(), "{}", all.join("\n"));
        Ok(())
    }

    /// The paths that packages have lost to others since the last call.
    pub(super) fn take_lost(&mut self) -> BTreeSet<(usize, String)> {
        std::mem::take(&mut self.lost)
    }
}

/// Whether a package declares to replace files of another one.
fn replaces(one: &Unpacked, other: &Unpacked) -> bool {
    relation::groups(one.field("Replaces"))
        .flatten()
        .any(|relation| relation.name == other.name() && relation.accepts(other.field("Version")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_package_has_a_path_in_either_order() {
        for (one, two, diverter, winner) in [
            ("Replaces: b", "", None, Some(0)),
            ("Replaces: b (<< 2)", "", None, Some(0)),
            // Not the version that is installed, and not its real name.
            ("Replaces: b (<< 1)", "", None, None),
            ("Replaces: virtual", "Provides: virtual", None, None),
            ("", "Replaces: a (= 1)", None, Some(1)),
            ("Replaces: b", "Replaces: a", None, Some(1)),
            ("", "", None, None),
            ("", "", Some("c"), None),
        ] {
            let controls = [
                format!("Package: a\nVersion: 1\n{one}\n"),
                format!("Package: b\nVersion: 1\n{two}\n"),
            ];
            let packages = controls.map(|text| Unpacked::of(&text));
            let place = (7, "x".to_owned());
            for order in [[0, 1], [1, 0]] {
                let mut claims = Claims::new(Overlap::Conflict, vec![0, 1]);
                for at in order {
                    claims.claim(&place, (at, "usr/x", 0), &packages, diverter);
                }
                match winner {
                    Some(winner) => {
                        assert_eq!(
                            claims.owner(&place),
                            Some((winner, 0)),
                            "{one} {two} {order:?}"
                        );
                        let lost = BTreeSet::from([(1 - winner, "usr/x".to_owned())]);
                        assert_eq!(claims.take_lost(), lost);
                        claims.check().unwrap();
                    }
                    None => assert_eq!(
                        claims.check().unwrap_err().to_string(),
                        "/usr/x is in two packages, a 1 and b 1: neither diverts it, and neither declares that it \
                         replaces the other",
                        "{one} {two} {order:?}"
                    ),
                }
            }
        }
    }
}
