//! Files that come to a node once: programs of the recipe below `/opt` and `/usr/local`, which a later image does not update.

use std::collections::BTreeMap;

use image::paths::{FACTORY, VAR_LINKS};

use crate::layer::{Entry, Kind, Layer};
use crate::recipe::{FileEntry, FileKind, Recipe};

/// The links into `/var` behind which programs are. What lies behind the other ones (`/home`, `/srv`) is data, which belongs to the node.
const PROGRAMS: [&str; 2] = ["/opt", "/usr/local"];

/// A warning for each place of the recipe that puts files there, with the place and with what to do instead. `made` are the layers of the
/// recipe's archives, container images and programs.
pub(super) fn warnings(recipe: &Recipe, made: &[Layer]) -> Vec<String> {
    let mut by_origin: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (origin, path) in of_files(&recipe.files).chain(of_layers(made)) {
        by_origin.entry(origin).or_default().extend(on_node(path));
    }
    by_origin.retain(|_, paths| !paths.is_empty());
    let all = by_origin.into_iter();
    all.map(|(origin, paths)| warning(origin, &paths)).collect()
}

/// The files of `[files]` and of the overlay's folders. A link is as good as its target, which may be one that follows the image.
fn of_files(files: &[FileEntry]) -> impl Iterator<Item = (&str, &str)> {
    let is_file = |file: &&FileEntry| {
        let kind = &file.kind;
        matches!(
            kind,
            FileKind::Source(_) | FileKind::Content(_) | FileKind::Download(_)
        )
    };
    let files = files.iter().filter(is_file);
    files.map(|file| (file.origin.as_str(), file.path.as_str()))
}

fn of_layers(made: &[Layer]) -> impl Iterator<Item = (&str, &str)> {
    let is_file = |entry: &&Entry| matches!(entry.kind, Kind::File(_) | Kind::HardLink(_));
    made.iter().flat_map(move |layer| {
        let files = layer.entries.iter().filter(is_file);
        let origin = layer.origin.as_deref();
        files.filter_map(move |entry| Some((origin?, entry.path.as_str())))
    })
}

/// The path that a node's user knows, if it is in one of the folders.
fn on_node(path: &str) -> Option<String> {
    let path = path.strip_prefix(FACTORY).unwrap_or(path);
    let mut links = VAR_LINKS.iter().filter(|(link, _)| PROGRAMS.contains(link));
    links.find_map(|(link, target)| {
        let target = format!("/{}", target.trim_start_matches("../"));
        let rest = [*link, &target].into_iter();
        let rest = rest.filter_map(|folder| path.strip_prefix(folder));
        let mut rest = rest.filter(|rest| rest.starts_with('/'));
        Some(format!("{link}{}", rest.next()?))
    })
}

fn warning(origin: &str, paths: &[String]) -> String {
    let (first, more) = (&paths[0], paths.len() - 1);
    let (what, them) = match more {
        0 => (first.clone(), "it"),
        1 => (format!("{first} and 1 more file"), "them"),
        more => (format!("{first} and {more} more files"), "them"),
    };
    let is = if more == 0 { "is" } else { "are" };
    format!(
        "{origin}: {what} {is} on the node's own partition: a node gets {them} from the first image that has {them}, and no later image \
         updates {them} there; put what has to follow the image below /usr, and a link to it at this path"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cache::Key;

    const RECIPE: &str = "image = { name = 'a', version = '1' }\n\
        kernel = { package = 'linux-image-cloud-amd64', platforms = ['qemu'] }\n\
        overlay.trees = ['tree']\n\
        files.'/opt/agent/run'.content = 'a'\n\
        files.'/opt/link'.link = '/usr/lib/agent/run'\n\
        files.'/opt/folder'.directory = true\n\
        files.'/opt/gone'.remove = true\n\
        files.'/optional'.content = 'a'\n\
        files.'/srv/data'.content = 'a'\n\
        files.'/usr/lib/agent/run'.content = 'a'\n";

    #[test]
    fn programs_that_a_later_image_does_not_update_are_named_with_their_places() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree/usr/local/bin");
        std::fs::create_dir_all(&tree).unwrap();
        for name in ["one", "two", "three"] {
            std::fs::write(tree.join(name), name).unwrap();
        }
        let path = folder.path().join("a.toml");
        std::fs::write(&path, RECIPE).unwrap();
        let recipe = crate::recipe::load(&path).unwrap();
        let entries = vec![
            Entry::directory("/opt/b", 0o755),
            Entry::file("/usr/lib/b", 0o755, "b"),
            Entry::file("/usr/share/factory/var/opt/b/run", 0o755, "b"),
            Entry::file("/var/opt/b/too", 0o755, "b"),
        ];
        let layer = Layer::with_key(entries, Key::of_data("b", 1).finish()).unwrap();
        let found = warnings(&recipe, &[layer.clone(), layer.of_recipe("a.toml:9:1")]);
        let beginnings = [
            "a.toml:4:7: /opt/agent/run is on",
            "a.toml:3:18, folder tree: /usr/local/bin/one and 2 more files are on",
            "a.toml:9:1: /opt/b/run and 1 more file are on",
        ];
        assert_eq!(found.len(), beginnings.len(), "{found:?}");
        for expected in beginnings {
            let has =
                |warning: &String| warning.contains(expected) && warning.contains("below /usr");
            assert!(found.iter().any(has), "{expected}: {found:#?}");
        }
    }
}
