//! The agent: a unit that an Ignition config adds to an unchanged image, and that runs scripts from the host.
//!
//! It answers through a virtio serial port. An answer is valid only with the SHA-256 of the config's secret and the
//! question's nonce, so that other output of the guest is never taken for an answer.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use data_encoding::HEXLOWER;
use image::kubelet::ADMIN_KUBECONFIG;
use image::paths::RUN_CLUSTER_STEPS;
use image::timeline::READY;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::channel::{Channel, Waited};

/// The port of questions and answers.
pub const PORT: &str = "slipway.verdict";
/// The agent's unit.
pub const UNIT: &str = "slipway-agent.service";
/// How often [`until`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The agent's first message, followed by the boot's id.
const HELLO: &str = "hello ";

/// When the agent starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// As soon as the local file systems are mounted.
    Early,
    /// With the services of a running node.
    WithServices,
}

impl Start {
    fn unit(self) -> String {
        let (order, target) = match self {
            Self::Early => (
                "DefaultDependencies=no\nAfter=local-fs.target\nConflicts=shutdown.target\nBefore=shutdown.target\n",
                "sysinit",
            ),
            Self::WithServices => ("", "multi-user"),
        };
        format!(
            "[Unit]\nDescription=Answers the host that runs this machine\n{order}\n\
             [Service]\nExecStart=/bin/bash /etc/slipway-agent.sh\n\n\
             [Install]\nWantedBy={target}.target\n"
        )
    }
}

/// A secret that only the config and the host know.
#[derive(Clone, Debug)]
pub struct Secret(String);

impl Secret {
    /// A new random secret.
    ///
    /// # Errors
    /// If the host gives no random bytes.
    pub fn new() -> Result<Self> {
        random().map(Self)
    }

    /// The secret in this file, which is created if missing: a node keeps the config of its first boot.
    ///
    /// # Errors
    /// If the file can be neither read nor created.
    pub fn keep(path: &Path) -> Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let secret = Self::new()?;
                std::fs::write(path, &secret.0).context("keeping a secret")?;
                Ok(secret)
            }
            Err(error) => Err(error).context("reading a kept secret"),
        }
    }

    fn token(&self, nonce: &str) -> String {
        HEXLOWER.encode(&Sha256::digest(format!("{} {nonce}\n", self.0)))
    }

    /// The agent's file and unit as an Ignition config (specification 3.4), for use alone or for merging.
    #[must_use]
    pub fn config(&self, start: Start) -> Value {
        let script = format!(
            r#"#!/bin/bash
# Runs what the host asks for through {PORT}; each line is a nonce and a script in base64.
# By the kernel's own names: udev's may not be there yet.
until [ -c "$port" ]; do
  sleep 0.1
  for found in /sys/class/virtio-ports/*; do
    [ "$(cat "$found/name" 2>/dev/null)" = {PORT} ] && port=/dev/${{found##*/}}
  done
done
exec 3<>"$port"
echo "{HELLO}$(cat /proc/sys/kernel/random/boot_id)" >&3
while read -r nonce script <&3; do
  output=$(base64 -d <<<"$script" | bash 2>&1 3>&-)
  code=$?
  token=$(echo "{secret} $nonce" | sha256sum)
  echo "${{token%% *}} $code $(base64 -w0 <<<"$output")" >&3
done
"#,
            secret = self.0
        );
        json!({
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [{
                "path": "/etc/slipway-agent.sh",
                "mode": 0o700,
                "contents": { "source": data_url(script.as_bytes()) },
            }]},
            "systemd": { "units": [{ "name": UNIT, "enabled": true, "contents": start.unit() }]},
        })
    }
}

/// A script that waits in the guest until a condition of bash's own holds. If it does not within this time, the script says what
/// `otherwise` prints, and ends with 1.
///
/// Each program that is started for a look takes a tenth of a second and more of an emulated processor, from the boot that is waited
/// for. The condition starts none.
#[must_use]
pub fn until(condition: &str, patience: Duration, otherwise: &str) -> String {
    let looks = patience.as_millis() / LOOK_EVERY.as_millis();
    let every = LOOK_EVERY.as_secs_f64();
    format!(
        "exec 9<> <(:)
for ((look = 0; look < {looks}; look++)); do
  {{ {condition}; }} 2>/dev/null && exit 0
  read -rt {every} -u 9
done
{{ {otherwise}; }} 2>/dev/null
exit 1"
    )
}

/// Condition of bash's that the kubelet and etcd listen, etcd on this port: until then a check of their health would take their time.
#[must_use]
pub fn listens(etcd: u16) -> String {
    format!("exec 3<>/dev/tcp/127.0.0.1/10248 && exec 3<>/dev/tcp/127.0.0.1/{etcd}")
}

