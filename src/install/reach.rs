//! Reach: which programs run which: interpreters of scripts, commands in shell scripts, programs that units start.
//!
//! A shell script is not executed to find out: a word counts as a call where a shell would take it for a command. Other words
//! that are the absolute path of a program are mentions.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;

use super::package::Unpacked;
use crate::host::tree::{self, Item};

/// Size limit of a script that is looked through.
const LIMIT: u64 = 2 << 20;
/// Folders of units.
const UNITS: [&str; 3] = [
    "/usr/lib/systemd/system/",
    "/usr/lib/systemd/user/",
    "/etc/systemd/system/",
];
/// Folders of programs.
const PROGRAMS: [&str; 4] = ["/usr/bin/", "/usr/sbin/", "/usr/lib/", "/usr/libexec/"];
/// Scripts of packages that stay which only the packaging runs.
const FOR_PACKAGING: [&str; 3] = [
    "/usr/sbin/pam-auth-update",
    // Called by systemctl for units that are scripts of System V, of which a recipe's units are none.
    "/usr/lib/systemd/systemd-sysv-install",
    "/usr/lib/init/init-d-script",
];
/// Words after which a shell expects a command.
const BEFORE_COMMANDS: [&str; 16] = [
    "then", "do", "else", "elif", "if", "while", "until", "!", "exec", "eval", "nohup", "time",
    "builtin", ".", "source", "command",
];

/// A word that names a program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    text: String,
    is_call: bool,
}

/// A program that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// Its path, links followed.
    pub(super) program: String,
    /// Whether it is called there, not only mentioned.
    pub(super) is_call: bool,
    /// Whether it interprets the file.
    pub(super) interprets: bool,
}

/// The files of a tree, and whose they are.
#[derive(Debug)]
pub(super) struct Files<'a> {
    root: &'a Path,
    items: Vec<Item>,
    owners: HashMap<String, &'a str>,
}

impl<'a> Files<'a> {
    /// Those of a tree.
    pub(super) fn of(root: &'a Path, packages: &'a [Unpacked]) -> Result<Self> {
        let mut owners = HashMap::new();
        for package in packages {
            for path in &package.paths {
                owners.insert(merged(path), package.field("Package"));
            }
        }
        Ok(Self {
            root,
            items: tree::walk(root)?,
            owners,
        })
    }

