//! `[[containerd.mirrors]]` before Debian's own containerd: it asks the mirror, goes on to the registry when the mirror is down or
//! has nothing, and does not where the recipe says so. By TLS it trusts the recipe's authorities, those of `[ca]` in the bundle of the
//! system. A header that a mirror asks for comes from a file of the recipe, or from one of the node's config.
//!
//! Without the standard harness, since an ordinary user becomes root of a namespace before the first thread starts.
#![allow(clippy::print_stdout, reason = "a test talks to who runs it")]
#![allow(clippy::unwrap_used, reason = "a server of a test may panic")]

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use data_encoding::HEXLOWER;
use ignition::contents::open;
use ignition::data_url;
use image::paths::{CA_BUNDLE, CERTIFICATES};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest as _, Sha256};
use slipway::host::progress::Kind;
use slipway::host::sandbox::become_root_of_namespace;
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::layer::Entry;
use slipway::recipe::{FileKind, Recipe, SetRequest, load, node_config};
use slipway::{lock, oci};

const TEST: &str = "debians_containerd_pulls_through_the_mirrors_of_a_recipe";
/// Path of the test's files inside the sandbox.
const PLACE: &str = "/w";
/// The page that shows how a node's config brings the header of a mirror.
const PAGE: &str = "docs/write-a-recipe.md";
/// The value of that header: user and password in base64, and what is secret of it.
const LOGIN: &str = "Basic bWU6aHVudGVyMg==";
const SECRET: &str = "bWU6aHVudGVyMg";
/// Where containerd's own files are on a node.
const CONTAINERD: &str = "/etc/containerd/";
/// The size limit of a file of the config, bytes.
const LIMIT: u64 = 1 << 20;
/// containerd without what needs a node.
const CONFIG: &str = r#"version = 2
root = "/w/root"
state = "/w/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = "/w/containerd.sock"
"#;
/// Starts containerd and fetches an image by its client, which reads the folder of registries as the runtime interface does.
const SCRIPT: &str = r#"
containerd -c /w/config.toml >/w/log 2>&1 &
for i in $(seq 100); do
    ctr -a /w/containerd.sock version >/dev/null 2>&1 && break
    sleep 0.1
done
exec ctr -a /w/containerd.sock content fetch --plain-http --hosts-dir /w/certs.d "$1" 2>&1
"#;

fn main() -> Result<()> {
    become_root_of_namespace()?;
    let session = Session::open(Kind::Quiet)?;
    let containerd = containerd(&session)?;
    let bench = Bench::new(&containerd)?;
    bench.mirror_first()?;
    bench.down()?;
    bench.default()?;
    bench.alone()?;
    bench.blobs_alone()?;
    bench.by_tls()?;
    bench.header_of_a_file()?;
    bench.header_of_a_config()?;
    println!("test {TEST} ... ok");
    Ok(())
}

/// Debian's containerd, and a shell.
fn containerd(session: &Session) -> Result<Tools> {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/node.toml");
    let recipe = load(&recipe).map_err(|mistakes| anyhow!("{mistakes}"))?;
    let request = SetRequest {
        name: "tools-mirrors".into(),
        // The last one for its folder of certificates.
        packages: ["containerd", "coreutils", "dash", "ca-certificates"]
            .map(str::to_owned)
            .into(),
        dependencies: true,
        essential: false,
        recommends: false,
        backports: Vec::new(),
    };
    let locked = lock::resolve(session, &recipe, std::slice::from_ref(&request))?;
    tools::install(
        session,
        &request.name,
        &locked.fetch(session, &request.name)?,
    )
}

type Files = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// A registry on loopback, and what was asked of it.
struct Registry {
    host: String,
    files: Files,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    fn new() -> Result<Self> {
        Self::with(answer)
    }

