//! A whole build whose every server wants a login: packages, a kubelet, a file and a container image come from there, and no password is
//! in anything that the build says or leaves.

use std::fs;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use data_encoding::{BASE64, HEXLOWER};
use memchr::memmem;
use sha2::{Digest, Sha256};
use slipway::host::tree;
use slipway::layer::Entry;
use slipway::oci;

use super::servers::{Files, listen, program, run_with, serve_layout};
use super::{Place, RECIPE};

/// The words that must be nowhere, and how they stand in base64: behind `joe:`, and alone.
const SECRETS: [&str; 3] = ["s3cr3t-", "am9lOnMzY3IzdC", "czNjcjN0L"];

/// What a private server has: files by path, and a folder of a lock's files below `/v`.
#[derive(Clone)]
struct Private {
    files: Files,
    vendored: PathBuf,
}

/// Serves to `joe` alone, by one password to a registry's clients and by another one to all others.
async fn answer(
    State(has): State<Private>,
    uri: Uri,
    headers: HeaderMap,
) -> axum::response::Response {
    let path = uri.path();
    let password = match path.starts_with("/v2/") {
        true => "s3cr3t-image",
        false => "s3cr3t-word",
    };
    let expected = format!(
        "Basic {}",
        BASE64.encode(format!("joe:{password}").as_bytes())
    );
    let sent = headers.get("authorization");
    if sent.and_then(|sent| sent.to_str().ok()) != Some(&expected) {
        let challenge = [("WWW-Authenticate", "Basic realm=\"x\"")];
        return (StatusCode::UNAUTHORIZED, challenge).into_response();
    }
    let found = match path.strip_prefix("/v/") {
        Some(name) if !name.contains("..") => fs::read(has.vendored.join(name)).ok(),
        _ => has.files.lock().unwrap().get(path).cloned(),
    };
    match found {
        Some(bytes) => bytes.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// The place with a recipe of which nothing is public, and the variables that hold the logins.
fn set_up(server: &str, place: &Place, files: &Files) -> [(&'static str, String); 2] {
    let set = |path: &str, bytes: &[u8]| {
        let mut files = files.lock().unwrap();
        files.insert(path.to_owned(), bytes.to_vec());
    };
    let kubelet = program(&place.folder, "v1.36.3");
    set("/release/v1.36.3/kubelet", &kubelet);
    let sum = |bytes: &[u8]| HEXLOWER.encode(&Sha256::digest(bytes));
    set("/release/v1.36.3/kubelet.sha256", sum(&kubelet).as_bytes());
    set("/tool", b"a private tool");
    let layer = oci::layer(
        &[Entry::file("/app", 0o755, "a private image")],
        7,
        &place.folder.join("layer"),
    );
    let image = oci::Image {
        name: "app:v1".to_owned(),
        architecture: "amd64".to_owned(),
        run: oci::RunConfig::default(),
        layers: vec![layer.unwrap()],
    };
    let layout = place.folder.join("app.oci");
    oci::write_layout(&layout, &[image], 7).unwrap();
    serve_layout(&layout, "group/app", &set);
    let index = fs::read(layout.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    let (base, _) = RECIPE.split_once("[[artifacts]]").unwrap();
    let text = format!(
        "{base}
[root]
compression = \"none\"
[kubernetes]
version = \"1.36.3\"
kubelet = [{{ release = \"http://{server}/release/{{version}}/kubelet\" }}]
container-packages = [\"mount\"]
[containers]
images = []
prebuilt = [{{ oci = \"{server}/group/app:v1@{digest}\" }}]
[files.\"/usr/bin/tool\"]
url = \"http://{server}/tool\"
sha256 = \"{}\"
",
        sum(b"a private tool")
    );
    fs::write(place.folder.join("recipes/small.toml"), text).unwrap();
    let registry = format!(
        "{{\"auths\": {{\"{server}\": {{\"auth\": \"{}\"}}}}}}",
        BASE64.encode(b"joe:s3cr3t-image")
    );
    let machine = format!("machine http://{server} login joe password s3cr3t-word");
    [("SLIPWAY_AUTH", machine), ("DOCKER_AUTH_CONFIG", registry)]
}

/// Fails if a password is in this text, or in the name or content of a file below the folder.
fn holds_no_password(said: &str, folder: &Path) -> usize {
    let are_in = |bytes: &[u8]| {
        let mut found = SECRETS.iter();
        found.find(|secret| memmem::find(bytes, secret.as_bytes()).is_some())
    };
    assert_eq!(are_in(said.as_bytes()), None, "{said}");
    let mut files = 0;
    for found in tree::walk(folder).unwrap() {
        let name = found.path.display().to_string();
        assert_eq!(are_in(name.as_bytes()), None, "{name}");
        if found.meta.is_file() {
            assert_eq!(are_in(&fs::read(&found.path).unwrap()), None, "in {name}");
            files += 1;
        }
    }
    files
}

#[test]
fn a_whole_build_with_logins_leaves_no_password_anywhere() {
    let place = Place::new("private", None);
    let files = Files::default();
    let vendored = place.folder.join("vendored");
    let has = Private {
        files: files.clone(),
        vendored: vendored.clone(),
    };
    let server = listen(Router::new().fallback(answer).with_state(has)).to_string();
    let logins = set_up(&server, &place, &files);
    let logins = logins
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));

    // Without the logins nothing of it can be had.
    let lock = ["lock", "recipes/small.toml", "-vv", "--vendor"];
    let lock = lock.into_iter().chain([vendored.to_str().unwrap()]);
    let lock: Vec<&str> = lock.collect();
    let (good, said) = run_with(&place, &lock, &[]);
    assert!(!good && said.contains("401 Unauthorized"), "{said}");
    let (good, said) = run_with(&place, &lock, &logins);
    assert!(good, "{said}");
    holds_no_password(&said, &place.folder.join("recipes"));

    // Another machine has nothing but the recipe and its lock, whose files are on the private server.
    let path = place.folder.join("recipes/small.lock");
    let text = fs::read_to_string(&path).unwrap();
    let here = format!("vendor = {:?}", vendored.to_str().unwrap());
    assert!(text.contains(&here), "{text}");
    let there = format!("vendor = \"http://{server}/v\"");
    fs::write(&path, text.replace(&here, &there)).unwrap();
    let downloads = place.folder.join("cache/downloads");
    fs::remove_file(&downloads).unwrap();
    fs::create_dir(&downloads).unwrap();
    let build = ["build", "recipes/small.toml", "-o", "out", "-vv", "--json"];
    let nobody = [
        ("SLIPWAY_DEBIAN_MIRROR", "http://127.0.0.1:9"),
        ("SLIPWAY_DEBIAN_SECURITY_MIRROR", "http://127.0.0.1:9"),
    ];
    let (good, said) = run_with(&place, &build, &[nobody, logins].concat());
    assert!(good, "{said}");
    assert!(!tree::walk(&downloads).unwrap().is_empty());
    for content in ["a private tool", "a private image"] {
        let disk = fs::read(place.folder.join("out/small-1.0/disk.raw")).unwrap();
        let found = memmem::find(&disk, content.as_bytes());
        assert!(found.is_some(), "{content} is not in the image");
    }
    // Cache, lock and image are below it, the root's files as they are.
    let files = holds_no_password(&said, &place.folder);
    assert!(files > 1000, "{files} files were looked at");
}
