//! The words of a recipe that the archive or the release table refuses: each with its place, and the nearest word that exists.

use anyhow::Error;

use crate::debian::archive::NoComponents;
use crate::debian::packages::Pool;
use crate::debian::solve::Problem;
use crate::recipe::{
    Composed, Mistake, Mistakes, Place, Recipe, SET_DKMS, SET_ETCD, SET_KERNEL, SET_KUBELET,
    SET_LOCALES, SET_ROOT, SetRequest,
};

/// The problems of the sets, by the sets' names, and the names in `backports` that are none. `held` says which versions the recipe
/// allows of what the problems are about.
pub(super) fn packages(
    recipe: &Recipe,
    pool: &Pool<'_>,
    problems: &[(String, Problem)],
    backports: &[&str],
    held: Option<&str>,
) -> Mistakes {
    let mut names: Vec<&str> = pool.names().collect();
    names.sort_unstable();
    let mut mistakes = recipe.places.mistakes();
    for (set, problem) in problems {
        mistakes.add(match problem {
            Problem::Unknown(name) => unknown(recipe, pool, &names, set, name),
            Problem::Virtual { name, providers } => Mistake::of(
                place(recipe, set, name),
                format!("`{name}` is a virtual package{}", needed_by(set)),
                format!(
                    "expected one of those that provide it: {}",
                    providers.join(", ")
                ),
            ),
            Problem::Broken { asked, text } => {
                let mistake = broken(recipe, set, asked, text);
                match held {
                    Some(held) => mistake.or_help(held.to_owned()),
                    None => mistake,
                }
            }
        });
    }
    for name in backports {
        mistakes.add(no_backport(recipe, pool, name));
    }
    mistakes
}

