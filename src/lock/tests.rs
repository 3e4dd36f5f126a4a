//! Whole locks of recipes with archives beside Debian's, all on loopback; Debian's own is signed by a key of the test.

use std::fs;

use super::*;
use crate::debian::loopback::Loopback;
use crate::debian::vendor::{self, Item, Served, Signer, Suite};
use crate::host::cache::Cache;
use crate::host::progress::Kind;
use crate::recipe::{self, SET_ROOT, SET_TOOLS_BUILD};

mod builder;
mod fallback;
mod logins;
mod offline;
mod one_run;
mod pins;

/// Debian's packages of every test.
const DEBIANS: &[&str] = &[
    "base 1; Essential: yes",
    "linux-image-amd64 6.12",
    "e2fsprogs 1",
    "erofs-utils 1",
    "kmod 1",
    "qemu-utils 1",
    "systemd-boot-efi 1",
    "ipxe-qemu 1",
    "ovmf 1",
    "qemu-system-x86 1",
    "swtpm 1",
    "engine 1.5; Depends: lib (>= 1)",
    "lib 1",
    "tool 1",
];

const RECIPE: &str = r#"
image = { name = "a", version = "1" }
kernel = { package = "linux-image-amd64", platforms = ["qemu"], cmdline = ["a"] }
"#;

/// Debian and a vendor, and a recipe beside which the vendor's certificate is.
struct Bench {
    folder: tempfile::TempDir,
    debian: Loopback,
    debians_key: Signer,
    vendor: Loopback,
    vendors_key: Signer,
}

impl Bench {
    fn new(vendors: &[&str]) -> Self {
        let bench = Self {
            folder: tempfile::tempdir().unwrap(),
            debian: Loopback::serve(Served::new()),
            debians_key: Signer::new(),
            vendor: Loopback::serve(Served::new()),
            vendors_key: Signer::new(),
        };
        let certificate = bench.vendors_key.certificate();
        fs::write(bench.folder.path().join("vendor.asc"), certificate).unwrap();
        let updates = suite("/debian", "trixie-updates", "main");
        let files = bench.debians(&updates, &[]);
        bench.debian.replace(files);
        bench.vendor.replace(bench.vendors(vendors));
        bench
    }

    /// Debian's suites, with these packages in this suite of updates.
    fn debians(&self, updates: &Suite<'_>, items: &[&str]) -> Served {
        let trixie = suite("/debian", "trixie", "main");
        let security = suite("/security", "trixie-security", "main");
        let mut files = Served::new();
        for (suite, items) in [(&trixie, DEBIANS), (updates, items), (&security, &[])] {
            let items: Vec<Item> = items.iter().map(|line| self.item(line)).collect();
            files.extend(suite.serve(&self.debians_key, &items));
        }
        files
    }

    /// A package with a file that dpkg would take.
    fn item(&self, line: &str) -> Item {
        let mut item = Item::new(line);
        let path = self.folder.path().join("item.deb");
        let control = [("control", 0o644, item.control.as_str())];
        crate::install::deb::tests::write(&path, &control, b"", ".xz");
        item.file = fs::read(&path).unwrap();
        item
    }

    fn vendors(&self, lines: &[&str]) -> Served {
        let items: Vec<Item> = lines.iter().map(|line| self.item(line)).collect();
        suite("", "trixie", "stable").serve(&self.vendors_key, &items)
    }

    /// Writes a package's file beside the recipe; gives its SHA-256.
    fn deb(&self, name: &str, line: &str) -> String {
        let file = self.item(line).file;
        fs::write(self.folder.path().join(name), &file).unwrap();
        vendor::sha256(&file)
    }

