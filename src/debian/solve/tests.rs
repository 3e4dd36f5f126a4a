//! Small archives with one difficulty each.

use super::*;
use crate::debian::packages::{self, Standing};

const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// An index from lines `name version; Field: value; …`.
fn index(lines: &str) -> String {
    let mut text = String::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut parts = line.split("; ");
        let (name, version) = parts.next().unwrap().split_once(' ').unwrap();
        text += &format!("Package: {name}\nVersion: {version}\nArchitecture: amd64\n");
        for field in parts {
            text += &format!("{field}\n");
        }
        text += &format!("Filename: pool/{name}_{version}.deb\nSize: 1\nSHA256: {SUM}\n\n");
    }
    text
}

/// Names and versions chosen for the words of `wanted`; words with a `+` before them are taken from backports.
fn choose(normal: &str, backports: &str, wanted: &str) -> Result<Vec<String>, Unsolved> {
    let (normal, backports) = (index(normal), index(backports));
    let mut all = packages::read(&normal, 0, Standing::DEBIAN).unwrap();
    all.extend(packages::read(&backports, 1, Standing::BACKPORTS).unwrap());
    let pool = Pool::new(all);
    let words: Vec<String> = wanted
        .split(' ')
        .map(|word| word.trim_start_matches('+').to_owned())
        .collect();
    let from_backports: Vec<String> = wanted
        .split(' ')
        .filter_map(|word| word.strip_prefix('+').map(str::to_owned))
        .collect();
    let requirements = Requirements {
        packages: &words,
        backports: &from_backports,
        essential: false,
        recommends: false,
        dependencies: true,
        before: &[],
    };
    Ok(solve(&pool, "amd64", &requirements)?
        .into_iter()
        .map(|id| format!("{} {}", pool.packages[id].name, pool.packages[id].version))
        .collect())
}

fn names(normal: &str, wanted: &str) -> Vec<String> {
    choose(normal, "", wanted)
        .unwrap()
        .into_iter()
        .map(|package| package.split(' ').next().unwrap().to_owned())
        .collect()
}

/// The difficulty, the archive, the requested packages, apt's choice.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const CASES: &[Case] = &[
    (
        "dependencies of dependencies, and a circle",
        "a 1; Depends: b\n b 1; Pre-Depends: c\n c 1; Depends: a\n d 1",
        "a",
        &["a", "b", "c"],
    ),
    (
        "recommended and suggested packages are left out",
        "a 1; Recommends: b; Suggests: c\n b 1\n c 1",
        "a",
        &["a"],
    ),
    (
        "the first alternative that the archive has",
        "a 1; Depends: gone | b | c\n b 1\n c 1",
        "a",
        &["a", "b"],
    ),
    (
        "an alternative that is asked for satisfies, wherever it stands",
        "a 1; Depends: b | c\n b 1\n c 1",
        "a c",
        &["a", "c"],
    ),
    (
        "an alternative that was chosen before satisfies",
        "a 1; Depends: c\n b 1; Depends: d | c\n c 1\n d 1",
        "a b",
        &["a", "b", "c"],
    ),
    (
        "an alternative in a version that does not fit is passed over",
        "a 1; Depends: b (>= 2) | c\n b 1\n c 1",
        "a",
        &["a", "c"],
    ),
    (
        "of several providers the one with the best priority",
        "a 1; Depends: mail\n x 1; Provides: mail; Priority: optional\n \
             y 1; Provides: mail; Priority: standard\n z 1; Provides: mail; Priority: standard",
        "a",
        &["a", "y"],
    ),
    (
        "a provider that is asked for satisfies",
        "a 1; Depends: mail\n x 1; Provides: mail; Priority: required\n y 1; Provides: mail",
        "a y",
        &["a", "y"],
    ),
    (
        "the real package goes before those that provide its name",
        "a 1; Depends: mail\n mail 1\n y 1; Provides: mail; Priority: required",
        "a",
        &["a", "mail"],
    ),
    (
        "a provided name without version satisfies no versioned relation",
        "a 1; Depends: lib (>= 1) | c\n x 1; Provides: lib\n c 1",
        "a",
        &["a", "c"],
    ),
    (
        "a provided name with a version does",
        "a 1; Depends: lib (>= 1) | c\n x 1; Provides: lib (= 1.5)\n c 1",
        "a",
        &["a", "x"],
    ),
    (
        "architecture words",
        "a 1; Depends: b:any, c:amd64, d:i386 | e\n b 1\n c 1\n d 1\n e 1",
        "a",
        &["a", "b", "c", "e"],
    ),
    (
        "a package does not conflict with what it provides itself",
        "a 1; Provides: mail; Conflicts: mail",
        "a",
        &["a"],
    ),
    (
        "breaking an older version does no harm",
        "a 1; Breaks: b (<< 2); Depends: b\n b 2",
        "a",
        &["a", "b"],
    ),
    (
        "the only provider may be asked for by the virtual name",
        "a 1; Provides: v",
        "v",
        &["a"],
    ),
];

