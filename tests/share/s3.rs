//! A server of S3's protocol on loopback: it computes each signature itself, holds content to its hash, and has faults on demand.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>,
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>,
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html>

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

pub(crate) const KEY: &str = "AKIDEXAMPLE";
pub(crate) const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
pub(crate) const REGION: &str = "eu-test-1";

/// What a server does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// 403 for everything.
    Denied,
    /// 500 for everything.
    Internal,
    /// 503 `SlowDown` for everything.
    SlowDown,
    /// Content ends before its length.
    CutOff,
    /// 503 for each second request.
    Sometimes,
    /// 500 for the first attempt of each part.
    Part,
    /// 500 for every second part, always.
    Parts,
    /// Parts are not answered.
    Silent,
    /// 200 with an error that may pass in its content, for the first attempt to complete.
    Completing,
    /// 200 with an error that does not pass.
    Completed,
    /// The parts are put together, and the answer is lost.
    Lost,
}

/// The least size of all parts but the last, bytes.
const LEAST: usize = 5 << 20;

/// An upload in parts: the object, and its parts by their numbers.
#[derive(Debug)]
struct Begun {
    path: String,
    parts: BTreeMap<u32, Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, Begun>,
    begun: usize,
    fault: Option<Fault>,
    asked: Vec<String>,
    refused: Vec<String>,
}

/// The server.
#[derive(Clone, Debug)]
pub(crate) struct S3 {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl S3 {
    pub(crate) fn serve() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(&connection.unwrap(), &state));
            }
        });
        Self { url, state }
    }

    pub(crate) fn fail(&self, fault: Option<Fault>) {
        self.state.lock().unwrap().fault = fault;
    }

    /// The requests since the last call, as `METHOD /path`.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    /// Why requests were refused that no fault asked for.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.state.lock().unwrap().refused.clone()
    }

    pub(crate) fn objects(&self) -> usize {
        self.state.lock().unwrap().objects.len()
    }

    pub(crate) fn object(&self, path: &str) -> Option<Vec<u8>> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    /// The uploads that were begun and neither completed nor taken back.
    pub(crate) fn uploads(&self) -> usize {
        self.state.lock().unwrap().uploads.len()
    }
}