    /// The recipe with these `debs`.
    fn with_debs(&self, debs: &str) -> Recipe {
        let path = self.recipe("'tool'", "").path;
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}debs = [{debs}]\n")).unwrap();
        recipe::load(&path).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)))
    }

    /// The recipe with these packages and, unless they are empty, these fields of the vendor's archive.
    fn recipe(&self, packages: &str, archive: &str) -> Recipe {
        let url = &self.debian.url;
        let mut text = format!(
            "{RECIPE}[debian]\npackages = [{packages}]\nmax-age = 36500\nmirror = '{url}/debian'\nsecurity-mirror = '{url}/security'\n"
        );
        if !archive.is_empty() {
            text += &format!(
                "[[debian.archives]]\nname = 'vendor'\nurl = '{}'\nsuites = ['trixie']\ncomponents = ['stable']\n\
                 keys = ['vendor.asc']\n{archive}\n",
                self.vendor.url
            );
        }
        let path = self.folder.path().join("a.toml");
        fs::write(&path, text).unwrap();
        recipe::load(&path).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)))
    }

    /// A session with a new cache.
    fn session(&self) -> Session {
        let cache = tempfile::tempdir_in(self.folder.path()).unwrap().keep();
        Session::new(Cache::at(cache).unwrap(), Progress::new(Kind::Quiet))
    }

    fn pin(&self, recipe: Recipe, mode: Mode, renewed: &[&str]) -> Result<LockedRecipe> {
        self.pin_in(&self.session(), recipe, mode, renewed)
    }

    fn pin_in(
        &self,
        session: &Session,
        recipe: Recipe,
        mode: Mode,
        renewed: &[&str],
    ) -> Result<LockedRecipe> {
        let renewed: Vec<String> = renewed.iter().map(ToString::to_string).collect();
        let wish = Wish {
            mode,
            renewed: &renewed,
            older: false,
        };
        let keyring = self.debians_key.keyring();
        pin_signed(session, recipe, wish, &keyring)
    }

    /// Name, version and archive of the root's packages, but of the essential one.
    fn root(&self, packages: &str, archive: &str, renewed: &[&str]) -> Vec<String> {
        let mode = match renewed {
            [] => Mode::Make,
            _ => Mode::Renew,
        };
        let locked = self.pin(self.recipe(packages, archive), mode, renewed);
        named(&locked.unwrap(), SET_ROOT)
    }
}

fn suite<'s>(base: &'s str, name: &'s str, component: &'s str) -> Suite<'s> {
    Suite {
        base,
        name,
        component,
        fields: "",
        apart: false,
    }
}

fn named(locked: &LockedRecipe, set: &str) -> Vec<String> {
    let packages = locked.lock.sets[set].iter();
    packages
        .filter(|package| package.name != "base")
        .map(|package| format!("{} {} {}", package.name, package.version, package.archive))
        .collect()
}

/// Priority first, then the version: `apt_preferences(5)`.
#[test]
fn the_archive_is_chosen_as_apt_chooses_it() {
    let bench = Bench::new(&["engine 1.4", "tool 2", "extra 1"]);
    for (priority, engine, tool) in [
        ("", "1.5 debian", "2 vendor"),
        ("priority = 500", "1.5 debian", "2 vendor"),
        ("priority = 501", "1.4 vendor", "2 vendor"),
        ("priority = 1001", "1.4 vendor", "2 vendor"),
        ("priority = 100", "1.5 debian", "1 debian"),
    ] {
        let archive = format!("{priority}\npackages = ['*']");
        let recipe = bench.recipe("'engine', 'tool', 'extra'", &archive);
        let locked = bench.pin(recipe, Mode::Renew, &[]).unwrap();
        let mut expected = vec![
            format!("engine {engine}"),
            "extra 1 vendor".to_owned(),
            format!("tool {tool}"),
        ];
        if engine.ends_with("debian") {
            expected.insert(2, "lib 1 debian".to_owned());
        }
        assert_eq!(named(&locked, SET_ROOT), expected, "{priority}");
    }
    let never = bench.recipe("'extra'", "priority = -1");
    let error = bench.pin(never, Mode::Renew, &[]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("has no package `extra`"), "{error}");
    assert!(error.contains("or of [[debian.archives]]"), "{error}");
}

