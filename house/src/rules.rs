//! The rules of the house, and the findings where the sources break them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use crate::graph::{Arrow, Crate};
use crate::metrics;
use crate::workspace::Package;

/// The packages that each package may use directly. What these may use, it may use too.
/// `docs/architecture.md` has the same arrows with their reasons.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("image", &[]),
    ("cluster", &[]),
    ("house", &[]),
    // Drives the finished program alone.
    ("dist", &[]),
    // Starts Cargo and what it compiled.
    ("xtask", &[]),
    ("api", &["cluster", "fetch"]),
    ("linux", &["image"]),
    ("ignition", &["image"]),
    ("fetch", &["image"]),
    ("net", &["linux"]),
    ("etcd", &["linux"]),
    ("apply", &["linux", "ignition", "fetch"]),
    ("platform", &["ignition", "fetch"]),
    ("initrd", &["apply", "etcd", "net", "platform"]),
    ("dropin", &["apply", "platform"]),
    (
        "node",
        &["api", "etcd", "linux", "net", "platform", "fetch"],
    ),
    (
        "slipway",
        &["api", "image", "ignition", "fetch", "platform"],
    ),
    ("qemu-tests", &["slipway"]),
    ("namespace-tests", &["slipway"]),
    ("conformance", &["slipway", "namespace-tests"]),
    // The measured guests are driven by the laboratory of the promises.
    (
        "bench",
        &["api", "slipway", "namespace-tests", "qemu-tests"],
    ),
];

/// The maximum share of a room in its crate's lines, in tenths of a per cent.
pub const LARGEST: usize = 170;
/// Crates with fewer lines may have rooms of any size.
pub const SMALL: usize = 2000;

/// A broken rule and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, below the workspace's folder.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The message.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.text)
    }
}

/// All findings within a crate.
#[must_use]
pub fn check(krate: &Crate) -> Vec<Finding> {
    let mut findings = without_floor(krate);
    findings.extend(back_arrows(krate));
    findings.extend(circles(krate));
    findings.extend(too_large(krate));
    findings.extend(across_rows(krate));
    findings
}

/// Modules at the top of a target without a floor.
#[must_use]
pub fn without_floor(krate: &Crate) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (tree, floors) in krate.trees.iter().zip(&krate.floors) {
        for module in tree.modules[0].children.keys() {
            if floors.of(module).is_none() {
                findings.push(Finding {
                    file: tree.files[0].path.clone(),
                    line: floors.line_of(module),
                    text: format!("`{module}` stands under no `// Floor: ` comment"),
                });
            }
        }
    }
    findings
}

/// Uses of a module on the same floor or on a higher one.
#[must_use]
pub fn back_arrows(krate: &Crate) -> Vec<Finding> {
    let paths = krate.paths();
    krate
        .arrows
        .iter()
        .filter_map(|arrow| {
            let text = back_arrow(krate, arrow)?;
            Some(Finding {
                file: paths[arrow.from].clone(),
                line: arrow.line,
                text,
            })
        })
        .collect()
}

fn back_arrow(krate: &Crate, arrow: &Arrow) -> Option<String> {
    let user = arrow.room.as_ref()?;
    let floors = &krate.floors[user.target];
    let below = floors.of(&user.name)?;
    arrow.used.iter().find_map(|room| {
        if room.target != user.target || room.name == user.name {
            return None;
        }
        let above = floors.of(&room.name)?;
        let name = |floor: usize| &floors.floors[floor].name;
        (above >= below).then(|| {
            format!(
                "`{}` goes up: `{}` stands on the floor \"{}\", `{}` on \"{}\"",
                arrow.path,
                user.name,
                name(below),
                room.name,
                name(above)
            )
        })
    })
}

/// Files that use each other in a circle: of each group its shortest circle, one finding for each use in it.
#[must_use]
pub fn circles(krate: &Crate) -> Vec<Finding> {
    let paths = krate.paths();
    let mut findings = Vec::new();
    for group in metrics::circles(krate) {
        for arrow in shortest(krate, &group) {
            findings.push(Finding {
                file: paths[arrow.from].clone(),
                line: arrow.line,
                text: format!(
                    "`{}` closes a circle ({} files reach each other): it leads to {}",
                    arrow.path,
                    group.len(),
                    paths[arrow.to].display()
                ),
            });
        }
    }
    findings
}

