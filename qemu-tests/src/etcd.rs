//! etcd outside of a machine: the image's program on a data folder that was read from a disk.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use slipway::install::tools::Tools;

/// Where the data folder is inside the program's tree.
const DATA: &str = "/run/etcd";
/// How long etcd may take to read its log and to elect itself.
const START: Duration = Duration::from_secs(60);
/// How long it may be silent within an answer.
const SILENCE: Duration = Duration::from_secs(20);
/// All keys, without their values: from the key of one zero byte to the end, in base64.
const ALL_KEYS: &str = r#"{"key":"AA==","range_end":"AA==","keys_only":true}"#;

/// The keys that etcd finds in a data folder, in their order and in base64. etcd checks and repairs the folder as on a node.
///
/// # Errors
/// If etcd ends, or does not answer in time; the error has the end of its log.
pub fn keys(etcd: &Tools, data: &Path) -> Result<Vec<String>> {
    let log = data.with_extension("log");
    let (port, peers) = (free_port()?, free_port()?);
    let here = |port: u16| format!("http://127.0.0.1:{port}");
    let child = etcd
        .sandbox()
        .network(true)
        .bind(data, DATA)
        .command("/usr/bin/etcd")
        .args(["--name=default", "--data-dir", DATA])
        .args(["--listen-client-urls", &here(port)])
        .args(["--advertise-client-urls", &here(port)])
        .args(["--listen-peer-urls", &here(peers)])
        // As in the node's pod: a member whose log and database differ does not start.
        .arg("--experimental-initial-corrupt-check=true")
        .stderr(File::create(&log)?)
        .spawn()?;
    let mut etcd = Running(child);
    answer(&mut etcd, port).with_context(|| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "etcd said:\n{}",
            lines[lines.len().saturating_sub(8)..].join("\n")
        )
    })
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // kill fails only if the program has already ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Asks until etcd answers.
fn answer(etcd: &mut Running, port: u16) -> Result<Vec<String>> {
    let until = Instant::now() + START;
    loop {
        let error = match ask(port) {
            Ok(body) => return names(&body),
            Err(error) => error,
        };
        if let Some(status) = etcd.0.try_wait()? {
            bail!("etcd ended with {status}");
        }
        ensure!(Instant::now() < until, "etcd does not answer: {error:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ask(port: u16) -> Result<String> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(SILENCE))?;
    let length = ALL_KEYS.len();
    write!(
        connection,
        "POST /v3/kv/range HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{ALL_KEYS}"
    )?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no whole answer")?;
    ensure!(
        head.lines()
            .next()
            .is_some_and(|line| line.contains(" 200 ")),
        "{text}"
    );
    Ok(body.to_owned())
}

/// The keys in an answer to a range request of the JSON gateway.
///
/// # Errors
/// If it is not one.
pub fn names(answer: &str) -> Result<Vec<String>> {
    let answer: Value = serde_json::from_str(answer).context("reading etcd's answer")?;
    let keys = answer["kvs"].as_array().into_iter().flatten();
    keys.map(|pair| {
        Ok(pair["key"]
            .as_str()
            .context("a pair without a key")?
            .to_owned())
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_an_answer_are_read_in_their_order() {
        // As etcd 3.5 prints it; without a key there is no list.
        let answer = r#"{"header":{"cluster_id":"1","revision":"3"},"kvs":[{"key":"00000000","create_revision":"2"},{"key":"00000001"}],"count":"2"}"#;
        assert_eq!(names(answer).unwrap(), ["00000000", "00000001"]);
        assert!(names(r#"{"header":{}}"#).unwrap().is_empty());
        assert!(names(r#"{"kvs":[{}]}"#).is_err() && names("").is_err());
    }
}