    /// A registry that answers only to requests with this header.
    fn wanting(name: &'static str, value: &'static str) -> Result<Self> {
        Self::with(move |stream, files, asked| {
            answer_if(stream, files, asked, |head| {
                let mut fields = head.lines().filter_map(|line| line.split_once(": "));
                fields.any(|(field, found)| field.eq_ignore_ascii_case(name) && found == value)
            });
        })
    }

    /// A registry by TLS; gives also the authority of its certificate, PEM.
    fn by_tls() -> Result<(Self, String)> {
        let mut authority = rcgen::CertificateParams::default();
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, "Corp Root");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate()?;
        let pem = authority.self_signed(&key)?.pem();
        let issuer = rcgen::Issuer::new(authority, key);
        let own = rcgen::KeyPair::generate()?;
        let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])?;
        let certificate = certificate.signed_by(&own, &issuer)?;
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let config = Arc::new(config);
        let registry = Self::with(move |stream, files, asked| {
            let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            answer(rustls::StreamOwned::new(session, stream), files, asked);
        })?;
        Ok((registry, pem))
    }

    fn with(
        serve: impl Fn(TcpStream, &Files, &Mutex<Vec<String>>) + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let this = Self {
            host: listener.local_addr()?.to_string(),
            files: Files::default(),
            asked: Arc::default(),
        };
        let (files, asked) = (this.files.clone(), this.asked.clone());
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (files, asked, serve) = (files.clone(), asked.clone(), Arc::clone(&serve));
                std::thread::spawn(move || serve(connection.unwrap(), &files, &asked));
            }
        });
        Ok(this)
    }

    /// Serves an image whose one file has this text, by the tag `v1`.
    fn serve(&self, text: &str) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let layer = oci::layer(
            &[Entry::file("/a", 0o644, text)],
            7,
            &folder.path().join("l"),
        )?;
        let image = oci::Image {
            name: "r.example/group/app:v1".to_owned(),
            architecture: "amd64".to_owned(),
            run: oci::RunConfig::default(),
            layers: vec![layer],
        };
        let layout = folder.path().join("layout");
        oci::write_layout(&layout, &[image], 7)?;
        let mut files = self.files.lock().unwrap();
        let index = fs::read(layout.join("index.json"))?;
        // The index has no blob in a layout.
        let digest = HEXLOWER.encode(&Sha256::digest(&index));
        for version in ["v1".to_owned(), format!("sha256:{digest}")] {
            files.insert(format!("/v2/group/app/manifests/{version}"), index.clone());
        }
        for blob in fs::read_dir(layout.join("blobs/sha256"))? {
            let blob = blob?;
            let digest = format!("sha256:{}", blob.file_name().to_string_lossy());
            let bytes = fs::read(blob.path())?;
            for kind in ["manifests", "blobs"] {
                files.insert(format!("/v2/group/app/{kind}/{digest}"), bytes.clone());
            }
        }
        Ok(())
    }

    /// What was asked for since the last call: kinds of paths, without repetition.
    fn asked(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.sort();
        asked.dedup();
        asked
    }
}

/// Answers one request as a registry does (OCI distribution specification 1.1, "Pull").
fn answer(connection: impl Read + Write, files: &Files, asked: &Mutex<Vec<String>>) {
    answer_if(connection, files, asked, |_| true);
}

/// As [`answer`], if the head of the request is let in.
fn answer_if(
    mut connection: impl Read + Write,
    files: &Files,
    asked: &Mutex<Vec<String>>,
    is_let_in: impl Fn(&str) -> bool,
) {
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        match connection.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(n) => head.extend_from_slice(&piece[..n]),
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let path = target.split('?').next().unwrap();
    let kind = path.split('/').nth(4).unwrap_or("other").to_owned();
    asked.lock().unwrap().push(kind);
    let (status, body) = match files.lock().unwrap().get(path) {
        _ if !is_let_in(&head) => ("401 Unauthorized", b"{}".to_vec()),
        Some(body) => ("200 OK", body.clone()),
        None => ("404 Not Found", b"{}".to_vec()),
    };
    let document: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let media = match document {
        Some(document) if document.get("manifests").is_some() => {
            "application/vnd.oci.image.index.v1+json"
        }
        Some(document) if document.get("layers").is_some() => {
            "application/vnd.oci.image.manifest.v1+json"
        }
        _ => "application/octet-stream",
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let body = if method == "HEAD" { &[][..] } else { &body[..] };
    // A client may have gone.
    drop(connection.write_all(&[head.as_bytes(), body].concat()));
}

struct Bench<'t> {
    containerd: &'t Tools,
    mirror: Registry,
    registry: Registry,
}