#[test]
fn sets_are_chosen_as_apt_does() {
    for (what, archive, wanted, expected) in CASES {
        assert_eq!(names(archive, wanted), *expected, "{what}");
    }
}

#[test]
fn backports_are_taken_for_named_packages_and_where_nothing_else_fits() {
    let normal = "a 1; Depends: lib (>= 1)\n lib 1\n b 1";
    let backports = "a 2; Depends: lib (>= 1), new\n lib 2\n new 2\n strict 2; Depends: lib (>= 2)";
    let table: &[(&str, &[&str])] = &[
        ("a", &["a 1", "lib 1"]),
        ("+a", &["a 2", "lib 1", "new 2"]),
        ("+a +lib", &["a 2", "lib 2", "new 2"]),
        ("+strict", &["lib 2", "strict 2"]),
        ("b", &["b 1"]),
        // Requested from backports, but not in them: the normal version.
        ("+b", &["b 1"]),
    ];
    for (wanted, expected) in table {
        assert_eq!(
            choose(normal, backports, wanted).unwrap(),
            *expected,
            "{wanted}"
        );
    }
    let error = choose(normal, backports, "new").unwrap_err().to_string();
    assert!(error.contains("no package new in the archive"), "{error}");
}

#[test]
fn all_that_is_wrong_is_told_at_once_with_the_chain() {
    let archive = "a 1; Depends: b, gone\n b 1; Depends: c (>= 2) | nothing\n c 1\n \
                   x 1; Conflicts: y\n y 1; Provides: z\n w 1; Breaks: z";
    let error = choose(archive, "", "a x y w contianerd")
        .unwrap_err()
        .to_string();
    for expected in [
        "b 1 depends on c (>= 2) | nothing, but the archive has c 1 (a → b)",
        "a 1 depends on gone, which the archive does not have (a is asked for)",
        "no package contianerd in the archive",
        "x 1 conflicts with y, which is y 1 here",
    ] {
        assert!(error.contains(expected), "{expected}\nin:\n{error}");
    }
    assert_eq!(error.lines().count(), 5, "{error}");
}

#[test]
fn a_virtual_name_is_answered_with_its_providers() {
    let archive = "containerd 1\n b 1; Provides: mail\n c 1; Provides: mail";
    for (wanted, expected) in [
        ("mail", "mail is a virtual package, which b, c provide"),
        ("xyz", "no package xyz in the archive"),
    ] {
        let error = choose(archive, "", wanted).unwrap_err().to_string();
        assert_eq!(error, expected);
    }
}

