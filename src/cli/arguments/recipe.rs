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
    pub(crate) fn one(&self) -> Choice {
        Choice {
            variant: self.variants.first().cloned(),
            settings: self.settings.clone(),
        }
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
    /// programs of its release: all other pins are kept
    #[arg(
        long,
        value_name = "PACKAGE,…",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_delimiter = ','
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

    /// The packages that are chosen anew; none if it is all of them.
    pub(crate) fn renewed(&self) -> Vec<String> {
        let named = self.renew.iter().flatten();
        named.filter(|name| !name.is_empty()).cloned().collect()
    }
}