impl<'t> Bench<'t> {
    fn new(containerd: &'t Tools) -> Result<Self> {
        Ok(Self {
            containerd,
            mirror: Registry::new()?,
            registry: Registry::new()?,
        })
    }

    /// Fetches the image with these words of a recipe; gives whether that succeeded, and what containerd says.
    fn fetch(&self, mirrors: &str) -> Result<(bool, String)> {
        let place = tempfile::tempdir()?;
        self.fetch_at(place.path(), mirrors)
    }

    /// The same in a folder that has the recipe's other files.
    fn fetch_at(&self, place: &Path, mirrors: &str) -> Result<(bool, String)> {
        self.fetch_over(place, mirrors, &[])
    }

    /// The same with files in place of the image's, by their paths on a node.
    fn fetch_over(
        &self,
        place: &Path,
        mirrors: &str,
        files: &[(String, Vec<u8>)],
    ) -> Result<(bool, String)> {
        fs::write(place.join("config.toml"), CONFIG)?;
        fs::write(place.join("fetch.sh"), SCRIPT)?;
        let recipe = recipe(place, mirrors)?;
        let bundle: String = (recipe.authorities.iter())
            .map(|authority| authority.pem.as_str())
            .collect();
        fs::create_dir(place.join("certs"))?;
        let path = Path::new(CA_BUNDLE).strip_prefix(CERTIFICATES)?;
        fs::write(place.join("certs").join(path), bundle)?;
        let own = recipe.files.iter().filter_map(|file| match &file.kind {
            FileKind::Content(bytes) => Some((&file.path, bytes)),
            _ => None,
        });
        let all = own.chain(files.iter().map(|(path, bytes)| (path, bytes)));
        for (path, bytes) in all {
            if let Some(inside) = path.strip_prefix(CONTAINERD) {
                let path = place.join(inside);
                fs::create_dir_all(path.parent().unwrap())?;
                fs::write(path, bytes)?;
            }
        }
        let image = format!("{}/group/app:v1", self.registry.host);
        let command = self
            .containerd
            .sandbox()
            .bind(place, PLACE)
            .bind_read_only(&place.join("certs"), CERTIFICATES)
            .network(true);
        let done = command.command("sh").args(["/w/fetch.sh", &image]).run();
        Ok(match done {
            Ok(said) => (true, String::from_utf8_lossy(&said).into_owned()),
            Err(error) => (false, format!("{error:#}")),
        })
    }

    fn mirror_first(&self) -> Result<()> {
        self.mirror.serve("mirror first")?;
        let (done, said) = self.fetch(&format!(
            "registry = '{}'\nendpoints = ['http://{}']\nplain-http = true",
            self.registry.host, self.mirror.host
        ))?;
        ensure!(done, "through the mirror: {said}");
        ensure!(self.mirror.asked() == ["blobs", "manifests"], "{said}");
        ensure!(
            self.registry.asked().is_empty(),
            "the registry was asked: {said}"
        );
        Ok(())
    }

    /// Nothing listens at port 1, and the next mirror has no such image.
    fn down(&self) -> Result<()> {
        self.mirror.files.lock().unwrap().clear();
        self.registry.serve("mirror down")?;
        let (done, said) = self.fetch(&format!(
            "registry = '{}'\nendpoints = ['http://127.0.0.1:1', 'http://{}']\nplain-http = true",
            self.registry.host, self.mirror.host
        ))?;
        ensure!(done, "past mirrors that are down or empty: {said}");
        ensure!(self.mirror.asked() == ["blobs", "manifests"], "{said}");
        ensure!(self.registry.asked() == ["blobs", "manifests"], "{said}");
        Ok(())
    }

