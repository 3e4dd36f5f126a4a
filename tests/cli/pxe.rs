//! `slipway pxe serve` serves until a signal ends it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

#[test]
fn a_server_says_as_json_where_it_is_and_ends_when_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("boot.ipxe"), "#!ipxe\n").unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(["--json", "pxe", "serve", ".", "--listen", "127.0.0.1:0"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = server.stdout.take().unwrap();
    // One document, while the server goes on.
    let document: serde_json::Value = serde_json::Deserializer::from_reader(said)
        .into_iter()
        .next()
        .unwrap()
        .unwrap();
    let url = document["url"].as_str().unwrap();
    let (host, path) = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once('/'))
        .unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\n#!ipxe\n"), "{answer}");
    let process = Pid::from_raw(server.id().try_into().unwrap());
    signal::kill(process, Signal::SIGINT).unwrap();
    let output = server.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(said["event"], "interrupted");
}
