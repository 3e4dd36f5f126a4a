//! Bootstrap tokens of a running cluster: that of the cluster's beginning is valid for a day, so that a worker that comes later needs a new
//! one, or that one for another day.

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use api::{Api, is_temporary};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use cluster::duration::{Duration, time_after};
use cluster::kubeconfigs;
use cluster::objects::{self, Moment};
use serde_json::{Value, json};

use super::object::ClusterFile;
use super::secrets::{self, Secrets};
use crate::host::progress::Progress;

/// A token that is valid for less is made valid anew: a worker needs it from its power-on to its certificate.
const ENOUGH: Duration = Duration::hours(1);
/// How long a request may take while the machines come up, which are waited for meanwhile.
const REQUEST: std::time::Duration = std::time::Duration::from_secs(5);

/// Now, for objects of a cluster.
struct Now<'a> {
    secrets: &'a Secrets,
    now: SystemTime,
}

impl Moment for Now<'_> {
    fn authority(&self) -> String {
        let authority = self.secrets.pki.get("ca.crt");
        BASE64_STANDARD.encode(authority.map_or("", String::as_str))
    }

    fn expiry(&self, validity: Duration) -> String {
        BASE64_STANDARD.encode(time_after(self.now, validity))
    }

    fn token(&self) -> String {
        // The object has one.
        String::new()
    }
}

/// Makes a token in the cluster that this kubeconfig leads to, valid as long as those of the object, and gives it.
///
/// # Errors
/// If the API server does not answer, or refuses.
pub fn fresh(file: &ClusterFile, secrets: &Secrets, kubeconfig: &str) -> Result<String> {
    let token = secrets::token()?;
    let object = object(file, secrets, &token, SystemTime::now())?;
    client(kubeconfig)?
        .apply(&api::path(&object), &object)
        .context("making a bootstrap token")?;
    Ok(token)
}

/// A client of the API server that a kubeconfig names.
fn client(kubeconfig: &str) -> Result<Api> {
    let server = kubeconfigs::read(kubeconfig)
        .context("not a kubeconfig")?
        .server;
    Api::new(kubeconfig, &server)
}

/// The token of the secrets in a cluster that was started before: the configs of its workers have it, and it may have ended.
#[derive(Debug)]
pub struct OwnToken<'a> {
    file: &'a ClusterFile,
    secrets: &'a Secrets,
    api: Api,
    /// Whether it is valid, or the API server refuses it.
    done: bool,
}

impl<'a> OwnToken<'a> {
    /// The token in the cluster that this kubeconfig leads to.
    ///
    /// # Errors
    /// If the kubeconfig has mistakes.
    pub fn new(file: &'a ClusterFile, secrets: &'a Secrets, kubeconfig: &str) -> Result<Self> {
        Ok(Self {
            file,
            secrets,
            api: client(kubeconfig)?.within(REQUEST),
            done: false,
        })
    }

    /// Makes the token valid for another time if it has ended or is about to. It is called again and again while workers are waited for:
    /// the API server may not answer yet.
    pub fn keep_valid(&mut self, now: SystemTime, progress: &Progress) {
        if self.done {
            return;
        }
        match self.renew(now) {
            // It is looked at once more: the cluster may have been removing the one that had ended.
            Ok(true) => progress.say("the bootstrap token had ended; it is valid again"),
            Ok(false) => self.done = true,
            Err(error) if is_temporary(&error) => tracing::debug!("{error:#}"),
            Err(error) => {
                self.done = true;
                progress.warn(&format!("the bootstrap token may have ended: {error:#}"));
            }
        }
    }

    /// Whether the token was made valid.
    fn renew(&self, now: SystemTime) -> Result<bool> {
        let object = object(self.file, self.secrets, &self.secrets.token, now)?;
        let path = api::path(&object);
        let there = self.api.get(&path)?;
        if there.is_some_and(|there| lasts(&there, now)) {
            return Ok(false);
        }
        self.api.apply(&path, &object)?;
        Ok(true)
    }
}

/// Whether a token's secret is valid for long enough. One without an end is.
fn lasts(secret: &Value, now: SystemTime) -> bool {
    let Some(end) = secret["data"]["expiration"].as_str() else {
        return true;
    };
    // Times of this form are in order as texts. One that cannot be read is not valid for the API server either.
    BASE64_STANDARD
        .decode(end)
        .is_ok_and(|end| end >= time_after(now, ENOUGH).into_bytes())
}