/// Condition of bash's that the bring-up of this boot has seen the node Ready.
#[must_use]
pub fn is_ready() -> String {
    format!("read -rd '' steps <{RUN_CLUSTER_STEPS}; [[ $steps == *'\"{READY}\"'* ]]")
}

/// Bytes as a `data:` URL, with every byte but letters and digits escaped (RFC 2397).
#[must_use]
pub fn data_url(bytes: &[u8]) -> String {
    let mut out = "data:,".to_owned();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            out.write_fmt(format_args!("%{byte:02X}"))
                .unwrap_or_default();
        }
    }
    out
}

/// Output and exit code of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its exit code.
    pub code: i32,
    /// Its output and error output, without the final line feed.
    pub output: String,
}

/// The agent of a running machine.
#[derive(Debug)]
pub struct Agent<'a> {
    channel: &'a Channel,
    secret: &'a Secret,
}

impl<'a> Agent<'a> {
    /// The agent on this channel.
    #[must_use]
    pub fn new(channel: &'a Channel, secret: &'a Secret) -> Self {
        Self { channel, secret }
    }

    /// Waits until the agent has started in the machine's boot number `boot`, from 1, and gives that boot's id.
    ///
    /// # Errors
    /// If it does not start in time.
    pub fn wait(&self, boot: usize, patience: Duration) -> Result<String> {
        let found = self.channel.wait(patience, |text| {
            let mut hellos = text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
                .filter_map(|line| line.strip_prefix(HELLO));
            hellos.nth(boot - 1).map(|id| id.trim().to_owned())
        });
        match found {
            Waited::Found(id) => Ok(id),
            Waited::Closed => bail!("the machine ended before its agent started"),
            Waited::Late => bail!(
                "the agent did not start within {} s in boot {boot}",
                patience.as_secs()
            ),
        }
    }

    /// Runs a script in the guest's bash, and waits for its end.
    ///
    /// # Errors
    /// If no answer comes in time.
    pub fn ask(&self, script: &str, patience: Duration) -> Result<Answer> {
        let nonce = random()?;
        let token = self.secret.token(&nonce);
        let question = format!("{nonce} {}\n", BASE64_STANDARD.encode(script.as_bytes()));
        self.channel.say(question.as_bytes())?;
        let found = self.channel.wait(patience, |text| {
            text.split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
                .find_map(|line| line.strip_prefix(&token).map(str::to_owned))
        });
        let line = match found {
            Waited::Found(line) => line,
            Waited::Closed => bail!("the machine ended before it answered: {script}"),
            Waited::Late => bail!("no answer within {} s: {script}", patience.as_secs()),
        };
        let (code, output) = line
            .trim()
            .split_once(' ')
            .with_context(|| format!("the agent's answer {line:?} has no output"))?;
        let output = BASE64_STANDARD
            .decode(output)
            .with_context(|| format!("reading the answer {line:?}"))?;
        Ok(Answer {
            code: code.parse().context("reading the exit code")?,
            output: String::from_utf8_lossy(&output).trim_end().to_owned(),
        })
    }
}

/// A script that asks the API server of a control plane as its administrator, with these words behind `kubectl`.
#[must_use]
pub fn kubectl(words: &str) -> String {
    format!("kubectl --kubeconfig {ADMIN_KUBECONFIG} {words}")
}

fn random() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .context("reading random bytes")?;
    Ok(HEXLOWER.encode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_an_answer_with_the_token_is_one() {
        let (guest, host) = UnixStream::pair().unwrap();
        let channel = Channel::attach(host, None).unwrap();
        let secret = Secret::new().unwrap();
        let theirs = secret.clone();
        let guest = std::thread::spawn(move || {
            writeln!(&guest, "hello first").unwrap();
            let mut line = String::new();
            BufReader::new(&guest).read_line(&mut line).unwrap();
            let (nonce, script) = line.trim().split_once(' ').unwrap();
            assert_eq!(BASE64_STANDARD.decode(script).unwrap(), b"echo yes");
            writeln!(
                &guest,
                "{} 0 {}",
                "0".repeat(64),
                BASE64_STANDARD.encode(b"no")
            )
            .unwrap();
            writeln!(
                &guest,
                "{} 3 {}",
                theirs.token(nonce),
                BASE64_STANDARD.encode(b"yes\n")
            )
            .unwrap();
            guest
        });
        let agent = Agent::new(&channel, &secret);
        let patience = Duration::from_secs(10);
        assert_eq!(agent.wait(1, patience).unwrap(), "first");
        assert_eq!(
            agent.ask("echo yes", patience).unwrap(),
            Answer {
                code: 3,
                output: "yes".into()
            }
        );
        drop(guest.join().unwrap());
        assert!(agent.wait(2, patience).is_err());
    }

    #[test]
    fn data_urls_escape_what_is_no_letter_or_digit() {
        assert_eq!(data_url(b"a b\n%"), "data:,a%20b%0A%25");
    }
}
