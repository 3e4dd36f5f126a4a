//! Machines and servers that stand for real ones in tests.

use std::fs;
use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use image::paths::{CLUSTER, HOSTNAME, RUN_ETCD_GATE, RUN_MANIFEST};
use linux::world::{Clock, World};

/// A machine whose image brings Kubernetes, with this cluster object.
pub(crate) fn machine(root: &Path, object: &str) -> World {
    let world = World::below(root, Clock::Real);
    put(&world.in_initrd(HOSTNAME), "Node1\n");
    put(&world.in_run(RUN_ETCD_GATE), "{\"required\": true}");
    let mut manifest: serde_json::Value = serde_json::from_str(include_str!(
        "../../image/tests/golden/contract-2/manifest.json"
    ))
    .unwrap();
    let images = ["kube-apiserver", "etcd"].map(|name| {
        let image = format!("slipway.local/{name}:3.5.16-0");
        (name.to_owned(), image.into())
    });
    manifest["kubernetes"]["images"] = images.into_iter().collect::<serde_json::Map<_, _>>().into();
    put(&world.in_run(RUN_MANIFEST), &manifest.to_string());
    put(&world.in_initrd(CLUSTER), object);
    world
}

pub(crate) fn put(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// A request that a server took.
#[derive(Debug)]
pub(crate) struct Request {
    /// Method and path.
    pub(crate) line: String,
    /// The header `Content-Type`.
    pub(crate) kind: String,
    pub(crate) body: String,
}

/// A server on loopback; `answer` gives the status and the body of each request. Returns its URL.
pub(crate) fn server(
    mut answer: impl FnMut(&Request) -> (u16, String) + Send + 'static,
) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let Some(request) = taken(&mut stream) else {
                continue;
            };
            let (status, body) = answer(&request);
            let head = format!(
                "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            stream
                .get_mut()
                .write_all((head + &body).as_bytes())
                .unwrap();
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (url, requests)
}

fn taken(stream: &mut impl std::io::BufRead) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        match line.trim_end() {
            "" => break,
            text => lines.push(text.to_owned()),
        }
    }
    let header = |name: &str| {
        let found = lines.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        });
        found.unwrap_or_default()
    };
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let (line, _) = lines.first()?.rsplit_once(' ')?;
    Some(Request {
        line: line.to_owned(),
        kind: header("content-type"),
        body: String::from_utf8(body).ok()?,
    })
}
