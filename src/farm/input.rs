//! What a build on another machine needs of this one: the recipe's files and its locks.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::host::tree;
use crate::lock;
use crate::recipe::{self, Choice, Recipe};

/// What a ConfigMap holds at most, bytes: the API server's own limit (`MaxSecretSize`).
pub(super) const LARGEST: usize = 1 << 20;

/// The keys of a recipe whose texts are paths of this host.
const HOST_PATHS: [&str; 10] = [
    "ca",
    "certificates",
    "config",
    "extends",
    "file",
    "inputs",
    "keys",
    "layout",
    "source",
    "trees",
];
/// Tables of a recipe whose keys are the user's or the kernel's.
const FREE_KEYS: [&str; 5] = ["variables", "sysctl", "options", "environment", "versions"];

/// A recipe with all that it names on this host.
#[derive(Clone, Debug)]
pub struct Input {
    /// The images' folders below the output's, `NAME-VERSION`: one for each variant.
    pub outputs: Vec<String>,
    /// The recipe's path among the files.
    pub recipe: String,
    /// The files by their paths.
    pub files: BTreeMap<String, InputFile>,
}

/// A file of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// Its content.
    pub content: Vec<u8>,
    /// Whether it can be executed, which an image takes over.
    pub executable: bool,
}

impl Input {
    /// Collects the files of a recipe: the recipes that it extends, the locks of its variants, and every file or folder of this host
    /// that one of its words names.
    ///
    /// # Errors
    /// The recipe's mistakes; a lock that is missing or out of date; a file that is larger than a ConfigMap; an absolute path; a folder
    /// with a link or an empty folder in it.
    pub fn read(path: &Path) -> Result<Self> {
        let mut collected = BTreeMap::new();
        let mut outputs = Vec::new();
        let choices = recipe::variants(path)?;
        let choices: Vec<Choice> = match choices.is_empty() {
            true => vec![Choice::default()],
            false => choices.into_iter().map(of_variant).collect(),
        };
        for choice in &choices {
            let recipe = recipe::load_as(path, choice)?;
            outputs.push(format!("{}-{}", recipe.image.name, recipe.image.version));
            check_lock(&recipe)?;
            add(&mut collected, &recipe.lock_path())?;
            for part in recipe.parts.iter().filter(|part| part.is_file()) {
                add(&mut collected, part)?;
                add_named(&mut collected, part)?;
            }
        }
        check_sizes(&collected)?;
        relative(path, collected, outputs)
    }
}

/// Refuses files that no ConfigMap holds, all at once.
fn check_sizes(files: &Files) -> Result<()> {
    let large = files
        .iter()
        .filter(|(_, file)| file.content.len() > LARGEST)
        .map(|(path, file)| format!("{} has {}", path.display(), file.content.len()));
    let large: Vec<String> = large.collect();
    ensure!(
        large.is_empty(),
        "a ConfigMap holds {LARGEST} bytes, and {}: let [files] take large files by `url`",
        large.join(", ")
    );
    Ok(())
}

fn of_variant(name: String) -> Choice {
    Choice {
        variant: Some(name),
        ..Choice::default()
    }
}

/// Refuses a recipe whose lock does not fit: the Job's own build would, an hour later.
fn check_lock(recipe: &Recipe) -> Result<()> {
    ensure!(
        lock::is_current(recipe)?,
        "{} is missing or does not fit the recipe; `slipway lock {}` makes it",
        recipe.lock_path().display(),
        recipe.path.display()
    );
    Ok(())
}

type Files = BTreeMap<PathBuf, InputFile>;

fn add(files: &mut Files, path: &Path) -> Result<()> {
    let path = std::path::absolute(path)?;
    let about = || format!("reading {}", path.display());
    let content = fs::read(&path).with_context(about)?;
    let mode = fs::metadata(&path)
        .with_context(about)?
        .permissions()
        .mode();
    // The owner's bit alone, as a recipe reads it.
    let executable = mode & 0o100 != 0;
    files.insert(
        path,
        InputFile {
            content,
            executable,
        },
    );
    Ok(())
}