/// The lock names the archive and no host; a build in another place fetches from the recipe's URL by the lock's digest.
#[test]
fn a_lock_pins_the_archive_of_each_package() {
    let bench = Bench::new(&["engine 2; Depends: lib", "tool 9"]);
    let archive = "packages = ['engine']";
    let recipe = || bench.recipe("'engine', 'tool'", archive);
    let locked = bench.pin(recipe(), Mode::Make, &[]).unwrap();
    let expected = ["engine 2 vendor", "lib 1 debian", "tool 1 debian"];
    assert_eq!(named(&locked, SET_ROOT), expected);
    let text = fs::read_to_string(bench.folder.path().join("a.lock")).unwrap();
    assert!(text.contains("archive = \"vendor\""), "{text}");
    assert!(!text.contains("127.0.0.1"), "{text}");
    // The image's times are Debian's.
    assert_eq!(locked.lock.epoch, 1_795_140_670);

    let locked = bench.pin(recipe(), Mode::Locked, &[]).unwrap();
    let debs = locked.fetch(&bench.session(), SET_ROOT).unwrap();
    assert_eq!(debs.len(), 4);
    let path = bench.item("engine 2; Depends: lib").path();
    let asked = bench.vendor.asked();
    assert!(asked.contains(&format!("/{path}")), "{asked:?}");

    // Another file of that name, and none.
    let mut files = bench.vendors(&["engine 2; Depends: lib", "tool 9"]);
    files.get_mut(&format!("/{path}")).unwrap()[100] ^= 1;
    bench.vendor.replace(files);
    let error = locked.fetch(&bench.session(), SET_ROOT).unwrap_err();
    assert!(format!("{error:#}").contains("engine 2: "), "{error:#}");
    assert!(
        format!("{error:#}").contains("digest mismatch"),
        "{error:#}"
    );
    bench.vendor.replace(Served::new());
    let error = format!(
        "{:#}",
        locked.fetch(&bench.session(), SET_ROOT).unwrap_err()
    );
    let words = "archive vendor does not have this version any more: `slipway lock --renew=engine`";
    assert!(error.contains(words), "{error}");

    // Who may sign is a requirement of the recipe, which a lock is made for.
    let other = Signer::new().certificate();
    fs::write(bench.folder.path().join("vendor.asc"), other).unwrap();
    let error = bench.pin(recipe(), Mode::Locked, &[]).unwrap_err();
    assert!(error.to_string().contains("is out of date"), "{error}");
}

#[test]
fn a_change_keeps_the_pins_that_the_archives_allow() {
    let bench = Bench::new(&["engine 2", "tool 2"]);
    let archive = "priority = 990\npackages = ['engine', 'to*']";
    assert_eq!(
        bench.root("'engine'", "", &[]),
        ["engine 1.5 debian", "lib 1 debian"]
    );
    // The new archive is of a higher priority: the pin of Debian's does not fit any more.
    assert_eq!(bench.root("'engine'", archive, &[]), ["engine 2 vendor"]);
    // A newer version of the same archive moves nothing, even if the index has the earlier one no more.
    let earlier = bench.vendors(&["engine 2", "tool 2"]);
    let mut files = earlier.clone();
    files.extend(bench.vendors(&["engine 3", "tool 2"]));
    bench.vendor.replace(files);
    let kept = ["engine 2 vendor", "tool 2 vendor"];
    assert_eq!(bench.root("'engine', 'tool'", archive, &[]), kept);
    let renewed = bench.root("'engine', 'tool'", archive, &["engine"]);
    assert_eq!(renewed, ["engine 3 vendor", "tool 2 vendor"]);
    // Under a lower priority than Debian's, under another list of names, and without the archive.
    let lower = archive.replace("990", "100");
    let debians = ["engine 1.5 debian", "lib 1 debian", "tool 1 debian"];
    assert_eq!(bench.root("'engine', 'tool'", &lower, &[]), debians);
    bench.root("'engine', 'tool'", archive, &["engine", "tool"]);
    let fewer = "priority = 990\npackages = ['tool']";
    let without = ["engine 1.5 debian", "lib 1 debian", "tool 2 vendor"];
    assert_eq!(bench.root("'engine', 'tool'", fewer, &[]), without);
    assert_eq!(bench.root("'engine', 'tool'", "", &[]), debians);
}

/// An archive that is not used any more, and one that is new, leave a lock with usable sources.
#[test]
fn an_archive_that_nothing_is_taken_from_may_come_and_go() {
    let bench = Bench::new(&["engine 9"]);
    let archive = "packages = ['engine']";
    for archive in ["", archive, ""] {
        let recipe = bench.recipe("'tool'", archive);
        let locked = bench.pin(recipe, Mode::Make, &[]).unwrap();
        assert_eq!(named(&locked, SET_ROOT), ["tool 1 debian"]);
        let sources = &locked.lock.sources;
        let vendors = sources.iter().filter(|source| source.archive == "vendor");
        assert_eq!(vendors.count(), usize::from(!archive.is_empty()));
        locked.fetch(&bench.session(), SET_ROOT).unwrap();
    }
}

