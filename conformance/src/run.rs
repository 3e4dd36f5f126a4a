//! Runs the specs: Ginkgo's parallel processes in a sandbox with the userland as root and the caller's network.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use slipway::host::sandbox::{Cmd, Sandbox};
use slipway::host::session::Session;

use crate::report::{self, Outcome};
use crate::selection;
use crate::suite::{E2E, GINKGO, Suite};
use crate::userland::Userland;

/// Folder of the programs in the sandbox.
const PROGRAMS: &str = "/conformance";
/// Folder of the reports in the sandbox.
const REPORTS: &str = "/reports";
/// Ginkgo's report there.
const JSON: &str = "report.json";
/// The output of all specs there.
pub const LOG: &str = "e2e.log";
/// Taints of nodes that are not for pods: they may stay when the tests wait for all nodes.
const TAINTS: &str = "node-role.kubernetes.io/control-plane";

/// How specs are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The administrator's credentials of the cluster, whose address is reached from here.
    pub kubeconfig: PathBuf,
    /// The folder for reports and logs.
    pub reports: PathBuf,
    /// Specs that run at once; those marked `[Serial]` run alone afterwards.
    pub processes: usize,
    /// The most seconds for all.
    pub seconds: u64,
}

/// The runner of a suite.
#[derive(Debug)]
pub struct Runner<'a> {
    session: &'a Session,
    sandbox: Sandbox,
}

impl<'a> Runner<'a> {
    /// A runner of this suite.
    ///
    /// # Errors
    /// If the suite lacks a program.
    pub fn new(session: &'a Session, suite: &Suite, userland: &Userland) -> Result<Self> {
        let programs = [
            ("e2e.test", suite.program(E2E)?),
            ("ginkgo", suite.program(GINKGO)?),
            // One program of several: it goes by its name.
            ("kubectl", &suite.kubectl),
        ];
        let sandbox = programs
            .iter()
            .fold(userland.sandbox(), |sandbox, (name, path)| {
                sandbox.bind_read_only(path, format!("{PROGRAMS}/{name}"))
            });
        Ok(Self {
            session,
            // No proxy of the host leads to the cluster.
            sandbox: (sandbox.env("HOME", "/tmp"))
                .env("NO_PROXY", "*")
                .env("no_proxy", "*"),
        })
    }

    /// The names of all specs of the conformance programme in this suite, sorted. No cluster is asked.
    ///
    /// # Errors
    /// If the tests do not start.
    pub fn known(&self) -> Result<Vec<String>> {
        let scratch = self.session.cache.scratch()?;
        let command = (self.sandbox.clone())
            .bind(scratch.path(), REPORTS)
            .command(format!("{PROGRAMS}/e2e.test"))
            .args(["--ginkgo.dry-run", "--ginkgo.no-color"])
            .arg(format!("--ginkgo.focus={}", selection::all()))
            .arg(format!("--ginkgo.json-report={REPORTS}/{JSON}"));
        command.run().context("asking the tests for their specs")?;
        report::selected(&fs::read(scratch.path().join(JSON))?)
    }

    /// Runs the chosen specs; gives the outcome of each, and of what runs before and after all.
    ///
    /// # Errors
    /// If the tests do not start or end without a report.
    pub fn run(
        &self,
        known: &[String],
        chosen: &[String],
        options: &Options,
    ) -> Result<Vec<Outcome>> {
        fs::create_dir_all(&options.reports)
            .with_context(|| format!("making {}", options.reports.display()))?;
        let json = options.reports.join(JSON);
        if json.exists() {
            fs::remove_file(&json).with_context(|| format!("removing {}", json.display()))?;
        }
        let command = self.command(known, chosen, options);
        // A failed spec is a failure of Ginkgo: its report says more.
        let status = self.watch(command, chosen.len(), &options.reports.join(LOG))?;
        let said = fs::read(&json).with_context(|| {
            format!(
                "the tests ended with {status} and without a report; see {LOG} in {}",
                options.reports.display()
            )
        })?;
        let outcomes = report::outcomes(&said, chosen)?;
        ensure!(
            status.success()
                || outcomes
                    .iter()
                    .any(|outcome| outcome.verdict != report::Verdict::Passed),
            "Ginkgo ended with {status}, and its report has no failure"
        );
        Ok(outcomes)
    }