/// The arrows of the shortest circle within a group of files that all reach each other.
fn shortest<'a>(krate: &'a Crate, group: &[usize]) -> Vec<&'a Arrow> {
    let inside = |arrow: &&Arrow| {
        group.contains(&arrow.from)
            && group.contains(&arrow.to)
            && !krate.is_ancestor(arrow.to, arrow.from)
    };
    let arrows: Vec<&Arrow> = krate.arrows.iter().filter(inside).collect();
    let mut best: Vec<&Arrow> = Vec::new();
    for start in group {
        // Breadth first: paths from `start`, until one returns to it.
        let mut paths: Vec<Vec<&Arrow>> = vec![Vec::new()];
        let mut seen = BTreeSet::new();
        let mut next = 0;
        while let Some(path) = paths.get(next).cloned() {
            next += 1;
            let at = path.last().map_or(*start, |arrow| arrow.to);
            if !path.is_empty() && at == *start {
                if best.is_empty() || path.len() < best.len() {
                    best = path;
                }
                break;
            }
            for arrow in arrows.iter().filter(|arrow| arrow.from == at) {
                if seen.insert(arrow.to) {
                    paths.push([path.as_slice(), &[*arrow]].concat());
                }
            }
        }
    }
    best
}

/// Rooms with too large a share of their crate's lines.
#[must_use]
pub fn too_large(krate: &Crate) -> Vec<Finding> {
    let all = metrics::lines(krate);
    if all <= SMALL {
        return Vec::new();
    }
    metrics::judged(krate)
        .into_iter()
        .filter(|(_, _, lines)| metrics::share(*lines, all) > LARGEST)
        .map(|(room, name, lines)| Finding {
            file: krate.package.roots[room.target].clone(),
            line: krate.floors[room.target].line_of(&room.name),
            text: format!(
                "`{name}` has {lines} of the crate's {all} lines; the most is {} %",
                LARGEST / 10
            ),
        })
        .collect()
}

/// Uses of one child of a row by another: such children do not qualify as separate rooms.
#[must_use]
pub fn across_rows(krate: &Crate) -> Vec<Finding> {
    let paths = krate.paths();
    let children: Vec<Option<(usize, &str)>> = krate
        .files()
        .map(|(target, file)| {
            let row = krate
                .room(target, file)
                .filter(|room| metrics::is_row(krate, room))?;
            let path = krate.trees[row.target].path_of(file.module);
            path.get(1).map(|child| (target, *child))
        })
        .collect();
    let across = |arrow: &&Arrow| {
        let (from, to) = (children[arrow.from], children[arrow.to]);
        from.is_some() && to.is_some() && from != to
    };
    let arrows = krate.arrows.iter().filter(across);
    arrows
        .map(|arrow| Finding {
            file: paths[arrow.from].clone(),
            line: arrow.line,
            text: format!(
                "`{}` uses {}, which stands beside it in a row",
                arrow.path,
                paths[arrow.to].display()
            ),
        })
        .collect()
}

/// Dependencies of packages on each other that the table of arrows does not allow.
#[must_use]
pub fn dependencies(packages: &[Package], arrows: &[(&str, &[&str])]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = package.manifest();
        if !arrows.iter().any(|(name, _)| *name == package.name) {
            findings.push(Finding {
                file: manifest.clone(),
                line: 1,
                text: format!("`{}` is not in the table of arrows", package.name),
            });
        }
        let allowed = reachable(&package.name, arrows);
        for (name, line) in &package.dependencies {
            if !allowed.contains(name.as_str()) {
                findings.push(Finding {
                    file: manifest.clone(),
                    line: *line,
                    text: format!("`{}` must not depend on `{name}`", package.name),
                });
            }
        }
    }
    findings
}

fn reachable<'a>(name: &str, arrows: &[(&'a str, &[&'a str])]) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next = vec![name];
    while let Some(name) = next.pop() {
        let used = arrows.iter().find(|(other, _)| *other == name);
        for used in used.map_or(&[][..], |(_, used)| used) {
            if found.insert(*used) {
                next.push(used);
            }
        }
    }
    found
}
