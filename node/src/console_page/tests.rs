//! The board on terminals of the kernel, whose other end is read as a screen or as a log.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{FlowArg, tcflow};

use super::*;
use crate::samples::{machine, put};

const OBJECT: &str = "name = \"blue\"\nendpoint = \"10.0.0.7\"\n[node]\naddress = \"10.0.0.7\"\n";
const SIZE: (u16, u16) = (25, 80);

/// A machine with consoles.
struct Bench {
    _folder: tempfile::TempDir,
    world: World,
    status: Status,
    board: Board,
}

impl Bench {
    fn new(active: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let world = machine(folder.path(), OBJECT);
        put(&world.sys.join("class/tty/console/active"), active);
        put(&world.sys.join("class/tty/tty0/active"), "tty1\n");
        fs::create_dir_all(&world.dev).unwrap();
        let mut status = status(&world, None).unwrap();
        status.gettys = Some(Vec::new());
        status.addresses = vec!["10.0.0.7".to_owned()];
        Self {
            _folder: folder,
            world,
            status,
            board: Board::default(),
        }
    }

    /// The terminal of this name below `/dev`.
    fn terminal(&self, name: &str, size: Option<(u16, u16)>) -> Terminal {
        let size = size.map(|(ws_row, ws_col)| Winsize {
            ws_row,
            ws_col,
            ws_xpixel: 0,
            ws_ypixel: 0,
        });
        let ends = openpty(size.as_ref(), None).unwrap();
        let path = nix::unistd::ttyname(&ends.slave).unwrap();
        symlink(path, self.world.dev.join(name)).unwrap();
        fcntl(&ends.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        Terminal {
            person: File::from(ends.master),
            device: ends.slave,
        }
    }

    fn show(&mut self, seconds: u64) {
        let now = Duration::from_secs(seconds);
        self.board.show(&self.world, &self.status, now);
    }

    fn waits_for(&mut self, line: &str) {
        self.status.waits_for = Some(line.to_owned());
    }
}

/// Both ends of a terminal.
struct Terminal {
    person: File,
    device: OwnedFd,
}

impl Terminal {
    /// What was written since it was read last.
    fn read(&mut self) -> String {
        // The kernel carries the bytes from one end to the other by a worker.
        std::thread::sleep(Duration::from_millis(100));
        let mut bytes = Vec::new();
        let ended = self.person.read_to_end(&mut bytes);
        assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        String::from_utf8(bytes).unwrap()
    }
}

/// A screen, as far as the page and messages need it (console_codes(4)).
struct Screen {
    lines: Vec<String>,
    /// Row and column, from 0.
    at: (usize, usize),
    saved: (usize, usize),
    region: (usize, usize),
}

impl Screen {
    fn new() -> Self {
        let height = usize::from(SIZE.0);
        Self {
            lines: vec![String::new(); height],
            at: (0, 0),
            saved: (0, 0),
            region: (0, height - 1),
        }
    }

    fn take(&mut self, text: &str) {
        let mut rest = text.chars();
        while let Some(letter) = rest.next() {
            match letter {
                '\x1b' => self.escape(&mut rest),
                '\r' => self.at.1 = 0,
                '\n' if self.at.0 == self.region.1 => {
                    self.lines.remove(self.region.0);
                    self.lines.insert(self.region.1, String::new());
                }
                '\n' => self.at.0 += 1,
                letter => {
                    let (row, column) = self.at;
                    let line = &mut self.lines[row];
                    let before: String = format!("{line:column$}").chars().take(column).collect();
                    let after: String = line.chars().skip(column + 1).collect();
                    *line = format!("{before}{letter}{after}");
                    self.at.1 = (column + 1).min(usize::from(SIZE.1) - 1);
                }
            }
        }
    }

    fn escape(&mut self, rest: &mut std::str::Chars<'_>) {
        match rest.next() {
            Some('7') => self.saved = self.at,
            Some('8') => self.at = self.saved,
            Some('[') => {
                let text = rest.as_str();
                let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                let number = |text: &str| text.parse::<usize>().ok().map(|number| number - 1);
                let numbers: Vec<_> = match &text[..end] {
                    "0" | "2" => Vec::new(),
                    numbers => numbers.split(';').map(number).collect(),
                };
                let get = |at: usize, or: usize| numbers.get(at).copied().flatten().unwrap_or(or);
                let bottom = usize::from(SIZE.0) - 1;
                match text.as_bytes()[end] {
                    b'H' => self.at = (get(0, 0), get(1, 0)),
                    b'J' => self.lines.iter_mut().for_each(String::clear),
                    b'K' => self.lines[self.at.0].clear(),
                    b'r' => (self.region, self.at) = ((get(0, 0), get(1, bottom)), (0, 0)),
                    b'm' => {}
                    other => panic!("{}", char::from(other)),
                }
                *rest = text[end + 1..].chars();
            }
            other => panic!("{other:?}"),
        }
    }

