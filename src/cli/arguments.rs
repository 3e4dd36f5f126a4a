//! The command line: its arguments, and how results and errors are printed.
#![allow(
    clippy::print_stdout,
    reason = "this is the layer that prints; results go to stdout, everything else to stderr"
)]

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Parser, Subcommand, ValueHint, value_parser};
use slipway::host::cache::{Cache, Limit};
use slipway::host::interrupt::Interrupt;
use slipway::host::local_files::LocalFiles;
use slipway::host::progress::{Kind, Progress};
use slipway::host::session::Session;
use slipway::recipe::Mistakes;
use slipway::share::remote::RemoteCache;
use slipway::share::settings::{self, Settings};
use slipway::vm::accel::Choice;
use slipway::vm::machine::Forward;
use slipway::vm::machine::disk::Bus;
use slipway::vm::preflight::{LEAST_MEMORY, MOST_CPUS};
use slipway::vm::run;

pub(crate) mod cluster;
mod examples;
pub(crate) mod farm;
mod recipe;
pub(crate) mod release;

use cluster::ClusterCommand;
use farm::FarmCommand;
pub(crate) use recipe::{
    BuildArgs, CheckArgs, ChoiceArgs, DiffArgs, LockArgs, NewArgs, OutArgs, given_or_only,
};
use release::ReleaseCommand;

/// Builds immutable operating-system images for Kubernetes nodes from one TOML recipe, and runs them.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    after_long_help = examples::PROGRAMS_OWN
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub output: Output,
    #[command(subcommand)]
    pub command: Command,
}

/// How results and progress are printed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Output {
    /// Print results and progress as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no progress
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print more; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Colours and progress bars: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// The folder of the cache, in place of SLIPWAY_CACHE and the default
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache: Option<PathBuf>,
    /// The size above which a build removes the longest unused of the cache, as 20G, or none; in place of SLIPWAY_CACHE_SIZE, the
    /// settings and the default
    #[arg(long, global = true, value_name = "SIZE")]
    pub cache_size: Option<Limit>,
    /// The remote cache, oci://, s3:// or file:///, in place of SLIPWAY_REMOTE_CACHE and the settings; empty for none
    #[arg(long, global = true, value_name = "URL")]
    pub remote_cache: Option<String>,
    /// How many threads unpack, hash and compress; default: one for each processor
    #[arg(short, long, global = true, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
}

/// When reports and progress have colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
    #[default]
    Auto,
    /// Also where nothing is a terminal.
    Always,
    /// Nowhere.
    Never,
}

impl Color {
    /// Whether what goes to stderr has colours.
    fn counts(self) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
                wanted && std::io::stderr().is_terminal()
            }
        }
    }
}

impl Output {
    /// A session with the progress display of these options.
    pub(crate) fn session(&self, interrupt: &Interrupt) -> anyhow::Result<Session> {
        let kind = match (self.json, self.quiet) {
            (_, true) => Kind::Quiet,
            (true, false) => Kind::Json,
            (false, false) if self.color == Color::Never => Kind::Plain,
            (false, false) => Kind::Auto,
        };
        let mut session = self.session_with(kind, interrupt)?;
        session.interrupt = interrupt.clone();
        Ok(session)
    }

    /// A session with this progress display, without an interrupt.
    pub(crate) fn session_of(&self, kind: Kind) -> anyhow::Result<Session> {
        self.session_with(kind, &Interrupt::default())
    }

    fn session_with(&self, kind: Kind, interrupt: &Interrupt) -> anyhow::Result<Session> {
        let settings = Settings::read(self.remote_cache.as_deref())?;
        let mut session = Session::new(self.cache()?, Progress::new(kind));
        session.site = settings.fetch_options();
        if let Some(remote) = settings.remote {
            let scratch = session.cache.root().to_owned();
            let shared = RemoteCache::open(
                remote,
                &session.fetch_options(),
                &session.progress,
                &scratch,
                interrupt,
            )?;
            session.cache.share(Some(Arc::new(shared)));
        }
        Ok(session)
    }

