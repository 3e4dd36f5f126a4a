//! The positions in the picture: crates in layers by their dependencies, rooms in rows by floors.

pub(crate) mod room;

use std::collections::{BTreeMap, BTreeSet};

use self::room::{Box, HEIGHT, count, letters};
use crate::graph::{Crate, Room};
use crate::metrics;

/// Width of the picture.
pub(crate) const WIDTH: f64 = 1200.0;
/// Margin around the picture.
pub(crate) const MARGIN: f64 = 20.0;
/// Distance between crates side by side, and between layers, where the arrows run.
const GAP: f64 = 18.0;
const BETWEEN: f64 = 46.0;
/// The minimum width of a crate.
const LEAST: f64 = 125.0;
/// Distances within a crate: its border to its rooms, its head, between rooms.
const INSIDE: f64 = 12.0;
const HEAD: f64 = 30.0;
const APART: f64 = 5.0;
/// The minimum width for rooms beside their floors' names.
const ROOMS: f64 = 210.0;
/// Font size of a floor's name.
pub(crate) const FLOOR_FONT: f64 = 10.0;

/// A crate with its position.
#[derive(Debug)]
pub(crate) struct Placed<'a> {
    pub(crate) krate: &'a Crate,
    /// The layer: 0 for crates without dependencies.
    pub(crate) layer: usize,
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// The floors from the top down.
    pub(crate) floors: Vec<FloorBox>,
    /// Whether the floors' names stand beside the rooms; otherwise lines separate the floors.
    pub(crate) names: bool,
    /// Whether it is the foundation, to which no arrows are drawn.
    pub(crate) foundation: bool,
}

/// A floor's name, at `y` below its crate's top, and its rooms. Without names, `y` is that of the line above the floor.
#[derive(Clone, Debug)]
pub(crate) struct FloorBox {
    pub(crate) name: String,
    pub(crate) y: f64,
    pub(crate) rooms: Vec<Box>,
}

/// Computes the positions of all crates, and the height of the whole picture of them.
pub(crate) fn place(crates: &[Crate]) -> (Vec<Placed<'_>>, f64) {
    let foundation = foundation(crates);
    let layers = layers(crates, foundation);
    let mut placed: Vec<Placed<'_>> = crates
        .iter()
        .zip(&layers)
        .enumerate()
        .map(|(number, (krate, layer))| Placed {
            krate,
            layer: *layer,
            x: MARGIN,
            y: 0.0,
            width: LEAST,
            height: 0.0,
            floors: floors(krate),
            names: false,
            foundation: Some(number) == foundation,
        })
        .collect();
    let top = layers.iter().copied().max().unwrap_or_default();
    let mut rows: Vec<Vec<usize>> = (0..=top)
        .map(|layer| {
            (0..crates.len())
                .filter(|number| layers[*number] == layer)
                .collect()
        })
        .collect();
    for row in &rows {
        widen(&mut placed, row);
    }
    order(&mut placed, &mut rows);
    let mut y = MARGIN;
    for row in rows.iter().rev() {
        let tallest = row
            .iter()
            .map(|number| flow(&mut placed[*number]))
            .fold(0.0, f64::max);
        for number in row {
            placed[*number].y = y;
            placed[*number].height = tallest;
        }
        y += tallest + BETWEEN;
    }
    (placed, y - BETWEEN)
}

/// The crate that more than half of the others use: it has the bottom layer alone.
fn foundation(crates: &[Crate]) -> Option<usize> {
    let users = |number: &usize| {
        let name = &crates[*number].package.name;
        let uses = |krate: &&Crate| krate.package.dependencies.contains_key(name);
        crates.iter().filter(uses).count()
    };
    let most = (0..crates.len()).max_by_key(users)?;
    (users(&most) * 2 >= crates.len()).then_some(most)
}

/// The layer of each crate, above all crates that it uses; an unconnected crate is on the top layer.
fn layers(crates: &[Crate], foundation: Option<usize>) -> Vec<usize> {
    let least = usize::from(foundation.is_some());
    let layer_of = |number| usize::from(Some(number) != foundation) * least;
    let mut layers: Vec<usize> = (0..crates.len()).map(layer_of).collect();
    // A chain has at most one link for each crate, so this many rounds are enough.
    for _ in crates {
        for (number, krate) in crates.iter().enumerate() {
            let below = (0..crates.len())
                .filter(|other| {
                    let name = &crates[*other].package.name;
                    krate.package.dependencies.contains_key(name)
                })
                .map(|other| layers[other] + 1);
            layers[number] = below.fold(layers[number], usize::max).min(crates.len());
        }
    }
    let top = layers.iter().copied().max().unwrap_or_default();
    for (number, krate) in crates.iter().enumerate() {
        let name = &krate.package.name;
        let used = |other: &Crate| other.package.dependencies.contains_key(name);
        if krate.package.dependencies.is_empty() && !crates.iter().any(used) {
            layers[number] = top;
        }
    }
    layers
}

