//! What commands about recipes take: `new`, `build`, `lock`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use slipway::lock::Mode;
use slipway::recipe::{self, Choice, Mistakes};

/// `slipway new`
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// The image's name
    pub name: String,
    /// The recipe that Slipway carries and this one extends
    #[arg(
        long,
        default_value = "node",
        value_parser = clap::builder::PossibleValuesParser::new(slipway::recipe::carried::names())
    )]
    pub from: String,
}

/// The recipe that a command is about.
#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    /// The recipe [default: the only one of the current folder]
    #[arg(value_hint = ValueHint::FilePath)]
    pub recipe: Option<PathBuf>,
}

impl RecipeArgs {
    /// The recipe that is given, or the only one of the current folder.
    pub(crate) fn path(&self) -> Result<PathBuf, Mistakes> {
        given_or_only(self.recipe.as_deref())
    }
}

/// A path that is given, or the only recipe of the current folder.
pub(crate) fn given_or_only(given: Option<&Path>) -> Result<PathBuf, Mistakes> {
    match given {
        Some(given) => Ok(given.to_owned()),
        None => slipway::recipe::only_one(Path::new(".")),
    }
}

/// What of the recipe a command is about.
#[derive(Debug, Args)]
pub(crate) struct ChoiceArgs {
    /// Only these of the recipe's variants; all of them otherwise
    #[arg(long = "variant", value_name = "NAME,…", value_delimiter = ',')]
    variants: Vec<String>,
    /// A value in place of the recipe's, as image.version=1.4; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl ChoiceArgs {
    /// What is to be read of the recipe at `path`, one after the other.
    ///
    /// # Errors
    /// What keeps its files from being read.
    pub(crate) fn of(&self, path: &Path) -> Result<Vec<Choice>, Mistakes> {
        let named = match self.variants.is_empty() {
            true => recipe::variants(path)?,
            false => self.variants.clone(),
        };
        let choice = |variant| Choice {
            variant,
            settings: self.settings.clone(),
        };
        Ok(match named.is_empty() {
            true => vec![choice(None)],
            false => named.into_iter().map(|name| choice(Some(name))).collect(),
        })
    }

    /// What is to be read of a recipe for one machine: that it has variants is for the recipe's reading to refuse.
    ///
    /// # Errors
    /// If several variants are named.
    pub(crate) fn one(&self) -> anyhow::Result<Choice> {
        anyhow::ensure!(
            self.variants.len() < 2,
            "--variant {}: expected one variant, for one machine",
            self.variants.join(",")
        );
        Ok(Choice {
            variant: self.variants.first().cloned(),
            settings: self.settings.clone(),
        })
    }

    /// Whether nothing is chosen.
    pub(crate) fn is_empty(&self) -> bool {
        self.variants.is_empty() && self.settings.is_empty()
    }
}

/// Where builds are written.
#[derive(Debug, Args)]
pub(crate) struct OutArgs {
    /// The folder below which the image's folder is written
    #[arg(short, long, value_name = "DIR", default_value = "out", value_hint = ValueHint::DirPath)]
    pub output: PathBuf,
}

/// `slipway build`
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    #[command(flatten)]
    pub out: OutArgs,
    /// Fail if the lock is missing or does not fit the recipe, instead of making it
    #[arg(long)]
    pub locked: bool,
    /// Ask no server: what is neither in the cache nor in the lock's own folder is named, all at once
    #[arg(long)]
    pub offline: bool,
    /// Only say what would be fetched and written, and which steps would run
    #[arg(long)]
    pub dry_run: bool,
}

impl BuildArgs {
    pub(crate) const fn mode(&self) -> Mode {
        if self.locked {
            Mode::Locked
        } else {
            Mode::Make
        }
    }
}

/// `slipway check`
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub choice: ChoiceArgs,
}

/// `slipway diff`
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// An output folder or a disk
    #[arg(value_hint = ValueHint::AnyPath)]
    pub from: PathBuf,
    /// The one that it is compared with
    #[arg(value_hint = ValueHint::AnyPath)]
    pub to: PathBuf,
    /// Do not unpack the roots to compare their files
    #[arg(long)]
    pub no_files: bool,
    /// End with exit code 1 if there is a difference
    #[arg(long)]
    pub exit_code: bool,
}

