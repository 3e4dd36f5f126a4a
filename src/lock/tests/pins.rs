//! Pins of an earlier lock that the archives do not have any more.

use super::*;

/// The mirror moves on: its suite of updates has these packages now, and the files of before are still there.
fn moves_on(bench: &Bench, served: &mut Served, items: &[&str]) {
    let updates = suite("/debian", "trixie-updates", "main");
    served.extend(bench.debians(&updates, items));
    bench.debian.replace(served.clone());
}

#[test]
fn an_archive_that_is_removed_takes_no_pin_of_another_one_along() {
    let bench = Bench::new(&["engine 9"]);
    let mut served = Served::new();
    moves_on(&bench, &mut served, &["tool 1.1"]);
    let archive = "packages = ['engine']";
    let locked = bench.root("'engine', 'tool'", archive, &[]);
    assert_eq!(locked, ["engine 9 vendor", "tool 1.1 debian"]);
    moves_on(&bench, &mut served, &["tool 1.2"]);
    let locked = bench.root("'engine', 'tool'", "", &[]);
    let expected = ["engine 1.5 debian", "lib 1 debian", "tool 1.1 debian"];
    assert_eq!(locked, expected);
}

/// Another version of Slipway takes its tools from Debian alone, and asks for no file of the image.
#[test]
fn other_tools_are_chosen_for_a_lock_with_an_archive() {
    let bench = Bench::new(&["engine 9"]);
    let mut served = Served::new();
    moves_on(&bench, &mut served, &["tool 1.1", "kmod 1.1"]);
    let recipe = || bench.recipe("'engine', 'tool'", "packages = ['engine']");
    let locked = bench.pin(recipe(), Mode::Make, &[]).unwrap();
    let path = locked.recipe.lock_path();
    let text = fs::read_to_string(&path).unwrap();
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("tools-digest = "));
    let other = text.replace(line.unwrap(), "tools-digest = \"other\"");
    fs::write(&path, &other).unwrap();

    moves_on(&bench, &mut served, &["tool 1.2", "kmod 1.2"]);
    let locked = bench.pin(recipe(), Mode::Locked, &[]).unwrap();
    let tools = named(&locked, SET_TOOLS_BUILD);
    assert!(tools.contains(&"kmod 1.1 debian".to_owned()), "{tools:?}");
    let root = named(&locked, SET_ROOT);
    assert_eq!(root, ["engine 9 vendor", "tool 1.1 debian"]);
    let asked = bench.debian.asked();
    let of = |line| format!("/debian/{}", bench.item(line).path());
    assert!(asked.contains(&of("kmod 1.1")), "{asked:?}");
    assert!(!asked.contains(&of("tool 1.1")), "{asked:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), other);
}

#[test]
fn a_pin_of_backports_is_kept_there() {
    let bench = Bench::new(&[]);
    let mut served = Served::new();
    let mut serve = |updates: &str, backports: &str| {
        let suite = suite("/debian", "trixie-backports", "main");
        served.extend(suite.serve(&bench.debians_key, &[bench.item(backports)]));
        moves_on(&bench, &mut served, &[updates]);
    };
    let pin = |packages: &str, mode, renewed: &[&str]| {
        let path = bench.recipe(packages, "").path;
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}backports = ['tool']\n")).unwrap();
        let recipe = recipe::load(&path).unwrap_or_else(|error| panic!("{}", error.render(false)));
        named(&bench.pin(recipe, mode, renewed).unwrap(), SET_ROOT)
    };
    serve("tool 1.1", "tool 2");
    assert_eq!(bench.root("'tool'", "", &[]), ["tool 1.1 debian"]);
    // A pin of the release that is gone does not become one of backports.
    serve("tool 1.2", "tool 2");
    assert_eq!(pin("'tool'", Mode::Make, &[]), ["tool 2 debian"]);
    serve("tool 1.2", "tool 3");
    let kept = ["engine 1.5 debian", "lib 1 debian", "tool 2 debian"];
    assert_eq!(pin("'tool', 'engine'", Mode::Make, &[]), kept);
    let renewed = pin("'tool', 'engine'", Mode::Renew, &["tool"]);
    assert_eq!(renewed[2], "tool 3 debian");
}

#[test]
fn each_lock_renews_what_it_has_and_what_none_has_is_refused() {
    let bench = Bench::new(&[]);
    let locked = |variant: &str, packages: &str| {
        let mut recipe = bench.recipe(packages, "");
        recipe.variant = Some(variant.to_owned());
        bench.pin(recipe, Mode::Make, &[]).unwrap().recipe
    };
    let recipes = [locked("one", "'tool'"), locked("two", "'engine'")];
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let found = renewals(&recipes, &names(&["tool", "kmod"])).unwrap();
    assert_eq!(found, [names(&["tool", "kmod"]), names(&["kmod"])]);
    let found = renewals(&recipes, &[]).unwrap();
    assert_eq!(found, [names(&[]), names(&[])]);
    let error = renewals(&recipes, &names(&["engine", "tol"])).unwrap_err();
    let error = error.to_string();
    let words = "the lock has no package tol; the nearest name is tool";
    assert!(error.contains(words), "{error}");
    // Without locks all pins are new.
    let recipe = bench.recipe("'tool'", "");
    assert_eq!(renewals(&[recipe], &names(&["x"])).unwrap(), [names(&[])]);
}
