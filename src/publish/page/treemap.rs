//! A treemap: nested boxes whose areas are shares of a whole, as squarish as may be (Bruls, Huizing and van Wijk:
//! Squarified Treemaps, 2000).
//!
//! Boxes are HTML elements with positions in per cent: labels keep their size on a narrow screen.

use super::{escape, percent};
use crate::host::progress::bytes as size;
use crate::layer::usage::Usage;

/// Folders are opened down to this depth.
const DEPTH: usize = 4;
/// Boxes with less than this share of the picture's area are not opened, per cent.
const OPENED: f64 = 1.5;
/// Width over height of the picture, for which the boxes are laid out.
const SHAPE: f64 = 1.6;

/// A rectangle; position and size are shares of the enclosing box, 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rect {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// The picture of a tree.
pub(super) fn html(usage: &Usage) -> String {
    let boxes = boxes(usage, "", 0, SHAPE, 100.0);
    format!("<div class=\"map\">\n{boxes}</div>\n")
}

/// The boxes in a folder, whose own box is `shape` times as wide as high and has `area` per cent of the picture.
fn boxes(folder: &Usage, path: &str, depth: usize, shape: f64, area: f64) -> String {
    let areas: Vec<f64> = folder
        .parts
        .iter()
        .map(|part| percent(part.bytes, folder.bytes))
        .collect();
    let mut out = String::new();
    for (part, rect) in folder.parts.iter().zip(squarified(&areas, shape)) {
        let path = format!("{path}/{}", part.name);
        let area = area * rect.width * rect.height / 10_000.0;
        out += &format!(
            "<div class=\"d{depth}\" style=\"left:{:.2}%;top:{:.2}%;width:{:.2}%;height:{:.2}%\" title=\"{} · {}\"><span>{} <i>{}</i></span>",
            rect.x,
            rect.y,
            rect.width,
            rect.height,
            escape(&path),
            size(part.bytes),
            escape(&part.name),
            size(part.bytes),
        );
        if !part.parts.is_empty() && depth + 1 < DEPTH && area >= OPENED {
            let shape = shape * rect.width / rect.height.max(0.01);
            let inner = boxes(part, &path, depth + 1, shape, area);
            out += &format!("<div class=\"in\">\n{inner}</div>");
        }
        out += "</div>\n";
    }
    out
}

/// Rectangles with these areas (per cent of the enclosing box, the largest first), which is `shape` times as wide as high.
fn squarified(areas: &[f64], shape: f64) -> Vec<Rect> {
    // In units in which the box has the height 100: a row is laid along the shorter side of what is left.
    let mut left = Rect {
        x: 0.0,
        y: 0.0,
        width: 100.0 * shape,
        height: 100.0,
    };
    let mut out = Vec::new();
    let mut rest: Vec<f64> = areas.iter().map(|area| area * shape * 100.0).collect();
    while !rest.is_empty() {
        let side = left.width.min(left.height).max(f64::EPSILON);
        let mut count = 1;
        while count < rest.len() && worst(&rest[..=count], side) <= worst(&rest[..count], side) {
            count += 1;
        }
        let row: Vec<f64> = rest.drain(..count).collect();
        let depth = row.iter().sum::<f64>() / side;
        let mut along = 0.0;
        for area in row {
            let length = if depth > 0.0 { area / depth } else { 0.0 };
            let rect = if left.width >= left.height {
                Rect {
                    x: left.x,
                    y: left.y + along,
                    width: depth,
                    height: length,
                }
            } else {
                Rect {
                    x: left.x + along,
                    y: left.y,
                    width: length,
                    height: depth,
                }
            };
            out.push(Rect {
                x: rect.x / shape,
                width: rect.width / shape,
                ..rect
            });
            along += length;
        }
        if left.width >= left.height {
            left.x += depth;
            left.width -= depth;
        } else {
            left.y += depth;
            left.height -= depth;
        }
    }
    out
}

/// The ratio of the longer to the shorter side of a row's least square box.
fn worst(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let ratio = |area: f64| {
        let (sum, side) = (sum * sum, side * side);
        (side * area / sum).max(sum / (side * area))
    };
    row.iter().copied().map(ratio).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_kept_and_boxes_neither_overlap_nor_leave_the_picture() {
        let areas = [40.0, 25.0, 15.0, 10.0, 5.0, 3.0, 1.5, 0.5];
        for shape in [0.3, 1.0, 1.6, 5.0] {
            let rects = squarified(&areas, shape);
            assert_eq!(rects.len(), areas.len());
            for (rect, area) in rects.iter().zip(areas) {
                assert!((rect.width * rect.height / 100.0 - area).abs() < 0.01);
                assert!(rect.x >= -0.01 && rect.x + rect.width <= 100.01);
                assert!(rect.y >= -0.01 && rect.y + rect.height <= 100.01);
            }
            for (at, one) in rects.iter().enumerate() {
                for two in &rects[at + 1..] {
                    let apart = one.x + one.width <= two.x + 0.01
                        || two.x + two.width <= one.x + 0.01
                        || one.y + one.height <= two.y + 0.01
                        || two.y + two.height <= one.y + 0.01;
                    assert!(apart, "{one:?} {two:?}");
                }
            }
        }
    }

    #[test]
    fn large_boxes_are_squarish() {
        let rects = squarified(&[30.0, 25.0, 20.0, 15.0, 10.0], SHAPE);
        for rect in rects {
            let ratio = rect.width * SHAPE / rect.height;
            assert!((0.3..3.4).contains(&ratio), "{rect:?}");
        }
    }

    #[test]
    fn only_large_folders_are_opened() {
        let leaf = |name: &str, bytes| Usage {
            name: name.into(),
            bytes,
            parts: Vec::new(),
        };
        let tree = Usage {
            name: String::new(),
            bytes: 1000,
            parts: vec![
                Usage {
                    parts: vec![leaf("bin", 600), leaf("lib", 390)],
                    ..leaf("usr", 990)
                },
                Usage {
                    parts: vec![leaf("hidden", 10)],
                    ..leaf("etc", 10)
                },
            ],
        };
        let html = html(&tree);
        assert!(html.contains("title=\"/usr/bin · 600 B\""), "{html}");
        assert!(
            html.contains("/etc ·") && !html.contains("hidden"),
            "{html}"
        );
    }
}
