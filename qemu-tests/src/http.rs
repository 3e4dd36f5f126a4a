//! The server's side of an HTTP exchange with a node: one request, one answer, then the connection ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};

/// How long a node may be silent within its request.
const SILENCE: Duration = Duration::from_secs(60);

/// What a node asked for.
#[derive(Debug)]
pub struct Request {
    /// The request line and the header, without the empty line behind them.
    pub head: String,
    /// What was posted; often empty.
    pub body: String,
}

impl Request {
    /// Reads a request with as much of a body as its `Content-Length` says.
    ///
    /// # Errors
    /// If the node closes the connection before, or is silent for a minute.
    pub fn read(connection: &mut TcpStream) -> Result<Self> {
        connection.set_read_timeout(Some(SILENCE))?;
        let (mut request, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let count = connection.read(&mut piece)?;
            ensure!(
                count > 0,
                "the node closed the connection within its request"
            );
            request.extend_from_slice(&piece[..count]);
            let text = String::from_utf8_lossy(&request);
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && body.len() >= content_length(head)
            {
                return Ok(Self {
                    head: head.to_owned(),
                    body: body.to_owned(),
                });
            }
        }
    }

    /// The request line: method, path and version.
    #[must_use]
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

fn content_length(head: &str) -> usize {
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    length.unwrap_or_default()
}

/// Answers with a status, such as `200 OK`, and a body.
///
/// # Errors
/// If the node closes the connection.
pub fn answer(connection: &mut TcpStream, status: &str, body: &[u8]) -> Result<()> {
    answer_head(connection, status, body.len())?;
    Ok(connection.write_all(body)?)
}

/// Answers with a status and the length of a body that the caller then writes.
///
/// # Errors
/// If the node closes the connection.
pub fn answer_head(connection: &mut TcpStream, status: &str, length: usize) -> Result<()> {
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    Ok(())
}
