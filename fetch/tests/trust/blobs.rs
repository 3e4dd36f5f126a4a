//! Azure's storage and the instance metadata service, as their documentation describes them.

use super::names::*;
use super::*;
use fetch::{Endpoints, Identity};

const HOST: &str = "account.blob.core.windows.net";
const GOVERNMENT: &str = "account.blob.core.usgovcloudapi.net";
const TOKEN: &str = r#"{"access_token":"T0KEN","client_id":"c","expires_in":"86399","expires_on":"1767225600",
    "ext_expires_in":"86399","not_before":"1767139200","resource":"https://storage.azure.com/","token_type":"Bearer"}"#;

/// The service of a machine with an identity, whose first answers are these.
fn imds(first: Vec<Answer>) -> (u16, Log) {
    let first = std::sync::Mutex::new(first);
    serve_plain(move |head| {
        let path = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fstorage.azure.com%2F";
        assert!(
            head.starts_with(&format!("GET {path} HTTP/1.1\r\n")),
            "{head}"
        );
        if !head.contains("metadata: true\r\n") {
            return status("400 Bad Request");
        }
        let mut first = first.lock().unwrap();
        if first.is_empty() {
            ok(TOKEN)
        } else {
            first.remove(0)
        }
    })
}

/// A container whose blob `open` is public; `closed` is for one identity.
fn storage() -> (u16, Log) {
    serve_named(|head| {
        let token = head
            .lines()
            .find_map(|line| line.strip_prefix("authorization: "));
        let version = head.contains("\r\nx-ms-version: 20");
        match (head.split(' ').nth(1).unwrap(), token) {
            // Without a version that knows tokens, they are refused whole.
            (_, Some(_)) if !version => status("403 Forbidden"),
            ("/c/closed", Some("Bearer T0KEN")) => ok("closed"),
            ("/c/open", None) => ok("open"),
            // Public access is not permitted on this container.
            ("/c/closed", None) => status("404 Not Found"),
            _ => status("403 Forbidden"),
        }
    })
}

fn azure(imds: u16) -> Options {
    Options {
        identity: Identity::ManagedIdentity,
        endpoints: Endpoints {
            azure: format!("http://127.0.0.1:{imds}"),
            ..Endpoints::default()
        },
        ..options(&[HOST, GOVERNMENT, "registry.example"])
    }
}

fn blob(options: &Options, url: &str) -> Result<Vec<u8>, Failure> {
    get(options, Want::new(url, 100))
}

#[test]
fn a_blob_is_fetched_with_the_machine_s_identity() {
    let (storage, _) = storage();
    for first in [
        Vec::new(),
        // While the service is updated, or busy.
        vec![status("404 Not Found"), status("410 Gone")],
        vec![status("429 Too Many Requests"), ok("{")],
    ] {
        let (imds, log) = imds(first);
        for host in [HOST, GOVERNMENT] {
            let url = format!("https://{host}:{storage}/c/closed");
            assert_eq!(blob(&azure(imds), &url).unwrap(), b"closed");
        }
        assert!(log.lock().unwrap().len() >= 2);
    }
}

#[test]
fn one_token_serves_many_blobs() {
    let ((storage, _), (imds, log)) = (storage(), imds(Vec::new()));
    let client = blocking::Client::new(&azure(imds)).unwrap();
    let url = format!("https://{HOST}:{storage}/c/closed");
    for _ in 0..3 {
        let got = client.bytes(&Want::new(&url, 100), &|_| (), &|_| ());
        assert_eq!(got.unwrap(), b"closed");
    }
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[test]
fn without_an_identity_or_its_right_public_blobs_are_had() {
    let (storage, log) = storage();
    let url = |name: &str| format!("https://{HOST}:{storage}/c/{name}");
    let none = r#"{"error":"invalid_request","error_description":"Identity not found"}"#;
    let (nobody, _) = imds(vec![
        ("400 Bad Request".to_owned(), none.to_owned()),
        ("400 Bad Request".to_owned(), none.to_owned()),
    ]);
    assert_eq!(blob(&azure(nobody), &url("open")).unwrap(), b"open");
    assert!(blob(&azure(nobody), &url("closed")).unwrap_err().is_gone());
    assert!(
        !log.lock()
            .unwrap()
            .iter()
            .any(|head| head.contains("authorization"))
    );
    // An identity that may not read it.
    let (imds, _) = imds(Vec::new());
    assert_eq!(blob(&azure(imds), &url("open")).unwrap(), b"open");
    // Another platform.
    let other = Options {
        identity: Identity::Ec2Role,
        ..azure(imds)
    };
    assert!(blob(&other, &url("closed")).unwrap_err().is_gone());
}

#[test]
fn several_identities_are_named_where_a_blob_is_refused() {
    let (storage, log) = storage();
    let url = |name: &str| format!("https://{HOST}:{storage}/c/{name}");
    let several = r#"{"error":"invalid_request","error_description":"Multiple user assigned identities exist, please specify the clientId / resourceId of the identity in the token request"}"#;
    let (imds, asked) = imds(vec![("400 Bad Request".to_owned(), several.to_owned())]);
    let client = blocking::Client::new(&azure(imds)).unwrap();
    let get = |name: &str| client.bytes(&Want::new(&url(name), 100), &|_| (), &|_| ());
    assert_eq!(get("open").unwrap(), b"open");
    let refused = get("closed").unwrap_err().to_string();
    for word in [
        "404",
        "several user-assigned identities",
        "shared access signature",
    ] {
        assert!(refused.contains(word), "{refused}");
    }
    assert_eq!(asked.lock().unwrap().len(), 1);
    let log = log.lock().unwrap();
    assert!(!log.iter().any(|head| head.contains("authorization")));
}

#[test]
fn the_token_goes_by_https_and_to_the_storage_only() {
    let (imds, asked) = imds(Vec::new());
    let (plain, plain_log) = serve_plain(|_| ok("x"));
    let (secure, secure_log) = serve_named(|_| ok("x"));
    let options = azure(imds);
    for url in [
        format!("http://{HOST}:{plain}/c/closed"),
        format!("https://registry.example:{secure}/c/closed"),
        // A signature of its own.
        format!("https://{HOST}:{secure}/c/closed?sv=2019-12-12&sig=x"),
    ] {
        assert_eq!(blob(&options, &url).unwrap(), b"x", "{url}");
    }
    assert_eq!(asked.lock().unwrap().len(), 0);
    // A redirect to another server, and credentials of the caller's own.
    let location = format!("302 Found\r\nLocation: https://registry.example:{secure}/x");
    let (storage, storage_log) = serve_named(move |_| status(&location));
    let url = format!("https://{HOST}:{storage}/c/closed");
    assert_eq!(blob(&options, &url).unwrap(), b"x");
    let own = ("Authorization".to_owned(), "Bearer own".to_owned());
    let want = Want {
        headers: vec![own],
        ..Want::new(&url, 100)
    };
    assert_eq!(get(&options, want).unwrap(), b"x");
    let heads = storage_log.lock().unwrap();
    assert!(heads[0].contains("authorization: Bearer T0KEN\r\n"));
    assert!(heads[1].contains("authorization: Bearer own\r\n"));
    for log in [&plain_log, &secure_log] {
        let log = log.lock().unwrap();
        assert!(!log.is_empty() && !log.iter().any(|head| head.contains("authorization")));
    }
}
