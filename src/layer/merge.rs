//! Lays layers over a tree: one list, sorted, in which every path has its parent before it and no path leads through
//! a link. A layer's entries below `/var` go to the factory seed, since `/var` itself is another partition.

use std::collections::BTreeMap;

use anyhow::{Context, Error, Result, bail, ensure};
use image::paths::FACTORY;
use image::var_list::{self, Content};

use super::reserved::{Refused, Reserved};
use super::{Entry, Kind, Layer, Writer};

/// The list of the layers' content of `/var` ([`image::var_list`]). The packages' lines are in another file.
pub(crate) const SEED: &str = image::paths::VAR_LAYERS;
/// The same of the packages' content of `/var`.
pub(crate) const PACKAGES_SEED: &str = image::paths::VAR_PACKAGES;
/// Maximum number of links in one path, as in the kernel; more are a loop.
const LINKS: usize = 40;

/// Entries by path.
pub(crate) type Tree = BTreeMap<String, Entry>;

/// Layers laid over a base.
#[derive(Debug)]
pub(crate) struct Merged {
    /// The result, without the refused entries.
    pub(crate) tree: Tree,
    /// Entries of the recipe that would harm Slipway's.
    pub(crate) refused: Vec<Refused>,
    /// Those that do not fit over the other layers, and why.
    pub(crate) conflicts: Vec<(String, String)>,
}

/// Merges the layers into the base. A path of a layer of Slipway's is reserved for the layers after it, and so are the
/// paths of `fixed`. All entries of the recipe that cannot be laid are in the result, which is incomplete then.
///
/// # Errors
/// If an entry of another layer would lie below a file or in the place of a folder, a hard link's target is not a file, or an entry below
/// `/var` has a control character in its path or target.
pub(crate) fn merge(base: &[Entry], layers: &[Layer], fixed: &[String]) -> Result<Merged> {
    let mut tree: Tree = BTreeMap::new();
    for entry in base {
        let mut entry = entry.clone();
        let kind = content(&tree, &entry.kind, |path| path.to_owned())
            .with_context(|| format!("in the tree, {}", entry.path))?;
        entry.kind = kind;
        tree.insert(entry.path.clone(), entry);
    }
    let mut reserved = Reserved::default();
    for path in fixed {
        reserved.add_path(resolve(&tree, path, false)?);
    }
    let (mut seed, mut refused, mut conflicts) = (String::new(), Vec::new(), Vec::new());
    let mut of_recipe = BTreeMap::new();
    for layer in layers {
        let is_recipe = layer.writer == Writer::Recipe;
        for entry in &layer.entries {
            if is_recipe {
                let place = resolve(&tree, &entry.path, follow_last(entry))?;
                if let Some(found) = reserved.refuse(entry, &place) {
                    refused.push(found);
                    continue;
                }
            }
            let laid = lay(&mut tree, entry, &mut seed);
            match laid.with_context(|| format!("laying {}", entry.path.escape_debug())) {
                Ok(place) if layer.writer == Writer::Slipway => reserved.add(place, &entry.kind),
                Ok(place) if is_recipe && place.starts_with("/var/") => {
                    of_recipe.insert(place, entry);
                }
                Ok(_) => {}
                Err(error) if is_recipe => {
                    conflicts.push((entry.path.clone(), format!("{error:#}")));
                }
                Err(error) => return Err(error),
            }
        }
    }
    if !seed.is_empty() {
        let text = format!("# What layers have put into /var. Made by the build.\n{seed}");
        put(&mut tree, Entry::file(SEED, 0o644, text))?;
    }
    conflicts.extend(behind_links(&tree, &of_recipe)?);
    tree.entry("/".into())
        .or_insert_with(|| Entry::directory("/", 0o755));
    Ok(Merged {
        tree,
        refused,
        conflicts,
    })
}

/// A hard link is replaced by its target's content; `write` finds links of the base again by their common range.
fn content(tree: &Tree, kind: &Kind, place: impl Fn(&str) -> String) -> Result<Kind> {
    let Kind::HardLink(target) = kind else {
        return Ok(kind.clone());
    };
    match tree.get(&place(target)).map(|found| &found.kind) {
        Some(found @ Kind::File(_)) => Ok(found.clone()),
        _ => bail!("the hard link's target {target} is not a file"),
    }
}

/// Whether a link at the entry's own path is followed: a folder is laid over that which a link leads to.
fn follow_last(entry: &Entry) -> bool {
    entry.kind == Kind::Directory
}