/// Slipway's own tools, and the essential packages of every image, are Debian's alone.
#[test]
fn no_archive_reaches_the_tools_or_adds_an_essential_package() {
    let bench = Bench::new(&["kmod 9", "intruder 1; Essential: yes"]);
    let recipe = bench.recipe("'kmod'", "priority = 1001");
    let locked = bench.pin(recipe, Mode::Make, &[]).unwrap();
    assert_eq!(named(&locked, SET_ROOT), ["kmod 9 vendor"]);
    let tools = named(&locked, SET_TOOLS_BUILD);
    assert!(tools.contains(&"kmod 1 debian".to_owned()), "{tools:?}");
}

#[test]
fn an_archive_that_is_gone_or_older_is_named() {
    let bench = Bench::new(&["engine 2"]);
    let archive = "packages = ['engine']";
    bench.root("'engine'", archive, &[]);
    let item = [bench.item("engine 2")];
    let older = Suite {
        fields: "Date: Thu, 19 Nov 2026 02:11:10 UTC\n",
        ..suite("", "trixie", "stable")
    };
    bench.vendor.replace(older.serve(&bench.vendors_key, &item));
    let again = || bench.pin(bench.recipe("'engine', 'tool'", archive), Mode::Make, &[]);
    let error = format!("{:#}", again().unwrap_err());
    assert!(
        error.contains("archive vendor's trixie is of 2026-11-19"),
        "{error}"
    );
    bench.vendor.replace(Served::new());
    let error = format!("{:#}", again().unwrap_err());
    assert!(
        error.contains("reading trixie of archive vendor from http"),
        "{error}"
    );
}

/// Of the allowed versions apt's rules take one; which these are is a requirement, and no pin of before.
#[test]
fn versions_are_held() {
    let vendors = ["engine 2.0", "engine 2.1", "engine 3.0", "kmod 9"];
    let bench = Bench::new(&vendors);
    let with = |wanted: &str| {
        let archive = format!("priority = 990\n[debian.versions]\n{wanted}");
        bench.recipe("'engine', 'kmod'", &archive)
    };
    let engine = |wanted: &str, mode| {
        let locked = bench.pin(with(wanted), mode, &[]).unwrap();
        let root = named(&locked, SET_ROOT);
        root.into_iter()
            .find(|package| package.starts_with("engine "))
            .unwrap()
    };
    for (wanted, expected) in [
        ("", "engine 3.0 vendor"),
        ("engine = '2.*'", "engine 2.1 vendor"),
        ("engine = '2.0'", "engine 2.0 vendor"),
        ("engine = '1.*'", "engine 1.5 debian"),
        ("engine = '*'", "engine 3.0 vendor"),
    ] {
        assert_eq!(engine(wanted, Mode::Renew), expected, "{wanted}");
        assert_eq!(engine(wanted, Mode::Locked), expected, "{wanted}");
    }
    // A pin stays within what is allowed, and nothing else of the lock moves it.
    assert_eq!(engine("engine = '2.?'", Mode::Make), "engine 2.1 vendor");
    assert_eq!(engine("engine = '2.0'", Mode::Make), "engine 2.0 vendor");
    assert_eq!(engine("engine = '2.*'", Mode::Make), "engine 2.0 vendor");
    let tools = bench.pin(with("kmod = '9'"), Mode::Make, &[]).unwrap();
    assert!(named(&tools, SET_TOOLS_BUILD).contains(&"kmod 1 debian".to_owned()));

    // A version that the archive has no more is taken from the lock, and from nowhere else.
    assert_eq!(engine("engine = '2.0'", Mode::Make), "engine 2.0 vendor");
    let mut files = bench.vendors(&vendors);
    files.extend(bench.vendors(&vendors[1..]));
    bench.vendor.replace(files);
    assert_eq!(engine("engine = '2.0*'", Mode::Make), "engine 2.0 vendor");
    let error = bench.pin(with("engine = '2.0*'"), Mode::Renew, &[]);
    let error = format!("{:#}", error.unwrap_err());
    let words = "wants engine 2.0*, and the archives have 3.0 (trixie of vendor), 2.1 (trixie of vendor), 1.5 (trixie of debian)";
    assert!(error.contains(words), "{error}");
    let error = bench.pin(with("engin = '2.*'\nlib = '7'"), Mode::Make, &[]);
    let error = format!("{:#}", error.unwrap_err());
    let words = "names engin, which no archive has; the nearest name is engine";
    assert!(
        error.contains(words) && error.contains("wants lib 7"),
        "{error}"
    );
}

