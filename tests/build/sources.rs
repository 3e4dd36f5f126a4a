//! The sources of a kubelet, each against a server on loopback that follows the vendor's conventions.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::{Place, RECIPE};

/// The served files by path; a test changes them while the server runs.
type Files = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// A static program that prints `release` as a kubelet does: a lock checks nothing else of it.
fn program(folder: &Path, release: &str) -> Vec<u8> {
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
fn serve(files: Files) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let app = Router::new().fallback(answer).with_state(files);
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

/// Writes the recipe of `place` with these sources.
fn ask_for(place: &Place, version: &str, sources: &[String]) {
    let text = format!(
        "{RECIPE}\n[kubernetes]\nversion = {version:?}\nkubelet = [{}]\ncontainer-packages = [\"mount\"]\n\
         [containers]\nimages = []\n",
        sources.join(", ")
    );
    fs::write(place.folder.join("recipes/small.toml"), text).unwrap();
}

/// Runs `slipway` there; gives whether it succeeded, and its output.
fn run(place: &Place, words: &[&str]) -> (bool, String) {
    run_with(place, words, &[])
}

fn run_with(place: &Place, words: &[&str], variables: &[(&str, &str)]) -> (bool, String) {
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

fn locked(place: &Place) -> toml::Table {
    let text = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    let lock: toml::Table = toml::from_str(&text).unwrap();
    lock["kubelet"].as_table().unwrap().clone()
}

/// The newest patch release of the release table is pinned from a release server and built in; an image of it, which the
/// build itself wrote as an OCI layout, is pinned from a registry and is the same program; a server with a wrong digest is
/// refused and the next source taken.
#[test]
fn a_kubelet_comes_from_a_release_server_or_a_registry() {
    let place = Place::new("sources", None);
    let program = program(&place.folder, "v1.36.3");
    let sha256 = HEXLOWER.encode(&Sha256::digest(&program));
    let files = Files::default();
    let host = serve(files.clone());
    let set = |path: &str, bytes: &[u8]| {
        files
            .lock()
            .unwrap()
            .insert(path.to_owned(), bytes.to_vec());
    };
    let binary = "/release/v1.36.3/bin/linux/amd64/kubelet";
    set(binary, &program);
    set(&format!("{binary}.sha256"), sha256.as_bytes());

    let template = "/release/{version}/bin/linux/{arch}/kubelet";
    let release = format!("{{ release = \"http://{host}{template}\" }}");
    ask_for(&place, "1.36", std::slice::from_ref(&release));
    let (good, said) = run(&place, &["build", "recipes/small.toml", "-o", "out"]);
    assert!(good, "{said}");
    let kubelet = locked(&place);
    assert_eq!(kubelet["version"].as_str(), Some("v1.36.3"));
    assert_eq!(kubelet["sha256"].as_str(), Some(sha256.as_str()));
    let out = place.folder.join("out/small-1.0");
    let manifest = fs::read_to_string(out.join("manifest.json")).unwrap();
    assert!(manifest.contains(&sha256), "{manifest}");

    serve_layout(&out.join("kubelet.oci"), "kubelet", &set);
    let image = format!("{{ oci = \"{host}/kubelet:v1.36.3\" }}");
    ask_for(&place, "1.36.3", std::slice::from_ref(&image));
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good, "{said}");
    assert_eq!(locked(&place)["sha256"].as_str(), Some(sha256.as_str()));

    // The digest does not match the program, so the image is next.
    set(&format!("{binary}.sha256"), "0".repeat(64).as_bytes());
    ask_for(&place, "1.36", &[release.clone(), image]);
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good && said.contains(&"0".repeat(64)), "{said}");
    let source = locked(&place)["source"].to_string();
    assert!(source.contains("oci"), "{source}");
}