    /// The cache of these options.
    pub(crate) fn cache(&self) -> anyhow::Result<Cache> {
        let cache = match &self.cache {
            Some(folder) => Cache::at(folder.clone()),
            None => Cache::open(),
        }?;
        // A variable that is wrong is an error even where the option counts.
        let environment = Limit::of_environment()?;
        let limit = match self.cache_size.or(environment) {
            Some(limit) => Some(limit),
            None => settings::cache_size()?,
        };
        Ok(match limit {
            Some(limit) => cache.with_limit(limit),
            None => cache,
        })
    }
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build and boot the demo in QEMU, and say whether it is a Ready node of Kubernetes
    #[command(after_help = examples::DEMO)]
    Demo(DemoArgs),
    /// Write a recipe to begin with, NAME.toml in the current folder
    #[command(after_help = examples::NEW)]
    New(NewArgs),
    /// Build the image of a recipe
    #[command(after_help = examples::BUILD)]
    Build(BuildArgs),
    /// Boot an image in QEMU, with its console here
    #[command(after_help = examples::RUN)]
    Run(RunArgs),
    /// Pin every package and download of a recipe in the lock beside it
    #[command(after_help = examples::LOCK)]
    Lock(LockArgs),
    /// Check a recipe
    #[command(after_help = examples::CHECK)]
    Check(CheckArgs),
    /// Say what a built image holds, read from its bytes
    #[command(after_help = examples::INSPECT)]
    Inspect {
        /// An output folder, a disk or a unified kernel image
        #[arg(value_hint = ValueHint::AnyPath)]
        image: PathBuf,
    },
    /// Say what one image has otherwise than another: packages, kernel, sizes, every file of the root
    #[command(after_help = examples::DIFF)]
    Diff(DiffArgs),
    /// Show where the time of a boot went
    #[command(after_help = examples::TIMELINE)]
    Timeline(TimelineArgs),
    /// Serve images for a boot from the network
    #[command(subcommand, after_help = examples::PXE)]
    Pxe(PxeCommand),
    /// Make a Kubernetes cluster, its nodes' configs and its administrator's access, and run it on this host
    #[command(subcommand, after_help = examples::CLUSTER)]
    Cluster(ClusterCommand),
    /// Build many recipes side by side in a cluster
    #[command(subcommand, after_help = examples::FARM)]
    Farm(FarmCommand),
    /// Add versions of Kubernetes to the release table, and look at it
    #[command(subcommand, after_help = examples::RELEASE)]
    Release(ReleaseCommand),
    /// Look at the cache, or take away what nothing uses any more
    #[command(subcommand, after_help = examples::CACHE)]
    Cache(CacheCommand),
    /// Say what this host can do, and what to do about what it cannot
    #[command(after_help = examples::DOCTOR)]
    Doctor,
    /// Print the JSON Schema of recipes, or of cluster objects, for editors
    #[command(after_help = examples::SCHEMA)]
    Schema {
        /// Print the reference of all keys of recipes instead, as Markdown
        #[arg(long)]
        markdown: bool,
        /// Print the schema of cluster objects instead
        #[arg(long, conflicts_with = "markdown")]
        cluster: bool,
    },
    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page, as for `man -l -`
    #[command(after_help = examples::MANUAL)]
    Manual {
        /// The page: slipway, or a command, as build or cache-prune
        #[arg(default_value = "slipway")]
        page: String,
        /// Print the names of all pages instead
        #[arg(long)]
        list: bool,
    },
    /// Check and merge Ignition and Butane configs, as a node would
    #[command(after_help = examples::IGNITION)]
    Ignition {
        #[command(subcommand)]
        command: Ignition,
    },
}

