//! Logins of mirrors and registries: sent where they belong, and in no output.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::{stderr, stdout};

/// A server that wants `joe` and this password: it has checksums, and nothing else. Gives its address, and how many requests had
/// them.
fn private(password: &str) -> (String, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let pair = data_encoding::BASE64.encode(format!("joe:{password}").as_bytes());
    let known = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = known.clone();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut head = Vec::new();
            let mut piece = [0; 4096];
            while !head.ends_with(b"\r\n\r\n") {
                match connection.read(&mut piece).unwrap() {
                    0 => break,
                    n => head.extend_from_slice(&piece[..n]),
                }
            }
            let head = String::from_utf8_lossy(&head);
            let is_known = head.contains(&format!("Basic {pair}\r\n"));
            count.fetch_add(usize::from(is_known), std::sync::atomic::Ordering::SeqCst);
            let sum = "a".repeat(64);
            let (status, body) = match (is_known, head.contains("sha256")) {
                (true, true) => ("200 OK", sum.as_str()),
                (true, false) => ("404 Not Found", ""),
                (false, _) => (
                    "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"",
                    "",
                ),
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            // A client may have gone.
            drop(connection.write_all(answer.as_bytes()));
        }
    });
    (host, known)
}

/// A folder with a recipe, files of logins, and a credential helper.
struct Logins {
    folder: tempfile::TempDir,
    mirror: String,
    registry: String,
}

impl Logins {
    fn new(mirror: String, registry: String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text);
        let recipe = "image = { name = 'a', version = '1' }\n\
                      kernel = { package = 'linux-image-amd64', platforms = ['qemu'] }\n";
        write("a.toml", recipe.to_owned()).unwrap();
        let machine = format!("machine http://{mirror} login joe password s3cr3t-word");
        write("auth", machine).unwrap();
        let helper = "#!/bin/sh\nread -r server\necho '{\"Username\":\"joe\",\"Secret\":\"s3cr3t-image\"}'\n";
        write("docker-credential-t", helper.to_owned()).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path().join("docker-credential-t"), mode).unwrap();
        let config = format!("{{\"credHelpers\": {{\"{registry}\": \"t\"}}}}");
        write("config.json", config).unwrap();
        Self {
            folder,
            mirror,
            registry,
        }
    }

    /// What the program says, all of it, of which none is a password.
    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> String {
        let here = self.folder.path().display();
        let path = format!("{here}:{}", std::env::var("PATH").unwrap());
        let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(["-vv", "--json"])
            .args(words)
            .current_dir(&self.folder)
            .env("HOME", self.folder.path())
            .env("PATH", path)
            .env("SLIPWAY_CACHE", self.folder.path().join("cache"))
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(!output.status.success());
        let said = stdout(&output) + &stderr(&output);
        // Plain, behind `joe:` and alone in base64.
        for secret in ["s3cr3t-", "am9lOnMzY3IzdC", "czNjcjN0L"] {
            assert!(!said.contains(secret), "{words:?} {variables:?}\n{said}");
        }
        said
    }

    fn lock(&self, mirror: &str, variable: (&str, &str)) -> String {
        self.run(
            &["lock", "a.toml"],
            &[("SLIPWAY_DEBIAN_MIRROR", mirror), variable],
        )
    }

    /// The state of this host, with this mirror, which cannot be had.
    fn doctor(&self, mirror: &str, variable: (&str, &str)) -> String {
        let variables = [("SLIPWAY_DEBIAN_MIRROR", mirror), variable];
        let said = self.run(&["doctor"], &variables);
        assert!(said.contains("Debian mirror"), "{said}");
        said
    }

    fn release(&self, variable: (&str, &str)) -> String {
        let server = format!("http://{}", self.mirror);
        let servers = [
            "--from",
            &server,
            "--github",
            &server,
            "--registry",
            &self.registry,
        ];
        let words = [&["release", "add", "1.36.3"][..], &servers[..]].concat();
        self.run(&words, &[("SLIPWAY_AUTH_FILE", "auth"), variable])
    }
}

