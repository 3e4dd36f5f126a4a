pub(crate) mod fetching;
mod sources;
mod spec2;

use super::source::User;
use super::*;
use apply::gather::{ConfigProblems, Gather, Settings};

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use linux::world::Clock;
use sha2::{Digest, Sha256};

/// A server on loopback: each request goes to a function with its number, path and headers.
pub(crate) struct Server {
    pub(crate) base: String,
    pub(crate) log: Arc<Mutex<Vec<(String, String)>>>,
}

pub(crate) type Answer = dyn Fn(usize, &str, &mut TcpStream) + Send + Sync;

pub(crate) fn serve(answer: Box<Answer>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let log: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let (answer, seen, count) = (
        Arc::new(answer),
        Arc::clone(&log),
        Arc::new(AtomicUsize::new(0)),
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, seen, count) =
                (Arc::clone(&answer), Arc::clone(&seen), Arc::clone(&count));
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut head = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while reader.read_line(&mut head).unwrap_or(0) > 2 {}
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                seen.lock().unwrap().push((path.clone(), head));
                answer(count.fetch_add(1, Ordering::SeqCst), &path, &mut stream);
            });
        }
    });
    Server { base, log }
}

pub(crate) fn reply(stream: &mut TcpStream, status: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
}

fn gathered_on(
    metadata: Metadata,
    base: Option<&str>,
    user: Option<ConfigSource>,
) -> Result<Fetched, ConfigProblems> {
    gathered_with(&settings(), metadata, base, user)
}

fn settings() -> Settings {
    Settings {
        patience: fetch::Patience {
            first_wait: Duration::from_millis(5),
            header_timeout: Duration::from_secs(5),
            ..Settings::default().patience
        },
        ..Settings::default()
    }
}

fn gathered_with(
    settings: &Settings,
    metadata: Metadata,
    base: Option<&str>,
    user: Option<ConfigSource>,
) -> Result<Fetched, ConfigProblems> {
    let base = base.map(|text| text_of("base", text));
    let user = User {
        place: user,
        metadata,
    };
    let identity = fetch::Identity::Ec2Role;
    let mut gather = Gather::new(settings, &|| Ok(()), identity);
    layers::gather_all(
        &mut gather,
        base.as_ref(),
        platform::providers::by_id("aws").unwrap(),
        &user,
    )
}

fn gathered(base: Option<&str>, user: Option<ConfigSource>) -> Result<Fetched, ConfigProblems> {
    gathered_on(Metadata::default(), base, user)
}

pub(crate) fn text_of(name: &str, text: &str) -> ConfigSource {
    ConfigSource::Text(text.as_bytes().to_vec(), name.to_owned())
}

