//! What commands about farms take: `farm render`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, ValueHint, value_parser};
use slipway::debian::mirror::{Host, Mirrors};
use slipway::farm;
use slipway::share;

/// `slipway farm`
#[derive(Debug, Subcommand)]
pub(crate) enum FarmCommand {
    /// Print Jobs of Kubernetes that build recipes side by side, for `kubectl apply --server-side -f`, with the remote cache of
    /// --remote-cache or the settings
    #[command(after_help = super::examples::FARM_RENDER)]
    Render(RenderArgs),
}

/// `slipway farm render`
#[derive(Debug, Args)]
pub(crate) struct RenderArgs {
    /// The recipes, each with its lock beside it
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    pub recipes: Vec<PathBuf>,
    /// The builder: an image with the program `slipway`, best by its digest
    #[arg(long, value_name = "REFERENCE")]
    image: String,
    /// The PersistentVolumeClaim that the images are written to, each into its folder
    #[arg(long, value_name = "NAME")]
    claim: String,
    /// The namespace
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// The Secret with the credentials of the remote cache, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and other secret variables
    #[arg(long, value_name = "SECRET")]
    credentials: Option<String>,
    /// The Secret with the key that signs results, as `key`: without it Jobs take results and send none
    #[arg(long, value_name = "SECRET")]
    signing_key: Option<String>,
    /// Processors of a Job
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(1..))]
    cpus: u16,
    /// Memory of a Job in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = value_parser!(u32).range(1024..))]
    memory: u32,
    /// Room for the cache of a Job in MiB
    #[arg(long, value_name = "MIB", default_value_t = 20480, value_parser = value_parser!(u32).range(4096..))]
    disk: u32,
}

impl RenderArgs {
    /// The settings of the Jobs: what the arguments say, and this machine's own way to the remote cache.
    ///
    /// # Errors
    /// If the settings of this machine are wrong, there is a key and nothing to sign, the Jobs cannot use the remote cache, or a variable
    /// or an address has a password.
    pub(crate) fn settings(&self, remote_cache: Option<&str>) -> Result<farm::Settings> {
        let site = share::settings::Settings::read(remote_cache)?;
        let endpoints = site.fetch_options().endpoints;
        let cache: Option<(String, Vec<String>)> = site.remote.map(|remote| {
            let keys = remote.trusted.iter().map(ToString::to_string).collect();
            (remote.url, keys)
        });
        anyhow::ensure!(
            cache.is_some() || self.signing_key.is_none(),
            "--signing-key signs results for a remote cache, and there is none; name it by --remote-cache"
        );
        let url = cache.as_ref().map(|(url, _)| url.as_str());
        farm::check_cache(url, endpoints.s3.as_deref(), self.signing_key.is_some())?;
        let host = Host::here();
        let mirrors = match Mirrors::find(None, None, &host) {
            Ok(mirrors) => Some(mirrors),
            Err(error) if host.mirror.is_some() => return Err(error),
            // The recipe may name its own.
            Err(_) => None,
        };
        let variable = |name: &str| std::env::var(name).ok();
        let environment = farm::environment(mirrors.as_ref(), variable)?;
        Ok(farm::Settings {
            image: self.image.clone(),
            namespace: self.namespace.clone(),
            claim: self.claim.clone(),
            credentials: self.credentials.clone(),
            signing_key: self.signing_key.clone(),
            cache,
            buckets: endpoints.s3.zip(endpoints.s3_region),
            environment,
            cpus: self.cpus,
            memory: self.memory,
            disk: self.disk,
        })
    }
}