/// Adds every file and folder beside a recipe that one of its texts is the path of. A text that only happens to be one costs some
/// bytes; a path in no text is none.
fn add_named(files: &mut Files, recipe: &Path) -> Result<()> {
    let text = fs::read_to_string(recipe)?;
    let value: toml::Value =
        toml::from_str(&text).with_context(|| format!("reading {}", recipe.display()))?;
    let folder = recipe.parent().unwrap_or(Path::new(""));
    let mut words = Vec::new();
    texts("", &value, &mut words);
    for (key, word) in words {
        let path = Path::new(word);
        ensure!(
            path.is_relative() || !HOST_PATHS.contains(&key),
            "{}: `{key}` is the absolute path {word:?}, which the Job does not have; name it relative to the recipe",
            recipe.display()
        );
        let is_plain = path.components().all(|part| {
            matches!(
                part,
                Component::Normal(_) | Component::ParentDir | Component::CurDir
            )
        });
        if word.is_empty() || !is_plain || word.contains('\n') {
            continue;
        }
        let path = folder.join(path);
        if path.is_file() {
            add(files, &path)?;
        } else if path.is_dir() && path != folder {
            add_folder(files, &path)?;
        }
    }
    Ok(())
}

/// Adds the files of a folder, which has nothing that would be lost: a ConfigMap holds files alone.
fn add_folder(files: &mut Files, folder: &Path) -> Result<()> {
    let mut items = tree::walk(folder)?.into_iter().peekable();
    let empty = |folder: &Path| {
        format!(
            "{} is an empty folder, which a ConfigMap does not hold",
            folder.display()
        )
    };
    ensure!(items.peek().is_some(), empty(folder));
    while let Some(item) = items.next() {
        let kind = item.meta.file_type();
        if kind.is_dir() {
            // In the sorted list a folder's content follows the folder.
            let next = items.peek();
            let has_content = next.is_some_and(|next| next.path.starts_with(&item.path));
            ensure!(has_content, empty(&item.path));
            continue;
        }
        let noun = match kind.is_symlink() {
            true => "a link",
            false => "not a file",
        };
        ensure!(
            kind.is_file(),
            "{} is {noun}, which a ConfigMap does not hold",
            item.path.display()
        );
        add(files, &item.path)?;
    }
    Ok(())
}

/// The texts of a recipe, each with the key of its table or list.
fn texts<'a>(key: &'a str, value: &'a toml::Value, found: &mut Vec<(&'a str, &'a str)>) {
    match value {
        toml::Value::String(text) => found.push((key, text)),
        toml::Value::Array(items) => items.iter().for_each(|item| texts(key, item, found)),
        toml::Value::Table(table) => {
            for (name, item) in table {
                let key = if FREE_KEYS.contains(&key) { key } else { name };
                texts(key, item, found);
            }
        }
        _ => {}
    }
}

/// The files relative to the deepest folder that has them all.
fn relative(recipe: &Path, files: Files, outputs: Vec<String>) -> Result<Input> {
    let recipe = tidy(&std::path::absolute(recipe)?);
    let files: Files = files
        .into_iter()
        .map(|(path, content)| (tidy(&path), content))
        .collect();
    let mut top = recipe.parent().unwrap_or(Path::new("/")).to_owned();
    while files.keys().any(|path| !path.starts_with(&top)) {
        top.pop();
    }
    let name = |path: &Path| -> Result<String> {
        let below = path.strip_prefix(&top)?;
        let text = below.to_str();
        Ok(text
            .with_context(|| format!("{} is not UTF-8", path.display()))?
            .to_owned())
    };
    let mut named = BTreeMap::new();
    for (path, content) in &files {
        named.insert(name(path)?, content.clone());
    }
    let recipe = name(&recipe)?;
    if !named.contains_key(&recipe) {
        bail!("{recipe} is not a recipe of this host");
    }
    Ok(Input {
        outputs,
        recipe,
        files: named,
    })
}