pub(crate) fn config(body: &str) -> String {
    format!(r#"{{"ignition": {{"version": "3.5.0"}}{body}}}"#)
}

fn file(path: &str, contents: &str) -> String {
    config(&format!(
        r#", "storage": {{"files": [{{"path": "{path}", "contents": {contents}}}]}}"#
    ))
}

pub(crate) fn sha256(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

#[test]
fn without_a_config_there_is_an_empty_one() {
    for user in [None, Some(text_of("fw_cfg", " \n"))] {
        let fetched = gathered(None, user).unwrap();
        assert!(!fetched.user_config && fetched.files.is_empty());
    }
}

#[test]
fn the_users_word_is_over_the_bases() {
    let base = config(
        r#", "storage": {"files": [{"path": "/a", "mode": 420, "contents": {"source": "data:,base"}}]}"#,
    );
    let user = file("/a", r#"{"source": "data:,user"}"#);
    let fetched = gathered(Some(&base), Some(text_of("user", &user))).unwrap();
    assert_eq!(
        fetched.files[0]
            .contents
            .as_ref()
            .and_then(Content::in_memory),
        Some(b"user".as_slice())
    );
    assert_eq!(
        fetched.model.storage.unwrap().files.unwrap()[0].mode,
        Some(420)
    );
    assert!(fetched.user_config);
    // Later boots recognise both texts.
    let known = [
        ("base", sha256(base.as_bytes())),
        ("user", sha256(user.as_bytes())),
    ];
    let known = known.map(|(name, sum)| (name.to_owned(), sum));
    assert_eq!(fetched.sources, known.into());
}

#[test]
fn butane_is_taken_at_boot_from_every_source() {
    let server = serve(Box::new(|_, _, stream| {
        let body = "variant: slipway\nversion: 1.0.0\nstorage:\n  files:\n    - path: /c\n      contents: {inline: C}\n";
        reply(stream, "200 OK", body.as_bytes());
    }));
    let base =
        "variant: slipway\nversion: 1.0.0\nstorage:\n  files:\n    - path: /a\n      mode: 0600\n";
    let user = format!(
        "variant: fcos\nversion: 1.5.0\nignition:\n  config:\n    merge:\n      - source: {}/c.bu\nstorage:\n  files:\n    - path: /a\n      contents:\n        inline: A\n    - path: /b\n      contents:\n        compression: gzip\n        source: data:;base64,H4sIAAAAAAAA/zMEALfv3IMBAAAA\n",
        server.base
    );
    let fetched = gathered(Some(base), Some(text_of("fw_cfg", &user))).unwrap();
    let files = fetched.model.storage.unwrap().files.unwrap();
    let paths: Vec<_> = files
        .iter()
        .map(|file| (file.path.as_str(), file.mode))
        .collect();
    assert_eq!(paths, [("/a", Some(0o600)), ("/b", None), ("/c", None)]);
    let contents: Vec<_> = fetched
        .files
        .iter()
        .map(|file| file.contents.clone().unwrap())
        .collect();
    assert_eq!(
        contents,
        [b"A", b"1", b"C"].map(|text| Content::Memory(text.to_vec()))
    );
    // Unsupported settings, with their positions.
    let wrong = gathered(
        None,
        Some(text_of(
            "fw_cfg",
            "variant: fcos\nversion: 1.5.0\nboot_device: {}\nstorage:\n  files:\n    - path: /a\n      contents: {local: x}\n",
        )),
    );
    let lines = wrong.unwrap_err().lines;
    assert!(
        lines[0].starts_with("fw_cfg:3:1: error: $.boot_device: "),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("fw_cfg:7:25: error: $.storage.files.0.contents.local: "),
        "{lines:?}"
    );
}

#[test]
fn node_settings_are_found() {
    let user = file(
        image::paths::NODE_SETTINGS,
        r#"{"source": "data:,role%20=%20%22worker%22"}"#,
    );
    let fetched = gathered(None, Some(text_of("user", &user))).unwrap();
    assert_eq!(
        settings_file(&fetched).and_then(|index| fetched.files[index]
            .contents
            .as_ref()
            .and_then(Content::in_memory)),
        Some(b"role = \"worker\"".as_slice())
    );
}

/// The mistake may be mended on the server, which is asked again.
#[test]
fn wrong_node_settings_of_a_server_are_a_problem_of_its_config() {
    let path = image::paths::NODE_SETTINGS;
    let text = file(path, r#"{"source": "data:,role%20%3D%20%22king%22"}"#);
    let answered = text.clone();
    let server = serve(Box::new(move |_, path, stream| {
        let body = match path == "/a" {
            true => answered.as_str(),
            false => "role = 'king'",
        };
        reply(stream, "200 OK", body.as_bytes());
    }));
    let of_server = file(path, &format!(r#"{{"source": "{}/b"}}"#, server.base));
    // Another file's server cannot mend it.
    let beside = text.replace(
        "\"files\": [",
        &format!(
            "\"files\": [{{\"path\": \"/etc/b\", \"contents\": {{\"source\": \"{}/b\"}}}}, ",
            server.base
        ),
    );
    let merges = format!(
        r#"{{"ignition": {{"version": "3.5.0", "config": {{"merge": [{{"source": "{}/a"}}]}}}}}}"#,
        server.base
    );
    for (config, remote) in [
        (&text, false),
        (&beside, false),
        (&merges, true),
        (&of_server, true),
    ] {
        let user = User {
            place: Some(text_of("user", config)),
            metadata: Metadata::default(),
        };
        let settings = settings();
        let mut gather = Gather::new(&settings, &|| Ok(()), fetch::Identity::Ec2Role);
        let aws = platform::providers::by_id("aws").unwrap();
        let fetched = layers::gather_all(&mut gather, None, aws, &user).unwrap();
        let wrong = check_settings(&NodeSettings::default(), &fetched).unwrap_err();
        assert_eq!(wrong.remote, remote);
        assert!(wrong.to_string().contains("king"), "{wrong}");
    }
}

#[test]
fn the_mistakes_of_both_configs_are_told_at_once() {
    let base = r#"{"ignition": {"version": "3.5.0"}, "storage": {"files": [{"path": "a"}]}}"#;
    let user = r#"{"ignition": {"version": "3.5.0"},
      "systemd": {"units": [{"name": "x"}]}, "passwd": {"users": [{"name": 1}]}}"#;
    let wrong = gathered(Some(base), Some(text_of("fw_cfg", user))).unwrap_err();
    let text = wrong.to_string();
    assert!(
        text.contains("base:1:67: error: $.storage.files.0.path: path not absolute"),
        "{text}"
    );
    assert!(
        text.contains("fw_cfg:2:76: error: $.passwd.users.0.name: expected a string"),
        "{text}"
    );
    assert!(!wrong.remote);
}

#[test]
fn chains_are_followed_and_what_is_merged_wins() {
    let server = serve(Box::new(|_, path, stream| {
        let body = match path {
            "/first" => config(
                r#", "storage": {"files": [{"path": "/f", "contents": {"source": "data:,first"}}]}"#,
            ),
            "/second" => file("/f", r#"{"source": "data:,second"}"#),
            "/other" => file("/g", r#"{"source": "data:,g"}"#),
            _ => String::new(),
        };
        reply(
            stream,
            if body.is_empty() {
                "404 Not Found"
            } else {
                "200 OK"
            },
            body.as_bytes(),
        );
    }));
    let base = &server.base;
    let user = format!(
        r#"{{"ignition": {{"version": "3.5.0", "config": {{"merge": [{{"source": "{base}/first"}},
            {{"source": "{base}/second"}}, {{"source": "{base}/other"}}]}}}}}}"#
    );
    let fetched = gathered(None, Some(text_of("user", &user))).unwrap();
    let paths: Vec<_> = fetched
        .model
        .storage
        .unwrap()
        .files
        .unwrap()
        .into_iter()
        .map(|f| f.path)
        .collect();
    assert_eq!(paths, ["/f", "/g"]);
    assert_eq!(
        fetched.files[0]
            .contents
            .as_ref()
            .and_then(Content::in_memory),
        Some(b"second".as_slice())
    );
    let replaced = format!(
        r#"{{"ignition": {{"version": "3.5.0", "config": {{"replace": {{"source": "{base}/other"}}}}}},
            "storage": {{"files": [{{"path": "/gone"}}]}}}}"#
    );
    let fetched = gathered(
        None,
        Some(ConfigSource::Url(format!("data:,{}", percent(&replaced)))),
    )
    .unwrap();
    assert_eq!(fetched.model.storage.unwrap().files.unwrap()[0].path, "/g");
    let log = server.log.lock().unwrap();
    let head = log[0].1.to_lowercase();
    assert!(
        head.contains("accept: application/vnd.coreos.ignition+json;version=3.6.0, */*;q=0.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("user-agent: ignition/") && head.contains("accept-encoding: identity"),
        "{head}"
    );
}

