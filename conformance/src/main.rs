//! The command: lists the specs, writes the images' archive, or runs specs against nodes that it starts or a given cluster, and
//! writes the page.
#![allow(clippy::print_stdout, reason = "a program that prints its results")]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use conformance::nodes::RECIPE;
use conformance::page::{self, Counts};
use conformance::prepared::{Beside, Limits, Prepared, Tested};
use conformance::run::LOG;
use conformance::selection;
use conformance::suite::workspace;
use namespace_tests::lab::Lab;
use slipway::host::progress::Kind;
use slipway::host::session::Session;

/// Runs Kubernetes' conformance specs; exits with 1 if one fails or does not run.
#[derive(Debug, Parser)]
#[command(name = "conformance")]
struct Arguments {
    /// Run only the specs of this list, whole names, one a line
    #[arg(long, value_name = "FILE")]
    only: Option<PathBuf>,
    /// Print the names of the specs and end
    #[arg(long)]
    list: bool,
    /// Write the archive of the tests' images, for `ctr -n k8s.io images import`, and end
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    images: Option<PathBuf>,
    /// Test the cluster of these credentials, whose nodes have the tests' images [default: two nodes that are started for it]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Specs that run at once
    #[arg(long, default_value_t = 6)]
    processes: usize,
    /// Minutes for all specs
    #[arg(long, default_value_t = 360)]
    minutes: u64,
    /// Where the page is written [default: none for a list]
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// What the page says of the cluster of --kubeconfig
    #[arg(long, value_name = "TEXT", requires = "kubeconfig")]
    cluster: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Whether nodes are started.
    const fn starts_nodes(&self) -> bool {
        !self.list && self.images.is_none() && self.kubeconfig.is_none()
    }

    /// The page's path: that of all specs is in the repository.
    fn page(&self) -> Result<Option<PathBuf>> {
        match (&self.page, &self.only) {
            (Some(path), _) => Ok(Some(path.clone())),
            (None, None) => Ok(Some(workspace()?.join("docs/conformance.md"))),
            (None, Some(_)) => Ok(None),
        }
    }

    /// The names of `--only`.
    fn names(&self) -> Result<Option<Vec<String>>> {
        let Some(path) = &self.only else {
            return Ok(None);
        };
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Some(selection::read(&text)))
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let names = arguments.names()?;
    // Both before any thread is started.
    slipway::host::sandbox::become_root_of_namespace()?;
    let lab = arguments
        .starts_nodes()
        .then(|| Lab::open(RECIPE))
        .transpose()?;
    let session = Session::open(Kind::Plain)?;
    let prepared = Prepared::new(&session)?;
    if let Some(dest) = &arguments.images {
        let images = prepared.images()?;
        images.export(dest)?;
        print(arguments.json, &images.names, &images.names)?;
        return Ok(ExitCode::SUCCESS);
    }
    let specs = prepared.specs(names.as_deref())?;
    let limits = Limits {
        processes: arguments.processes,
        time: Duration::from_secs(arguments.minutes * 60),
    };
    let tested = match (lab, &arguments.kubeconfig) {
        (Some(mut lab), _) => prepared.test_nodes(&mut lab, Beside::Registry, &specs, limits)?,
        (None, Some(kubeconfig)) => {
            let cluster = arguments
                .cluster
                .as_deref()
                .unwrap_or("that of a kubeconfig");
            prepared.test(kubeconfig, cluster, &specs, limits)?
        }
        (None, None) => {
            print(arguments.json, &specs.chosen, &specs.chosen)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    conclude(&arguments, &prepared, &tested)
}

/// Writes the page and prints the result.
fn conclude(arguments: &Arguments, prepared: &Prepared<'_>, tested: &Tested) -> Result<ExitCode> {
    let Tested { about, outcomes } = tested;
    if let Some(path) = arguments.page()? {
        let page = page::markdown(about, outcomes)?;
        fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    let counts = Counts::of(outcomes);
    let log = prepared.reports().join(LOG);
    let line = [format!("{}; the log is {}", counts.line(), log.display())];
    let value = serde_json::json!({"about": about, "counts": counts, "specs": outcomes});
    print(arguments.json, &line, &value)?;
    Ok(match counts.is_success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print(json: bool, lines: &[String], value: &impl serde::Serialize) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(value)?);
    } else {
        for line in lines {
            println!("{line}");
        }
    }
    Ok(())
}
