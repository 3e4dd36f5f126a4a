//! The program that wrote a lock, in the lock: for people, and for nothing that is made.

use super::*;
use crate::code::Builder;
use crate::lock::vendor;

/// Another program's line.
const OTHER: &str = "builder = { code = \"0123\", version = \"9.9.9\" }";

impl Bench {
    fn lock_path(&self) -> std::path::PathBuf {
        self.folder.path().join("a.lock")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.lock_path()).unwrap()
    }

    /// Pins a lock, and gives its text.
    fn pinned(&self, packages: &str) -> String {
        let recipe = self.recipe(packages, "");
        self.pin(recipe, Mode::Make, &[]).unwrap();
        self.text()
    }

    /// The error of a lock with this text.
    fn refused(&self, text: &str, mode: Mode, renewed: &[&str]) -> String {
        fs::write(self.lock_path(), text).unwrap();
        let error = self.pin(self.recipe("'tool'", ""), mode, renewed);
        let error = format!("{:#}", error.unwrap_err());
        assert_eq!(self.text(), text);
        error
    }
}

/// The line of the builder in a lock.
fn line(text: &str) -> &str {
    let mut lines = text.lines().filter(|line| line.starts_with("builder"));
    let line = lines.next().unwrap();
    assert_eq!(lines.next(), None, "{text}");
    line
}

/// The line that this program writes.
fn own_line() -> String {
    let Builder { version, code } = Builder::this();
    format!("builder = {{ code = \"{code}\", version = \"{version}\" }}")
}

#[test]
fn a_lock_names_the_program_that_wrote_it_and_another_program_alone_changes_no_lock() {
    let bench = Bench::new(&[]);
    let made = bench.pinned("'tool'");
    assert_eq!(line(&made), own_line());
    // What a rewritten file would lose.
    let note = "# A note of the user's.\n";
    let others = made.replace(line(&made), OTHER) + note;
    fs::write(bench.lock_path(), &others).unwrap();
    let runs: [(Mode, &[&str]); 4] = [
        (Mode::Make, &[]),
        (Mode::Locked, &[]),
        (Mode::Renew, &[]),
        (Mode::Renew, &["tool"]),
    ];
    for (mode, renewed) in runs {
        let recipe = bench.recipe("'tool'", "");
        assert!(is_current(&recipe).unwrap());
        let locked = bench.pin(recipe, mode, renewed).unwrap();
        assert_eq!(bench.text(), others, "{mode:?} {renewed:?}");
        let builder = locked.lock.builder.unwrap();
        assert_eq!(builder.version, "9.9.9", "{mode:?} {renewed:?}");
    }
    let wider = bench.pinned("'tool', 'engine'");
    assert_eq!(line(&wider), own_line());
    assert!(!wider.contains(note), "{wider}");
}

#[test]
fn a_lock_of_before_builders_were_named_is_as_good_and_stays() {
    let bench = Bench::new(&[]);
    let made = bench.pinned("'tool'");
    let without = made.replace(&format!("{}\n", line(&made)), "");
    fs::write(bench.lock_path(), &without).unwrap();
    for mode in [Mode::Make, Mode::Locked, Mode::Renew] {
        let locked = bench.pin(bench.recipe("'tool'", ""), mode, &[]).unwrap();
        assert_eq!(locked.lock.builder, None);
        assert_eq!(bench.text(), without, "{mode:?}");
    }
    assert_eq!(line(&bench.pinned("'tool', 'engine'")), own_line());
}

#[test]
fn the_same_folder_of_files_changes_no_lock_and_a_new_one_does() {
    let bench = Bench::new(&[]);
    let made = bench.pinned("'tool'");
    let session = bench.session();
    let write = |text: &str, folder: &str| {
        fs::write(bench.lock_path(), text).unwrap();
        let recipe = bench.recipe("'tool'", "");
        let mut locked = bench.pin_in(&session, recipe, Mode::Make, &[]).unwrap();
        vendor::write(&session, &mut locked, &bench.folder.path().join(folder)).unwrap();
        assert_eq!(locked.lock, read(&bench.lock_path()).unwrap());
        bench.text()
    };
    let first = write(&made.replace(line(&made), OTHER), "files");
    assert_eq!(line(&first), own_line());
    let others = first.replace(line(&first), OTHER);
    assert_eq!(write(&others, "files"), others);
    assert_eq!(line(&write(&others, "more")), own_line());
}

