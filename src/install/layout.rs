//! Gives a tree the layout of a node: links into `/var`, the factory seed of `/var` with the
//! list that the init follows, and the few files of `/etc` that the builder writes.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::paths::{FACTORY, VAR_LINKS};

use super::target::{real, real_folder};
use crate::host::cache::remove;
use crate::layer::SET_ID;
use crate::layer::merge::quoted;
use crate::node_files::{MTAB, PACKAGES_SEED, UPDATED};

/// Folder of the packages' `tmpfiles.d` files.
const TMPFILES: &str = "usr/lib/tmpfiles.d";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";
/// Content of [`UPDATED`], which marks `/etc` as up to date with `/usr`: without it systemd would repeat on first
/// boot the work of the build. Both have the same time in the image, which counts as up to date.
const MADE: &str = "# Made by the build, see systemd-update-done.service(8).\n";
/// Mount points of a node at the top level.
const PLACES: &[&str] = &["boot", "efi", "proc", "sys", "dev", "run", "tmp", "var"];

/// Applies the layout.
pub(super) fn apply(root: &Path) -> Result<()> {
    for (link, target) in VAR_LINKS {
        let link = root.join(link.trim_start_matches('/'));
        let target_in_tree = link.parent().context("a link at the root")?.join(target);
        move_folder(root, &link, &normal(root, &target_in_tree))?;
        symlink(target, &link).with_context(|| format!("linking {}", link.display()))?;
    }
    for place in PLACES {
        fs::create_dir_all(root.join(place))?;
    }
    seed(root)?;
    leave_links_alone(root)?;
    etc(root)
}

/// Turns the packages' `tmpfiles.d` lines for a folder that is a link into `/var` here into comments: systemd-tmpfiles
/// reports at every boot that it finds no folder there.
fn leave_links_alone(root: &Path) -> Result<()> {
    let Some(folder) = real_folder(root, TMPFILES.as_ref())? else {
        return Ok(());
    };
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_file() {
            let text = fs::read_to_string(&path)?;
            let lines = without_links(&text);
            if lines != text {
                fs::write(&path, lines).with_context(|| format!("writing {}", path.display()))?;
            }
        }
    }
    Ok(())
}

fn without_links(text: &str) -> String {
    let makes_link = |line: &str| {
        let mut words = line.split_whitespace();
        let (kind, path) = (words.next().unwrap_or_default(), words.next());
        let path = path.unwrap_or_default().trim_end_matches('/');
        kind.starts_with(['d', 'D', 'e', 'v', 'q', 'Q'])
            && VAR_LINKS.iter().any(|(link, _)| *link == path)
    };
    let line = |line: &str| match makes_link(line) {
        true => format!("# A link into /var: {line}"),
        false => line.to_owned(),
    };
    text.split_inclusive('\n').map(line).collect()
}