    /// The package that has a path.
    pub(super) fn owner(&self, path: &str) -> Option<&'a str> {
        self.owners.get(path).copied()
    }

    /// Files that run something whether or not another file calls them: units, udev's rules, scripts of System V without a
    /// unit, cron's scripts if there is a cron, generators.
    pub(super) fn started(&self) -> impl Iterator<Item = &str> {
        let has_cron = ["/usr/sbin/cron", "/usr/sbin/anacron", "/usr/sbin/crond"];
        let has_cron = has_cron.iter().any(|path| self.exists(path));
        self.regular().filter(move |path| {
            let script = path.strip_prefix("/etc/init.d/");
            is_unit(path)
                || path.starts_with("/usr/lib/udev/rules.d/")
                || path.starts_with("/usr/lib/systemd/system-generators/")
                || script.is_some_and(|name| !self.has_unit(name))
                || has_cron && path.starts_with("/etc/cron.")
        })
    }

    /// The executable scripts in the folders of programs. Others, as for making an initramfs, run if one of these calls them.
    pub(super) fn scripts(&self) -> impl Iterator<Item = &str> {
        let executable = self
            .items
            .iter()
            .filter(|item| item.meta.is_file() && item.meta.permissions().mode() & 0o111 != 0);
        let paths = executable.map(|item| item.inside.as_str());
        paths.filter(|path| {
            !FOR_PACKAGING.contains(path)
                && PROGRAMS.iter().any(|folder| path.starts_with(folder))
                && self
                    .content(path)
                    .is_some_and(|text| text.starts_with(b"#!"))
        })
    }

    /// All units and scripts.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.regular().filter(|path| {
            is_unit(path)
                || !path.starts_with("/var/")
                    && self
                        .content(path)
                        .is_some_and(|text| text.starts_with(b"#!"))
        })
    }

    fn regular(&self) -> impl Iterator<Item = &str> {
        let files = self.items.iter().filter(|item| item.meta.is_file());
        files.map(|item| item.inside.as_str())
    }

    /// Whether a program has code of its own, not an interpreter's.
    pub(super) fn is_binary(&self, path: &str) -> bool {
        self.content(path)
            .is_some_and(|text| text.starts_with(b"\x7fELF"))
    }

    /// Whether a binary names a library.
    pub(super) fn names(&self, path: &str, library: &str) -> bool {
        let content = fs::read(self.root.join(&path[1..])).unwrap_or_default();
        let mut windows = content.windows(library.len());
        windows.any(|window| window == library.as_bytes())
    }

    /// The programs that a file names.
    pub(super) fn uses(&self, path: &str) -> Vec<Use> {
        let Some(content) = self.content(path) else {
            return Vec::new();
        };
        let text = String::from_utf8_lossy(&content);
        let mut uses = Vec::new();
        let mut add = |word: &str, is_call, interprets| {
            if let Some(program) = self.program(word) {
                uses.push(Use {
                    program,
                    is_call,
                    interprets,
                });
            }
        };
        let interpreter = interpreter(&text);
        if let Some(word) = interpreter {
            add(word, true, true);
        }
        let is_shell = interpreter.is_some_and(is_shell);
        let words = match () {
            () if is_unit(path) => of_unit(&text),
            () if is_shell => of_shell(&text),
            () if path.ends_with(".rules") => calls(paths(&text)),
            () => paths(&text),
        };
        for word in words {
            add(&word.text, word.is_call, false);
        }
        uses
    }

    fn has_unit(&self, name: &str) -> bool {
        let name = name.strip_suffix(".sh").unwrap_or(name);
        UNITS.iter().any(|folder| {
            let path = self.root.join(format!("{}{name}.service", &folder[1..]));
            path.symlink_metadata().is_ok()
        })
    }

    fn exists(&self, path: &str) -> bool {
        self.root.join(&path[1..]).symlink_metadata().is_ok()
    }

    /// The content of a file that is not too large for a script; the first bytes of others.
    fn content(&self, path: &str) -> Option<Vec<u8>> {
        use std::io::Read;
        let file = fs::File::open(self.root.join(&path[1..])).ok()?;
        let size = file.metadata().ok()?.len();
        let mut magic = vec![0; 4];
        let mut file = file.take(LIMIT);
        let read = file.read(&mut magic).ok()?;
        magic.truncate(read);
        if magic.starts_with(b"#!") || size <= LIMIT && !magic.starts_with(b"\x7fELF") {
            file.read_to_end(&mut magic).ok()?;
        }
        Some(magic)
    }

    /// The program that a word names, by its path or by the folders of programs.
    fn program(&self, word: &str) -> Option<String> {
        if word.starts_with('/') {
            return self.resolve(&merged(word), 0);
        }
        if word.is_empty() || word.contains('/') {
            return None;
        }
        let mut paths = ["/usr/sbin", "/usr/bin"].into_iter();
        paths.find_map(|folder| self.resolve(&format!("{folder}/{word}"), 0))
    }

    /// The file at a path, links followed inside the tree.
    fn resolve(&self, path: &str, depth: u32) -> Option<String> {
        let full = self.root.join(&path[1..]);
        let meta = full.symlink_metadata().ok()?;
        if meta.is_symlink() && depth < 8 {
            let target = fs::read_link(&full).ok()?;
            let target = Path::new(path).parent()?.join(target);
            return self.resolve(&merged(target.to_str()?), depth + 1);
        }
        meta.is_file().then(|| path.to_owned())
    }
}

/// A path in dpkg's form as a merged `/usr` has it, without dots.
fn merged(path: &str) -> String {
    let path = tidy(path);
    let first = path.split('/').nth(1);
    match first {
        Some("bin" | "sbin" | "lib" | "lib64") => format!("/usr{path}"),
        _ => path,
    }
}

/// A path without `.`, `..` and double slashes.
pub(super) fn tidy(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn is_unit(path: &str) -> bool {
    UNITS.iter().any(|folder| path.starts_with(folder))
}

/// The program in the first line of a script.
fn interpreter(text: &str) -> Option<&str> {
    let mut words = text.lines().next()?.strip_prefix("#!")?.split_whitespace();
    let first = words.next()?;
    match first.ends_with("/env") {
        true => words.find(|word| !word.starts_with('-')),
        false => Some(first),
    }
}

fn is_shell(interpreter: &str) -> bool {
    let name = interpreter.rsplit('/').next().unwrap_or_default();
    ["sh", "bash", "dash", "ash", "ksh"].contains(&name)
}

/// What the lines `Exec…=` of a unit call.
fn of_unit(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let text = text.replace("\\\n", " ");
    for line in text.lines() {
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        if !key.trim_start().starts_with("Exec") {
            continue;
        }
        let value = value
            .trim_start()
            .trim_start_matches(['-', '@', ':', '+', '!', '|']);
        let (program, rest) = value.split_once(char::is_whitespace).unwrap_or((value, ""));
        words.push(Word {
            text: program.to_owned(),
            is_call: true,
        });
        if is_shell(program) {
            words.extend(of_shell(&rest.replace(['"', '\''], " ; ")));
        } else {
            words.extend(calls(paths(rest)));
        }
    }
    words
}

/// The commands of a shell script, and the other absolute paths in it.
fn of_shell(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    for line in text.replace("\\\n", " ").lines() {
        let line = line.trim_start();
        if line.starts_with('#') {
            continue;
        }
        for segment in segments(line) {
            words.extend(command(&segment).map(|text| Word {
                text,
                is_call: true,
            }));
        }
        words.extend(paths(line));
    }
    words
}

/// The simple commands of a line: it is split where a shell ends one, outside of quotes.
fn segments(line: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let (mut quote, mut before) = (None, ' ');
    for c in line.chars() {
        let starts = match quote {
            Some('\'') => false,
            Some(_) => c == '`' || c == '(' && before == '$',
            None => ";|&(){}`".contains(c),
        };
        match c {
            '#' if quote.is_none() && before.is_whitespace() => break,
            '\'' | '"' if quote == Some(c) => quote = None,
            // A command substitution has quotes of its own; the outer ones are not followed further.
            '\'' | '"' if quote.is_none() => quote = Some(c),
            _ if starts => {
                quote = None;
                found.push(String::new());
            }
            c => found.last_mut().into_iter().for_each(|last| last.push(c)),
        }
        before = c;
    }
    found
}

/// The word of a simple command that a shell executes.
fn command(segment: &str) -> Option<String> {
    let mut words = segment.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let assigns = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        });
        if assigns {
            continue;
        }
        if BEFORE_COMMANDS.contains(&word) {
            // `command -v` asks whether there is one.
            if words.peek().is_some_and(|next| next.starts_with('-')) {
                return None;
            }
            continue;
        }
        return Some(word.to_owned());
    }
    None
}

