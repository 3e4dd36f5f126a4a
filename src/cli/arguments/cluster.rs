//! The arguments of `slipway cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::MachineArgs;

/// `slipway cluster`
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Write a new cluster object, with comments, and its secrets beside it, encrypted
    #[command(after_help = super::examples::CLUSTER_NEW)]
    New(NewArgs),
    /// Print the Ignition config that makes a booted image a node of the cluster
    #[command(after_help = super::examples::JOIN_CONFIG)]
    JoinConfig(JoinArgs),
    /// Print a kubeconfig for the cluster's administrator
    #[command(after_help = super::examples::KUBECONFIG)]
    Kubeconfig(KubeconfigArgs),
    /// Run the cluster in QEMU on this host, until all nodes are Ready and on in the background
    #[command(after_help = super::examples::UP)]
    Up(UpArgs),
    /// Say how far a cluster on this host is; exit code 1 if not all of its nodes are Ready
    #[command(after_help = super::examples::STATUS)]
    Status(FileArgs),
    /// Ask a running cluster whether its nodes are Ready and its own pods are well; exit code 1 if not
    #[command(after_help = super::examples::VALIDATE)]
    Validate(ValidateArgs),
    /// End a cluster on this host, and remove its machines' disks
    #[command(after_help = super::examples::DOWN)]
    Down(DownArgs),
}

impl ClusterCommand {
    /// Whether the command starts programs in namespaces.
    pub(crate) const fn starts_programs(&self) -> bool {
        // In the background it is the other process that does.
        matches!(self, Self::Up(args) if args.foreground)
    }
}

/// The cluster that a command is about.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The cluster object
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
}

/// Whose secrets they are.
#[derive(Debug, Args)]
pub(crate) struct IdentityArgs {
    /// The age identity that the secrets are encrypted for; made if it is missing [default: age.key in the folder slipway of
    /// the user's configuration]
    #[arg(long, value_name = "FILE", env = "SLIPWAY_IDENTITY", value_hint = ValueHint::FilePath)]
    pub(crate) identity: Option<PathBuf>,
}

/// `slipway cluster new`
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    #[command(flatten)]
    pub(crate) object: FileArgs,
    /// The cluster's name [default: the file's]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Ask for the most important fields, on standard input
    #[arg(long)]
    pub(crate) wizard: bool,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
}

/// A node's role.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Role {
    /// The control plane that begins the cluster, with the keys of its authorities
    ControlPlane,
    /// A control plane that joins it, with these keys and a member of etcd
    FurtherControlPlane,
    /// A node that runs workloads, with the bootstrap token
    Worker,
}

impl From<Role> for slipway::cluster::node::Part {
    fn from(role: Role) -> Self {
        match role {
            Role::ControlPlane => Self::First,
            Role::FurtherControlPlane => Self::Further,
            Role::Worker => Self::Worker,
        }
    }
}

/// `slipway cluster join-config`
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    #[command(flatten)]
    pub(crate) object: FileArgs,
    /// The node's role
    #[arg(long, value_enum)]
    pub(crate) role: Role,
    /// The node's name [default: the machine's]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The node's address [default: that of the interface with the default route]
    #[arg(long)]
    pub(crate) address: Option<String>,
    /// Make a new bootstrap token in the running cluster: the first one is valid for 24 hours from its beginning
    #[arg(long)]
    pub(crate) fresh_token: bool,
    /// With a fresh token, the URL of the API server [default: the object's endpoint, or that of the cluster that runs on
    /// this host]
    #[arg(long, value_name = "URL", requires = "fresh_token")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) to: ToArgs,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
}

/// `slipway cluster kubeconfig`
#[derive(Debug, Args)]
pub(crate) struct KubeconfigArgs {
    #[command(flatten)]
    pub(crate) object: FileArgs,
    /// The URL of the API server [default: the object's endpoint, or that of the cluster that runs on this host]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) to: ToArgs,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
}

/// `slipway cluster validate`
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub(crate) object: FileArgs,
    /// The URL of the API server [default: the object's endpoint, or that of the cluster that runs on this host]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// How many nodes there should be at least
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) nodes: usize,
    /// Wait so many seconds for the cluster to become valid
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) wait: u64,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
}

/// Where a secret result is written.
#[derive(Debug, Args)]
pub(crate) struct ToArgs {
    /// Write it to this file, which only its owner may read
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// `slipway cluster up`
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) object: FileArgs,
    /// The image of the nodes: a recipe, or an output folder of `slipway build` [default: that of recipes/cluster.toml]
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub(crate) image: Option<PathBuf>,
    /// How many control planes; each has a member of etcd
    #[arg(long, default_value_t = 1)]
    pub(crate) control_planes: u8,
    /// How many workers
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: u8,
    /// The port of this host that leads to the API server; 0 for a free one
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Stay in the foreground; Ctrl-C ends the machines and keeps their disks
    #[arg(long)]
    pub(crate) foreground: bool,
    /// The folder below which an image is built
    #[arg(long, value_name = "DIR", default_value = "out", value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
}

/// `slipway cluster down`
#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) object: FileArgs,
    /// Keep the machines' disks: the next `up` boots them again
    #[arg(long)]
    pub(crate) keep: bool,
    /// Cut the machines' power: their pods and etcd are not ended first
    #[arg(long)]
    pub(crate) cut: bool,
}
