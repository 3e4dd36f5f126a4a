//! The table of `docs/architecture.md`: one line a crate.

use crate::graph::Crate;
use crate::metrics;
use crate::rules;

/// The heads of the columns.
const HEADS: [&str; 9] = [
    "crate",
    "files",
    "lines",
    "circles",
    "uses of a parent",
    "back arrows",
    "largest room",
    "function, median",
    "p90",
];

/// A Markdown table of the crates, with a line of totals.
#[must_use]
pub fn markdown(crates: &[Crate]) -> String {
    let mut rows = vec![HEADS.map(str::to_owned)];
    rows.extend(crates.iter().map(row));
    rows.push(sum(crates));
    let mut width = [0; HEADS.len()];
    for row in &rows {
        for (width, cell) in width.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        text += &line(row, &width);
        if number == 0 {
            text += &line(&width.map(|width| "-".repeat(width)), &width);
        }
    }
    text
}

/// A page in which the table replaces the text between its two marks.
#[must_use]
pub fn inserted(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once("<!-- house -->\n")?;
    let (_, after) = rest.split_once("<!-- /house -->")?;
    Some(format!(
        "{before}<!-- house -->\n{table}<!-- /house -->{after}"
    ))
}

fn line(row: &[String; HEADS.len()], width: &[usize; HEADS.len()]) -> String {
    let cells: Vec<String> = row
        .iter()
        .zip(width)
        .map(|(cell, width)| format!("{cell:<width$}"))
        .collect();
    format!("| {} |\n", cells.join(" | "))
}

fn row(krate: &Crate) -> [String; HEADS.len()] {
    let lines = metrics::lines(krate);
    let largest = metrics::judged(krate).into_iter().next().map_or_else(
        || "-".to_owned(),
        |(_, name, part)| format!("`{name}` {} %", metrics::share(part, lines).div_ceil(10)),
    );
    let back = if rules::without_floor(krate).is_empty() {
        rules::back_arrows(krate).len().to_string()
    } else {
        "no floors".to_owned()
    };
    let (median, most) = metrics::functions([krate]);
    [
        format!("`{}`", krate.package.name),
        krate.files().count().to_string(),
        lines.to_string(),
        metrics::circles(krate).len().to_string(),
        metrics::child_uses(krate).len().to_string(),
        back,
        largest,
        median.to_string(),
        most.to_string(),
    ]
}

fn sum(crates: &[Crate]) -> [String; HEADS.len()] {
    let of = |count: fn(&Crate) -> usize| crates.iter().map(count).sum::<usize>().to_string();
    let (median, most) = metrics::functions(crates);
    [
        "all".to_owned(),
        of(|krate| krate.files().count()),
        of(metrics::lines),
        of(|krate| metrics::circles(krate).len()),
        of(|krate| metrics::child_uses(krate).len()),
        of(|krate| rules::back_arrows(krate).len()),
        String::new(),
        median.to_string(),
        most.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_replaces_what_is_between_the_marks() {
        let page = "a\n<!-- house -->\nold\n<!-- /house -->\nb\n";
        let new = inserted(page, "new\n").unwrap();
        assert_eq!(new, page.replace("old", "new"));
        assert_eq!(inserted(&new, "new\n"), Some(new.clone()));
        assert_eq!(inserted("a\n", "new\n"), None);
    }
}