/// An absolute path without `.` and `..`.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                tidy.pop();
            }
            Component::CurDir => {}
            part => tidy.push(part),
        }
    }
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of a recipe and of one that it extends, from the folder that has both.
    #[test]
    fn what_a_recipe_names_goes_with_it_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(place.path()).unwrap();
        for (path, text) in [
            (
                "recipes/a.toml",
                "extends = '../base/base.toml'\n[files.'/etc/a']\nsource = 'files/a'\n[files.'/etc/b']\ncontent = 'other'\n\
                 [overlay]\ntrees = ['tree']\n",
            ),
            ("recipes/files/a", "a"),
            ("recipes/files/not-named", "b"),
            ("recipes/tree/etc/x", "x"),
            ("base/base.toml", "[ca]\ncertificates = ['ca.pem']\n"),
            ("base/ca.pem", "pem"),
            ("not-named", "c"),
        ] {
            let path = top.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let program = top.join("recipes/files/a");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let recipe = top.join("recipes/a.toml");
        let mut files = Files::new();
        for part in [&recipe, &top.join("recipes/../base/base.toml")] {
            add(&mut files, part).unwrap();
            add_named(&mut files, part).unwrap();
        }
        let input = relative(&recipe, files, vec!["a-1".to_owned()]).unwrap();
        assert_eq!(input.recipe, "recipes/a.toml");
        let paths: Vec<&str> = input.files.keys().map(String::as_str).collect();
        let expected = [
            "base/base.toml",
            "base/ca.pem",
            "recipes/a.toml",
            "recipes/files/a",
            "recipes/tree/etc/x",
        ];
        assert_eq!(paths, expected);
        let executable = input.files.iter().filter(|(_, file)| file.executable);
        let executable: Vec<&String> = executable.map(|(path, _)| path).collect();
        assert_eq!(executable, ["recipes/files/a"]);
        std::os::unix::fs::symlink("x", top.join("recipes/tree/etc/y")).unwrap();
        let error = add_named(&mut Files::new(), &recipe).unwrap_err();
        assert!(error.to_string().contains("is a link"), "{error}");
    }

    #[test]
    fn what_would_be_lost_on_the_way_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(place.path()).unwrap();
        let recipe = top.join("a.toml");
        let read = |text: &str| {
            fs::write(&recipe, text).unwrap();
            let mut files = Files::new();
            add_named(&mut files, &recipe).map(|()| files)
        };
        let refused = |text: &str| format!("{:#}", read(text).unwrap_err());
        let trees = "[overlay]\ntrees = ['tree']\n";
        fs::create_dir(top.join("tree")).unwrap();
        let error = refused(trees);
        assert!(error.contains("tree is an empty folder"), "{error}");
        fs::create_dir_all(top.join("tree/etc")).unwrap();
        fs::write(top.join("tree/etc/x"), "x").unwrap();
        // Only its group may execute it, which a recipe does not take over.
        let mode = fs::Permissions::from_mode(0o654);
        fs::set_permissions(top.join("tree/etc/x"), mode).unwrap();
        let files = read(trees).unwrap();
        assert!(files.values().all(|file| !file.executable), "{files:?}");
        fs::create_dir(top.join("tree/etc/empty")).unwrap();
        let error = refused(trees);
        assert!(
            error.contains("tree/etc/empty is an empty folder"),
            "{error}"
        );
        fs::remove_dir(top.join("tree/etc/empty")).unwrap();

        let of_host = top.join("tree/etc/x").display().to_string();
        for (key, text) in [
            (
                "source",
                format!("[files.'/etc/x']\nsource = '{of_host}'\n"),
            ),
            ("trees", "[overlay]\ntrees = ['/srv/tree']\n".to_owned()),
            ("inputs", format!("[[build.run]]\ninputs = ['{of_host}']\n")),
        ] {
            let error = refused(&text);
            let expected = format!("a.toml: `{key}` is the absolute path");
            assert!(error.contains(&expected), "{error}");
        }
        // Paths of the image.
        let image = "[files.'/etc/x']\nlink = '/dev/null'\n[users.a]\nhome = '/srv'\n\
                     [variables]\nsource = '/etc/x'\n[[overlay.archives]]\nfile = 'a.toml'\nto = '/opt'\n";
        assert_eq!(read(image).unwrap().len(), 1);
    }

    #[test]
    fn a_file_that_no_config_map_holds_is_refused_by_name_and_size() {
        let zeros = |size| InputFile {
            content: vec![0; size],
            executable: false,
        };
        let mut files = Files::from([
            ("/a/small".into(), zeros(10)),
            ("/a/whole".into(), zeros(LARGEST)),
            ("/a/other".into(), zeros(LARGEST)),
        ]);
        check_sizes(&files).unwrap();
        files.insert("/a/large".into(), zeros(LARGEST + 1));
        let error = check_sizes(&files).unwrap_err().to_string();
        assert!(error.contains("/a/large has 1048577"), "{error}");
        assert!(!error.contains("/a/whole"), "{error}");
    }
}