/// `root/usr/../var/x` without the dots, resolved lexically: the tree's links must not be followed here.
fn normal(root: &Path, path: &Path) -> std::path::PathBuf {
    let mut parts = Vec::new();
    for part in path.strip_prefix(root).unwrap_or(path).components() {
        match part {
            std::path::Component::ParentDir => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    root.join(parts.into_iter().collect::<std::path::PathBuf>())
}

fn move_folder(root: &Path, from: &Path, to: &Path) -> Result<()> {
    if is_folder(from) {
        if is_folder(to) {
            join(root, to, from)?;
        }
        remove(to)?;
        fs::rename(from, to).with_context(|| format!("moving {} into /var", from.display()))
    } else {
        remove(from)?;
        Ok(fs::create_dir_all(to)?)
    }
}

/// Moves what a folder has into another one, whose own mode and owner stay: a package may have `/var/opt/NAME` beside `/opt/NAME`, which
/// are one folder on a node.
fn join(root: &Path, from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        if fs::symlink_metadata(&place).is_err() {
            let about = || format!("moving {} to {}", path.display(), place.display());
            fs::rename(&path, &place).with_context(about)?;
        } else if is_folder(&path) && is_folder(&place) {
            join(root, &path, &place)?;
        } else {
            let inside = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_owned();
            bail!(
                "the packages have both /{} and /{}, which are one path on a node",
                inside(&place).display(),
                inside(&path).display()
            );
        }
    }
    Ok(())
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Moves the content of `/var` to the factory and writes the list by which a node's init copies it back ([`image::var_list`]).
fn seed(root: &Path) -> Result<()> {
    let mut lines =
        "# What packages and the build have put into /var. Made by the build.\n".to_owned();
    let known = known(root)?;
    seed_folder(root, Path::new("var"), &known, &mut lines)?;
    let var = root.join("var");
    remove(&var)?;
    fs::create_dir(&var)?;
    fs::set_permissions(&var, Permissions::from_mode(0o755))?;
    let list = below(root, PACKAGES_SEED);
    if let Some(folder) = list.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(list, lines).context("writing the seed of /var")
}

/// Paths that the packages' lines create. Links are followed in the tree; one that leads to nothing there has no lines on a node either.
fn known(root: &Path) -> Result<BTreeSet<String>> {
    let mut paths = BTreeSet::new();
    let Some(folder) = real_folder(root, TMPFILES.as_ref())? else {
        return Ok(paths);
    };
    for entry in fs::read_dir(folder)? {
        let inside = Path::new(TMPFILES).join(entry?.file_name());
        let Some(file) = real(root, &inside)?.filter(|file| file.is_file()) else {
            continue;
        };
        let text =
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if let (Some(kind), Some(path)) = (words.next(), words.next())
                && kind.starts_with(['d', 'D', 'v', 'q', 'Q', 'L', 'C', 'f', 'F'])
            {
                paths.insert(path.trim_end_matches('/').to_owned());
            }
        }
    }
    Ok(paths)
}

fn seed_folder(
    root: &Path,
    folder: &Path,
    known: &BTreeSet<String>,
    lines: &mut String,
) -> Result<()> {
    let mut names: Vec<_> = fs::read_dir(root.join(folder))?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<std::io::Result<_>>()?;
    names.sort_unstable();
    for name in names {
        let path = folder.join(name);
        let full = root.join(&path);
        let meta = fs::symlink_metadata(&full)?;
        let shown = path
            .to_str()
            .with_context(|| format!("{} is not UTF-8", path.display()))?;
        let is_known = known.contains(&format!("/{shown}"));
        let shown = quoted(&format!("/{shown}"));
        let (mode, uid, gid) = (meta.mode() & 0o7777, meta.uid(), meta.gid());
        if meta.is_dir() {
            if !is_known {
                writeln!(lines, "d {shown} {mode:04o} {uid} {gid} -")?;
            }
            seed_folder(root, &path, known, lines)?;
        } else if is_known {
            remove(&full)?;
        } else if meta.is_symlink() {
            let target = fs::read_link(&full)?;
            let target = target
                .to_str()
                .with_context(|| format!("the target of {shown} is not UTF-8"))?;
            writeln!(lines, "L {shown} - - - - {}", quoted(target))?;
        } else {
            // Without the bits that give rights, which `/var` would have again: the root's own copy has none either.
            let mode = mode & !SET_ID;
            writeln!(lines, "C {shown} {mode:04o} {uid} {gid} - {FACTORY}{shown}")?;
            let kept = root.join(FACTORY.trim_start_matches('/')).join(&path);
            if let Some(parent) = kept.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::rename(&full, &kept).with_context(|| format!("keeping {shown} as a seed"))?;
        }
    }
    Ok(())
}

/// A path of the image in the tree.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn etc(root: &Path) -> Result<()> {
    let etc = root.join("etc");
    fs::write(etc.join("hosts"), HOSTS)?;
    fs::write(below(root, UPDATED), MADE)?;
    for (link, target) in [
        (MTAB, "../proc/self/mounts"),
        (
            "/etc/resolv.conf",
            "../run/systemd/resolve/stub-resolv.conf",
        ),
    ] {
        let link = below(root, link);
        remove(&link)?;
        symlink(target, link)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_tmpfiles_are_read_in_the_tree() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside.conf");
        fs::write(&outside, "d /var/lib/outside\n").unwrap();
        let root = place.path().join("root");
        let folder = root.join(TMPFILES);
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.join("usr/share/app")).unwrap();
        fs::write(root.join("usr/share/app/a.conf"), "d /var/lib/inside/\n").unwrap();
        for (name, target) in [
            ("inside.conf", "/usr/share/app/a.conf"),
            ("outside.conf", outside.to_str().unwrap()),
            ("upwards.conf", "../../../../outside.conf"),
            ("gone.conf", "/usr/share/app/gone.conf"),
            ("masked.conf", "/dev/null"),
        ] {
            symlink(target, folder.join(name)).unwrap();
        }
        let found = known(&root).unwrap();
        assert_eq!(found, BTreeSet::from(["/var/lib/inside".to_owned()]));
        // Neither is the host's folder, if all of them is a link.
        fs::remove_dir_all(&folder).unwrap();
        symlink(place.path(), &folder).unwrap();
        assert_eq!(known(&root).unwrap(), BTreeSet::new());
        leave_links_alone(&root).unwrap();
    }

    #[test]
    fn what_packages_have_in_var_opt_stays_beside_what_they_have_in_opt() {
        let place = tempfile::tempdir().unwrap();
        let [opt, var] = ["opt", "var/opt"].map(|name| place.path().join(name));
        let write = |path: PathBuf| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        write(opt.join("agent/bin/run"));
        write(var.join("agent/data/state"));
        write(var.join("other/data"));
        fs::set_permissions(opt.join("agent"), Permissions::from_mode(0o711)).unwrap();
        move_folder(place.path(), &opt, &var).unwrap();
        for path in ["agent/bin/run", "agent/data/state", "other/data"] {
            assert!(var.join(path).is_file(), "{path}");
        }
        let mode = fs::metadata(var.join("agent")).unwrap().mode();
        assert!(mode & 0o7777 == 0o711 && !opt.exists());
        write(opt.join("agent/bin/run"));
        let error = move_folder(place.path(), &opt, &var).unwrap_err();
        let expected = "the packages have both /opt/agent/bin/run and /var/opt/agent/bin/run, \
                        which are one path on a node";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn var_becomes_a_seed_and_the_top_level_links_lead_into_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in [
            "etc",
            "root",
            "home",
            "usr/local/bin",
            "usr/lib/tmpfiles.d",
            "var/lib/app",
            "var/lib/known",
        ] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(root.join("root/.profile"), "p").unwrap();
        fs::write(root.join("var/lib/app/50% data"), "d").unwrap();
        fs::create_dir_all(root.join("opt/agent")).unwrap();
        fs::write(root.join("opt/agent/helper"), "h").unwrap();
        fs::set_permissions(
            root.join("opt/agent/helper"),
            Permissions::from_mode(0o4755),
        )
        .unwrap();
        symlink("/run", root.join("var/run")).unwrap();
        fs::write(
            root.join("usr/lib/tmpfiles.d/a.conf"),
            "d /var/lib/known 0700 root root -\n",
        )
        .unwrap();
        fs::set_permissions(root.join("root"), Permissions::from_mode(0o700)).unwrap();
        fs::write(
            root.join("usr/lib/tmpfiles.d/home.conf"),
            "# Folders\nQ /home 0755 - - -\nd- /root/.ssh :0700 root :root -\n",
        )
        .unwrap();
        apply(&root).unwrap();
        assert_eq!(
            fs::read_to_string(root.join("usr/lib/tmpfiles.d/home.conf")).unwrap(),
            "# Folders\n# A link into /var: Q /home 0755 - - -\nd- /root/.ssh :0700 root :root -\n"
        );
        for (link, target) in VAR_LINKS {
            let link = root.join(link.trim_start_matches('/'));
            assert_eq!(fs::read_link(&link).unwrap(), Path::new(target));
        }
        assert_eq!(fs::read_dir(root.join("var")).unwrap().count(), 0);
        let (uid, gid) = {
            let meta = fs::metadata(&root).unwrap();
            (meta.uid(), meta.gid())
        };
        let lines = fs::read_to_string(below(&root, PACKAGES_SEED)).unwrap();
        for line in [
            format!("d /var/roothome 0700 {uid} {gid} -"),
            format!(
                "C /var/roothome/.profile 0644 {uid} {gid} - /usr/share/factory/var/roothome/.profile"
            ),
            format!("d /var/usrlocal/bin 0755 {uid} {gid} -"),
            format!(
                "C /var/lib/app/50%%\\x20data 0644 {uid} {gid} - /usr/share/factory/var/lib/app/50%%\\x20data"
            ),
            "L /var/run - - - - /run".to_owned(),
            format!(
                "C /var/opt/agent/helper 0755 {uid} {gid} - /usr/share/factory/var/opt/agent/helper"
            ),
            format!("d /var/opt 0755 {uid} {gid} -"),
        ] {
            assert!(
                lines.lines().any(|found| found == line),
                "{line}\nnot in\n{lines}"
            );
        }
        assert!(!lines.contains("known"), "{lines}");
        assert_eq!(
            fs::read_to_string(root.join("usr/share/factory/var/lib/app/50% data")).unwrap(),
            "d"
        );
    }
}
