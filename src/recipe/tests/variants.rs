//! Variants of a recipe, several recipes that it extends, and values of the command line.

use super::{SMALL, written, written_as};
use crate::recipe::{Choice, Platform, Recipe, variants};

const FAMILY: &str = r#"
    image = { name = "fleet", version = "1" }
    kernel = { package = "linux-image-amd64", cmdline = ["a"] }
    debian = { packages = ["curl"] }

    [variants.metal.kernel]
    platforms = ["metal"]
    cmdline = ["b", "-a"]

    [variants.gce]
    image = { name = "cloud" }
    kernel = { platforms = ["gce"] }
"#;

fn of(variant: &str, settings: &[&str]) -> Choice {
    Choice {
        variant: Some(variant.to_owned()),
        settings: settings.iter().map(|text| (*text).to_owned()).collect(),
    }
}

fn set(settings: &[&str]) -> Choice {
    Choice {
        variant: None,
        ..of("", settings)
    }
}

#[test]
fn each_variant_is_laid_over_the_rest_and_called_after_both() {
    let files = [("a.toml", FAMILY)];
    let metal = written_as(&files, &of("metal", &[])).unwrap();
    assert_eq!(metal.image.name, "fleet-metal");
    assert_eq!(metal.kernel.cmdline, ["b"]);
    assert_eq!(metal.debian.packages, ["curl"]);
    assert!(metal.lock_path().ends_with("a.metal.lock"));
    let gce = written_as(&files, &of("gce", &[])).unwrap();
    assert_eq!(gce.image.name, "cloud");
    assert_eq!(gce.kernel.platforms, [Platform::named("gce").unwrap()]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    std::fs::write(&path, FAMILY).unwrap();
    assert_eq!(variants(&path).unwrap(), ["gce", "metal"]);
    std::fs::write(&path, SMALL).unwrap();
    assert!(variants(&path).unwrap().is_empty());
}

#[test]
fn variants_are_inherited_and_laid_over_in_order() {
    let own = "extends = 'b.toml'\n[variants.metal.kernel]\ncmdline = ['c']\n[variants.own]\nkernel = { platforms = ['qemu'] }\n";
    let files = [("a.toml", own), ("b.toml", FAMILY)];
    let metal = written_as(&files, &of("metal", &[])).unwrap();
    assert_eq!(metal.kernel.cmdline, ["b", "c"]);
    assert_eq!(
        written_as(&files, &of("own", &[])).unwrap().image.name,
        "fleet-own"
    );
}

#[test]
fn a_variant_that_is_not_there_or_not_chosen_is_named() {
    let files = [("a.toml", FAMILY)];
    for (choice, words) in [
        (Choice::default(), "choose one by --variant"),
        (of("meta", &[]), "did you mean `metal`?"),
    ] {
        let said = written_as(&files, &choice).unwrap_err();
        assert!(said.contains(words), "{said}");
        assert!(said.contains("gce, metal"), "{said}");
    }
    let said = written_as(&[("a.toml", SMALL)], &of("metal", &[])).unwrap_err();
    assert!(said.contains("has no variants"), "{said}");
}

#[test]
fn mistakes_in_a_variant_have_their_place() {
    let variant = |text: &str| format!("{SMALL}\n{text}\n");
    for (text, words) in [
        (
            "[variants.x.kernel]\npackag = 'y'",
            "did you mean `package`?",
        ),
        ("[variants.x-]", "a.toml:5:11"),
        ("[variants.x.variants.y]", "the variant `x` has variants"),
        ("[variants.x.image]\nversion = 1", "write it in quotes"),
    ] {
        let text = variant(text);
        let name = if text.contains("x-") { "x-" } else { "x" };
        let said = written_as(&[("a.toml", &text)], &of(name, &[])).unwrap_err();
        assert!(said.contains(words), "{said}");
        assert!(said.contains("a.toml:"), "{said}");
    }
    // A value of the wrong kind is not said to be missing besides.
    let text = "[variants.x.image]\nname = 'a'\nversion = 1\n[kernel]\npackage = 'linux-image-amd64'\nplatforms = ['qemu']";
    let said = written_as(&[("a.toml", text)], &of("x", &[])).unwrap_err();
    assert_eq!(said.matches("error").count(), 1, "{said}");
}

#[test]
fn several_recipes_are_extended_and_each_is_read_once() {
    let files = [
        (
            "a.toml",
            "extends = ['b.toml', 'c.toml']\nimage.version = '2'",
        ),
        (
            "b.toml",
            "extends = 'd.toml'\ndebian.packages = ['bb', 'both']",
        ),
        (
            "c.toml",
            "extends = 'd.toml'\ndebian.packages = ['cc', 'both']\nkernel.cmdline = ['-a']",
        ),
        ("d.toml", SMALL),
    ];
    let recipe = written(&files).unwrap();
    assert_eq!(recipe.debian.packages, ["bb", "both", "cc"]);
    assert_eq!(recipe.kernel.cmdline, ["b"]);
    assert_eq!(recipe.image.version, "2");
    assert_eq!(recipe.parts.len(), 4);
    // What it extends itself may still not be repeated.
    let own = format!("{}\ndebian.packages = ['bb']", files[0].1);
    let said = written(&[("a.toml", &own), files[1], files[2], files[3]]).unwrap_err();
    assert!(said.contains("`bb` is given twice"), "{said}");
    let circle = [
        ("a.toml", "extends = ['d.toml', 'b.toml']"),
        ("b.toml", "extends = 'a.toml'"),
        ("d.toml", SMALL),
    ];
    let said = written(&circle).unwrap_err();
    assert!(said.contains("a.toml → b.toml → a.toml"), "{said}");
}

#[test]
fn a_variant_may_extend_recipes_of_its_own() {
    let own = "extends = 'd.toml'\n[variants.x]\nextends = 'x.toml'\n[variants.y]";
    let files = [
        ("a.toml", own),
        ("x.toml", "extends = 'd.toml'\nkernel.cmdline = ['x']"),
        ("d.toml", SMALL),
    ];
    let cmdline = |name: &str| written_as(&files, &of(name, &[])).unwrap().kernel.cmdline;
    assert_eq!(cmdline("x"), ["a", "b", "x"]);
    assert_eq!(cmdline("y"), ["a", "b"]);
}

#[test]
fn values_of_the_command_line_are_laid_over_all() {
    let settings = [
        "image.version=7",
        "debian.packages=jq,curl",
        "kernel.cmdline=-a",
    ];
    let recipe = written_as(&[("a.toml", SMALL)], &set(&settings)).unwrap();
    assert_eq!(recipe.image.version, "7");
    assert_eq!(recipe.debian.packages, ["jq", "curl"]);
    assert_eq!(recipe.kernel.cmdline, ["b"]);
    assert_eq!(recipe.parts.len(), 1);
    let named = written_as(&[("a.toml", FAMILY)], &of("metal", &["image.name=own"])).unwrap();
    assert_eq!(named.image.name, "own");
    let bad = |setting: &str| -> Result<Recipe, String> {
        written_as(&[("a.toml", SMALL)], &set(&[setting]))
    };
    let said = bad("image.versio=7").unwrap_err();
    assert!(said.contains("--set:1:7"), "{said}");
    assert!(said.contains("did you mean `version`?"), "{said}");
    assert!(bad("image").unwrap_err().contains("KEY=VALUE"));
}

#[test]
fn a_setting_decides_nothing_about_which_files_are_read() {
    for (setting, words) in [
        ("extends=b.toml", "give it in place of this one"),
        ("variants.metal.image.version=2", "by --variant metal"),
        ("variants={}", "choose a variant by --variant"),
    ] {
        let said = written_as(&[("a.toml", FAMILY)], &of("metal", &[setting])).unwrap_err();
        assert!(said.contains("--set:1:1"), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn two_recipes_have_no_lock_in_common() {
    let files = [("fleet.toml", FAMILY), ("fleet.gce.toml", SMALL)];
    let words = "have the same lock fleet.gce.lock";
    let said = written_as(&files, &of("gce", &[])).unwrap_err();
    assert!(said.contains(words), "{said}");
    let said = written(&[files[1], files[0]]).unwrap_err();
    assert!(said.contains(words), "{said}");
    written_as(&files, &of("metal", &[])).unwrap();
    written(&[files[1], ("fleet.toml", SMALL)]).unwrap();
    // What the variant alone extends.
    let family = format!("{FAMILY}\nextends = 'fleet.gce.toml'\n");
    let part = ("fleet.gce.toml", "[image]\nversion = '2'\n");
    written_as(&[("fleet.toml", &family), part], &of("gce", &[])).unwrap();
}
