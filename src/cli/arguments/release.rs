//! The arguments of `slipway release`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use slipway::release::{ARCHITECTURES, FILE};

/// `slipway release`
#[derive(Debug, Subcommand)]
pub(crate) enum ReleaseCommand {
    /// Write the entry of a version from the vendor's published checksums and the registry's digests
    #[command(after_help = super::examples::RELEASE_ADD)]
    Add(AddArgs),
    /// List the versions that are known, of the carried table and of the file
    #[command(after_help = super::examples::RELEASE_LIST)]
    List(TableArgs),
    /// Print the entry of a version
    #[command(after_help = super::examples::RELEASE_SHOW)]
    Show {
        /// The version, as 1.36.3; or 1.36 for the newest that is known
        #[arg(value_name = "VERSION")]
        kubernetes: String,
        #[command(flatten)]
        table: TableArgs,
    },
    /// Check that every entry is whole: each hash there and of its form, no file missing, the id that of the content
    #[command(after_help = super::examples::RELEASE_CHECK)]
    Check(TableArgs),
}

/// The table beside the carried one.
#[derive(Debug, Args)]
pub(crate) struct TableArgs {
    /// The table; a recipe uses the one of this name in its own folder
    #[arg(long, value_name = "FILE", default_value = FILE, value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

/// `slipway release add`
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The version, as 1.36.3
    #[arg(value_name = "VERSION")]
    pub kubernetes: String,
    #[command(flatten)]
    pub table: TableArgs,
    /// The release server of Kubernetes, or a mirror: URL before /v1.36.3/bin/linux/…
    #[arg(
        long,
        value_name = "URL",
        env = "SLIPWAY_RELEASE_SERVER",
        hide_env_values = true,
        default_value = "https://dl.k8s.io/release",
        value_hint = ValueHint::Url
    )]
    pub from: String,
    /// The server of crictl and the CNI plugins, or a mirror: URL before /kubernetes-sigs/…
    #[arg(
        long,
        value_name = "URL",
        env = "SLIPWAY_GITHUB",
        hide_env_values = true,
        default_value = "https://github.com",
        value_hint = ValueHint::Url
    )]
    pub github: String,
    /// The registry of the images, or a mirror
    #[arg(
        long,
        value_name = "HOST[/PATH]",
        env = "SLIPWAY_RELEASE_REGISTRY",
        hide_env_values = true,
        default_value = "registry.k8s.io"
    )]
    pub registry: String,
    /// The programs' architecture; may be repeated
    #[arg(long, value_name = "NAME", value_parser = ARCHITECTURES, default_values = ARCHITECTURES)]
    pub architecture: Vec<String>,
    /// Pin the Go modules of the version by this go.sum; without it those of an entry that is there are kept
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub go_sum: Option<PathBuf>,
    /// Write an entry for compiling alone: no server is asked
    #[arg(long, requires = "go_sum")]
    pub compiled: bool,
    /// Replace an entry that differs
    #[arg(long)]
    pub replace: bool,
    /// Print the entry, write nothing
    #[arg(long)]
    pub dry_run: bool,
}