    /// The page and the messages below the rule.
    fn parts(&self) -> (Vec<&str>, Vec<&str>) {
        let lines: Vec<&str> = self.lines.iter().map(|line| line.trim_end()).collect();
        let rule = lines
            .iter()
            .position(|line| line.starts_with("----"))
            .unwrap();
        let (page, below) = lines.split_at(rule);
        let below = below[1..].iter().filter(|line| !line.is_empty());
        (page.to_vec(), below.copied().collect())
    }
}

#[test]
fn a_screen_keeps_the_page_above_the_messages() {
    let mut bench = Bench::new("tty0\n");
    let mut terminal = bench.terminal("tty1", Some(SIZE));
    let mut screen = Screen::new();
    bench.show(0);
    screen.take(&terminal.read());
    let (page, below) = screen.parts();
    assert_eq!(page[0], "name         node1");
    assert!(below.is_empty(), "{below:?}");
    let messages = |of: &str| {
        (0..20)
            .map(|at| format!("{of} {at}\r\n"))
            .collect::<String>()
    };
    screen.take(&messages("early"));
    let before: Vec<String> = screen.parts().0.iter().map(|&line| line.into()).collect();
    // Time alone draws nothing for a minute.
    bench.status.uptime_seconds += 30;
    bench.show(5);
    assert_eq!(terminal.read(), "");
    bench.waits_for("another thing");
    bench.show(10);
    screen.take(&terminal.read());
    let (page, below) = screen.parts();
    assert!(page.contains(&"waits for    another thing"), "{page:?}");
    assert_eq!(page.len(), before.len());
    assert_eq!(below.last(), Some(&"early 19"));
    screen.take("late\r\n");
    assert_eq!(screen.parts().1.last(), Some(&"late"));
    // What fell into the page is gone after a minute.
    screen.take("\x1b7\x1b[1;1Hdamage\x1b8");
    assert_eq!(screen.parts().0[0], "damage       node1");
    bench.show(69);
    assert_eq!(terminal.read(), "");
    bench.show(70);
    screen.take(&terminal.read());
    assert_eq!(screen.parts().0[0], "name         node1");
    // A larger page has the screen anew, a smaller one keeps the area.
    bench.status.addons = Some("a network".to_owned());
    bench.status.kubernetes = None;
    bench.waits_for(&"long ".repeat(30));
    bench.show(75);
    screen.take(&terminal.read());
    let (page, below) = screen.parts();
    assert!(
        page.len() > before.len() && below.is_empty(),
        "{page:?} {below:?}"
    );
    let larger = page.len();
    screen.take(&messages("last"));
    bench.status.addons = None;
    bench.show(80);
    screen.take(&terminal.read());
    let (page, below) = screen.parts();
    assert_eq!((page.len(), below.last()), (larger, Some(&"last 19")));
    assert_eq!(page.last(), Some(&""));
    drop(terminal.device);
}

#[test]
fn a_log_has_the_page_when_it_has_changed_and_no_flood_of_it() {
    let mut bench = Bench::new("ttyS0\n");
    let mut terminal = bench.terminal("ttyS0", None);
    let mut pages = |bench: &mut Bench, seconds: u64| {
        bench.show(seconds);
        let text = terminal.read();
        assert!(!text.contains('\x1b'), "{text}");
        text.matches("slipway: status of node1: ").count()
    };
    assert_eq!(pages(&mut bench, 0), 1);
    bench.status.uptime_seconds += 600;
    assert_eq!(pages(&mut bench, 600), 0);
    bench.waits_for("a");
    assert_eq!(pages(&mut bench, 605), 1);
    for second in 606..665 {
        bench.waits_for(&second.to_string());
        bench.show(second);
    }
    assert_eq!(pages(&mut bench, 664), 0);
    assert_eq!(pages(&mut bench, 665), 1);
    // A node that becomes Ready says so earlier.
    bench.status.state = State::Ready;
    bench.status.waits_for = None;
    assert_eq!(pages(&mut bench, 674), 0);
    assert_eq!(pages(&mut bench, 675), 1);
    drop(terminal.device);
}

#[test]
fn a_terminal_that_asks_for_a_login_has_no_page() {
    let mut bench = Bench::new("tty0 ttyS0\n");
    let mut serial = bench.terminal("ttyS0", None);
    let mut screen = bench.terminal("tty1", Some(SIZE));
    let mut other = bench.terminal("tty2", Some(SIZE));
    let gettys = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
    bench.status.gettys = gettys(&["ttyS0"]);
    bench.show(0);
    assert_eq!(serial.read(), "");
    assert!(screen.read().contains("node1"));
    // What systemd said last counts as long as it says nothing.
    bench.status.gettys = None;
    bench.show(300);
    assert_eq!(serial.read(), "");
    // The one that is looked at has the page, unless a person logs in there; `console` is the last one.
    put(&bench.world.sys.join("class/tty/tty0/active"), "tty2\n");
    bench.status.gettys = gettys(&["tty2", "console"]);
    screen.read();
    bench.show(600);
    assert_eq!(
        (serial.read(), screen.read(), other.read()),
        Default::default()
    );
    bench.status.gettys = gettys(&["tty1"]);
    bench.show(605);
    assert!(serial.read().starts_with("slipway: status of node1"));
    assert_eq!(screen.read(), "");
    assert!(other.read().contains("node1"));
    put(&bench.world.sys.join("class/tty/tty0/active"), "tty1\n");
    bench.show(610);
    let closed = bench.board.shown.keys().collect::<Vec<_>>();
    assert_eq!(closed, ["ttyS0"]);
}

#[test]
fn a_console_that_takes_nothing_holds_up_no_other_and_has_the_page_later() {
    let mut bench = Bench::new("ttyS0 ttyS1\n");
    let mut stuck = bench.terminal("ttyS0", None);
    let mut other = bench.terminal("ttyS1", None);
    // What Ctrl-S does.
    tcflow(&stuck.device, FlowArg::TCOOFF).unwrap();
    let began = std::time::Instant::now();
    bench.show(0);
    assert!(other.read().contains("slipway: status of node1"));
    for seconds in 1..50 {
        bench.show(seconds);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(stuck.read(), "");
    tcflow(&stuck.device, FlowArg::TCOON).unwrap();
    bench.show(50);
    assert!(stuck.read().starts_with("slipway: status of node1"));
    assert_eq!(other.read(), "");
}