/// The secret by which the API server knows a token.
fn object(file: &ClusterFile, secrets: &Secrets, token: &str, now: SystemTime) -> Result<Value> {
    let mut fields = file.fields();
    fields.insert("tokens".to_owned(), json!([token]));
    let text = serde_json::to_string(&fields)?;
    let with_token = ClusterFile::parse(file.path(), &text)?;
    let objects = objects::objects(with_token.config(), &Now { secrets, now });
    let mut values = objects.into_iter().map(|object| object.value);
    values
        .find(|value| value["type"] == "bootstrap.kubernetes.io/token")
        .context("the object's token has no secret")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration as Time;

    use super::*;
    use crate::host::progress::Kind;

    /// The method and the body of a request.
    fn request(stream: &mut BufReader<TcpStream>) -> (String, Value) {
        let (mut method, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let line = line.trim_end().to_lowercase();
            if line.is_empty() {
                break;
            }
            if method.is_empty() {
                method = line.split(' ').next().unwrap_or_default().to_owned();
            }
            if let Some(number) = line.strip_prefix("content-length:") {
                length = number.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        (method, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// An API server that has this secret or none, and takes another one; with the requests that it gets.
    fn server(mut secret: Option<Value>) -> (Api, Receiver<(String, Value)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (method, body) = request(&mut stream);
                if method == "patch" {
                    secret = Some(body.clone());
                }
                let (status, answer) = match &secret {
                    Some(secret) => (200, secret.to_string()),
                    None => (404, "{}".to_owned()),
                };
                // Before the answer: who has that looks for the request at once.
                if sender.send((method, body)).is_err() {
                    return;
                }
                let head = format!(
                    "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    answer.len()
                );
                let answer = head + &answer;
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        (Api::plain(&url).unwrap(), requests)
    }

    /// A worker that is added to a cluster of the day before could never join.
    #[test]
    fn a_token_that_has_ended_is_made_valid_and_one_that_has_not_is_left() {
        let text = "name = \"blue\"\nendpoint = \"api.example.test\"\n";
        let file = ClusterFile::parse(Path::new("blue.toml"), text).unwrap();
        let now = SystemTime::UNIX_EPOCH + Time::from_secs(1_800_000_000);
        let secrets = Secrets::make(file.config(), now).unwrap();
        let progress = Progress::new(Kind::Quiet);
        let of = |api| OwnToken {
            file: &file,
            secrets: &secrets,
            api,
            done: false,
        };
        let until = |end: &str| Some(json!({"data": {"expiration": BASE64_STANDARD.encode(end)}}));
        for (there, expected) in [
            (until("2027-01-15T07:59:59Z"), "get patch get"),
            // A worker would not be up in time.
            (until("2027-01-15T08:59:59Z"), "get patch get"),
            (until("2027-01-15T09:00:00Z"), "get"),
            // The cluster has removed it.
            (None, "get patch get"),
            (Some(json!({"data": {}})), "get"),
        ] {
            let shown = format!("{there:?}");
            let (api, requests) = server(there);
            let mut own = of(api);
            for _ in 0..3 {
                own.keep_valid(now, &progress);
            }
            let asked: Vec<(String, Value)> = requests.try_iter().collect();
            let methods: Vec<&str> = asked.iter().map(|(method, _)| method.as_str()).collect();
            assert_eq!(methods.join(" "), expected, "{shown}");
            for (_, sent) in asked.iter().filter(|(method, _)| method == "patch") {
                let end = BASE64_STANDARD.encode("2027-01-16T08:00:00Z");
                assert_eq!(sent["data"]["expiration"], end, "{shown}");
                let secret = secrets.token.split('.').next_back().unwrap();
                let secret = BASE64_STANDARD.encode(secret);
                assert_eq!(sent["data"]["token-secret"], secret, "{shown}");
            }
        }
        // A port that nobody has: it is asked again.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let mut own = of(Api::plain(&url).unwrap());
        own.keep_valid(now, &progress);
        assert!(!own.done);
    }

    #[test]
    fn a_new_token_is_the_secret_that_kubeadm_makes() {
        let text = "name = \"blue\"\nendpoint = \"api.example.test\"\n";
        let file = ClusterFile::parse(Path::new("blue.toml"), text).unwrap();
        let now = SystemTime::UNIX_EPOCH + Time::from_secs(1_800_000_000);
        let secrets = Secrets::make(file.config(), now).unwrap();
        let object = object(&file, &secrets, "abcdef.0123456789abcdef", now).unwrap();
        let path = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";
        assert_eq!(api::path(&object), path);
        let field = |name: &str| {
            let text = object["data"][name].as_str().unwrap_or_default();
            String::from_utf8(BASE64_STANDARD.decode(text).unwrap()).unwrap()
        };
        for (name, value) in [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            // A day later.
            ("expiration", "2027-01-16T08:00:00Z"),
            ("usage-bootstrap-authentication", "true"),
            ("usage-bootstrap-signing", "true"),
            (
                "auth-extra-groups",
                "system:bootstrappers:kubeadm:default-node-token",
            ),
        ] {
            assert_eq!(field(name), value, "{name}");
        }
    }
}