/// Lays one entry, and gives its path with the links in it followed; `seed` gets the line that copies it to `/var`, if it goes there.
///
/// # Errors
/// As [`merge`].
pub(crate) fn lay(tree: &mut Tree, entry: &Entry, seed: &mut String) -> Result<String> {
    let mut entry = Entry {
        path: resolve(tree, &entry.path, follow_last(entry))?,
        ..entry.clone()
    };
    if entry.kind == Kind::Remove {
        remove(tree, &entry.path);
        if entry.path.starts_with("/var/") {
            remove_seed(tree, &entry.path, seed)?;
        }
        return Ok(entry.path);
    }
    let place = entry.path.clone();
    entry.kind = content(tree, &entry.kind, |target| {
        let place = resolve(tree, target, false).unwrap_or_else(|_| target.to_owned());
        if tree.contains_key(&place) {
            place
        } else {
            format!("{FACTORY}{place}")
        }
    })?;
    if entry.path.starts_with("/var/") {
        let Some(line) = line(&entry)? else {
            return Ok(place);
        };
        seed.push_str(&line);
        if !matches!(entry.kind, Kind::File(_)) {
            return Ok(place);
        }
        entry.path = format!("{FACTORY}{}", entry.path);
    }
    put(tree, entry)?;
    Ok(place)
}

/// A path in the syntax of tmpfiles.d(5): specifiers and spaces escaped.
pub(crate) fn quoted(path: &str) -> String {
    path.replace('\\', "\\\\")
        .replace('%', "%%")
        .replace(' ', "\\x20")
}

/// The line of the list for an entry below `/var`, as [`image::var_list::parse`] reads it.
///
/// # Errors
/// If its path or the link's target has a control character, or the init would not read the line as this entry.
fn line(entry: &Entry) -> Result<Option<String>> {
    let path = listed(&entry.path)?;
    let (mode, uid, gid) = (entry.mode, entry.uid, entry.gid);
    let line = match &entry.kind {
        Kind::Directory => format!("d {path} {mode:04o} {uid} {gid} -"),
        Kind::Symlink(target) => format!("L {path} - - - - {}", listed(target)?),
        Kind::File(_) => format!("C {path} {mode:04o} {uid} {gid} - {FACTORY}{path}"),
        Kind::Remove => return Ok(None),
        Kind::HardLink(_) => bail!("a hard link that was not resolved"),
    };
    let read = var_list::parse(&line).map_err(Error::msg)?;
    ensure!(
        read.is_some_and(|(path, _)| path == entry.path),
        "the init would not read the line {line:?} as {:?}",
        entry.path
    );
    Ok(Some(line + "\n"))
}

/// A path or target as a list has it, which has no escapes for control characters: a line feed would end the line, and the init boots
/// with no list that has a line it cannot read.
fn listed(path: &str) -> Result<String> {
    ensure!(
        !path.contains(char::is_control),
        "{path:?} has a control character, which the list of what a first boot puts into /var cannot have"
    );
    Ok(quoted(path))
}