fn serve(connection: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(connection);
    while let Some(request) = read(&mut reader) {
        let (status, body, cut) = answer(&request, &mut state.lock().unwrap());
        let length = body.len();
        let mut out = connection;
        if status.is_empty() {
            return;
        }
        // What the client gives back when the parts are put together.
        let tag = match request.path.contains("?partNumber=") {
            true => format!("ETag: {}\r\n", etag(&request.body)),
            false => String::new(),
        };
        let head = format!("HTTP/1.1 {status}\r\n{tag}Content-Length: {length}\r\n\r\n");
        if out.write_all(head.as_bytes()).is_err() {
            return;
        }
        if request.method != "HEAD" {
            let end = if cut { length / 2 } else { length };
            out.write_all(&body[..end]).ok();
        }
        if cut {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or("0", String::as_str);
    let mut body = vec![0; length.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        headers,
        body,
    })
}

fn answer(request: &Request, state: &mut State) -> (&'static str, Vec<u8>, bool) {
    let Request { method, path, .. } = request;
    state.asked.push(format!("{method} {path}"));
    let error = |code: &str| format!("<Error><Code>{code}</Code></Error>").into_bytes();
    let refuse = |state: &mut State, status, code: &str| {
        state.refused.push(format!("{method} {path}: {code}"));
        (status, error(code), false)
    };
    let is_even = state.asked.len().is_multiple_of(2);
    match state.fault {
        Some(Fault::Denied) => return ("403 Forbidden", error("AccessDenied"), false),
        Some(Fault::Internal) => {
            return ("500 Internal Server Error", error("InternalError"), false);
        }
        Some(Fault::SlowDown) => return ("503 Slow Down", error("SlowDown"), false),
        Some(Fault::Sometimes) if is_even => return ("503 Slow Down", error("SlowDown"), false),
        _ => {}
    }
    if let Err(code) = check(request) {
        return refuse(state, "403 Forbidden", &code);
    }
    let sum = request.headers.get("x-amz-content-sha256");
    if sum.is_none_or(|sum| *sum != HEXLOWER.encode(&Sha256::digest(&request.body))) {
        return refuse(state, "400 Bad Request", "XAmzContentSHA256Mismatch");
    }
    if let Some((path, query)) = path.split_once('?') {
        let (status, body) = in_parts(request, (path, query), state);
        if status.starts_with('4') {
            state.refused.push(format!(
                "{method} {path}: {}",
                String::from_utf8_lossy(&body)
            ));
        }
        return (status, body, false);
    }
    let cut = state.fault == Some(Fault::CutOff);
    match (method.as_str(), state.objects.get(path)) {
        ("PUT", _) => {
            state.objects.insert(path.clone(), request.body.clone());
            ("200 OK", Vec::new(), false)
        }
        ("GET" | "HEAD", Some(body)) => ("200 OK", body.clone(), cut && method == "GET"),
        ("GET" | "HEAD", None) => ("404 Not Found", error("NoSuchKey"), false),
        _ => refuse(state, "405 Method Not Allowed", "MethodNotAllowed"),
    }
}

fn etag(part: &[u8]) -> String {
    format!("\"{}\"", &HEXLOWER.encode(&Sha256::digest(part))[..32])
}

/// The requests of an upload in parts.
fn in_parts(
    request: &Request,
    (path, query): (&str, &str),
    state: &mut State,
) -> (&'static str, Vec<u8>) {
    let fields: BTreeMap<&str, &str> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let id = fields.get("uploadId").copied().unwrap_or_default();
    match (request.method.as_str(), fields.get("partNumber")) {
        ("POST", None) if query == "uploads=" => {
            state.begun += 1;
            // Its characters have to be encoded in a query.
            let (id, encoded) = (
                format!("{}/+=", state.begun),
                format!("{}%2F%2B%3D", state.begun),
            );
            let parts = BTreeMap::new();
            state.uploads.insert(
                encoded,
                Begun {
                    path: path.to_owned(),
                    parts,
                },
            );
            let text = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<InitiateMultipartUploadResult \
                 xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><UploadId>{id}</UploadId>\
                 </InitiateMultipartUploadResult>"
            );
            ("200 OK", text.into_bytes())
        }
        _ if state.uploads.get(id).is_none_or(|begun| begun.path != path) => {
            ("404 Not Found", error("NoSuchUpload"))
        }
        ("PUT", Some(number)) => {
            let number: u32 = number.parse().unwrap();
            let times = state
                .asked
                .iter()
                .filter(|asked| asked.contains(query))
                .count();
            match state.fault {
                Some(Fault::Part) if times == 1 => {
                    return ("500 Internal Server Error", error("InternalError"));
                }
                Some(Fault::Parts) if number.is_multiple_of(2) => {
                    return ("500 Internal Server Error", error("InternalError"));
                }
                Some(Fault::Silent) => return ("", Vec::new()),
                _ => {}
            }
            let begun = state.uploads.get_mut(id).unwrap();
            begun.parts.insert(number, request.body.clone());
            ("200 OK", Vec::new())
        }
        ("DELETE", None) => {
            state.uploads.remove(id);
            ("204 No Content", Vec::new())
        }
        ("POST", None) => completed(request, (path, query), id, state),
        _ => ("405 Method Not Allowed", error("MethodNotAllowed")),
    }
}

fn error(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>as documented</Message></Error>").into_bytes()
}

/// The end of an upload in parts. Its status is sent before the work is done, with white space meanwhile.
fn completed(
    request: &Request,
    (path, query): (&str, &str),
    id: &str,
    state: &mut State,
) -> (&'static str, Vec<u8>) {
    let times = state
        .asked
        .iter()
        .filter(|asked| asked.contains(query) && asked.starts_with("POST"));
    let begin = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n    \n".to_vec();
    match state.fault {
        Some(Fault::Completing) if times.count() == 1 => {
            return ("200 OK", [begin, error("InternalError")].concat());
        }
        Some(Fault::Completed) => return ("200 OK", [begin, error("InvalidPart")].concat()),
        _ => {}
    }
    let list = String::from_utf8_lossy(&request.body);
    match assemble(&list, &state.uploads[id].parts) {
        Ok(object) => {
            state.uploads.remove(id);
            state.objects.insert(path.to_owned(), object);
            let text =
                b"<CompleteMultipartUploadResult><ETag>x-3</ETag></CompleteMultipartUploadResult>";
            match state.fault {
                Some(Fault::Lost) => ("", Vec::new()),
                _ => ("200 OK", [begin, text.to_vec()].concat()),
            }
        }
        Err(code) => ("400 Bad Request", error(code)),
    }
}