/// `slipway lock`
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// Choose everything anew, even if the lock fits the recipe; with names only these packages, and `kubelet` for the
    /// programs of its release: all other pins are kept. The recipe may be among the names
    #[arg(
        long,
        value_name = "PACKAGE",
        num_args = 0..,
        value_delimiter = ',',
        value_hint = ValueHint::FilePath
    )]
    pub renew: Option<Vec<String>>,
    /// Take a mirror's state even if it is older than that of the last lock
    #[arg(long, conflicts_with = "locked")]
    pub older: bool,
    /// Show what the lock has otherwise than this one
    #[arg(long, value_name = "OLD")]
    pub diff: Option<PathBuf>,
    /// Write nothing: fail unless the lock is there and fits the recipe
    #[arg(long, conflicts_with_all = ["renew", "vendor"])]
    pub locked: bool,
    /// Ask no server: what is neither in the cache nor in the lock's own folder is named, all at once
    #[arg(long)]
    pub offline: bool,
    /// Write all files of the lock, each by its hash, to this folder, bucket (s3://BUCKET/PREFIX) or repository of a registry
    /// (oci://HOST/NAME), and note it in the lock: builds take them from there before they ask a server
    #[arg(long, value_name = "PLACE", value_hint = ValueHint::DirPath, conflicts_with = "diff")]
    pub vendor: Option<PathBuf>,
}

impl LockArgs {
    pub(crate) const fn mode(&self) -> Mode {
        match (&self.renew, self.locked) {
            (Some(_), _) => Mode::Renew,
            (None, true) => Mode::Locked,
            (None, false) => Mode::Make,
        }
    }

    /// The recipe, and the packages that are chosen anew: none if it is all of them.
    ///
    /// # Errors
    /// If there is no recipe, or more than one.
    pub(crate) fn recipe_and_renewed(&self) -> Result<(PathBuf, Vec<String>), Mistakes> {
        let names = self.renew.iter().flatten();
        let names: Vec<&String> = names.filter(|name| !name.is_empty()).collect();
        let ends_so = |name: &str| Path::new(name).extension().is_some_and(|end| end == "toml");
        // A file that happens to be named as a package is a recipe only where nothing else is one.
        let has_one = self.recipe.recipe.is_some() || names.iter().any(|name| ends_so(name));
        let is_recipe =
            |name: &&String| ends_so(name) || (!has_one && Path::new(name.as_str()).is_file());
        let (paths, packages): (Vec<&String>, Vec<&String>) =
            names.into_iter().partition(is_recipe);
        let given = self.recipe.recipe.iter().cloned();
        let recipes: Vec<PathBuf> = given.chain(paths.into_iter().map(PathBuf::from)).collect();
        let recipe = match recipes.as_slice() {
            [] => given_or_only(None)?,
            [only] => only.clone(),
            several => return Err(recipe::several_given(several)),
        };
        Ok((recipe, packages.into_iter().cloned().collect()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::arguments::{Cli, Command};

    fn read(words: &str) -> Result<(PathBuf, Vec<String>), String> {
        let words = ["slipway", "lock"].into_iter().chain(words.split(' '));
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Lock(args) = cli.command else {
            return Err("another command".to_owned());
        };
        assert_eq!(args.mode(), Mode::Renew);
        let found = args.recipe_and_renewed();
        found.map_err(|mistakes| mistakes.render(false))
    }

    #[test]
    fn the_recipe_may_stand_before_between_and_after_the_renewed_packages() {
        for (words, expected) in [
            ("my.toml --renew", &[][..]),
            ("--renew my.toml", &[]),
            ("--renew -- my.toml", &[]),
            ("my.toml --renew jq", &["jq"]),
            ("--renew jq my.toml", &["jq"]),
            ("--renew jq my.toml curl", &["jq", "curl"]),
            ("--renew jq curl --older my.toml", &["jq", "curl"]),
            ("--renew=jq my.toml", &["jq"]),
            ("--renew=jq,curl my.toml", &["jq", "curl"]),
            (
                "my.toml --renew jq,curl kubelet",
                &["jq", "curl", "kubelet"],
            ),
            // A file of this crate, beside a recipe.
            ("my.toml --renew README.md", &["README.md"]),
        ] {
            let (recipe, renewed) = read(words).unwrap();
            assert_eq!(recipe, Path::new("my.toml"), "{words}");
            assert_eq!(renewed, expected, "{words}");
        }
        // Where nothing ends in `.toml`.
        let (recipe, renewed) = read("--renew jq README.md").unwrap();
        assert_eq!(
            (recipe.as_path(), renewed.as_slice()),
            (Path::new("README.md"), &["jq".to_owned()][..])
        );
    }

    #[test]
    fn two_recipes_are_refused_by_name() {
        for words in ["a.toml --renew jq b.toml", "--renew a.toml b.toml"] {
            let why = read(words).unwrap_err();
            assert!(why.contains("a.toml, b.toml"), "{words}: {why}");
        }
    }
}
