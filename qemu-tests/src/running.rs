//! A machine that the lab started, and what is asked of it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use image::report::{HANDOFF_LINE, LINE};
use slipway::vm::agent::{Agent, Answer, PORT, Secret, listens, until};
use slipway::vm::channel::Waited;
use slipway::vm::disks::Node;
use slipway::vm::machine::{EMULATED, files};
use slipway::vm::process::Vm;

use crate::timeouts;

/// A kernel's command line without the options that an emulated machine adds at its end.
#[must_use]
pub fn of_image(cmdline: &str) -> &str {
    let cmdline = cmdline.trim_end();
    cmdline
        .strip_suffix(EMULATED)
        .map_or(cmdline, str::trim_end)
}

/// Script that checks whether a control plane is healthy: exit code 0 if it is.
pub const HEALTH: &str = slipway::vm::demo::HEALTH;

/// The port of the etcd that [`HEALTH`] asks.
const ETCD_PORT: u16 = 2379;

/// Switches a node off. The answer is sent before systemd stops the agent. A systemd-networkd whose start is interrupted
/// would wait a minute and a half for a bus that is not there yet, so it is killed.
const POWER_OFF: &str = "(sleep 0.3
systemctl kill --signal=KILL systemd-networkd.service
systemctl --no-block --job-mode=replace-irreversibly start poweroff.target) >/dev/null 2>&1 &";

/// A running machine, with its agent's secret.
#[derive(Debug)]
pub struct Running {
    /// The machine.
    pub vm: Vm,
    /// Its node's files.
    pub node: Node,
    pub(crate) secret: Secret,
    pub(crate) folder: PathBuf,
}

