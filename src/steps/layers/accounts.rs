//! The homes and shells of the recipe's users, which have to be in the image.

use super::found::Found;
use crate::layer::Kind;
use crate::layer::merge::resolve;
use crate::recipe::{Mistake, Mistakes, Recipe, User, nearest};

/// Folders of shells, of which one may be meant.
const SHELLS: [&str; 3] = ["/bin", "/usr/bin", "/usr/sbin"];
/// The permission bits that let anybody execute a file.
const EXECUTABLE: u32 = 0o111;

/// Adds a mistake for each home and shell that is not there. `with_files` has the recipe's files.
pub(super) fn check(recipe: &Recipe, with_files: &Found, mistakes: &mut Mistakes) {
    for (name, user) in &recipe.accounts.users {
        home(recipe, name, user, with_files, mistakes);
        shell(recipe, name, user, with_files, mistakes);
    }
}

fn home(recipe: &Recipe, name: &str, user: &User, with_files: &Found, mistakes: &mut Mistakes) {
    let Some(home) = user.wanted_home() else {
        return;
    };
    if !with_files.has(home) {
        let mistake = Mistake::of(
            recipe.places.value(&["users", name, "home"]),
            format!("the home {home} of the user `{name}` is not in the image"),
            "expected a folder of the packages, of [files] or of [overlay]",
        );
        mistakes.add(mistake.help(format!(
            "[files.{home:?}] with `directory = true`, `mode = \"0700\"`, `user = {name:?}` makes it"
        )));
    }
}

fn shell(recipe: &Recipe, name: &str, user: &User, with_files: &Found, mistakes: &mut Mistakes) {
    let Some(shell) = user.wanted_shell() else {
        return;
    };
    let tree = &with_files.tree;
    let path = resolve(tree, shell, true).unwrap_or_default();
    let found = tree.get(&path);
    if found.is_some_and(|entry| is_program(&entry.kind, entry.mode)) {
        return;
    }
    let word = match found {
        Some(_) => "is not a program",
        None => "is not in the image",
    };
    let mistake = Mistake::of(
        recipe.places.value(&["users", name, "shell"]),
        format!("the shell {shell} of the user `{name}` {word}"),
        "expected a program of the packages or of [files]",
    );
    let file = shell.rsplit('/').next().unwrap_or_default();
    let near = SHELLS.iter().find_map(|folder| {
        let place = resolve(tree, folder, true).ok()?;
        let names = with_files.below_folder(&place);
        let near = nearest(file, names.filter(|name| !name.contains('/')))?;
        Some(format!("did you mean `{folder}/{near}`?"))
    });
    mistakes.add(match near {
        Some(near) => mistake.help(near),
        None => mistake,
    });
}

fn is_program(kind: &Kind, mode: u32) -> bool {
    matches!(kind, Kind::File(_)) && mode & EXECUTABLE != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Entry;
    use crate::steps::layers::found::tests::found;
    use crate::steps::layers::words::tests::recipe;

    #[test]
    fn homes_and_shells_have_to_be_there() {
        let (folder, recipe) = recipe(
            "[kernel]\npackage = 'linux-image-cloud-amd64'\nplatforms = ['qemu']\n\
             [users.a]\nhome = '/usr/lib/a'\nshell = '/bin/bash'\n\
             [users.b]\nhome = '/run/b'\n\
             [users.c]\nhome = '/usr/lib/c'\nshell = '/bin/bahs'\n\
             [users.d]\nshell = '/usr/lib/a'\n",
            &[],
        );
        let tree = found(vec![
            Entry::symlink("/bin", "usr/bin"),
            Entry::file("/usr/bin/bash", 0o755, ""),
            Entry::directory("/usr/lib/a", 0o755),
        ]);
        let mut mistakes = recipe.places.mistakes();
        check(&recipe, &tree, &mut mistakes);
        let report = mistakes.render(false);
        let report = report.replace(folder.path().to_str().unwrap(), "");
        for expected in [
            "the home /usr/lib/c of the user `c` is not in the image\n  --> /a.toml:13:8\n",
            "[files.\"/usr/lib/c\"] with `directory = true`",
            "the shell /bin/bahs of the user `c` is not in the image\n  --> /a.toml:14:9\n",
            "did you mean `/bin/bash`?",
            "the shell /usr/lib/a of the user `d` is not a program\n  --> /a.toml:16:9\n",
        ] {
            assert!(report.contains(expected), "{expected}\n{report}");
        }
        assert_eq!(mistakes.len(), 3, "{report}");
    }
}