/// What can be asked about configs, in Ignition's JSON or Butane's YAML.
#[derive(Debug, Subcommand)]
pub(crate) enum Ignition {
    /// Check a config by the rules of its version
    #[command(after_help = examples::IGNITION_VALIDATE)]
    Validate {
        /// The config; - for stdin
        #[arg(value_hint = ValueHint::FilePath, required_unless_present = "batch")]
        config: Option<PathBuf>,
        /// Answer the cases of this file, one JSON object a line: name, version, raw
        #[arg(long, value_hint = ValueHint::FilePath, conflicts_with = "config")]
        batch: Option<PathBuf>,
        #[command(flatten)]
        local: LocalArgs,
    },
    /// Print what two configs come to
    #[command(after_help = examples::MERGE)]
    Merge {
        /// The config below
        #[arg(value_hint = ValueHint::FilePath, required_unless_present = "batch", requires = "child")]
        parent: Option<PathBuf>,
        /// The config above, whose word wins
        #[arg(value_hint = ValueHint::FilePath)]
        child: Option<PathBuf>,
        /// Answer the cases of this file, one JSON object a line: name, parent, child
        #[arg(long, value_hint = ValueHint::FilePath, conflicts_with_all = ["parent", "child"])]
        batch: Option<PathBuf>,
        #[command(flatten)]
        local: LocalArgs,
    },
    /// Print the Ignition config that a Butane config becomes
    #[command(after_help = examples::FROM_BUTANE)]
    FromButane {
        /// The config; - for stdin
        #[arg(value_hint = ValueHint::FilePath)]
        config: PathBuf,
        #[command(flatten)]
        local: LocalArgs,
        /// Let warnings fail as errors do
        #[arg(long)]
        strict: bool,
        /// Print it over several lines
        #[arg(long)]
        pretty: bool,
        /// Write it to this file
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Write the program `ignition`, which runs Ignition's stages in another system's initrd
    #[command(after_help = examples::PROGRAM)]
    Program {
        /// Write it to this file, with mode 0755
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
}

/// Where a Butane config's local files are.
#[derive(Debug, Args)]
pub(crate) struct LocalArgs {
    /// The folder that a Butane config's local files are relative to; without it they are refused
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    files_dir: Option<PathBuf>,
}

impl LocalArgs {
    pub(crate) fn files(self) -> Option<LocalFiles> {
        self.files_dir.map(LocalFiles)
    }
}

impl Command {
    /// Whether the command starts programs in namespaces: an ordinary user must enter a user namespace first.
    pub(crate) fn starts_programs(&self) -> bool {
        match self {
            Self::Cluster(command) => command.starts_programs(),
            Self::Build(args) => !args.dry_run,
            Self::Lock(args) => !args.locked,
            // A node's disk is read by programs of the tools tree, a file by this one.
            Self::Timeline(args) => args.from.is_dir(),
            Self::Diff(args) => !args.no_files,
            // What programs in a namespace made belongs to its users, whom only it can remove.
            Self::Cache(command) => matches!(command, CacheCommand::Prune { .. }),
            Self::Check(..)
            | Self::Completions { .. }
            | Self::Farm(_)
            | Self::Ignition { .. }
            | Self::Inspect { .. }
            | Self::Manual { .. }
            | Self::New(_)
            | Self::Pxe(_)
            | Self::Release(_)
            | Self::Schema { .. } => false,
            Self::Demo(_) | Self::Doctor | Self::Run(_) => true,
        }
    }

    /// Whether the host is looked at before the command begins. `doctor` does it itself, and to remove entries of the cache
    /// nothing more is needed.
    pub(crate) fn needs_preflight(&self) -> bool {
        self.starts_programs() && !matches!(self, Self::Doctor | Self::Cache(_))
    }

    /// The folder that the command writes images to.
    pub(crate) fn output_folder(&self) -> Option<&Path> {
        match self {
            Self::Build(args) => Some(&args.out.output),
            Self::Demo(args) => Some(&args.out.output),
            Self::Run(args) => Some(&args.out.output),
            _ => None,
        }
    }
}

/// The machine that an image is booted on.
#[derive(Debug, Args)]
pub(crate) struct MachineArgs {
    /// How the guest's instructions are executed: auto (KVM if it is proven to work), kvm or tcg
    #[arg(long, default_value = "auto")]
    pub accel: Choice,
    /// Memory in MiB
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 2048,
        value_parser = value_parser!(u32).range(i64::from(LEAST_MEMORY)..)
    )]
    pub memory: u32,
    /// Processors
    #[arg(
        long,
        default_value_t = 2,
        value_parser = value_parser!(u32).range(1..=i64::from(MOST_CPUS))
    )]
    pub cpus: u32,
    /// Boot kernel and initrd directly, without firmware
    #[arg(long)]
    pub direct: bool,
}

impl MachineArgs {
    pub(crate) fn options(&self) -> run::Options {
        run::Options {
            direct: self.direct,
            accel: self.accel,
            memory: self.memory,
            cpus: self.cpus,
            ..run::Options::default()
        }
    }
}

/// `slipway run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A recipe, which is built first, or an output folder of `slipway build` [default: the only recipe of the current folder]
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: Option<PathBuf>,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    #[command(flatten)]
    pub out: OutArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// The node's Ignition config
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ignition: Option<PathBuf>,
    /// Forward a port of this host to one of the node; may be repeated
    #[arg(long, value_name = "HOST:GUEST")]
    pub forward: Vec<Forward>,
    /// The controller of the disks: virtio, nvme, scsi or sata; default: what the recipe's first platform has
    #[arg(long)]
    pub bus: Option<Bus>,
    /// No second disk for etcd
    #[arg(long)]
    pub no_etcd: bool,
    /// Give the machine a TPM 2
    #[arg(long)]
    pub tpm: bool,
    /// Keep the node's disks in this folder, and boot them again the next time
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub node: Option<PathBuf>,
    /// Remove what the folder of --node keeps first: a new node, and the data of the one before is lost
    #[arg(long, requires = "node")]
    pub fresh: bool,
    /// Let the guest live in virtual time, so that its boot takes equally long on every host
    #[arg(long)]
    pub icount: bool,
    /// Add a word to the kernel's command line, with --direct; may be repeated
    #[arg(long, value_name = "WORD", requires = "direct")]
    pub append: Vec<String>,
}