/// Each way in which a login reaches the program: it is sent, and the program says nothing of it, however much it says.
#[test]
fn no_output_has_a_login_whichever_way_it_came() {
    let (mirror, known) = private("s3cr3t-word");
    let (registry, pulls) = private("s3cr3t-image");
    let is_sent = |count: &std::sync::atomic::AtomicUsize| {
        count.swap(0, std::sync::atomic::Ordering::SeqCst) > 0
    };
    let bench = Logins::new(mirror.clone(), registry.clone());
    let plain = format!("http://{mirror}/debian");
    let machine = |word: &str| format!("machine http://{mirror} login joe password {word}");

    let with_login = format!("http://joe:s3cr3t-word@{mirror}/debian");
    bench.lock(&with_login, ("LANG", "C"));
    assert!(is_sent(&known), "in the URL");
    bench.lock(&plain, ("SLIPWAY_AUTH", &machine("s3cr3t-word")));
    assert!(is_sent(&known), "the variable");
    bench.lock(&plain, ("SLIPWAY_AUTH_FILE", "auth"));
    assert!(is_sent(&known), "the file");
    let said = bench.lock(&plain, ("SLIPWAY_AUTH", &machine("s3cr3t-wrong")));
    assert!(
        said.contains("come from the variable SLIPWAY_AUTH"),
        "{said}"
    );
    let said = bench.lock(&plain, ("SLIPWAY_AUTH_FILE", "s3cr3t"));
    assert!(said.contains("No such file"), "{said}");
    for wrong in [
        "ftp://joe:s3cr3t-word@a.example",
        "joe:s3cr3t-word@a.example/debian",
    ] {
        let said = bench.lock(wrong, ("LANG", "C"));
        assert!(said.contains("is not an http or https URL"), "{said}");
    }
    assert!(!is_sent(&known));

    let config = |word: &str| {
        let auth = data_encoding::BASE64.encode(format!("joe:{word}").as_bytes());
        format!("{{\"auths\": {{\"{registry}\": {{\"auth\": \"{auth}\"}}}}}}")
    };
    bench.release(("DOCKER_AUTH_CONFIG", &config("s3cr3t-image")));
    assert!(is_sent(&known) && is_sent(&pulls), "docker's variable");
    bench.release(("DOCKER_CONFIG", "."));
    assert!(is_sent(&pulls), "a credential helper");
    let said = bench.release(("DOCKER_AUTH_CONFIG", &config("s3cr3t-wrong")));
    assert!(
        said.contains("come from the variable DOCKER_AUTH_CONFIG"),
        "{said}"
    );
    let said = bench.release(("DOCKER_AUTH_CONFIG", "{\"auths\": \"s3cr3t-word\"}"));
    assert!(
        said.contains("is not of the form of docker's config.json"),
        "{said}"
    );
    let said = bench.release(("LANG", "C"));
    assert!(
        said.contains(&format!("no login of http://{registry} is known")),
        "{said}"
    );
    assert!(!is_sent(&pulls));
}

/// `doctor` names the mirror, and sends it the login, and says nothing of that, whatever comes of the request.
#[test]
fn doctor_names_a_mirror_without_its_password() {
    let (mirror, known) = private("s3cr3t-word");
    let bench = Logins::new(mirror.clone(), mirror.clone());
    let plain = format!("http://{mirror}/debian");
    let is_sent = || known.swap(0, std::sync::atomic::Ordering::SeqCst) > 0;

    let with_login = format!("http://joe:s3cr3t-word@{mirror}/debian");
    let said = bench.doctor(&with_login, ("LANG", "C"));
    assert!(said.contains(&plain) && is_sent(), "in the URL: {said}");
    let said = bench.doctor(&plain, ("SLIPWAY_AUTH_FILE", "auth"));
    assert!(said.contains(&plain) && is_sent(), "the file: {said}");

    let wrong = format!("http://joe:s3cr3t-wrong@{mirror}/debian");
    let said = bench.doctor(&wrong, ("LANG", "C"));
    assert!(said.contains(&plain) && said.contains("401"), "{said}");
    // Nothing listens there.
    let dead = "http://joe:s3cr3t-word@127.0.0.1:9/debian";
    let said = bench.doctor(dead, ("LANG", "C"));
    assert!(said.contains("http://127.0.0.1:9/debian"), "{said}");
    for mistaken in [
        "ftp://joe:s3cr3t-word@a.example",
        "joe:s3cr3t-word@a.example/debian",
    ] {
        let said = bench.doctor(mistaken, ("LANG", "C"));
        assert!(said.contains("is not an http or https URL"), "{said}");
    }
    assert!(!is_sent());
}