/// A version that no release table knows is refused before anything is asked for, and its lock stays; a version that the
/// recipe's own table knows is taken, and a recipe's own kubelet may be of any version.
#[test]
fn a_version_that_no_table_knows_is_refused_before_any_request() {
    let place = Place::new("unknown", None);
    let program = program(&place.folder, "v1.36.2");
    let sha256 = HEXLOWER.encode(&Sha256::digest(&program));
    let files = Files::default();
    let host = serve(files.clone());
    let binary = "/release/v1.36.2/bin/linux/amd64/kubelet";
    for (path, bytes) in [
        (binary.to_owned(), program.clone()),
        (format!("{binary}.sha256"), sha256.clone().into_bytes()),
    ] {
        files.lock().unwrap().insert(path, bytes);
    }
    let template = "/release/{version}/bin/linux/{arch}/kubelet";
    let release = format!("{{ release = \"http://{host}{template}\" }}");
    let lock = place.folder.join("recipes/small.lock");

    fs::write(place.folder.join("recipes/kubelet"), &program).unwrap();
    ask_for(&place, "1.36.2", &["{ file = \"kubelet\" }".to_owned()]);
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good, "{said}");
    let before = fs::read(&lock).unwrap();

    // No mirror answers at this address: a request to it would be the error.
    ask_for(&place, "1.36.2", &[release]);
    let nowhere = [("SLIPWAY_DEBIAN_MIRROR", "http://127.0.0.1:9/debian")];
    let (good, said) = run_with(&place, &["lock", "recipes/small.toml"], &nowhere);
    assert!(!good, "{said}");
    for word in [
        "1.36.2 is in no release table",
        "1.36.3",
        "slipway release add 1.36.2",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains("127.0.0.1:9"), "{said}");
    let after = fs::read(&lock).unwrap();
    assert_eq!(
        before, after,
        "a lock that could not be renewed was changed"
    );

    let sum = format!("h1:{}=", "A".repeat(43));
    let go_sum: String = [
        ("k8s.io/kubernetes", "v1.36.2"),
        ("github.com/coredns/coredns", "v1.14.2"),
    ]
    .iter()
    .map(|(module, version)| format!("{module} {version} {sum}\n{module} {version}/go.mod {sum}\n"))
    .collect();
    fs::write(place.folder.join("recipes/go.sum"), go_sum).unwrap();
    let add = [
        "release",
        "add",
        "--file",
        "recipes/slipway-releases.toml",
        "1.36.2",
        "--compiled",
        "--go-sum",
        "recipes/go.sum",
    ];
    let (good, said) = run(&place, &add);
    assert!(good, "{said}");
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good, "{said}");
    assert_eq!(locked(&place)["sha256"].as_str(), Some(sha256.as_str()));
}

/// Programs of the release beside the kubelet are pinned each by its own digest, and baked; a source that has one program
/// only is passed over, and told so.
#[test]
fn the_other_programs_of_a_release_come_from_the_same_server() {
    let place = Place::new("components", None);
    let kubelet = program(&place.folder, "v1.36.3");
    let kubectl = [kubelet.as_slice(), b"another"].concat();
    let files = Files::default();
    let host = serve(files.clone());
    let set = |path: &str, bytes: &[u8]| {
        files
            .lock()
            .unwrap()
            .insert(path.to_owned(), bytes.to_vec());
    };
    for (name, bytes) in [("kubelet", &kubelet), ("kubectl", &kubectl)] {
        let path = format!("/release/v1.36.3/bin/linux/amd64/{name}");
        set(&path, bytes);
        let sha256 = HEXLOWER.encode(&Sha256::digest(bytes));
        set(&format!("{path}.sha256"), sha256.as_bytes());
    }
    let of = |template: &str| {
        format!(
            "{{ release = \"http://{host}/release/{{version}}/bin/linux/{{arch}}/{template}\" }}"
        )
    };
    ask_for(&place, "1.36.3", &[of("kubelet"), of("{program}")]);
    let recipe = place.folder.join("recipes/small.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let text = text.replace("[containers]", "tools = [\"kubectl\"]\n[containers]");
    fs::write(&recipe, text).unwrap();
    let (good, said) = run(&place, &["build", "recipes/small.toml", "-o", "out"]);
    assert!(good && said.contains("{program}"), "{said}");
    let lock = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    let lock: toml::Table = toml::from_str(&lock).unwrap();
    let pinned = lock["components"]["kubectl"]["sha256"].as_str();
    let sha256 = HEXLOWER.encode(&Sha256::digest(&kubectl));
    assert_eq!(pinned, Some(sha256.as_str()));
    let sbom = fs::read_to_string(place.folder.join("out/small-1.0/sbom.cdx.json")).unwrap();
    assert!(
        sbom.contains(&sha256) && sbom.contains("cmd/kubectl"),
        "{sbom}"
    );
}

/// Serves an OCI layout at a registry's paths (OCI distribution specification 1.1, "Pull").
fn serve_layout(layout: &Path, name: &str, set: &dyn Fn(&str, &[u8])) {
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