    fn default(&self) -> Result<()> {
        self.mirror.serve("of all")?;
        let (done, said) = self.fetch(&format!(
            "registry = '_default'\nendpoints = ['http://{}']\nplain-http = true",
            self.mirror.host
        ))?;
        ensure!(done, "by _default: {said}");
        ensure!(
            self.registry.asked().is_empty(),
            "the registry was asked: {said}"
        );
        ensure!(self.mirror.asked() == ["blobs", "manifests"], "{said}");
        Ok(())
    }

    fn alone(&self) -> Result<()> {
        self.mirror.files.lock().unwrap().clear();
        let (done, said) = self.fetch(&format!(
            "registry = '{}'\nendpoints = ['http://{}']\nplain-http = true\nfallback = false",
            self.registry.host, self.mirror.host
        ))?;
        ensure!(!done && said.contains("not found"), "{said}");
        ensure!(
            self.registry.asked().is_empty(),
            "the registry was asked: {said}"
        );
        ensure!(self.mirror.asked() == ["manifests"], "{said}");
        Ok(())
    }

    /// A mirror whose certificate is of an authority that nobody knows but by the recipe's words.
    fn by_tls(&self) -> Result<()> {
        let (mirror, authority) = Registry::by_tls()?;
        mirror.serve("by TLS")?;
        let words = |more: &str| {
            format!(
                "registry = '{}'\nendpoints = ['https://{}']\nfallback = false\n{more}",
                self.registry.host, mirror.host
            )
        };
        for (more, trusted) in [
            ("", false),
            ("ca = ['corp.pem']", true),
            ("[ca]\ncertificates = ['corp.pem']", true),
        ] {
            let place = tempfile::tempdir()?;
            fs::write(place.path().join("corp.pem"), &authority)?;
            let (done, said) = self.fetch_at(place.path(), &words(more))?;
            ensure!(done == trusted, "with {more:?}: {said}");
            ensure!(
                done || said.contains("unknown authority"),
                "with {more:?}: {said}"
            );
            ensure!(mirror.asked().is_empty() != trusted, "with {more:?}");
        }
        Ok(())
    }

    /// A header that is no secret, in a file of the recipe, which takes the place of `[[containerd.mirrors]]` for this registry.
    fn header_of_a_file(&self) -> Result<()> {
        let mirror = Registry::wanting("x-tenant", "blue")?;
        mirror.serve("for one tenant")?;
        let host = &mirror.host;
        let words = |header: &str| {
            format!(
                "registry = '_default'\nendpoints = ['http://{host}']\nplain-http = true\n\
                 [files.'{CONTAINERD}certs.d/{}/hosts.toml']\n\
                 content = \"\"\"\nserver = 'http://{host}'\n[host.'http://{host}']\n{header}\"\"\"\n",
                self.registry.host
            )
        };
        let (done, said) = self.fetch(&words(""))?;
        ensure!(!done && said.contains("401"), "without the header: {said}");
        let header = format!("[host.'http://{host}'.header]\nx-tenant = ['blue']\n");
        let (done, said) = self.fetch(&words(&header))?;
        ensure!(done, "with the header: {said}");
        ensure!(self.registry.asked().is_empty(), "the registry was asked");
        Ok(())
    }