fn percent(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02x}")).collect()
}

#[test]
fn a_config_that_merges_itself_ends() {
    let own = Arc::new(Mutex::new(String::new()));
    let shared = Arc::clone(&own);
    let server = serve(Box::new(move |_, _, stream| {
        let url = shared.lock().unwrap().clone();
        let text = format!(
            r#"{{"ignition": {{"version": "3.5.0", "config": {{"merge": [{{"source": "{url}"}}]}}}}}}"#
        );
        reply(stream, "200 OK", text.as_bytes());
    }));
    *own.lock().unwrap() = server.base.clone();
    let wrong = gathered(None, Some(ConfigSource::Url(server.base.clone()))).unwrap_err();
    assert!(wrong.to_string().contains("more than 16 deep"), "{wrong}");
}

#[test]
fn a_packed_config_is_unpacked() {
    let mut packed = Vec::new();
    let plain = config("");
    let mut encoder = stored_gzip(&plain);
    encoder.read_to_end(&mut packed).unwrap();
    let fetched = gathered(None, Some(ConfigSource::Text(packed, "fw_cfg".to_owned()))).unwrap();
    assert!(fetched.user_config);
}

/// gzip with one stored block: no compressor is needed to make a valid one.
fn stored_gzip(text: &str) -> std::io::Cursor<Vec<u8>> {
    let data = text.as_bytes();
    let len = u16::try_from(data.len()).unwrap();
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    out.extend(len.to_le_bytes());
    out.extend((!len).to_le_bytes());
    out.extend(data);
    let mut crc = !0_u32;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    out.extend((!crc).to_le_bytes());
    out.extend(u32::from(len).to_le_bytes());
    std::io::Cursor::new(out)
}