#[test]
fn no_difference_of_locks_is_one_of_their_builders() {
    let bench = Bench::new(&[]);
    bench.pinned("'tool'");
    let lock = read(&bench.lock_path()).unwrap();
    let mut other = lock.clone();
    other.builder = None;
    assert_ne!(lock, other);
    assert!(changes(&lock, &other).is_empty());
    assert_eq!(Digests::from(&lock), Digests::from(&other));
}

#[test]
fn a_builder_that_is_none_is_an_error_with_its_place() {
    let bench = Bench::new(&[]);
    let made = bench.pinned("'tool'");
    let number = made.lines().position(|each| each == line(&made)).unwrap() + 1;
    for (builder, words) in [
        ("3", "integer `3`"),
        ("\"slipway 1\"", "string \"slipway 1\""),
        ("{ code = \"a\", version = 1 }", "integer `1`"),
        ("{ version = \"1\" }", "missing field `code`"),
    ] {
        let wrong = made.replace(line(&made), &format!("builder = {builder}"));
        let error = bench.refused(&wrong, Mode::Locked, &[]);
        assert!(error.contains(&format!("at line {number}, ")), "{error}");
        assert!(error.contains(words), "{builder}: {error}");
    }
    // A later version may say more.
    let more = OTHER.replace('}', ", host = \"a\" }");
    fs::write(bench.lock_path(), made.replace(line(&made), &more)).unwrap();
    let locked = bench.pin(bench.recipe("'tool'", ""), Mode::Locked, &[]);
    assert_eq!(locked.unwrap().lock.builder.unwrap().version, "9.9.9");
}

#[test]
fn the_program_is_named_whose_lock_this_one_cannot_read_and_a_renewal_replaces_it() {
    let bench = Bench::new(&[]);
    let made = bench.pinned("'tool'");
    let own = line(&made);
    let this = Builder::this();
    let by_other = format!(
        "a.lock (written by slipway 9.9.9, this is {}); ",
        this.version
    );
    let newer = made.replace("\nversion = 1\n", "\nversion = 2\n");
    let error = bench.refused(&newer.replace(own, OTHER), Mode::Make, &[]);
    assert!(error.contains(&by_other), "{error}");
    assert!(
        error.contains("of version 2, this program knows"),
        "{error}"
    );

    let unknown = made.replace("\nepoch = ", "\nera = 1\nepoch = ");
    let error = bench.refused(&unknown.replace(own, OTHER), Mode::Make, &[]);
    assert!(error.contains(&by_other), "{error}");
    assert!(error.contains("unknown field `era`"), "{error}");
    let build = unknown.replace(&this.code, "0123");
    let error = bench.refused(&build, Mode::Locked, &[]);
    let words = format!("(written by another build of slipway {})", this.version);
    assert!(error.contains(&words), "{error}");
    // This program's own, of nobody, and no TOML at all.
    let nobody = unknown.replace(&format!("{own}\n"), "");
    for text in [unknown.as_str(), nobody.as_str(), "version"] {
        let error = bench.refused(text, Mode::Renew, &["tool"]);
        assert!(!error.contains("written by"), "{error}");
        assert!(error.contains("a.lock; `slipway lock --renew`"), "{error}");
    }
    // As the error says.
    for text in [newer.as_str(), unknown.as_str(), "version"] {
        fs::write(bench.lock_path(), text).unwrap();
        let recipe = bench.recipe("'tool'", "");
        bench.pin(recipe, Mode::Renew, &[]).unwrap();
        assert_eq!(bench.text(), made);
    }
}

#[test]
fn a_renewal_replaces_no_lock_that_cannot_be_read() {
    let bench = Bench::new(&[]);
    // Reading a folder is an I/O error, for root too.
    fs::create_dir(bench.lock_path()).unwrap();
    let error = bench.pin(bench.recipe("'tool'", ""), Mode::Renew, &[]);
    let error = format!("{:#}", error.unwrap_err());
    assert!(
        error.starts_with("reading ") && error.ends_with("a.lock: Is a directory (os error 21)"),
        "{error}"
    );
    fs::remove_dir(bench.lock_path()).unwrap();
    fs::write(bench.lock_path(), b"\xff\xfe").unwrap();
    let recipe = bench.recipe("'tool'", "");
    bench.pin(recipe, Mode::Renew, &[]).unwrap();
    assert_eq!(line(&bench.text()), own_line());
}
