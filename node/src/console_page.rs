//! `console`, which a unit runs: the status as a page on each console of the kernel that asks for no login.
//!
//! A screen has the page at its top; messages scroll below it, in a scrolling region (console_codes(4)). A serial line is
//! read as a log too, so there the page is printed only when it has changed, and not more often than [`PRINT_EVERY`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use linux::log::consoles;
use linux::waiter::Waiter;
use linux::world::World;

use crate::node_status::{State, Status, status};
use crate::page::Page;

#[cfg(test)]
mod tests;

/// How often the node looks at itself.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often it asks the API server, on a node that is not Ready and on one that is.
const ASK_EVERY: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(30)];
/// How often a screen is drawn although nothing has changed: messages of the kernel may have fallen into the page, and
/// somebody may look at the time.
const DRAW_EVERY: Duration = Duration::from_secs(60);
/// The time between two pages in a log at least.
const PRINT_EVERY: Duration = Duration::from_secs(60);
/// The same if the node has become Ready, or is not any more.
const PRINT_STATE_EVERY: Duration = Duration::from_secs(10);

/// Shows the page for ever.
///
/// # Errors
/// If there is no status.
pub(crate) fn run(world: &World) -> Result<()> {
    let waiter = Waiter::for_ever(world);
    let mut board = Board::default();
    let mut known: Option<(Status, Duration)> = None;
    loop {
        let now = waiter.elapsed();
        let fresh = known.take_if(|(status, asked)| {
            let ready = usize::from(status.state == State::Ready);
            now < *asked + ASK_EVERY[ready]
        });
        let asked = fresh.as_ref().map_or(now, |(_, asked)| *asked);
        let status = status(world, fresh.as_ref().map(|(status, _)| status))?;
        board.show(world, &status, waiter.elapsed());
        known = Some((status, asked));
        waiter.sleep(LOOK_EVERY);
    }
}

/// The pages on the consoles.
#[derive(Debug, Default)]
struct Board {
    /// Terminals that ask for a login, as systemd said last.
    gettys: Vec<String>,
    /// By the name below `/dev`.
    shown: BTreeMap<String, Shown>,
}

/// The page on one console.
#[derive(Debug)]
struct Shown {
    page: Page,
    at: Duration,
    /// Rows and columns, and the page's lines; none in a log.
    area: Option<((u16, u16), usize)>,
}

impl Board {
    /// Shows a status where that is due; `now` is the time since any moment.
    fn show(&mut self, world: &World, status: &Status, now: Duration) {
        if let Some(gettys) = &status.gettys {
            self.gettys.clone_from(gettys);
        }
        let terminals = terminals(world, &self.gettys);
        self.shown.retain(|name, _| {
            let stays = terminals.contains(name);
            if !stays {
                world.consoles.close(&world.dev.join(name));
            }
            stays
        });
        let page = Page::of(status);
        for name in terminals {
            let path = world.dev.join(&name);
            let screen = number(&name).and_then(|_| {
                let size = world.consoles.size(&path)?;
                Some((size, page.screen(size)?))
            });
            let shown = self.shown.get(&name);
            let (text, area) = match screen {
                Some((size, lines)) => match drawing(shown, &page, size, &lines, now) {
                    Some((text, area)) => (text, Some((size, area))),
                    None => continue,
                },
                None if is_due(shown, &page, now) => (page.log(), None),
                None => continue,
            };
            if is_written(world, &path, &text) {
                let page = page.clone();
                let at = now;
                self.shown.insert(name, Shown { page, at, area });
            }
        }
    }
}

/// Whether the console took all of a text. One that did not gets the whole page later.
fn is_written(world: &World, path: &Path, text: &str) -> bool {
    world.consoles.put(path, text).unwrap_or_else(|error| {
        tracing::debug!("writing to {}: {error}", path.display());
        false
    })
}

/// The terminals behind the kernel's consoles, without those that ask for a login.
fn terminals(world: &World, gettys: &[String]) -> BTreeSet<String> {
    let active = consoles(world);
    let terminal = |name: &String| {
        let name = match name.as_str() {
            // It is the last one.
            "console" => active.last().unwrap_or(name),
            _ => name,
        };
        match name.as_str() {
            // It is the screen that is looked at.
            "tty0" => foreground(world),
            _ => name.clone(),
        }
    };
    let taken: BTreeSet<String> = gettys.iter().map(terminal).collect();
    let mut terminals: BTreeSet<String> = active.iter().map(terminal).collect();
    terminals.retain(|name| !taken.contains(name));
    terminals
}

fn foreground(world: &World) -> String {
    let active = fs::read_to_string(world.sys.join("class/tty/tty0/active"));
    let active = active.unwrap_or_default().trim().to_owned();
    // A kernel without virtual terminals lists no `tty0`.
    if active.is_empty() {
        "tty0".to_owned()
    } else {
        active
    }
}

/// The number of a virtual terminal; none of a serial line and of others.
fn number(name: &str) -> Option<u32> {
    name.strip_prefix("tty")?.parse().ok()
}

/// Whether a log is to have the page.
fn is_due(shown: Option<&Shown>, page: &Page, now: Duration) -> bool {
    let Some(shown) = shown else {
        return true;
    };
    let pause = match shown.page.state == page.state {
        true => PRINT_EVERY,
        false => PRINT_STATE_EVERY,
    };
    !shown.page.same(page) && now >= shown.at + pause
}

/// What draws the page on a screen, and how many lines are the page's afterwards; none if it need not be drawn.
fn drawing(
    shown: Option<&Shown>,
    page: &Page,
    size: (u16, u16),
    lines: &[String],
    now: Duration,
) -> Option<(String, usize)> {
    let same = shown.is_some_and(|shown| shown.page.same(page) && now < shown.at + DRAW_EVERY);
    let before = shown
        .and_then(|shown| shown.area)
        .filter(|(before, _)| *before == size);
    let area = before.map_or(0, |(_, area)| area);
    match before {
        Some(_) if same => None,
        // The area never shrinks, so that messages stay where they are.
        Some(_) if lines.len() <= area => Some((draw(lines, area, size.0, false), area)),
        _ => Some((draw(lines, lines.len(), size.0, true), lines.len())),
    }
}

/// Draws lines at the top; anew clears the screen, and messages go on below the page, else where they were.
fn draw(lines: &[String], area: usize, height: u16, anew: bool) -> String {
    let mut text = match anew {
        true => "\x1b[0m\x1b[r\x1b[H\x1b[2J".to_owned(),
        false => "\x1b7\x1b[0m".to_owned(),
    };
    for at in 0..area {
        // The last line is the rule: it stays at the end of a larger area.
        let line = match (at + 1 == area, at + 1 < lines.len()) {
            (true, _) => lines.last(),
            (false, true) => lines.get(at),
            (false, false) => None,
        };
        let line = line.map_or("", String::as_str);
        // Cleared first: after a line of the whole width the cursor is still on its last column.
        write!(text, "\x1b[{};1H\x1b[2K{line}", at + 1).unwrap_or_default();
    }
    let below = area + 1;
    // Setting the region moves the cursor.
    write!(text, "\x1b[{below};{height}r").unwrap_or_default();
    match anew {
        true => write!(text, "\x1b[{below};1H").unwrap_or_default(),
        false => text.push_str("\x1b8"),
    }
    text
}
