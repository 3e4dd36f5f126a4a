//! The server: each request goes to the vendor's function, unless a fault is due.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// With its query.
    pub(crate) path: String,
    /// The client's port.
    pub(crate) port: u16,
    pub(crate) body: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name)?;
        Some(&found.1)
    }
}

/// The server's reaction to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// 200 with this body.
    Ok(Vec<u8>),
    /// Another status with this body.
    Status(u16, &'static str),
    /// 429 or 503 with `Retry-After` in seconds.
    Later(u16, u32),
    /// 200 whose body ends after this many bytes, with an entity tag.
    Cut(Vec<u8>, usize),
    /// The connection ends without an answer.
    Reset,
}

pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Reply {
    Reply::Ok(body.into())
}

pub(crate) const ABSENT: Reply = Reply::Status(404, "not found");
const TAG: &str = "\"v1\"";

pub(crate) struct Server {
    pub(crate) base: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// The received requests: method and path.
    pub(crate) fn asked(&self) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let word = |request: &Request| format!("{} {}", request.method, request.path);
        log.iter().map(word).collect()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }
}

/// Starts a server; it uses the faults first, one for each request, whatever its path is.
pub(crate) fn serve(
    faults: Vec<Reply>,
    answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let log: Arc<Mutex<Vec<Request>>> = Arc::default();
    let seen = Arc::clone(&log);
    let faults = Arc::new(Mutex::new(VecDeque::from(faults)));
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, seen, faults) =
                (Arc::clone(&answer), Arc::clone(&seen), Arc::clone(&faults));
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let Some(request) = read(&stream) else { return };
                seen.lock().unwrap().push(request.clone());
                let fault = faults.lock().unwrap().pop_front();
                let reply = fault.unwrap_or_else(|| answer(&request));
                // The client may have closed the connection.
                send(&mut stream, &request, reply).unwrap_or_default();
            });
        }
    });
    Server { base, log }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = reader.by_ref().lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else {
            break;
        };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, length)| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        port: stream.peer_addr().ok()?.port(),
        body: String::from_utf8(body).unwrap(),
        headers,
    })
}

fn send(stream: &mut TcpStream, request: &Request, reply: Reply) -> std::io::Result<()> {
    let head = |status: u16, length: usize, more: &str| {
        format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n"
        )
    };
    match reply {
        Reply::Ok(body) => {
            // A client resumes a cut body by naming its entity tag.
            let from = request
                .header("range")
                .filter(|_| request.header("if-range") == Some(TAG))
                .and_then(|range| {
                    range
                        .strip_prefix("bytes=")?
                        .strip_suffix('-')?
                        .parse()
                        .ok()
                });
            let (status, from, more) = match from {
                Some(from) => {
                    let last = body.len() - 1;
                    let all = body.len();
                    (
                        206,
                        from,
                        format!("Content-Range: bytes {from}-{last}/{all}\r\n"),
                    )
                }
                None => (200, 0, String::new()),
            };
            stream.write_all(head(status, body.len() - from, &more).as_bytes())?;
            stream.write_all(&body[from..])
        }
        Reply::Status(status, body) => {
            stream.write_all(head(status, body.len(), "").as_bytes())?;
            stream.write_all(body.as_bytes())
        }
        Reply::Later(status, seconds) => {
            let more = format!("Retry-After: {seconds}\r\n");
            stream.write_all(head(status, 0, &more).as_bytes())
        }
        Reply::Cut(body, at) => {
            let more = format!("ETag: {TAG}\r\n");
            stream.write_all(head(200, body.len(), &more).as_bytes())?;
            stream.write_all(&body[..at])
        }
        Reply::Reset => Ok(()),
    }
}