/// The absolute paths in a text.
fn paths(text: &str) -> Vec<Word> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    let words = lines.flat_map(|line| line.split(move |c| !is_part(c)));
    let found: BTreeSet<&str> = words
        .filter(|word| word.starts_with('/') && word.len() > 4)
        .collect();
    let word = |text: &str| Word {
        text: text.trim_end_matches(['.', '/']).to_owned(),
        is_call: false,
    };
    found.into_iter().map(word).collect()
}

fn calls(mut words: Vec<Word>) -> Vec<Word> {
    for word in &mut words {
        word.is_call = true;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(words: &[Word]) -> Vec<&str> {
        let calls = words.iter().filter(|word| word.is_call);
        calls.map(|word| word.text.as_str()).collect()
    }

    #[test]
    fn a_shells_commands_are_found_and_its_other_words_are_not() {
        let script = r#"#!/bin/sh
# apt install nothing
set -e
if ! start-stop-daemon --start --exec /usr/sbin/x; then echo "apt; dpkg" >&2; fi
[ -x /usr/bin/ucf ] && LC_ALL=C ucfr one two
version="$(dpkg-query -W x)" # apt
. /usr/share/debconf/confmodule
command -v adduser >/dev/null || exit 0
case "$1" in start) invoke-rc.d x start ;; esac
"#;
        let words = of_shell(script);
        let calls = called(&words);
        for call in [
            "start-stop-daemon",
            "ucfr",
            "dpkg-query",
            "/usr/share/debconf/confmodule",
            "invoke-rc.d",
        ] {
            assert!(calls.contains(&call), "{call} is not in {calls:?}");
        }
        for no_call in ["apt", "dpkg", "adduser", "/usr/bin/ucf"] {
            assert!(!calls.contains(&no_call), "{no_call} is in {calls:?}");
        }
        let mentioned = words.iter().filter(|word| !word.is_call);
        assert!(
            mentioned
                .map(|word| word.text.as_str())
                .any(|word| word == "/usr/bin/ucf")
        );
    }

    #[test]
    fn units_call_what_they_execute() {
        let unit = "[Service]\nExecStart=/usr/sbin/nginx -g 'daemon on;'\n\
                    ExecStop=-/sbin/start-stop-daemon --quiet --stop\n\
                    ExecReload=/bin/sh -c 'update-alternatives --auto x; exec /usr/bin/perl -e 1'\n\
                    Documentation=/usr/bin/apt\n";
        let words = of_unit(unit);
        let calls = called(&words);
        for call in [
            "/usr/sbin/nginx",
            "/sbin/start-stop-daemon",
            "update-alternatives",
            "/usr/bin/perl",
        ] {
            assert!(calls.contains(&call), "{call} is not in {calls:?}");
        }
        assert!(!calls.contains(&"/usr/bin/apt"));
    }

    #[test]
    fn interpreters_and_merged_paths() {
        assert_eq!(interpreter("#! /usr/bin/env -S perl -w\n"), Some("perl"));
        assert_eq!(interpreter("#!/bin/sh\n"), Some("/bin/sh"));
        assert_eq!(interpreter("text"), None);
        assert_eq!(merged("/sbin/./x"), "/usr/sbin/x");
        assert_eq!(merged("/usr/lib/../bin/y"), "/usr/bin/y");
        assert_eq!(merged("/etc/z"), "/etc/z");
    }
}