impl RunArgs {
    pub(crate) fn options(&self) -> run::Options {
        run::Options {
            ignition: self.ignition.clone(),
            forwards: self.forward.clone(),
            icount: self.icount,
            etcd: !self.no_etcd,
            tpm: self.tpm,
            node: self.node.clone(),
            fresh: self.fresh,
            append: self.append.clone(),
            ..self.machine.options()
        }
    }
}

/// `slipway demo`
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub out: OutArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

impl DemoArgs {
    pub(crate) fn options(&self) -> run::Options {
        self.machine.options()
    }
}

/// `slipway timeline`
#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    /// The folder of a node that `slipway run --node` kept, or a file of JSON lines
    #[arg(value_hint = ValueHint::AnyPath)]
    pub from: PathBuf,
    /// Draw a picture instead
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
    /// Draw it into the report.html of a build's output folder; a later boot takes its place
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "svg")]
    pub page: Option<PathBuf>,
}

/// `slipway pxe`
#[derive(Debug, Subcommand)]
pub(crate) enum PxeCommand {
    /// Serve the `pxe` folder of a build by HTTP
    #[command(after_help = examples::PXE_SERVE)]
    Serve {
        /// The output folder of the build, or its folder `pxe`
        #[arg(value_hint = ValueHint::DirPath)]
        folder: PathBuf,
        /// Address and port to listen on
        #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
        listen: SocketAddr,
    },
}

/// `slipway cache`
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Say what it holds, by kind, and what its limit is
    #[command(after_help = examples::CACHE_SHOW)]
    Show,
    /// Remove steps and downloads that no build has used for some time, nor uses now; they are made or fetched again when needed
    #[command(after_help = examples::PRUNE)]
    Prune {
        /// How many days without use are enough
        #[arg(long, value_name = "DAYS", default_value_t = 14)]
        unused: u64,
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
    },
    /// Make a key that signs results for a remote cache: write it to FILE, print the public key
    #[command(after_help = examples::KEYGEN)]
    Keygen {
        /// The secret key's file, which must not exist; only its owner can read it. A missing folder is made with the mode 0700
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The key's name, for people [default: the file's name]
        #[arg(long)]
        name: Option<String>,
    },
}

/// Prints a result. A reader that has seen enough, as `head`, is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("writing to stdout"),
    }
}

/// Prints a result as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print(&text)
}

/// Prints the findings about a config, for people; nothing without findings.
pub(crate) fn print_findings(report: &ignition::Report) {
    if !report.entries.is_empty() {
        // Without stderr the message has no reader.
        writeln!(std::io::stderr().lock(), "{report}").ok();
    }
}

/// Prints an error once: a recipe's mistakes as a report, everything else as one chain.
pub(crate) fn print_error(error: &anyhow::Error, json: bool, color: Color) {
    let text = if json {
        let event = match error.downcast_ref::<Mistakes>() {
            Some(mistakes) => serde_json::json!({
                "event": "error", "chain": [mistakes.render(false)], "mistakes": mistakes.objects(),
            }),
            None => {
                let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
                serde_json::json!({ "event": "error", "chain": chain })
            }
        };
        fetch::masked(&event.to_string())
    } else if let Some(mistakes) = error.downcast_ref::<Mistakes>() {
        mistakes.render(color.counts())
    } else {
        // Whatever put a password into an address: nobody reads it here.
        fetch::masked(&format!("error: {error:#}"))
    };
    // Without stderr the message has no reader.
    writeln!(std::io::stderr().lock(), "{text}").ok();
}

/// Prints that the work ended in order because a signal asked for it.
pub(crate) fn print_interrupted(json: bool) {
    let text = match json {
        true => serde_json::json!({ "event": "interrupted" }).to_string(),
        false => "interrupted".to_owned(),
    };
    // Without stderr the message has no reader.
    writeln!(std::io::stderr().lock(), "{text}").ok();
}

#[cfg(test)]
mod tests;