#[test]
fn the_base_is_read_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let world = linux::world::World::below(folder.path(), linux::world::Clock::Real);
    assert!(source::base(&world).unwrap().is_none());
    let base = world.in_initrd(image::paths::INITRD_CONFIG);
    std::fs::create_dir_all(base.parent().unwrap()).unwrap();
    std::fs::write(&base, "base").unwrap();
    let Some(ConfigSource::Text(text, _)) = source::base(&world).unwrap() else {
        panic!()
    };
    assert_eq!(text, b"base");
}

#[test]
fn what_the_machine_says_stands_between_base_and_user() {
    let machine = || Metadata {
        hostname: Some("from-the-machine".to_owned()),
        ssh_keys: vec![platform::metadata::SshKey {
            user: None,
            key: "ssh-rsa MACHINE".to_owned(),
        }],
        ..Metadata::default()
    };
    let hostname = |fetched: &Fetched| {
        let files = fetched.model.storage.as_ref().unwrap().files.as_ref();
        let at = files
            .unwrap()
            .iter()
            .position(|f| f.path == "/etc/hostname");
        let contents = fetched.files[at.unwrap()].contents.as_ref();
        contents.and_then(Content::in_memory).unwrap().to_vec()
    };
    let base = file("/etc/hostname", r#"{"source": "data:,base"}"#);
    let fetched = gathered_on(machine(), Some(&base), None).unwrap();
    assert_eq!(hostname(&fetched), b"from-the-machine\n");
    assert!(!fetched.user_config);
    let users = fetched.model.passwd.unwrap().users.unwrap();
    assert_eq!(users[0].name, "root");
    // The user's value wins; keys of both are kept.
    let user = config(
        r#", "storage": {"files": [{"path": "/etc/hostname", "contents": {"source": "data:,user"}}]},
           "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["ssh-rsa USER"]}]}"#,
    );
    let fetched = gathered_on(machine(), Some(&base), Some(text_of("user", &user))).unwrap();
    assert_eq!(hostname(&fetched), b"user");
    let users = fetched.model.passwd.unwrap().users.unwrap();
    assert_eq!(users.len(), 1);
    let keys = users[0].ssh_authorized_keys.as_ref().unwrap();
    assert_eq!(keys, &["ssh-rsa MACHINE", "ssh-rsa USER"]);
}