#[test]
fn a_problem_names_the_requested_packages_that_lead_to_it() {
    let archive =
        "a 1; Depends: b\n b 1; Depends: gone\n x 1; Depends: y\n y 1; Conflicts: z\n z 1";
    let unsolved = choose(archive, "", "a x z").unwrap_err();
    let asked: Vec<&[String]> = unsolved
        .problems
        .iter()
        .map(|problem| match problem {
            Problem::Broken { asked, .. } => asked.as_slice(),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(
        asked,
        [&["a".to_owned()][..], &["x".to_owned(), "z".to_owned()]]
    );
}

#[test]
fn without_dependencies_a_metapackage_stands_for_its_kernel() {
    let text = index(
        "linux-image-amd64 6.12-1; Source: linux (6.12+1); Depends: linux-image-6.12-amd64 (= 6.12-1)\n \
         linux-image-6.12-amd64 6.12-1; Source: linux (6.12+1); Depends: kmod, initramfs-tools\n \
         tool 1; Depends: kmod (= 1)\n kmod 1",
    );
    let pool = Pool::new(packages::read(&text, 0, Standing::DEBIAN).unwrap());
    for (wanted, expected) in [
        ("linux-image-amd64", "linux-image-6.12-amd64"),
        ("linux-image-6.12-amd64", "linux-image-6.12-amd64"),
        // It depends on one package in an exact version, but of another source.
        ("tool", "tool"),
    ] {
        let requirements = Requirements {
            packages: &[wanted.to_owned()],
            backports: &[],
            essential: false,
            recommends: false,
            dependencies: false,
            before: &[],
        };
        let chosen = solve(&pool, "amd64", &requirements).unwrap();
        let names: Vec<&str> = chosen.iter().map(|&id| pool.packages[id].name).collect();
        assert_eq!(names, [expected]);
    }
}

/// As in trixie-backports: none of them is named in `backports` but the metapackage.
#[test]
fn a_kernel_of_several_packages_is_taken_whole() {
    let normal = index("linux-image-amd64 6.12-1; Source: linux\n linux-base 4\n kmod 1");
    let backports = index(
        "linux-image-amd64 7.3-1; Source: linux-signed (7.3+1); Depends: linux-image-7.3-amd64 (= 7.3-1), linux-modules-amd64 (= 7.3-1)\n \
         linux-image-7.3-amd64 7.3-1; Source: linux-signed (7.3+1); Depends: dracut | initramfs-tools, linux-binary-7.3-amd64 (= 7.3-1)\n \
         linux-binary-7.3-amd64 7.3-1; Source: linux-signed (7.3+1); Depends: linux-base-7.3-amd64 (= 7.3-1)\n \
         linux-base-7.3-amd64 7.3-1; Source: linux; Depends: linux-base (>= 4)\n \
         linux-modules-amd64 7.3-1; Source: linux-signed (7.3+1); Depends: linux-modules-7.3-amd64 (= 7.3-1)\n \
         linux-modules-7.3-amd64 7.3-1; Source: linux; Depends: kmod, linux-base-7.3-amd64 (= 7.3-1)",
    );
    let mut all = packages::read(&normal, 0, Standing::DEBIAN).unwrap();
    all.extend(packages::read(&backports, 1, Standing::BACKPORTS).unwrap());
    let pool = Pool::new(all);
    let wanted = ["linux-image-amd64".to_owned()];
    let requirements = Requirements {
        packages: &wanted,
        backports: &wanted,
        essential: false,
        recommends: false,
        dependencies: false,
        before: &[],
    };
    let chosen = solve(&pool, "amd64", &requirements).unwrap();
    let names: Vec<&str> = chosen.iter().map(|&id| pool.packages[id].name).collect();
    assert_eq!(
        names,
        [
            "linux-base-7.3-amd64",
            "linux-binary-7.3-amd64",
            "linux-image-7.3-amd64",
            "linux-image-amd64",
            "linux-modules-7.3-amd64",
            "linux-modules-amd64",
        ]
    );
}

#[test]
fn essential_packages_come_when_asked_for() {
    let text = index("base 1; Essential: yes; Depends: lib\n lib 1\n a 1");
    let pool = Pool::new(packages::read(&text, 0, Standing::DEBIAN).unwrap());
    let requirements = Requirements {
        packages: &["a".to_owned()],
        backports: &[],
        essential: true,
        recommends: false,
        dependencies: true,
        before: &[],
    };
    assert_eq!(solve(&pool, "amd64", &requirements).unwrap().len(), 3);
}

/// What a pool with earlier choices gives for `a`, and the names of the first failure.
fn with_pins(text: &str, pins: &[&str]) -> (Vec<String>, Vec<String>) {
    let text = index(text);
    let mut pool = Pool::new(packages::read(&text, 0, Standing::DEBIAN).unwrap());
    let pins = pins.iter().map(|pin| {
        let (name, version) = pin.split_once(' ').unwrap();
        (name, version, SUM)
    });
    pool.keep(&pins.collect());
    let requirements = Requirements {
        packages: &["a".to_owned()],
        backports: &[],
        essential: false,
        recommends: false,
        dependencies: true,
        before: &[],
    };
    let mut given_up = Vec::new();
    loop {
        match solve(&pool, "amd64", &requirements) {
            Ok(ids) => {
                let label = |id: &usize| {
                    let package = &pool.packages[*id];
                    format!("{} {}", package.name, package.version)
                };
                return (ids.iter().map(label).collect(), given_up);
            }
            Err(unsolved) => {
                let names: Vec<String> = unsolved
                    .names
                    .iter()
                    .filter(|name| pool.let_go(name))
                    .cloned()
                    .collect();
                assert!(!names.is_empty(), "{unsolved}");
                given_up.extend(names);
            }
        }
    }
}

#[test]
fn an_earlier_choice_stays_until_it_does_not_fit() {
    for (what, text, pins, expected, given_up) in [
        (
            "a newer version is there",
            "a 1; Depends: b\n b 1\n b 2",
            &["b 1"][..],
            &["a 1", "b 1"][..],
            &[][..],
        ),
        (
            "a dependency wants the newer one",
            "a 1; Depends: b (>= 2), c\n b 1\n b 2\n c 1\n c 2",
            &["b 1", "c 1"],
            &["a 1", "b 2", "c 1"],
            &["b"],
        ),
        (
            "two of one source move together",
            "a 1; Depends: b, c (= 2)\n b 1; Depends: c (= 1)\n b 2; Depends: c (= 2)\n c 1\n c 2",
            &["b 1", "c 1"],
            &["a 1", "b 2", "c 2"],
            &["c", "b"],
        ),
        (
            "one that another breaks",
            "a 1; Depends: b, c\n b 1\n b 2\n c 1; Breaks: b (<< 2)",
            &["b 1"],
            &["a 1", "b 2", "c 1"],
            &["b"],
        ),
        (
            "what it provides counts",
            "a 1; Depends: v (= 1)\n b 1; Provides: v (= 1)\n b 2; Provides: v (= 2)",
            &["b 1"],
            &["a 1", "b 1"],
            &[],
        ),
    ] {
        let (found, gone) = with_pins(text, pins);
        assert_eq!(found, expected, "{what}");
        assert_eq!(gone, given_up, "{what}");
    }
}

#[test]
fn a_metapackage_leads_to_the_kernel_of_before() {
    let text = index(
        "linux-image-amd64 6.12.2; Source: linux; Depends: linux-image-6.12.2-amd64 (= 6.12.2)\n \
         linux-image-6.12.2-amd64 6.12.2; Source: linux\n linux-image-6.12.1-amd64 6.12.1; Source: linux\n \
         linux-image-6.12.1-cloud-amd64 6.12.1; Source: linux",
    );
    let mut pool = Pool::new(packages::read(&text, 0, Standing::DEBIAN).unwrap());
    let before = ["linux-image-6.12.1-cloud-amd64", "linux-image-6.12.1-amd64"].map(str::to_owned);
    pool.keep(
        &before
            .iter()
            .map(|name| (name.as_str(), "6.12.1", SUM))
            .collect(),
    );
    for (before, expected) in [(&before[..], 1), (&[][..], 2)] {
        let requirements = Requirements {
            packages: &["linux-image-amd64".to_owned()],
            backports: &[],
            essential: false,
            recommends: false,
            dependencies: false,
            before,
        };
        let chosen = solve(&pool, "amd64", &requirements).unwrap();
        let [only] = chosen[..] else { panic!() };
        assert_eq!(
            pool.packages[only].name,
            format!("linux-image-6.12.{expected}-amd64")
        );
    }
}

/// The difficulty, the archive, what `a` brings with what is recommended.
const RECOMMENDS: &[(&str, &str, &[&str])] = &[
    (
        "what recommended packages depend on and recommend comes too",
        "a 1; Recommends: b, c (>= 2)\n b 1; Depends: d; Recommends: e\n c 2\n d 1\n e 1; Suggests: f\n f 1",
        &["a", "b", "c", "d", "e"],
    ),
    (
        "what is not there, or not in the version, is no requirement",
        "a 1; Recommends: none, b (>= 2), c\n b 1\n c 1",
        &["a", "c"],
    ),
    (
        "what lacks a dependency is left out with what it would bring",
        "a 1; Recommends: b, e\n b 1; Depends: c, none\n c 1\n e 1",
        &["a", "e"],
    ),
    (
        "another alternative is taken for one that does not fit",
        "a 1; Recommends: b | c\n b 1; Depends: none\n c 1",
        &["a", "c"],
    ),
    (
        "a dependency that comes later excludes a recommended package, not the other way round",
        "a 1; Recommends: b; Depends: c\n b 1\n c 1; Breaks: b",
        &["a", "c"],
    ),
    (
        "of two that exclude each other the first is taken",
        "a 1; Recommends: b, c\n b 1; Conflicts: v\n c 1; Provides: v",
        &["a", "b"],
    ),
    (
        "a chosen package satisfies an alternative",
        "a 1; Recommends: b | c; Depends: c\n b 1\n c 1",
        &["a", "c"],
    ),
];

#[test]
fn recommended_packages_come_as_far_as_they_fit() {
    for (what, text, expected) in RECOMMENDS {
        let text = index(text);
        let pool = Pool::new(packages::read(&text, 0, Standing::DEBIAN).unwrap());
        let requirements = Requirements {
            packages: &["a".to_owned()],
            backports: &[],
            essential: false,
            dependencies: true,
            recommends: true,
            before: &[],
        };
        let chosen = solve(&pool, "amd64", &requirements).unwrap();
        let names: Vec<&str> = chosen.iter().map(|&id| pool.packages[id].name).collect();
        assert_eq!(names, *expected, "{what}");
    }
}