/// The object of the parts that a list names.
fn assemble(list: &str, parts: &BTreeMap<u32, Vec<u8>>) -> Result<Vec<u8>, &'static str> {
    let list = list
        .strip_prefix("<CompleteMultipartUpload>")
        .and_then(|list| list.strip_suffix("</CompleteMultipartUpload>"))
        .ok_or("MalformedXML")?;
    let mut object = Vec::new();
    let mut last = 0;
    let named: Vec<&str> = list.split_inclusive("</Part>").collect();
    for (at, part) in named.iter().enumerate() {
        let field = |name: &str| {
            let (_, rest) = part.split_once(&format!("<{name}>"))?;
            Some(
                rest.split_once(&format!("</{name}>"))?
                    .0
                    .replace("&quot;", "\""),
            )
        };
        let number = field("PartNumber").and_then(|number| number.parse().ok());
        let (number, tag): (u32, _) = number.zip(field("ETag")).ok_or("MalformedXML")?;
        let content = parts.get(&number).filter(|content| etag(content) == tag);
        let content = content.ok_or("InvalidPart")?;
        if number <= last || number > 10_000 {
            return Err("InvalidPartOrder");
        }
        if at + 1 < named.len() && content.len() < LEAST {
            return Err("EntityTooSmall");
        }
        last = number;
        object.extend_from_slice(content);
    }
    match object.is_empty() {
        true => Err("MalformedXML"),
        false => Ok(object),
    }
}

/// Computes the signature of a request from what came over the wire.
fn check(request: &Request) -> Result<(), String> {
    let header = |name: &str| {
        let value = request.headers.get(name).cloned();
        value.ok_or_else(|| format!("no header {name}"))
    };
    let authorization = header("authorization")?;
    let fields = authorization
        .strip_prefix("AWS4-HMAC-SHA256 ")
        .ok_or("another algorithm")?;
    let field = |name: &str| {
        let mut fields = fields.split(',').map(str::trim);
        let value = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value.map(str::to_owned).ok_or(format!("no {name}"))
    };
    let time = header("x-amz-date")?;
    let day = &time[..8];
    let scope = format!("{day}/{REGION}/s3/aws4_request");
    if field("Credential")? != format!("{KEY}/{scope}") {
        return Err("InvalidAccessKeyId".to_owned());
    }
    let names = field("SignedHeaders")?;
    if !names.split(';').any(|name| name == "host") {
        return Err("the host is not signed".to_owned());
    }
    let mut canonical = String::new();
    for name in names.split(';') {
        canonical += &format!("{name}:{}\n", header(name)?.trim());
    }
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    // Signed are the parameters in their order.
    if !query.is_empty() && !query.split('&').is_sorted() {
        return Err("SignatureDoesNotMatch".to_owned());
    }
    let payload = header("x-amz-content-sha256")?;
    let method = &request.method;
    let text = format!("{method}\n{path}\n{query}\n{canonical}\n{names}\n{payload}");
    let digest = HEXLOWER.encode(&Sha256::digest(text));
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for part in [day, REGION, "s3", "aws4_request"] {
        key = hmac(&key, part.as_bytes());
    }
    match field("Signature")? == HEXLOWER.encode(&hmac(&key, text.as_bytes())) {
        true => Ok(()),
        false => Err("SignatureDoesNotMatch".to_owned()),
    }
}

/// HMAC-SHA-256 (RFC 2104).
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    match key.len() > 64 {
        true => block[..32].copy_from_slice(&Sha256::digest(key)),
        false => block[..key.len()].copy_from_slice(key),
    }
    let inner = Sha256::digest([&block.map(|byte| byte ^ 0x36), text].concat());
    Sha256::digest([&block.map(|byte| byte ^ 0x5c)[..], &inner].concat()).to_vec()
}