impl Running {
    /// The agent.
    ///
    /// # Errors
    /// If the machine has no port for the agent; each that the lab started has one.
    pub fn agent(&self) -> Result<Agent<'_>> {
        Ok(Agent::new(self.vm.port(PORT)?, &self.secret))
    }

    /// Waits for the agent, which starts as soon as the local file systems are mounted.
    ///
    /// # Errors
    /// If it does not start in time.
    pub fn wait_agent(&self) -> Result<()> {
        self.agent()?.wait(1, timeouts::AGENT).map(drop)
    }

    /// Waits until systemd starts the services of a running node.
    ///
    /// # Errors
    /// If it does not in time.
    pub fn wait_services(&self) -> Result<()> {
        self.wait_agent()?;
        // The bus's socket is one of the last things that the target has; an image without it is asked for the target alone.
        let socket = until(
            "[[ -S /run/dbus/system_bus_socket ]]",
            timeouts::QUESTION / 4,
            ":",
        );
        self.ask(&socket)?;
        let script = "until systemctl -q is-active basic.target; do sleep 0.3; done";
        self.run_within(script, timeouts::AGENT).map(drop)
    }

    /// Runs a script in the guest.
    ///
    /// # Errors
    /// If no answer comes.
    pub fn ask(&self, script: &str) -> Result<Answer> {
        self.agent()?.ask(script, timeouts::QUESTION)
    }

    /// Runs a script in the guest that must succeed, and returns its output.
    ///
    /// # Errors
    /// If it does not succeed; the error has its output.
    pub fn run(&self, script: &str) -> Result<String> {
        self.run_within(script, timeouts::QUESTION)
    }

    /// As [`Running::run`], with another timeout.
    ///
    /// # Errors
    /// If the script does not succeed; the error has its output.
    pub fn run_within(&self, script: &str, timeout: Duration) -> Result<String> {
        let answer = self.agent()?.ask(script, timeout)?;
        ensure!(
            answer.code == 0,
            "in the guest, `{script}` ended with {}: {}",
            answer.code,
            answer.output
        );
        Ok(answer.output)
    }

    /// Waits until all of these words are on the console.
    ///
    /// # Errors
    /// If they do not in time; the error names the first that is missing.
    pub fn wait_console(&self, words: &[&str], timeout: Duration) -> Result<String> {
        let all = |text: &str| {
            words
                .iter()
                .all(|word| text.contains(word))
                .then(|| text.to_owned())
        };
        let how = match self.vm.console().wait(timeout, all) {
            Waited::Found(text) => return Ok(text),
            Waited::Closed => format!("when the machine ended{}", self.vm.last_words()),
            Waited::Late => format!("within {} s", timeout.as_secs()),
        };
        let text = self.vm.console().text();
        let missing = words.iter().find(|word| !text.contains(*word));
        bail!("{:?} was not on the console {how}", missing.unwrap_or(&""))
    }

    /// Waits for a complete report line of the init, and returns its JSON.
    ///
    /// # Errors
    /// If none comes in time.
    pub fn wait_report(&self, timeout: Duration) -> Result<String> {
        let found = self.vm.console().wait(timeout, |text| {
            let (line, _) = text.split_once(LINE)?.1.split_once('\n')?;
            Some(line.trim().to_owned())
        });
        match found {
            Waited::Found(line) => Ok(line),
            Waited::Closed => bail!("the machine ended without a report{}", self.vm.last_words()),
            Waited::Late => bail!("no report within {} s", timeout.as_secs()),
        }
    }

    /// Waits for the handoff. A report of the init ends the wait at once.
    ///
    /// # Errors
    /// The report, or the timeout.
    pub fn wait_handoff(&self, timeout: Duration) -> Result<()> {
        let found = self.vm.console().wait(timeout, |text| {
            if text.contains(HANDOFF_LINE) {
                return Some(Ok(()));
            }
            let report = text.lines().find_map(|line| line.split_once(LINE));
            report.map(|(_, report)| Err(report.to_owned()))
        });
        match found {
            Waited::Found(Ok(())) => Ok(()),
            Waited::Found(Err(report)) => bail!("the init reports a failure: {report}"),
            Waited::Closed => bail!(
                "the machine ended before the handoff{}",
                self.vm.last_words()
            ),
            Waited::Late => bail!("no handoff within {} s", timeout.as_secs()),
        }
    }

    /// Waits until the kubelet is READY and etcd healthy with its data on the etcd disk.
    ///
    /// # Errors
    /// The output of the last check when the timeout is over.
    pub fn wait_healthy(&self) -> Result<String> {
        let end = Instant::now() + timeouts::HEALTHY;
        let look = until(&listens(ETCD_PORT), timeouts::QUESTION / 4, ":");
        loop {
            self.ask(&look)?;
            let answer = self.ask(HEALTH)?;
            if answer.code == 0 {
                return Ok(answer.output);
            }
            ensure!(
                Instant::now() < end,
                "not healthy within {} s:\n{}",
                timeouts::HEALTHY.as_secs(),
                answer.output
            );
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Bytes of captured packets so far, with the 24 bytes of the file's header.
    ///
    /// # Errors
    /// If nothing is captured.
    pub fn captured(&self) -> Result<u64> {
        Ok(fs::metadata(self.folder.join(files::PACKETS))
            .context("looking for captured packets")?
            .len())
    }

    /// The captured packets so far, as a pcap file.
    ///
    /// # Errors
    /// If nothing is captured.
    pub fn packets(&self) -> Result<Vec<u8>> {
        fs::read(self.folder.join(files::PACKETS)).context("reading captured packets")
    }

    /// The config that the machine gets by fw_cfg, the agent's part included, for promises that deliver it another way.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn config(&self) -> Result<Vec<u8>> {
        fs::read(self.folder.join("config.ign")).context("reading the node's config")
    }

    /// Shuts the node down cleanly, whatever stage its boot has reached.
    ///
    /// # Errors
    /// If it does not end in time.
    pub fn power_off(mut self) -> Result<()> {
        self.run(POWER_OFF)?;
        self.vm.wait_end(timeouts::SHUTDOWN)
    }
}