#[test]
fn a_held_version_that_does_not_fit_is_named() {
    let bench = Bench::new(&["app 1; Depends: engine (>= 2)", "engine 2"]);
    let recipe = bench.recipe("'app'", "[debian.versions]\nengine = '1.*'");
    let error = bench.pin(recipe, Mode::Make, &[]).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("app 1 depends on engine (>= 2), but the archive has engine 1.5"),
        "{error}"
    );
    assert!(
        error.contains("[debian.versions] of the recipe allows no others than engine 1.*"),
        "{error}"
    );
}

/// A package of no archive is in the root with what it depends on, before any other version; a build elsewhere takes the file
/// that the lock pins.
#[test]
fn files_of_packages_are_chosen_with_the_others() {
    let bench = Bench::new(&[]);
    bench.deb("engine.deb", "engine 0.9; Depends: lib");
    let remote = bench.item("agent 7; Depends: engine; Architecture: all");
    let sum = vendor::sha256(&remote.file);
    let served = || Served::from([("/agent_7.deb".to_owned(), remote.file.clone())]);
    bench.vendor.replace(served());
    bench.deb("kmod.deb", "kmod 9");
    let url = format!("{}/agent_7.deb", bench.vendor.url);
    let debs = format!(
        "{{ file = 'engine.deb' }}, {{ file = 'kmod.deb' }}, {{ url = '{url}', sha256 = '{sum}' }}"
    );
    let locked = bench.pin(bench.with_debs(&debs), Mode::Make, &[]).unwrap();
    let expected = [
        "agent 7 debs",
        "engine 0.9 debs",
        "kmod 9 debs",
        "lib 1 debian",
        "tool 1 debian",
    ];
    assert_eq!(named(&locked, SET_ROOT), expected);
    let tools = named(&locked, SET_TOOLS_BUILD);
    assert!(tools.contains(&"kmod 1 debian".to_owned()), "{tools:?}");
    let text = fs::read_to_string(bench.folder.path().join("a.lock")).unwrap();
    assert!(!text.contains("127.0.0.1"), "{text}");
    let here = bench.folder.path().display().to_string();
    assert!(!text.contains(&here), "{text}");
    let locked = bench
        .pin(bench.with_debs(&debs), Mode::Locked, &[])
        .unwrap();
    let files = locked.fetch(&bench.session(), SET_ROOT).unwrap();
    assert_eq!(files.len(), 6);

    // Gone, and another file under the URL.
    bench.vendor.replace(Served::new());
    let error = locked.fetch(&bench.session(), SET_ROOT).unwrap_err();
    assert!(
        format!("{error:#}").contains("`debs` of the recipe's [debian]"),
        "{error:#}"
    );
    let mut other = served();
    other.get_mut("/agent_7.deb").unwrap()[99] ^= 1;
    bench.vendor.replace(other);
    let error = bench
        .pin(bench.with_debs(&debs), Mode::Renew, &[])
        .unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("agent_7.deb of `debs`") && error.contains("digest mismatch"),
        "{error}"
    );

    // A changed file is another requirement; without the files the archive's versions are taken.
    let one = "{ file = 'engine.deb' }";
    bench.pin(bench.with_debs(one), Mode::Make, &[]).unwrap();
    bench.deb("engine.deb", "engine 0.9; Depends: lib; Section: x");
    let error = bench
        .pin(bench.with_debs(one), Mode::Locked, &[])
        .unwrap_err();
    assert!(error.to_string().contains("is out of date"), "{error}");
    let expected = ["engine 1.5 debian", "lib 1 debian", "tool 1 debian"];
    assert_eq!(bench.root("'engine', 'tool'", "", &[]), expected);
}

#[test]
fn files_that_cannot_be_installed_are_named() {
    let bench = Bench::new(&[]);
    bench.deb("arm.deb", "engine 1; Architecture: arm64");
    bench.deb("lone.deb", "lone 1; Depends: nothing");
    bench.deb("one.deb", "tool 5");
    bench.deb("two.deb", "tool 6");
    for (debs, words) in [
        (
            "{ file = 'arm.deb' }",
            "arm.deb of `debs` in the recipe is a package for arm64, and the image is for amd64",
        ),
        (
            "{ file = 'lone.deb' }",
            "lone 1 depends on nothing, which the archive does not have",
        ),
        (
            "{ file = 'one.deb' }, { file = 'two.deb' }",
            "two of `debs` in the recipe are the package tool",
        ),
    ] {
        let error = bench
            .pin(bench.with_debs(debs), Mode::Make, &[])
            .unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(words), "{error}");
    }
}