    fn command(&self, known: &[String], chosen: &[String], options: &Options) -> Cmd {
        let focus = selection::focus(known, chosen);
        (self.sandbox.clone())
            .bind(&options.reports, REPORTS)
            .bind_read_only(&options.kubeconfig, "/kubeconfig")
            .network(true)
            .command(format!("{PROGRAMS}/ginkgo"))
            .args([
                "--no-color",
                "--force-newlines",
                "--silence-skips",
                "--timeout",
            ])
            .arg(format!("{}s", options.seconds))
            .arg(format!("--procs={}", options.processes))
            .args(focus.iter().map(|focus| format!("--focus={focus}")))
            .arg(format!("--json-report={JSON}"))
            .arg(format!("--output-dir={REPORTS}"))
            .arg(format!("{PROGRAMS}/e2e.test"))
            .arg("--")
            .arg("--kubeconfig=/kubeconfig")
            .arg(format!("--kubectl-path={PROGRAMS}/kubectl"))
            .arg("--provider=local")
            .arg(format!("--non-blocking-taints={TAINTS}"))
            .arg("--disable-log-dump=true")
            .arg(format!("--report-dir={REPORTS}"))
    }

    /// Follows the output: writes it to the log and shows each spec that ends.
    fn watch(&self, command: Cmd, total: usize, log: &Path) -> Result<std::process::ExitStatus> {
        let step = self.session.progress.step("conformance");
        let mut log = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?)
            .spawn()?;
        let output = child.stdout.take().context("reading what Ginkgo says")?;
        let mut ended = Ended::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            log.write_all(&line)?;
            log.write_all(b"\n")?;
            match ended.line(&String::from_utf8_lossy(&line)) {
                Some(Said::Ended) => {
                    let Ended { count, failed, .. } = ended;
                    step.note(&format!("{count} of {total}, {failed} failed"));
                }
                Some(Said::Failed(name)) => self.session.progress.say(&format!("failed: {name}")),
                None => {}
            }
        }
        let status = child.wait()?;
        step.done(false, None);
        Ok(status)
    }
}

/// The marks of specs that did not pass in Ginkgo's output.
const FAILED: &[&str] = &[
    "[FAILED",
    "[PANICKED",
    "[TIMEDOUT",
    "[INTERRUPTED",
    "[ABORTED",
];

/// The specs that have ended, read from Ginkgo's output: `•` for one that passed, `• [FAILED] [1.2 seconds]` and a line with
/// its name for one that did not.
#[derive(Debug, Default)]
struct Ended {
    count: usize,
    failed: usize,
    named: bool,
}

/// What a line of the output says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// One more spec has ended.
    Ended,
    /// The name of one that failed.
    Failed(String),
}

impl Ended {
    fn line(&mut self, line: &str) -> Option<Said> {
        if std::mem::take(&mut self.named) {
            return Some(Said::Failed(line.trim().to_owned()));
        }
        let mark = line.strip_prefix('•')?.trim_start();
        let failed = FAILED.iter().any(|word| mark.starts_with(word));
        if !failed && !mark.is_empty() && !mark.starts_with('[') {
            return None;
        }
        self.count += 1;
        self.failed += usize::from(failed);
        self.named = failed;
        Some(Said::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_that_end_are_counted() {
        let text = "Running Suite: Kubernetes e2e suite\n------------------------------\n•\n•\n• [FAILED] [1.2 seconds]\n\
                    [sig-node] Pods [It] b\n/x.go:2\n• other\n• [12.1 seconds]\n• [PANICKED!] [1 seconds]\nd\n";
        let mut ended = Ended::default();
        let failed: Vec<Said> = text
            .lines()
            .filter_map(|line| ended.line(line))
            .filter(|said| *said != Said::Ended)
            .collect();
        let name = |name: &str| Said::Failed(name.to_owned());
        assert_eq!(failed, [name("[sig-node] Pods [It] b"), name("d")]);
        assert_eq!((ended.count, ended.failed), (5, 2));
    }
}
