//! The picture of `docs/architecture.md`: crates on top of those that they use, each with its rooms by floors.
//!
//! The picture has plain presentation attributes and a background, so that it is legible on light and dark pages and in
//! every viewer of SVG.

use std::collections::BTreeMap;

use crate::graph::Crate;
use crate::layout::{self, Placed, WIDTH, room};
use crate::metrics;

/// Height of the legend below the crates.
const LEGEND: f64 = 72.0;
const FONT: &str = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
/// Fill and border of the crates of each layer, from the foundation up.
const COLOURS: [(&str, &str); 6] = [
    ("#e3ddd0", "#8a7d62"),
    ("#f3e3c3", "#b08a3e"),
    ("#e2ecd5", "#6f9150"),
    ("#d6e6f0", "#4f83a8"),
    ("#e6def0", "#8169a8"),
    ("#f2dcdc", "#b06a6a"),
];

/// Draws the crates.
#[must_use]
pub fn svg(crates: &[Crate]) -> String {
    let (placed, height) = layout::place(crates);
    let full = height + LEGEND;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {full:.0}\" width=\"{WIDTH}\" height=\"{full:.0}\" \
         font-family=\"{FONT}\" font-size=\"11\">\n<title>The crates of Slipway and their rooms</title>\n\
         <rect width=\"{WIDTH}\" height=\"{full:.0}\" rx=\"10\" fill=\"#fdfcf9\"/>\n"
    );
    for each in &placed {
        draw(&mut out, each);
    }
    arrows(&mut out, &placed);
    legend(&mut out, height, crates);
    out + "</svg>\n"
}

fn text(out: &mut String, x: f64, y: f64, attributes: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    *out += &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>\n");
}

fn draw(out: &mut String, placed: &Placed<'_>) {
    let (fill, border) = COLOURS[placed.layer.min(COLOURS.len() - 1)];
    let Placed {
        x,
        y,
        width,
        height,
        ..
    } = *placed;
    *out += &format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"8\" fill=\"{fill}\" stroke=\"{border}\"/>\n"
    );
    let name = &placed.krate.package.name;
    text(
        out,
        x + 12.0,
        y + 21.0,
        "font-size=\"15\" font-weight=\"700\" fill=\"#23211c\"",
        name,
    );
    let lines = thousands(metrics::lines(placed.krate));
    let right = format!("text-anchor=\"end\" fill=\"{border}\"");
    text(out, x + width - 12.0, y + 20.0, &right, &lines);
    for (number, floor) in placed.floors.iter().enumerate() {
        if !placed.names && number > 0 {
            let (left, right, y) = (x + 12.0, x + width - 12.0, y + floor.y);
            *out += &format!(
                "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"{border}\" stroke-opacity=\"0.45\" stroke-dasharray=\"2 3\"/>\n"
            );
        }
        if placed.names {
            let style = format!(
                "font-size=\"{}\" font-style=\"italic\" fill=\"{border}\"",
                layout::FLOOR_FONT
            );
            text(out, x + 12.0, y + floor.y, &style, &floor.name);
        }
        for room in &floor.rooms {
            let (left, top, wide) = (x + room.x, y + room.y, room.width());
            *out += &format!(
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{}\" rx=\"4\" fill=\"#ffffff\" \
                 fill-opacity=\"0.75\" stroke=\"{border}\" stroke-opacity=\"0.45\"/>\n",
                room::HEIGHT
            );
            text(
                out,
                left + room::PADDING,
                top + 14.0,
                "fill=\"#23211c\"",
                &room.name,
            );
            let number = format!("text-anchor=\"end\" font-size=\"8.5\" fill=\"{border}\"");
            text(
                out,
                left + wide - room::PADDING,
                top + 14.0,
                &number,
                &room.lines,
            );
        }
    }
}

/// A line from each crate down to each crate that it uses, without uses that follow from others.
fn arrows(out: &mut String, placed: &[Placed<'_>]) {
    let uses = layout::direct_uses(placed);
    for arrow in &uses {
        let (user, used) = (&placed[arrow.0], &placed[arrow.1]);
        let from = ends(
            placed,
            arrow.0,
            uses.iter()
                .filter(|other| other.0 == arrow.0)
                .map(|other| other.1),
        );
        let to = ends(
            placed,
            arrow.1,
            uses.iter()
                .filter(|other| other.1 == arrow.1)
                .map(|other| other.0),
        );
        let (x1, y1, x2, y2) = (from[&arrow.1], user.y + user.height, to[&arrow.0], used.y);
        let bend = (y2 - y1) * 0.55;
        let (_, border) = COLOURS[user.layer.min(COLOURS.len() - 1)];
        *out += &format!(
            "<path d=\"M{x1:.1} {y1:.1}C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {:.1}\" fill=\"none\" stroke=\"{border}\" \
             stroke-width=\"1.6\"/>\n<path d=\"M{:.1} {:.1}L{x2:.1} {y2:.1}L{:.1} {:.1}Z\" fill=\"{border}\"/>\n",
            y1 + bend,
            y2 - 6.0 - bend,
            y2 - 6.0,
            x2 - 4.5,
            y2 - 8.0,
            x2 + 4.5,
            y2 - 8.0
        );
    }
}

/// End points of a crate's arrows, side by side in the order of the crates at the other ends, so that the arrows do not
/// cross there.
fn ends(
    placed: &[Placed<'_>],
    this: usize,
    others: impl Iterator<Item = usize>,
) -> BTreeMap<usize, f64> {
    let centre = |number: usize| placed[number].x + placed[number].width / 2.0;
    let mut others: Vec<usize> = others.collect();
    others.sort_by(|a, b| centre(*a).total_cmp(&centre(*b)));
    let apart = placed[this].width / room::count(others.len() + 1);
    let mut x = placed[this].x;
    others
        .into_iter()
        .map(|other| {
            x += apart;
            (other, x)
        })
        .collect()
}

fn legend(out: &mut String, y: f64, crates: &[Crate]) {
    let lines = thousands(crates.iter().map(metrics::lines).sum());
    let style = "font-size=\"11.5\" fill=\"#5b574d\"";
    for (number, sentence) in [
        format!("Large boxes are crates, {lines} lines in all; small boxes are the modules at their top, with the lines of all their children."),
        "A module uses only floors below its own, a crate only crates below it. Arrows that follow from others and those to the".to_owned(),
        "crate at the bottom are left out.".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        let down = 20.0 + 18.0 * room::count(number);
        text(out, layout::MARGIN, y + down, style, sentence);
    }
}

fn thousands(lines: usize) -> String {
    match lines {
        0..1000 => lines.to_string(),
        _ => format!("{}.{}k", lines / 1000, lines % 1000 / 100),
    }
}
