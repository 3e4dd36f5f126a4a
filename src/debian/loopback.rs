//! A mirror on loopback for tests: answers from a table, and records the requested paths.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// A server that lives as long as the test's process.
#[derive(Debug)]
pub(crate) struct Loopback {
    /// Base URL, without a final slash.
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<String>>>,
    files: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    missing: Arc<Mutex<&'static str>>,
    wanted: Arc<Mutex<Option<String>>>,
}

impl Loopback {
    /// Serves these paths (with their leading slash); everything else is 404.
    pub(crate) fn serve(files: HashMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let files = Arc::new(Mutex::new(files));
        let served = files.clone();
        let missing = Arc::new(Mutex::new("404 Not Found"));
        let answer = missing.clone();
        let wanted: Arc<Mutex<Option<String>>> = Arc::default();
        let gate = wanted.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (files, seen, answer) = (served.clone(), seen.clone(), answer.clone());
                let gate = gate.clone();
                std::thread::spawn(move || {
                    let mut connection = connection.unwrap();
                    let mut request = Vec::new();
                    let mut piece = [0; 1024];
                    while !request.ends_with(b"\r\n\r\n") {
                        let n = connection.read(&mut piece).unwrap();
                        if n == 0 {
                            return;
                        }
                        request.extend_from_slice(&piece[..n]);
                    }
                    let line = String::from_utf8(request).unwrap();
                    let path = line.split(' ').nth(1).unwrap().to_owned();
                    let found = files.lock().unwrap().get(&path).cloned();
                    let gate = gate.lock().unwrap().clone();
                    let is_known = gate.is_none_or(|gate| line.contains(&gate));
                    let (status, body) = match found {
                        _ if !is_known => ("401 Unauthorized", Vec::new()),
                        Some(body) => ("200 OK", body),
                        None => (*answer.lock().unwrap(), Vec::new()),
                    };
                    seen.lock().unwrap().push(path);
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                        body.len()
                    );
                    connection.write_all(head.as_bytes()).unwrap();
                    // A client that refuses the answer closes the connection early.
                    drop(connection.write_all(&body));
                });
            }
        });
        Self {
            url,
            asked,
            files,
            missing,
            wanted,
        }
    }

    /// Answers 401 to requests without this user and password from now on.
    pub(crate) fn wants(&self, user: &str, password: &str) {
        let pair = data_encoding::BASE64.encode(format!("{user}:{password}").as_bytes());
        *self.wanted.lock().unwrap() = Some(format!("Basic {pair}\r\n"));
    }

    /// Answers with this status for a file that is not there.
    pub(crate) fn without(self, missing: &'static str) -> Self {
        *self.missing.lock().unwrap() = missing;
        self
    }

    /// Serves other files from now on.
    pub(crate) fn replace(&self, files: HashMap<String, Vec<u8>>) {
        *self.files.lock().unwrap() = files;
    }

    /// The requested paths, sorted.
    pub(crate) fn asked(&self) -> Vec<String> {
        let mut asked = self.asked.lock().unwrap().clone();
        asked.sort();
        asked
    }
}
