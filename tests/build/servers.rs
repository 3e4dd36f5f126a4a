//! Servers on loopback that follow the conventions of vendors and registries, and the program that asks them.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};

use super::{Place, RECIPE};

/// The served files by path; a test changes them while the server runs.
pub(super) type Files = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// Writes the recipe of `place` with these sources.
pub(super) fn ask_for(place: &Place, version: &str, sources: &[String]) {
    let text = format!(
        "{RECIPE}\n[kubernetes]\nversion = {version:?}\nkubelet = [{}]\ncontainer-packages = [\"mount\"]\n\
         [containers]\nimages = []\n",
        sources.join(", ")
    );
    fs::write(place.folder.join("recipes/small.toml"), text).unwrap();
}

/// A static program that prints `release` as a kubelet does: a lock checks nothing else of it.
pub(super) fn program(folder: &Path, release: &str) -> Vec<u8> {
    let source = folder.join("kubelet.c");
    let text = format!("#include <stdio.h>\nint main() {{ puts(\"Kubernetes {release}\"); }}\n");
    fs::write(&source, text).unwrap();
    let out = folder.join("kubelet");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    #[allow(
        clippy::disallowed_methods,
        reason = "the C compiler, which every build here needs"
    )]
    let status = Command::new(compiler)
        .args(["-static", "-O1", "-o"])
        .args([&out, &source])
        .status()
        .unwrap();
    assert!(status.success());
    fs::read(out).unwrap()
}

/// Serves files on loopback as long as the test's process lives.
pub(super) fn serve(files: Files) -> SocketAddr {
    listen(Router::new().fallback(answer).with_state(files))
}

/// Serves an application on loopback as long as the test's process lives.
pub(super) fn listen(app: Router) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, app).await.unwrap();
        });
    });
    told.recv().unwrap()
}

async fn answer(State(files): State<Files>, uri: Uri) -> (StatusCode, Vec<u8>) {
    match files.lock().unwrap().get(uri.path()) {
        Some(bytes) => (StatusCode::OK, bytes.clone()),
        None => (StatusCode::NOT_FOUND, Vec::new()),
    }
}

/// Serves an OCI layout at a registry's paths (OCI distribution specification 1.1, "Pull").
pub(super) fn serve_layout(layout: &Path, name: &str, set: &dyn Fn(&str, &[u8])) {
    let index = fs::read(layout.join("index.json")).unwrap();
    set(&format!("/v2/{name}/manifests/v1.36.3"), &index);
    for blob in fs::read_dir(layout.join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap();
        let digest = format!("sha256:{}", blob.file_name().to_str().unwrap());
        let bytes = fs::read(blob.path()).unwrap();
        set(&format!("/v2/{name}/manifests/{digest}"), &bytes);
        set(&format!("/v2/{name}/blobs/{digest}"), &bytes);
    }
}

/// Runs `slipway` there; gives whether it succeeded, and its output.
pub(super) fn run(place: &Place, words: &[&str]) -> (bool, String) {
    run_with(place, words, &[])
}

pub(super) fn run_with(
    place: &Place,
    words: &[&str],
    variables: &[(&str, &str)],
) -> (bool, String) {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(words)
        .current_dir(&place.folder)
        .env("SLIPWAY_CACHE", place.folder.join("cache"))
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    (output.status.success(), said)
}