/// The names that a recipe wants from backports, and that these do not have. One that the lock keeps may be gone from there.
pub(super) fn no_backports<'s>(pool: &Pool<'_>, sets: &'s [SetRequest]) -> Vec<&'s str> {
    let of_recipe = sets.iter().filter(|set| !set.is_tools());
    let mut names: Vec<&str> = of_recipe
        .flat_map(|set| set.backports.iter().map(String::as_str))
        .filter(|name| pool.backport(name).is_none() && !pool.is_kept(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The error of reading the archive: components that it does not have are mistakes of the recipe.
pub(super) fn archive(recipe: &Recipe, error: Error) -> Error {
    let Some(NoComponents { components, .. }) = error.downcast_ref() else {
        return error;
    };
    let mut mistakes = recipe.places.mistakes();
    for component in components {
        let list = ["debian", "components"];
        let place = recipe.places.word(&list, component);
        mistakes.add(
            Mistake::of(
                place.or_else(|| recipe.places.value(&list)),
                format!("{error:#}"),
                format!("expected a component of the mirror; it has no {component}"),
            )
            .help("another mirror may have it: `mirror` in [debian], or SLIPWAY_DEBIAN_MIRROR"),
        );
    }
    mistakes.into()
}

/// Where a set's package is asked for; none for Slipway's tools, and for packages that are essential.
fn place(recipe: &Recipe, set: &str, package: &str) -> Option<Place> {
    let places = &recipe.places;
    match set {
        SET_ROOT => places.word(&["debian", "packages"], package),
        SET_KERNEL => places.value(&["kernel", "package"]),
        SET_DKMS => {
            let list = ["kernel", "dkms"];
            places.word(&list, package).or_else(|| places.value(&list))
        }
        SET_LOCALES => places.value(&["locale", "generate"]),
        SET_KUBELET => places.word(&["kubernetes", "container-packages"], package),
        SET_ETCD => {
            let mut images = recipe.containers.iter();
            let image = images.find(|image| image.packages().contains(&package))?;
            places.word(&["containers", "images"], image.name())
        }
        set => {
            let number = recipe.composed.iter().position(|one| one.set() == set)?;
            places.word_of_item(&["containers", "composed"], (number, "packages"), package)
        }
    }
}

/// What follows the words about a package that no word of the recipe names.
fn needed_by(set: &str) -> String {
    match set {
        SET_ROOT | SET_KERNEL | SET_KUBELET => String::new(),
        SET_DKMS => " to compile modules with".to_owned(),
        SET_LOCALES => ", which locales are made of".to_owned(),
        SET_ETCD => ", which this container image is made of".to_owned(),
        set if set.starts_with(Composed::SET) => format!(", which the {set} is to have"),
        _ => format!(", which the set {set} of Slipway's tools needs"),
    }
}

fn unknown(recipe: &Recipe, pool: &Pool<'_>, names: &[&str], set: &str, name: &str) -> Mistake {
    let debian = &recipe.debian;
    let (suite, components) = (&debian.suite, debian.components.join(" or "));
    let others = match debian.archives.is_empty() {
        true => "",
        false => ", or of [[debian.archives]]",
    };
    let mistake = Mistake::of(
        place(recipe, set, name),
        format!("{suite} has no package `{name}`{}", needed_by(set)),
        format!("expected a package of {suite}'s {components}{others}"),
    );
    if pool.backport(name).is_some() {
        return mistake.help(format!(
            "{suite}-backports has it: add it to `backports` in [debian] too"
        ));
    }
    mistake.nearest(name, names.iter().copied())
}

fn broken(recipe: &Recipe, set: &str, asked: &[String], text: &str) -> Mistake {
    let mut places = asked.iter().filter_map(|name| place(recipe, set, name));
    let (first, second) = (places.next(), places.next());
    let found = match first {
        Some(_) => text.to_owned(),
        None => format!("{text}{}", needed_by(set)),
    };
    let expected = match first {
        Some(_) => "expected packages that can be installed together",
        None => "",
    };
    let mistake = Mistake::of(first.clone(), found, expected);
    match second.filter(|second| Some(second) != first.as_ref()) {
        Some(second) => mistake.also(&second, "the other one"),
        None => mistake,
    }
}

fn no_backport(recipe: &Recipe, pool: &Pool<'_>, name: &str) -> Mistake {
    let suite = &recipe.debian.suite;
    let mistake = Mistake::of(
        recipe.places.word(&["debian", "backports"], name),
        format!("{suite}-backports has no package `{name}`"),
        format!("expected a package of {suite}-backports"),
    );
    if pool.normal(name).is_some() {
        return mistake.help(format!("{suite} has it: leave it out of `backports`"));
    }
    let mut names: Vec<&str> = pool.backport_names().collect();
    names.sort_unstable();
    mistake.nearest(name, names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debian::packages::{Standing, read};
    use crate::debian::solve::{Requirements, solve};
    use crate::recipe;

    const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// An index of lines `name version; Field: value`.
    fn index(lines: &[&str]) -> String {
        let one = |line: &&str| {
            let (head, fields) = line.split_once("; ").unwrap_or((line, "Tag: x"));
            let (name, version) = head.split_once(' ').unwrap();
            format!(
                "Package: {name}\nVersion: {version}\n{fields}\nFilename: {name}.deb\nSize: 1\nSHA256: {SUM}\n\n"
            )
        };
        lines.iter().map(one).collect()
    }

    const RECIPE: &str = "extends = 'base.toml'
[debian]
packages = ['jqq', 'mail', 'broken', 'newer']
backports = ['bb', 'neww']
[kernel]
package = 'linux-image-clod-amd64'
platforms = ['qemu']
[kubernetes]
version = '1.36'
kubelet = [{ go-module = true }]
container-packages = ['moun']
[containers]
images = ['pause']
";
    const BASE: &str = "[image]\nname = 'a'\nversion = '1'\n[debian]\npackages = ['contianerd']\n";

    /// The mistakes of all sets, without the folder's name.
    fn report() -> (String, usize) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("base.toml"), BASE).unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, RECIPE).unwrap();
        let recipe = recipe::load(&path).unwrap();
        let normal = index(&[
            "jq 1",
            "containerd 1",
            "mount 1",
            "linux-image-cloud-amd64 1",
            "bb 1",
            "m1 1; Provides: mail",
            "m2 1; Provides: mail",
            "broken 1; Depends: gone",
        ]);
        let backports = index(&["newer 2", "new 2"]);
        let mut all = read(&normal, 0, Standing::DEBIAN).unwrap();
        all.extend(read(&backports, 1, Standing::BACKPORTS).unwrap());
        let pool = Pool::new(all);
        let sets = recipe.sets();
        let mut problems = Vec::new();
        for set in &sets {
            let requirements = Requirements {
                packages: &set.packages,
                backports: &[],
                essential: false,
                recommends: false,
                dependencies: set.dependencies,
                before: &[],
            };
            if let Err(unsolved) = solve(&pool, "amd64", &requirements) {
                let name = set.name.to_string();
                problems.extend(unsolved.problems.into_iter().map(|one| (name.clone(), one)));
            }
        }
        // Of Slipway's tools one is enough.
        problems.retain(|(set, problem)| {
            !set.starts_with("tools")
                || matches!(problem, Problem::Unknown(name) if name == "swtpm")
        });
        let backports = no_backports(&pool, &sets);
        let mistakes = packages(&recipe, &pool, &problems, &backports, None);
        let report = mistakes.render(false);
        let report = report.replace(folder.path().to_str().unwrap(), "");
        (report, mistakes.len())
    }

    #[test]
    fn packages_of_all_sets_are_refused_together_with_their_places() {
        let (report, count) = report();
        for expected in [
            "trixie has no package `contianerd`\n --> /base.toml:5:13\n",
            "did you mean `containerd`?",
            "trixie has no package `jqq`\n --> /a.toml:3:13\n",
            "did you mean `jq`?",
            "`mail` is a virtual package\n --> /a.toml:3:20\n",
            "expected one of those that provide it: m1, m2",
            "broken 1 depends on gone, which the archive does not have (broken is asked for)\n --> /a.toml:3:28\n",
            "trixie has no package `newer`",
            "add it to `backports` in [debian] too",
            "trixie-backports has no package `bb`\n --> /a.toml:4:14\n",
            "trixie has it: leave it out of `backports`",
            "trixie-backports has no package `neww`",
            "did you mean `new`?",
            "did you mean `linux-image-cloud-amd64`?",
            "trixie has no package `moun`\n  --> /a.toml:11:23\n",
            // What an image is made of is asked for by the image's name.
            "trixie has no package `catatonit`, which this container image is made of\n  --> /a.toml:13:11\n",
            // No word of the recipe asks for this one.
            "error: trixie has no package `swtpm`, which the set tools-run of Slipway's tools needs\n\n",
        ] {
            assert!(report.contains(expected), "{expected}\n{report}");
        }
        assert_eq!(count, 11, "{report}");
    }

    #[test]
    fn a_component_that_the_mirror_lacks_is_a_mistake_of_the_recipe() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        let text = "image = { name = 'a', version = '1' }\ndebian.components = ['main', 'contrib']\n\
                    kernel = { package = 'linux-image-amd64', platforms = ['qemu'] }\n";
        std::fs::write(&path, text).unwrap();
        let recipe = recipe::load(&path).unwrap();
        let missing = NoComponents {
            components: vec!["contrib".to_owned()],
            architecture: "amd64".to_owned(),
        };
        let error = Error::from(missing).context("reading trixie from the mirror M");
        let report = archive(&recipe, error);
        let report = report.downcast::<Mistakes>().unwrap().render(false);
        assert!(
            report.contains(
                "reading trixie from the mirror M: it lists no packages of contrib for amd64"
            ),
            "{report}"
        );
        assert!(report.contains("a.toml:2:30"), "{report}");
        let other = archive(&recipe, Error::msg("away"));
        assert_eq!(other.to_string(), "away");
    }
}