    /// A password: the node's config has it, as the page shows, and no image.
    fn header_of_a_config(&self) -> Result<()> {
        let mirror = Registry::wanting("authorization", LOGIN)?;
        mirror.serve("for who has the password")?;
        let words = format!(
            "registry = '{}'\nendpoints = ['http://{}']\nplain-http = true\nfallback = false",
            self.registry.host, mirror.host
        );
        let (done, said) = self.fetch(&words)?;
        ensure!(!done && said.contains("401"), "without a login: {said}");
        ensure!(mirror.asked() == ["manifests"], "without a login: {said}");
        let place = tempfile::tempdir()?;
        let files = files_of_the_page(place.path(), &self.registry.host, &mirror.host)?;
        let (done, said) = self.fetch_over(place.path(), &words, &files)?;
        ensure!(done, "with a login: {said}");
        ensure!(mirror.asked() == ["blobs", "manifests"], "{said}");
        ensure!(
            self.registry.asked().is_empty(),
            "the registry was asked: {said}"
        );
        let log = fs::read_to_string(place.path().join("log"))?;
        ensure!(
            !said.contains(SECRET) && !log.contains(SECRET),
            "the login is shown: {said}{log}"
        );
        Ok(())
    }

    /// The registry says which digest the tag has, and the mirror has the content.
    fn blobs_alone(&self) -> Result<()> {
        self.mirror.serve("by its digest")?;
        self.registry.serve("by its digest")?;
        let (done, said) = self.fetch(&format!(
            "registry = '{}'\nendpoints = ['http://{}']\nplain-http = true\ncapabilities = ['pull']",
            self.registry.host, self.mirror.host
        ))?;
        ensure!(done, "with content of the mirror: {said}");
        ensure!(self.registry.asked() == ["manifests"], "{said}");
        ensure!(self.mirror.asked().contains(&"blobs".to_owned()), "{said}");
        Ok(())
    }
}

/// The files of the config that the page shows, with this registry, mirror and login in place of its own.
fn files_of_the_page(
    folder: &Path,
    registry: &str,
    mirror: &str,
) -> Result<Vec<(String, Vec<u8>)>> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE))?;
    let mut blocks = page
        .split("```")
        .filter_map(|block| block.strip_prefix("yaml\n"));
    let shown = blocks.find(|block| block.contains("/certs.d/docker.io/hosts.toml"));
    let mut text = shown
        .with_context(|| format!("{PAGE} shows no config with a hosts.toml"))?
        .to_owned();
    let mirror = format!("http://{mirror}");
    for (from, to) in [
        ("docker.io", registry),
        ("https://mirror.example", mirror.as_str()),
        ("Basic …", LOGIN),
    ] {
        ensure!(text.contains(from), "{PAGE}: {from} is not in {text}");
        text = text.replace(from, to);
    }
    let path = folder.join("node.bu");
    fs::write(&path, &text)?;
    let (config, report) = node_config::from_butane(&path, None)?;
    ensure!(report.entries.is_empty(), "{PAGE}: {report}");
    let config = config.context("a config")?;
    let files = config["storage"]["files"].as_array().context("files")?;
    let read = |file: &serde_json::Value| {
        // Root alone reads it.
        ensure!(file["mode"] == 0o600 && file["overwrite"] == true, "{file}");
        let contents = &file["contents"];
        let source = contents["source"].as_str().context("a source")?;
        let data = data_url::decode(source).map_err(Error::msg)?;
        let data = open(data, contents["compression"] == "gzip", None, LIMIT)?;
        let path = file["path"].as_str().context("a path")?;
        Ok((path.to_owned(), data))
    };
    files.iter().map(read).collect()
}

/// A recipe with a table of mirrors.
fn recipe(folder: &Path, mirrors: &str) -> Result<Recipe> {
    let path = folder.join("a.toml");
    let text = format!(
        "image = {{ name = 'a', version = '1' }}\n\
         kernel = {{ package = 'linux-image-amd64', platforms = ['qemu'] }}\n\
         kubernetes = {{ version = '1.36', kubelet = [{{ go-module = true }}] }}\n\
         [[containerd.mirrors]]\n{mirrors}\n"
    );
    fs::write(&path, text)?;
    load(&path).map_err(|mistakes| anyhow!("{}", mistakes.render(false)))
}