/// Whether a line of a list is for a path or one below it.
fn is_line_of(line: &str, path: &str) -> bool {
    let path = quoted(path);
    let rest = line.split(' ').nth(1);
    let rest = rest.and_then(|word| word.strip_prefix(path.as_str()));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The lines without those for a path of `/var` or one below it.
fn lines_without(lines: &str, path: &str) -> String {
    let kept = lines.split_inclusive('\n');
    kept.filter(|line| !is_line_of(line, path)).collect()
}

/// Takes a path of `/var` from the factory seed, with all below it.
fn remove_seed(tree: &mut Tree, path: &str, seed: &mut String) -> Result<()> {
    remove(tree, &format!("{FACTORY}{path}"));
    *seed = lines_without(seed, path);
    for file in [PACKAGES_SEED, SEED] {
        let Some(Kind::File(source)) = tree.get(file).map(|found| &found.kind) else {
            continue;
        };
        let lines = source.read().with_context(|| format!("reading {file}"))?;
        let lines = String::from_utf8(lines).with_context(|| format!("reading {file}"))?;
        let kept = lines_without(&lines, path);
        if kept != lines {
            put(tree, Entry::file(file, 0o644, kept))?;
        }
    }
    Ok(())
}

/// Entries of the recipe, by their places in `/var`, that are behind a link of the packages, and why they cannot be there: a first boot
/// brings nothing through one. A link that the recipe itself puts there is its to decide.
fn behind_links(
    tree: &Tree,
    of_recipe: &BTreeMap<String, &Entry>,
) -> Result<Vec<(String, String)>> {
    let mut links = BTreeMap::new();
    for file in var_list::LISTS.iter().filter(|_| !of_recipe.is_empty()) {
        let Some(Kind::File(source)) = tree.get(*file).map(|found| &found.kind) else {
            continue;
        };
        let text = source.read().with_context(|| format!("reading {file}"))?;
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines();
        for (path, content) in lines.filter_map(|line| var_list::parse(line).ok().flatten()) {
            match content {
                Content::Link(target) if *file == PACKAGES_SEED => {
                    links.insert(path, target);
                }
                _ => {
                    links.remove(&path);
                }
            }
        }
    }
    let behind = of_recipe.iter().filter_map(|(place, entry)| {
        let (link, target) = above(place).find_map(|folder| links.get_key_value(folder))?;
        let brings = entry.kind != Kind::Remove;
        brings.then(|| {
            let path = entry.path.escape_debug();
            let text = format!(
                "laying {path}: {link} is a link to {target} in the packages, and a first boot brings nothing through a link"
            );
            (entry.path.clone(), text)
        })
    });
    Ok(behind.collect())
}

/// Whether a node's first boot puts something at a path of `/var` or below it.
pub(crate) fn is_seeded(tree: &Tree, path: &str) -> bool {
    let lines = |file: &&str| match tree.get(*file).map(|found| &found.kind) {
        Some(Kind::File(source)) => source.read().unwrap_or_default(),
        _ => Vec::new(),
    };
    path.starts_with("/var/")
        && [PACKAGES_SEED, SEED].iter().any(|file| {
            let text = lines(file);
            let text = String::from_utf8_lossy(&text);
            text.lines().any(|line| is_line_of(line, path))
        })
}

fn put(tree: &mut Tree, entry: Entry) -> Result<()> {
    parents(tree, &entry.path)?;
    let was_folder = tree
        .get(&entry.path)
        .is_some_and(|found| found.kind == Kind::Directory);
    if entry.kind != Kind::Directory && was_folder {
        bail!("there is a folder; take it away first (`remove`) if something else shall be there");
    }
    tree.insert(entry.path.clone(), entry);
    Ok(())
}

/// The folders that a path is in, but for `/`, the topmost first.
pub(super) fn above(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').skip(1);
    ends.map(move |(at, _)| &path[..at])
}

/// Creates the parent folders of a path.
fn parents(tree: &mut Tree, path: &str) -> Result<()> {
    for folder in above(path) {
        match tree.get(folder).map(|found| &found.kind) {
            Some(Kind::Directory) => {}
            Some(_) => bail!("{folder} is not a folder"),
            None => {
                tree.insert(folder.to_owned(), Entry::directory(folder, 0o755));
            }
        }
    }
    Ok(())
}

fn remove(tree: &mut Tree, path: &str) {
    tree.remove(path);
    let below = format!("{path}/");
    let gone: Vec<String> = tree
        .range(below.clone()..)
        .map(|(path, _)| path)
        .take_while(|path| path.starts_with(&below))
        .cloned()
        .collect();
    for path in gone {
        tree.remove(&path);
    }
}

/// Where a path leads when the links in it are followed; the last part only if asked.
pub(crate) fn resolve(tree: &Tree, path: &str, last: bool) -> Result<String> {
    let mut todo: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
    let mut done = String::new();
    let mut links = 0;
    while let Some(part) = todo.pop() {
        match part.as_str() {
            "" | "." => continue,
            ".." => {
                done.truncate(done.rfind('/').unwrap_or_default());
                continue;
            }
            _ => {}
        }
        let next = format!("{done}/{part}");
        let is_last = todo.iter().all(|part| part.is_empty());
        match tree.get(&next).map(|found| &found.kind) {
            Some(Kind::Symlink(target)) if !is_last || last => {
                links += 1;
                if links > LINKS {
                    bail!("{path} leads through a circle of links");
                }
                if target.starts_with('/') {
                    done.clear();
                }
                todo.extend(target.split('/').rev().map(str::to_owned));
            }
            _ => done = next,
        }
    }
    Ok(if done.is_empty() { "/".into() } else { done })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cache::Key;
    use crate::layer::Source;

    fn base() -> Vec<Entry> {
        let range = |path: &str, offset| Entry {
            kind: Kind::File(Source::Range {
                file: "t".into(),
                offset,
                size: 9,
            }),
            ..Entry::file(path, 0o755, "")
        };
        vec![
            Entry::directory("/", 0o755),
            Entry::symlink("/bin", "usr/bin"),
            Entry::symlink("/root", "var/roothome"),
            Entry::directory("/usr", 0o755),
            Entry::directory("/usr/bin", 0o755),
            range("/usr/bin/a", 512),
            Entry {
                kind: Kind::HardLink("/usr/bin/a".into()),
                ..Entry::file("/usr/bin/b", 0o755, "")
            },
            Entry::directory("/usr/share", 0o755),
            range("/usr/share/x", 1536),
            Entry::directory("/var", 0o755),
        ]
    }

    fn merged(entries: Vec<Entry>) -> Result<Tree> {
        let layer = Layer::with_key(entries, Key::of_data("test", 1).finish())?;
        let merged = merge(&base(), &[layer], &[])?.tree;
        let is_own = |(path, entry): (&String, &Entry)| *path == entry.path;
        assert!(merged.iter().all(is_own), "{merged:?}");
        Ok(merged)
    }

    #[test]
    fn links_in_paths_are_followed_and_parents_made() {
        let tree = merged(vec![
            Entry::file("/bin/new", 0o755, "n"),
            Entry::file("/usr/lib/deep/er/file", 0o644, "f"),
            Entry::directory("/bin", 0o711),
        ])
        .unwrap();
        assert!(tree.contains_key("/usr/bin/new") && !tree.contains_key("/bin/new"));
        assert_eq!(tree["/usr/bin"].mode, 0o711);
        assert_eq!(tree["/bin"].kind, Kind::Symlink("usr/bin".into()));
        assert_eq!(tree["/usr/lib/deep"].kind, Kind::Directory);
    }

    #[test]
    fn a_replaced_file_leaves_its_hard_links_as_they_were() {
        let tree = merged(vec![Entry::file("/usr/bin/a", 0o755, "mine")]).unwrap();
        assert_eq!(
            tree["/usr/bin/a"].kind,
            Kind::File(Source::Bytes(b"mine".to_vec()))
        );
        assert!(matches!(
            tree["/usr/bin/b"].kind,
            Kind::File(Source::Range { offset: 512, .. })
        ));
    }

    #[test]
    fn removing_takes_what_is_below() {
        let tree = merged(vec![Entry::remove("/usr/share"), Entry::remove("/bin")]).unwrap();
        assert!(!tree.contains_key("/usr/share/x") && !tree.contains_key("/usr/share"));
        assert!(!tree.contains_key("/bin") && tree.contains_key("/usr/bin"));
    }

    #[test]
    fn what_goes_below_var_becomes_a_seed() {
        let mut secret = Entry::file("/root/.config/x", 0o600, "s");
        secret.uid = 7;
        let tree = merged(vec![Entry::directory("/root/.config", 0o700), secret]).unwrap();
        assert!(tree.contains_key("/usr/share/factory/var/roothome/.config/x"));
        assert!(!tree.keys().any(|path| path.starts_with("/var/")));
        let Kind::File(Source::Bytes(text)) = &tree[SEED].kind else {
            panic!("no seed")
        };
        assert_eq!(
            String::from_utf8_lossy(text)
                .lines()
                .skip(1)
                .collect::<Vec<_>>(),
            [
                "d /var/roothome/.config 0700 0 0 -",
                "C /var/roothome/.config/x 0600 7 0 - /usr/share/factory/var/roothome/.config/x",
            ]
        );
        // systemd-tmpfiles would follow the lines at each boot.
        let read = tree.keys().any(|path| path.contains("tmpfiles.d"));
        assert!(!read && SEED.starts_with("/usr/lib/slipway/"));
    }

    #[test]
    fn the_init_reads_each_line_of_a_seed() {
        use image::var_list::{Content, Rights, parse};

        let mut folder = Entry::directory("/var/a b", 0o2750);
        (folder.uid, folder.gid) = (7, 8);
        let rights = |mode, uid, gid| Rights { mode, uid, gid };
        for (entry, expected) in [
            (folder, Content::Folder(rights(0o2750, 7, 8))),
            (
                Entry::symlink("/var/50%", "/a\\x20b c"),
                Content::Link("/a\\x20b c".to_owned()),
            ),
            (
                Entry::file("/var/x", 0o600, ""),
                Content::File(rights(0o600, 0, 0)),
            ),
        ] {
            let text = line(&entry).unwrap().unwrap();
            let read = parse(text.trim_end_matches('\n'));
            assert_eq!(read, Ok(Some((entry.path, expected))));
        }
    }

    #[test]
    fn a_control_character_below_var_is_refused_by_the_path() {
        for (entry, shown) in [
            (
                Entry::file("/root/a\nb", 0o644, ""),
                r#""/var/roothome/a\nb""#,
            ),
            (Entry::directory("/var/a\tb", 0o755), r#""/var/a\tb""#),
            (Entry::symlink("/var/a", "b\r"), r#""b\r""#),
        ] {
            let error = format!("{:#}", merged(vec![entry]).unwrap_err());
            assert!(error.starts_with("laying /"), "{error}");
            assert!(error.contains(shown), "{shown}: {error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
        // The root itself can have them.
        let tree = merged(vec![Entry::file("/usr/share/a\nb", 0o644, "")]).unwrap();
        assert!(tree.contains_key("/usr/share/a\nb"));
    }

    #[test]
    fn a_file_of_the_recipe_behind_a_link_of_the_packages_in_var_is_named() {
        let list = "d /var/lib 0755 0 0 -\nL /var/run - - - - /run\n";
        let mut base = base();
        base.push(Entry::file(PACKAGES_SEED, 0o644, list));
        let conflicts = |writer, entries: Vec<Entry>| {
            let layer = Layer::with_key(entries, Key::of_data("test", 1).finish()).unwrap();
            let merged = merge(&base, &[layer.of(writer)], &[]).unwrap();
            merged.conflicts
        };
        let file = |path: &str| Entry::file(path, 0o644, "");
        let files = || vec![file("/var/lib/x"), file("/var/run/a/b"), file("/var/runs")];
        let found = conflicts(Writer::Recipe, files());
        let text = "laying /var/run/a/b: /var/run is a link to /run in the packages, and a first boot brings nothing through a link";
        assert_eq!(found, [("/var/run/a/b".to_owned(), text.to_owned())]);
        assert!(conflicts(Writer::Slipway, files()).is_empty());
        // The recipe has a folder in its place.
        let folder = Entry::directory("/var/run", 0o755);
        let both = vec![folder, file("/var/run/x")];
        assert!(conflicts(Writer::Recipe, both).is_empty());
    }

    #[test]
    fn what_packages_and_layers_put_below_var_can_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let seed = folder.path().join("seed");
        let line = |path: &str| format!("C {path} 0644 0 0 - {FACTORY}{path}\n");
        let lines = [
            "d /var/opt/agent 0755 0 0 -\n".to_owned(),
            line("/var/opt/agent/a\\x20b"),
            line("/var/opt/agent2"),
            line("/var/usrlocal/bin/tool"),
        ];
        let text = format!("# Seed\n{}", lines.concat());
        std::fs::write(&seed, format!("0123{text}")).unwrap();
        let mut base = base();
        base.extend([
            Entry::symlink("/opt", "var/opt"),
            Entry::symlink("/usr/local", "../var/usrlocal"),
            Entry {
                kind: Kind::File(Source::Range {
                    file: seed.clone(),
                    offset: 4,
                    size: text.len() as u64,
                }),
                ..Entry::file(PACKAGES_SEED, 0o644, "")
            },
        ]);
        for path in [
            "/var/opt/agent/a b",
            "/var/opt/agent2",
            "/var/usrlocal/bin/tool",
        ] {
            base.push(Entry::file(format!("{FACTORY}{path}"), 0o644, ""));
        }
        let layer = |entries: Vec<Entry>| {
            Layer::with_key(entries, Key::of_data("test", 1).finish()).unwrap()
        };
        let own = layer(vec![Entry::file("/opt/own/x", 0o644, "")]);
        let removals = ["/opt/agent", "/usr/local/bin/tool", "/opt/own/x"];
        let before = merge(&base, std::slice::from_ref(&own), &[]).unwrap().tree;
        let real = |path: &str| resolve(&before, path, false).unwrap();
        assert!(removals.iter().all(|path| is_seeded(&before, &real(path))));
        assert!(!is_seeded(&before, "/var/opt/agen") && !is_seeded(&before, "/usr"));
        let layers = [own, layer(removals.map(Entry::remove).into())];
        let tree = merge(&base, &layers, &[]).unwrap().tree;
        let Kind::File(source) = &tree[PACKAGES_SEED].kind else {
            panic!("no seed")
        };
        let left = String::from_utf8(source.read().unwrap()).unwrap();
        assert_eq!(left, format!("# Seed\n{}", lines[2]));
        assert!(!tree.contains_key(SEED));
        let below = format!("{FACTORY}/var/");
        let files = tree
            .iter()
            .filter(|(path, entry)| path.starts_with(&below) && entry.kind != Kind::Directory);
        let files: Vec<&str> = files.map(|(path, _)| path.as_str()).collect();
        assert_eq!(files, [format!("{FACTORY}/var/opt/agent2")]);
    }

    #[test]
    fn a_file_over_a_folder_and_a_folder_below_a_file_are_refused() {
        for wrong in ["/usr/bin", "/usr/bin/a/b"] {
            assert!(
                merged(vec![Entry::file(wrong, 0o644, "")]).is_err(),
                "{wrong}"
            );
        }
    }
}