/// The floors of a crate from the top down, rooms not yet placed. A crate without floors has a single unnamed floor.
fn floors(krate: &Crate) -> Vec<FloorBox> {
    let lines: BTreeMap<Room, usize> = metrics::rooms(krate).into_iter().collect();
    let mut all = Vec::new();
    for (target, floors) in krate.floors.iter().enumerate() {
        let room = |name: &String| {
            let room = Room {
                target,
                name: name.clone(),
            };
            lines.get(&room).map(|lines| Box {
                name: name.clone(),
                lines: lines.to_string(),
                x: 0.0,
                y: 0.0,
            })
        };
        let on_floors = floors
            .floors
            .iter()
            .map(|floor| (floor.name.clone(), &floor.modules));
        for (name, modules) in on_floors {
            all.push((name, modules.iter().filter_map(room).collect()));
        }
        let others = floors
            .declared
            .iter()
            .filter(|(name, _)| floors.of(name).is_none());
        all.push((
            String::new(),
            others.filter_map(|(name, _)| room(name)).collect(),
        ));
    }
    all.retain(|(_, rooms): &(String, Vec<Box>)| !rooms.is_empty());
    let top_down = all.into_iter().rev();
    top_down
        .map(|(name, rooms)| FloorBox {
            name,
            y: 0.0,
            rooms,
        })
        .collect()
}

/// Distributes the full width over the crates of a row, in proportion to their content.
fn widen(placed: &mut [Placed<'_>], row: &[usize]) {
    let content = |each: &Placed<'_>| -> f64 {
        let rooms = each.floors.iter().flat_map(|floor| &floor.rooms);
        rooms.map(|room| room.width() + APART).sum::<f64>() + 1.0
    };
    let count = count(row.len());
    let free = WIDTH - 2.0 * MARGIN - GAP * (count - 1.0) - LEAST * count;
    let all: f64 = row.iter().map(|number| content(&placed[*number])).sum();
    for number in row {
        placed[*number].width = LEAST + free.max(0.0) * content(&placed[*number]) / all;
    }
}

/// Orders each row by the mean position of the connected crates, in several sweeps up and down.
fn order(placed: &mut [Placed<'_>], rows: &mut [Vec<usize>]) {
    let uses = direct_uses(placed);
    for row in rows.iter() {
        line_up(placed, row);
    }
    for sweep in 0..8 {
        let up = sweep % 2 == 0;
        let top = rows.len().saturating_sub(1);
        for number in 0..rows.len() {
            let row = &mut rows[if up { number } else { top - number }];
            let mean = |each: usize| {
                let others = uses.iter().filter_map(|(user, used)| match up {
                    true if *user == each => Some(*used),
                    false if *used == each => Some(*user),
                    _ => None,
                });
                let centres: Vec<f64> = others
                    .map(|other| placed[other].x + placed[other].width / 2.0)
                    .collect();
                match centres.is_empty() {
                    true => placed[each].x + placed[each].width / 2.0,
                    false => centres.iter().sum::<f64>() / count(centres.len()),
                }
            };
            let means: BTreeMap<usize, f64> = row.iter().map(|each| (*each, mean(*each))).collect();
            row.sort_by(|a, b| means[a].total_cmp(&means[b]));
            line_up(placed, row);
        }
    }
}

fn line_up(placed: &mut [Placed<'_>], row: &[usize]) {
    let mut x = MARGIN;
    for number in row {
        placed[*number].x = x;
        x += placed[*number].width + GAP;
    }
}

/// Breaks the rooms into rows within their crate's width; gives the height of the result. The floors' names are to the
/// left of their rooms, unless the crate is too narrow.
fn flow(placed: &mut Placed<'_>) -> f64 {
    let right = placed.width - INSIDE;
    let names = placed.floors.iter().map(|floor| name_width(&floor.name));
    let column = names.fold(0.0, f64::max);
    placed.names = column > 0.0 && right - column > ROOMS;
    let left = if placed.names {
        INSIDE + column
    } else {
        INSIDE
    };
    let mut y = HEAD;
    for floor in &mut placed.floors {
        floor.y = if placed.names { y + 14.0 } else { y - 4.0 };
        let mut x = left;
        for room in &mut floor.rooms {
            if x > left && x + room.width() > right {
                x = left;
                y += HEIGHT + APART;
            }
            (room.x, room.y) = (x, y);
            x += room.width() + APART;
        }
        y += HEIGHT + APART + 3.0;
    }
    y + 4.0
}

/// The width of a floor's name, with the space behind it.
fn name_width(name: &str) -> f64 {
    match letters(name) {
        0.0 => 0.0,
        letters => letters * FLOOR_FONT * 0.6 + 14.0,
    }
}

/// The uses between crates, by number, without those that follow from others (transitive reduction).
pub(crate) fn direct_uses(placed: &[Placed<'_>]) -> Vec<(usize, usize)> {
    let number = |name: &str| {
        placed
            .iter()
            .position(|each| each.krate.package.name == name)
    };
    let uses: Vec<BTreeSet<usize>> = placed
        .iter()
        .map(|each| {
            each.krate
                .package
                .dependencies
                .keys()
                .filter_map(|name| number(name))
                .collect()
        })
        .collect();
    let mut reached = uses.clone();
    for _ in placed {
        for reached in &mut reached {
            let more: Vec<usize> = reached.iter().flat_map(|to| uses[*to].clone()).collect();
            reached.extend(more);
        }
    }
    let mut direct = Vec::new();
    for (from, used) in uses.iter().enumerate() {
        for to in used {
            if !placed[*to].foundation
                && !used
                    .iter()
                    .any(|other| other != to && reached[*other].contains(to))
            {
                direct.push((from, *to));
            }
        }
    }
    direct
}
