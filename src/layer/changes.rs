//! A tree written as files to a folder, and what a program changed there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use image::paths::FACTORY;
use image::var_list::{self, Content, LISTS, Rights};
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;

use super::merge::{Tree, above};
use super::{Entry, Kind, Source};
use crate::host::tree::{self, Item};

/// Top-level folders that a running node mounts over, as the sandbox does: what is in them is in no image.
const MOUNTED: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/tmp"];
/// The attributes of files that are kept.
const CAPABILITY: &str = "security.capability";

/// A tree that was written to a folder.
#[derive(Debug)]
pub(crate) struct Written {
    root: PathBuf,
    /// What is there, by path.
    entries: Tree,
    /// Inode and time of change of each path.
    marks: BTreeMap<String, (u64, i64, i64)>,
}

impl Written {
    /// Writes a tree to an empty folder. `/var` has what a node's first boot puts there.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(crate) fn write(tree: &Tree, root: &Path, epoch: u64) -> Result<Self> {
        let mut entries = tree.clone();
        for entry in seeded(tree)? {
            entries.entry(entry.path.clone()).or_insert(entry);
        }
        let mut links: BTreeMap<(PathBuf, u64), PathBuf> = BTreeMap::new();
        for entry in entries.values() {
            write(entry, root, &mut links).with_context(|| format!("writing {}", entry.path))?;
        }
        // Folders last: each new entry changes the time of the folder around it.
        let time = TimeSpec::new(i64::try_from(epoch)?, 0);
        for entry in entries.values().rev() {
            let path = inside(root, &entry.path);
            utimensat(
                nix::fcntl::AT_FDCWD,
                &path,
                &time,
                &time,
                UtimensatFlags::NoFollowSymlink,
            )
            .with_context(|| format!("setting the time of {}", entry.path))?;
        }
        let items = tree::walk(root)?;
        let marks = items.iter().map(|item| (item.inside.clone(), mark(item)));
        Ok(Self {
            root: root.to_owned(),
            marks: marks.collect(),
            entries,
        })
    }

    /// What is otherwise than it was written, as entries of a layer. The contents are copied to the file `to`.
    ///
    /// # Errors
    /// If a file cannot be read, is neither file nor folder nor link, or a layer cannot have what was done: a folder replaced by
    /// something else.
    pub(crate) fn changes(&self, to: &Path) -> Result<Vec<Entry>> {
        let file = File::create(to).with_context(|| format!("making {}", to.display()))?;
        let mut contents = Contents {
            file: to.to_owned(),
            out: BufWriter::new(file),
            size: 0,
            links: BTreeMap::new(),
        };
        let mut changed = Vec::new();
        let mut left = self.entries.clone();
        for item in tree::walk(&self.root)? {
            let before = left.remove(&item.inside);
            if is_mounted(&item.inside) || self.marks.get(&item.inside) == Some(&mark(&item)) {
                continue;
            }
            let found = contents.entry(&item);
            let found = found.with_context(|| format!("reading {}", item.inside))?;
            match before {
                Some(before) if same(&before, &found)? => {}
                Some(before) if is_folder(&before) != is_folder(&found) => bail!(
                    "{} was a {} and is a {}, which a layer cannot do",
                    item.inside,
                    noun(&before),
                    noun(&found)
                ),
                _ => changed.push(found),
            }
        }
        contents.out.flush()?;
        // What is below a removed folder goes with it.
        let mut removed: Vec<String> = Vec::new();
        for path in left.into_keys() {
            let last = removed.last().map(|last| format!("{last}/"));
            let is_below = last.is_some_and(|last| path.starts_with(&last));
            if path != "/" && !is_below && !is_mounted(&path) {
                removed.push(path);
            }
        }
        changed.extend(removed.into_iter().map(Entry::remove));
        changed.sort_by(|one, two| one.path.cmp(&two.path));
        Ok(changed)
    }

    /// Whether a path was there before.
    pub(crate) fn had(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn mark(item: &Item) -> (u64, i64, i64) {
    (item.meta.ino(), item.meta.ctime(), item.meta.ctime_nsec())
}

fn is_mounted(path: &str) -> bool {
    let below = |folder: &str| {
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    MOUNTED.iter().any(|folder| below(folder))
}

const fn is_folder(entry: &Entry) -> bool {
    matches!(entry.kind, Kind::Directory)
}

const fn noun(entry: &Entry) -> &'static str {
    match entry.kind {
        Kind::Directory => "folder",
        Kind::Symlink(_) => "link",
        _ => "file",
    }
}

/// What the lists put below `/var`.
fn seeded(tree: &Tree) -> Result<Vec<Entry>> {
    let mut found = BTreeMap::new();
    for file in LISTS {
        let Some(Kind::File(source)) = tree.get(file).map(|entry| &entry.kind) else {
            continue;
        };
        let text = String::from_utf8(source.read()?)?;
        for line in text.lines() {
            let line = var_list::parse(line).map_err(|error| anyhow!("{error}"))?;
            let Some((path, content)) = line else {
                continue;
            };
            let kept = || tree.get(&format!("{FACTORY}{path}"));
            let (mut entry, rights) = match content {
                Content::Link(target) => (Entry::symlink(path.clone(), target), None),
                Content::Folder(rights) => (Entry::directory(path.clone(), 0o755), Some(rights)),
                Content::File(rights) => match kept() {
                    Some(kept) => (kept.clone(), Some(rights)),
                    None => continue,
                },
            };
            entry.path.clone_from(&path);
            if let Some(Rights { mode, uid, gid }) = rights {
                (entry.mode, entry.uid, entry.gid) = (mode, uid, gid);
            }
            found.insert(path, entry);
        }
    }
    // A first boot brings nothing through a link, and here one may lead to the host's files.
    let is_other = |entry: &&Entry| entry.kind != Kind::Directory;
    let others = found.values().filter(is_other);
    let others: BTreeSet<String> = others.map(|entry| entry.path.clone()).collect();
    found.retain(|path, _| !above(path).any(|folder| others.contains(folder)));
    // A folder that only the lines of packages make is there too.
    let mut parents = Vec::new();
    for path in found.keys() {
        parents.extend(above(path).map(|folder| Entry::directory(folder, 0o755)));
    }
    let mut found: Vec<Entry> = found.into_values().collect();
    found.extend(parents);
    Ok(found)
}

fn write(entry: &Entry, root: &Path, links: &mut BTreeMap<(PathBuf, u64), PathBuf>) -> Result<()> {
    let path = inside(root, &entry.path);
    match &entry.kind {
        Kind::Directory if path.is_dir() => {}
        Kind::Directory => fs::create_dir(&path)?,
        Kind::Symlink(target) => symlink(target, &path)?,
        Kind::File(source) => {
            if let Source::Range { file, offset, size } = source
                && *size > 0
            {
                let key = (file.clone(), *offset);
                if let Some(first) = links.get(&key) {
                    return Ok(fs::hard_link(first, &path)?);
                }
                links.insert(key, path.clone());
            }
            fs::write(&path, source.read()?)?;
        }
        Kind::HardLink(_) | Kind::Remove => bail!("not of a merged tree"),
    }
    // Before the mode: a change of the owner clears bits of it.
    lchown(&path, Some(entry.uid), Some(entry.gid))?;
    if !matches!(entry.kind, Kind::Symlink(_)) {
        fs::set_permissions(&path, Permissions::from_mode(entry.mode))?;
        for (name, value) in &entry.xattrs {
            xattr::set(&path, name, value).with_context(|| format!("setting {name}"))?;
        }
    }
    Ok(())
}

/// Whether a path is as it was: what is read again without a change has another time.
fn same(before: &Entry, found: &Entry) -> Result<bool> {
    let outer = |entry: &Entry| (entry.mode & !super::SET_ID, entry.uid, entry.gid);
    let is_link = |entry: &Entry| matches!(entry.kind, Kind::Symlink(_));
    if is_link(before) && is_link(found) {
        return Ok(before.kind == found.kind && outer(before).1 == outer(found).1);
    }
    if outer(before) != outer(found) || before.xattrs != found.xattrs {
        return Ok(false);
    }
    Ok(match (&before.kind, &found.kind) {
        (Kind::File(one), Kind::File(two)) => one.read()? == two.read()?,
        (one, two) => one == two,
    })
}

/// The contents of changed files, one behind the other.
struct Contents {
    file: PathBuf,
    out: BufWriter<File>,
    size: u64,
    links: BTreeMap<(u64, u64), Source>,
}

impl Contents {
    fn entry(&mut self, item: &Item) -> Result<Entry> {
        let meta = &item.meta;
        let kind = if meta.is_dir() {
            Kind::Directory
        } else if meta.is_symlink() {
            let target = fs::read_link(&item.path)?;
            Kind::Symlink(
                target
                    .to_str()
                    .context("the target is not UTF-8")?
                    .to_owned(),
            )
        } else {
            ensure!(
                meta.is_file(),
                "it is neither file nor folder nor link, and an image has nothing else"
            );
            Kind::File(self.content(item)?)
        };
        let mut xattrs = Vec::new();
        if meta.is_file()
            && let Some(value) = xattr::get(&item.path, CAPABILITY).unwrap_or_default()
        {
            xattrs.push((CAPABILITY.to_owned(), value));
        }
        let entry = Entry {
            path: item.inside.clone(),
            mode: match meta.is_symlink() {
                true => 0o777,
                false => meta.mode() & 0o7777,
            },
            uid: meta.uid(),
            gid: meta.gid(),
            kind,
            xattrs,
        };
        Ok(entry.without_set_id())
    }

    fn content(&mut self, item: &Item) -> Result<Source> {
        let name = (item.meta.dev(), item.meta.ino());
        if let Some(first) = self.links.get(&name) {
            return Ok(first.clone());
        }
        let offset = self.size;
        let size = std::io::copy(&mut File::open(&item.path)?, &mut self.out)?;
        // It is read again before all is written.
        self.out.flush()?;
        self.size += size;
        let source = Source::Range {
            file: self.file.clone(),
            offset,
            size,
        };
        self.links.insert(name, source.clone());
        Ok(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::merge::{PACKAGES_SEED, merge};

    /// A tree of the user that runs the test.
    fn tree(own: &Path) -> Tree {
        let meta = fs::metadata(own).unwrap();
        let mut base = vec![
            Entry::directory("/", 0o755),
            Entry::directory("/etc", 0o755),
            Entry::file("/etc/changed", 0o644, "one"),
            Entry::file("/etc/kept", 0o644, "kept"),
            Entry::file("/etc/again", 0o644, "again"),
            Entry::file("/etc/gone", 0o644, ""),
            Entry::symlink("/etc/link", "kept"),
            Entry::directory("/usr", 0o755),
            Entry::directory("/usr/old", 0o755),
            Entry::file("/usr/old/file", 0o644, ""),
            Entry::directory("/run", 0o755),
            Entry::directory("/var", 0o755),
            Entry::file(format!("{FACTORY}/var/lib/a b"), 0o644, "seed"),
            Entry::file(
                PACKAGES_SEED,
                0o644,
                format!(
                    "# Seed\nd /var/lib/x 0750 {uid} {gid} -\nL /var/mail - - - - lib/x\n\
                     C /var/lib/a\\x20b 0600 {uid} {gid} - {FACTORY}/var/lib/a\\x20b\n",
                    uid = meta.uid(),
                    gid = meta.gid()
                ),
            ),
        ];
        let parents = ["/usr/lib", "/usr/lib/slipway", "/usr/share"];
        base.extend(parents.map(|path| Entry::directory(path, 0o755)));
        base.sort_by(|one, two| one.path.cmp(&two.path));
        let mut tree = merge(&base, &[], &[]).unwrap().tree;
        let mut missing = Vec::new();
        for path in tree.keys() {
            for (at, _) in path.match_indices('/').skip(1) {
                missing.push(path[..at].to_owned());
            }
        }
        for path in missing {
            let entry = Entry::directory(&path, 0o755);
            tree.entry(path).or_insert(entry);
        }
        for entry in tree.values_mut() {
            (entry.uid, entry.gid) = (meta.uid(), meta.gid());
        }
        tree
    }

    #[test]
    fn what_is_otherwise_is_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let written = Written::write(&tree(folder.path()), &root, 7).unwrap();
        let at = |path: &str| inside(&root, path);
        assert_eq!(fs::read_to_string(at("/var/lib/a b")).unwrap(), "seed");
        assert_eq!(
            fs::metadata(at("/var/lib/x")).unwrap().mode() & 0o777,
            0o750
        );
        assert_eq!(fs::metadata(at("/etc/kept")).unwrap().mtime(), 7);
        let content = folder.path().join("content");
        assert_eq!(written.changes(&content).unwrap(), []);

        fs::write(at("/etc/changed"), "two").unwrap();
        fs::write(at("/etc/again"), "again").unwrap();
        fs::remove_file(at("/etc/gone")).unwrap();
        fs::remove_file(at("/etc/link")).unwrap();
        symlink("again", at("/etc/link")).unwrap();
        fs::remove_dir_all(at("/usr/old")).unwrap();
        fs::create_dir(at("/usr/new")).unwrap();
        fs::write(at("/usr/new/file"), "new").unwrap();
        fs::set_permissions(at("/usr/new/file"), Permissions::from_mode(0o4711)).unwrap();
        fs::hard_link(at("/usr/new/file"), at("/usr/new/same")).unwrap();
        fs::write(at("/var/lib/a b"), "more").unwrap();
        fs::write(at("/run/state"), "").unwrap();
        let changes = written.changes(&content).unwrap();
        let shown: Vec<String> = changes
            .iter()
            .map(|entry| match &entry.kind {
                Kind::File(source) => {
                    let text = String::from_utf8(source.read().unwrap()).unwrap();
                    format!("{} {:o} {text}", entry.path, entry.mode)
                }
                Kind::Symlink(target) => format!("{} -> {target}", entry.path),
                Kind::Remove => format!("-{}", entry.path),
                other => format!("{} {other:?}", entry.path),
            })
            .collect();
        let expected = [
            "/etc/changed 644 two",
            "-/etc/gone",
            "/etc/link -> again",
            "/usr/new Directory",
            "/usr/new/file 711 new",
            "/usr/new/same 711 new",
            "-/usr/old",
            "/var/lib/a b 600 more",
        ];
        assert_eq!(shown, expected);
        assert!(written.had("/etc/gone") && !written.had("/usr/new"));
    }

    #[test]
    fn nothing_is_written_through_a_link_of_var() {
        let place = tempfile::tempdir().unwrap();
        let [root, host] = ["root", "host"].map(|name| place.path().join(name));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&host).unwrap();
        let mut tree = tree(place.path());
        let meta = fs::metadata(place.path()).unwrap();
        let (uid, gid) = (meta.uid(), meta.gid());
        let line = |path: &str| format!("C {path} 0644 {uid} {gid} - {FACTORY}{path}\n");
        let text = format!(
            "L /var/run - - - - {}\nd /var/spool 0755 {uid} {gid} -\n{}{}",
            host.display(),
            line("/var/run/file"),
            line("/var/spool/file")
        );
        let mut entries = vec![Entry::file(PACKAGES_SEED, 0o644, text)];
        for folder in ["/var/run", "/var/spool"] {
            entries.push(Entry::directory(format!("{FACTORY}{folder}"), 0o755));
            entries.push(Entry::file(format!("{FACTORY}{folder}/file"), 0o644, ""));
        }
        for mut entry in entries {
            (entry.uid, entry.gid) = (uid, gid);
            tree.insert(entry.path.clone(), entry);
        }
        Written::write(&tree, &root, 7).unwrap();
        assert_eq!(fs::read_link(root.join("var/run")).unwrap(), host);
        assert!(!host.join("file").exists() && root.join("var/spool/file").exists());
    }

    #[test]
    fn what_no_layer_can_have_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let written = Written::write(&tree(folder.path()), &root, 7).unwrap();
        let content = folder.path().join("content");
        let refused = || format!("{:#}", written.changes(&content).unwrap_err());
        let socket = std::os::unix::net::UnixListener::bind(root.join("etc/socket")).unwrap();
        assert!(
            refused().contains("/etc/socket: it is neither"),
            "{}",
            refused()
        );
        drop(socket);
        fs::remove_file(root.join("etc/socket")).unwrap();
        fs::remove_dir_all(root.join("usr/old")).unwrap();
        fs::write(root.join("usr/old"), "").unwrap();
        assert!(
            refused().contains("/usr/old was a folder and is a file"),
            "{}",
            refused()
        );
    }
}
