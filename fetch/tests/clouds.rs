//! Downloads from buckets, registries and by proxies: servers on loopback that answer as the vendors document.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fetch::{
    Bucket, Content, Credentials, Endpoints, Failure, Identity, Options, Patience, Proxy, Want,
    blocking,
};

#[path = "clouds/dots.rs"]
mod dots;
#[path = "clouds/logins.rs"]
mod logins;
#[path = "clouds/registry.rs"]
mod registry;

/// A request: its first line, its headers in lower case, each `name: value`.
#[derive(Clone, Debug)]
struct Request {
    method: String,
    path: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let start = format!("{name}: ");
        self.headers
            .iter()
            .find_map(|line| line.strip_prefix(&start))
    }
}

/// Status line, headers, content.
type Answer = (&'static str, Vec<(&'static str, String)>, Vec<u8>);

fn ok(body: &[u8]) -> Answer {
    ("200 OK", Vec::new(), body.to_vec())
}

fn status(line: &'static str) -> Answer {
    (line, Vec::new(), Vec::new())
}

type Log = Arc<Mutex<Vec<Request>>>;

/// Serves every request by `answer`; returns the address and the requests.
fn serve(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let log: Log = Arc::default();
    let (seen, answer) = (log.clone(), Arc::new(answer));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let (seen, answer) = (seen.clone(), answer.clone());
            std::thread::spawn(move || {
                let mut connection = connection.unwrap();
                let mut head = Vec::new();
                let mut piece = [0; 4096];
                let end = loop {
                    if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                        break at + 4;
                    }
                    let n = connection.read(&mut piece).unwrap();
                    if n == 0 {
                        return;
                    }
                    head.extend_from_slice(&piece[..n]);
                };
                let body = head.split_off(end);
                let head = String::from_utf8(head).unwrap();
                let mut lines = head.lines();
                let mut first = lines.next().unwrap().split(' ');
                let mut request = Request {
                    method: first.next().unwrap().to_owned(),
                    path: first.next().unwrap().to_owned(),
                    headers: lines
                        .filter_map(|line| line.split_once(": "))
                        .map(|(name, value)| format!("{}: {value}", name.to_lowercase()))
                        .collect(),
                    body,
                };
                let size = request.header("content-length");
                let size = size.map_or(0, |size| size.parse().unwrap());
                let had = request.body.len();
                request.body.resize(size, 0);
                connection.read_exact(&mut request.body[had..]).unwrap();
                seen.lock().unwrap().push(request.clone());
                let (line, headers, body) = answer(&request);
                let mut text = format!("HTTP/1.1 {line}\r\nConnection: close\r\n");
                for (name, value) in headers {
                    text.push_str(&format!("{name}: {value}\r\n"));
                }
                text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
                // The client may have closed the connection already.
                drop(connection.write_all(text.as_bytes()));
                if request.method != "HEAD" {
                    drop(connection.write_all(&body));
                }
            });
        }
    });
    (host, log)
}

fn fetch(options: Options, url: &str) -> Result<Vec<u8>, Failure> {
    let options = Options {
        ca_bundle: Some(Vec::new()),
        ..options
    };
    let patience = Patience {
        attempts: Some(3),
        header_timeout: Duration::from_secs(3),
        idle_timeout: Duration::from_secs(3),
        first_wait: Duration::from_millis(10),
        ..Patience::default()
    };
    let want = Want {
        patience,
        ..Want::new(url, 9999)
    };
    blocking::Client::new(&options)
        .unwrap()
        .bytes(&want, &|_| (), &|_| ())
}

const KEYS: &str = r#"{"Code":"Success","LastUpdated":"2026-01-01T00:00:00Z","Type":"AWS-HMAC",
    "AccessKeyId":"ASIAEXAMPLE","SecretAccessKey":"SECRET","Token":"SESSION","Expiration":"2199-01-01T00:00:00Z"}"#;

/// EC2's metadata service of an instance with a role, in `region`.
fn ec2(request: &Request) -> Answer {
    let token = request.header("x-aws-ec2-metadata-token");
    match (request.method.as_str(), request.path.as_str()) {
        ("PUT", "/latest/api/token") => {
            assert_eq!(
                request.header("x-aws-ec2-metadata-token-ttl-seconds"),
                Some("21600")
            );
            ok(b"IMDS")
        }
        _ if token != Some("IMDS") => status("401 Unauthorized"),
        (_, "/latest/meta-data/placement/region") => ok(b"eu-central-1"),
        (_, "/latest/meta-data/iam/security-credentials/") => ok(b"node-role"),
        (_, "/latest/meta-data/iam/security-credentials/node-role") => ok(KEYS.as_bytes()),
        _ => status("404 Not Found"),
    }
}

/// S3 with one bucket in eu-west-1, whose object `open` is public and whose object `closed` is for signed requests.
fn s3(request: &Request) -> Answer {
    let region = |mut answer: Answer| {
        answer
            .1
            .push(("x-amz-bucket-region", "eu-west-1".to_owned()));
        answer
    };
    let signed = request.header("authorization").is_some();
    match (request.method.as_str(), request.path.as_str()) {
        // A bucket of another region; every status carries the region.
        ("HEAD", "/bucket") => region(status("301 Moved Permanently")),
        ("GET", "/bucket/a%20folder/open") if !signed => ok(b"open"),
        ("GET", "/bucket/a%20folder/open") => status("403 Forbidden"),
        ("GET", "/bucket/closed?versionId=3%2F4") if signed => ok(b"closed"),
        ("GET", "/bucket/closed?versionId=3%2F4") => status("403 Forbidden"),
        _ => status("404 Not Found"),
    }
}

fn with_s3(s3: &str, ec2: Option<&str>) -> Options {
    Options {
        identity: ec2.map_or(Identity::Anonymous, |_| Identity::Ec2Role),
        endpoints: Endpoints {
            ec2: format!("http://{}", ec2.unwrap_or("127.0.0.1:1")),
            s3: Some(format!("http://{s3}")),
            ..Endpoints::default()
        },
        ..Options::default()
    }
}

#[test]
fn a_machine_with_a_role_signs_its_requests() {
    let ((s3, log), (ec2, _)) = (serve(s3), serve(ec2));
    let url = "s3://bucket/closed?versionId=3%2F4";
    assert_eq!(fetch(with_s3(&s3, Some(&ec2)), url).unwrap(), b"closed");
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 2, "{log:?}");
    // The request for the region is not signed, since the role's region may be another.
    assert_eq!(
        (log[0].method.as_str(), log[0].header("authorization")),
        ("HEAD", None)
    );
    let get = &log[1];
    assert_eq!(get.header("x-amz-security-token"), Some("SESSION"));
    assert_eq!(get.header("host"), Some(s3.as_str()));
    let authorization = get.header("authorization").unwrap();
    let day = &get.header("x-amz-date").unwrap()[..8];
    let start = format!("AWS4-HMAC-SHA256 Credential=ASIAEXAMPLE/{day}/eu-west-1/s3/aws4_request,");
    assert!(authorization.starts_with(&start), "{authorization}");
    assert!(!authorization.contains("SECRET"));
}

#[test]
fn without_a_role_only_what_is_public_is_had() {
    let (s3, log) = serve(s3);
    let open = "s3://bucket/a%20folder/open";
    assert_eq!(fetch(with_s3(&s3, None), open).unwrap(), b"open");
    let failure = fetch(
        with_s3(&s3, None),
        "arn:aws:s3:::bucket/closed?versionId=3/4",
    )
    .unwrap_err();
    assert!(
        matches!(failure, Failure::Status { code: 403, .. }),
        "{failure}"
    );
    let signed = |request: &Request| request.header("authorization").is_some();
    assert!(!log.lock().unwrap().iter().any(signed));
    // A metadata service without the role, and one with access disabled.
    for answer in ["404 Not Found", "403 Forbidden"] {
        let (ec2, _) = serve(move |_| status(answer));
        assert_eq!(fetch(with_s3(&s3, Some(&ec2)), open).unwrap(), b"open");
    }
}

#[test]
fn a_role_that_is_refused_does_not_keep_from_what_is_public() {
    let ((s3, log), (ec2, _)) = (serve(s3), serve(ec2));
    let open = "arn:aws:s3:::bucket/a folder/open";
    assert_eq!(fetch(with_s3(&s3, Some(&ec2)), open).unwrap(), b"open");
    let gets = log
        .lock()
        .unwrap()
        .iter()
        .filter(|r| r.method == "GET")
        .count();
    assert_eq!(gets, 2);
}

/// An error as S3 documents it.
fn refusal(line: &'static str, code: &str) -> Answer {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>Why.</Message></Error>"
    );
    (line, Vec::new(), text.into_bytes())
}

#[test]
fn what_s3_refuses_is_told_with_its_code() {
    let (s3, log) = serve(|request| match request.method.as_str() {
        "PUT" if request.path.contains("busy") => refusal("503 Slow Down", "SlowDown"),
        _ if request.path.contains("none") => refusal("404 Not Found", "NoSuchBucket"),
        _ if request.header("authorization").is_some() => {
            refusal("403 Forbidden", "SignatureDoesNotMatch")
        }
        _ => refusal("403 Forbidden", "AccessDenied"),
    });
    let mut options = with_s3(&s3, None);
    options.ca_bundle = Some(Vec::new());
    options.endpoints.s3_region = Some("eu-west-1".to_owned());
    let failure = fetch(options.clone(), "s3://bucket/x").unwrap_err();
    let text = failure.to_string();
    assert!(
        text.ends_with("403 Forbidden; S3 says AccessDenied"),
        "{text}"
    );
    options.credentials = Some(Credentials {
        key: "KEY".to_owned(),
        secret: "SECRET".to_owned(),
        token: None,
    });
    // The reason is that of the credentials, although the last request had none.
    let failure = fetch(options.clone(), "s3://bucket/x").unwrap_err();
    assert_eq!(
        failure.to_string(),
        "fetching s3://bucket/x: the server answered 403 Forbidden; S3 says SignatureDoesNotMatch"
    );
    assert_eq!(log.lock().unwrap().len(), 3);
    let failure = fetch(options.clone(), "s3://none/x").unwrap_err();
    assert!(failure.is_gone(), "{failure}");
    let client = blocking::Client::new(&options).unwrap();
    let put = |bucket: &str| {
        let patience = Patience {
            attempts: Some(2),
            first_wait: Duration::from_millis(10),
            ..Patience::default()
        };
        let bucket = Bucket::parse(bucket).unwrap().with_patience(patience);
        let sum = "0".repeat(64);
        let content = Content::Bytes(b"x");
        let done = client.run(async |client| bucket.put(client, "o", &sum, content).await);
        done.unwrap_err().to_string()
    };
    for (bucket, expected) in [
        (
            "s3://bucket",
            "the server answered 403 Forbidden; S3 says SignatureDoesNotMatch",
        ),
        (
            "s3://none",
            "the server answered 404 Not Found; S3 says NoSuchBucket",
        ),
        (
            "s3://busy",
            "given up after 2 attempts: the server answered 503 Service Unavailable; S3 says SlowDown",
        ),
    ] {
        let text = put(bucket);
        assert!(text.ends_with(expected), "{text}");
    }
}

/// The code beside a status is of the same answer: only a further refusal of credentials leaves the first one's reason.
#[test]
fn what_the_request_without_credentials_finds_has_its_own_code() {
    let busy = Mutex::new(true);
    let (s3, _) = serve(move |request| match request.header("authorization") {
        Some(_) => refusal("403 Forbidden", "AccessDenied"),
        None if request.path.ends_with("/gone") => refusal("404 Not Found", "NoSuchKey"),
        None if request.path.ends_with("/bare") => status("404 Not Found"),
        None if request.path.ends_with("/busy") && std::mem::take(&mut *busy.lock().unwrap()) => {
            refusal("503 Slow Down", "SlowDown")
        }
        None => refusal("403 Forbidden", "AllAccessDisabled"),
    });
    let mut options = with_s3(&s3, None);
    options.endpoints.s3_region = Some("eu-west-1".to_owned());
    options.credentials = Some(Credentials {
        key: "KEY".to_owned(),
        secret: "SECRET".to_owned(),
        token: None,
    });
    for (object, expected) in [
        ("gone", "404 Not Found; S3 says NoSuchKey"),
        ("bare", "404 Not Found"),
        ("closed", "403 Forbidden; S3 says AccessDenied"),
        ("busy", "403 Forbidden; S3 says AccessDenied"),
    ] {
        let failure = fetch(options.clone(), &format!("s3://bucket/{object}")).unwrap_err();
        let text = failure.to_string();
        assert!(text.ends_with(expected), "{object}: {text}");
    }
}

#[test]
fn a_bucket_that_is_not_there_is_told_at_once() {
    let (s3, log) = serve(s3);
    let failure = fetch(with_s3(&s3, None), "s3://elsewhere/x").unwrap_err();
    assert!(failure.is_gone(), "{failure}");
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[test]
fn an_endpoint_of_s3_that_is_no_url_is_named() {
    for endpoint in ["minio.example", "minio.example:9000", "ftp://minio.example"] {
        let options = Options {
            endpoints: Endpoints {
                s3: Some(endpoint.to_owned()),
                s3_region: Some("eu-test-1".to_owned()),
                ..Endpoints::default()
            },
            ..Options::default()
        };
        let failure = fetch(options, "s3://bucket/key").unwrap_err().to_string();
        let expected = format!("the endpoint {endpoint} is not a URL as https://HOST");
        assert!(failure.contains(&expected), "{failure}");
    }
}

#[test]
fn a_metadata_service_and_a_bucket_that_stumble_are_asked_again() {
    let (count, first) = (Mutex::new(0), Mutex::new(true));
    let (ec2, _) = serve(move |request| {
        let mut count = count.lock().unwrap();
        *count += 1;
        if *count == 1 {
            status("503 Busy")
        } else {
            ec2(request)
        }
    });
    let (s3, _) = serve(move |request| {
        let stumbles = request.method == "GET" && std::mem::take(&mut *first.lock().unwrap());
        if stumbles {
            status("503 Slow Down")
        } else {
            s3(request)
        }
    });
    let url = "s3://bucket/closed?versionId=3%2F4";
    assert_eq!(fetch(with_s3(&s3, Some(&ec2)), url).unwrap(), b"closed");
}

#[test]
fn an_access_point_needs_no_region_asked() {
    let (s3, log) = serve(|_| ok(b"x"));
    let url = "arn:aws:s3:us-west-2:123456789012:accesspoint/point/object/a/b";
    assert_eq!(fetch(with_s3(&s3, None), url).unwrap(), b"x");
    let paths: Vec<String> = log.lock().unwrap().iter().map(|r| r.path.clone()).collect();
    assert_eq!(paths, ["/point-123456789012/a/b"]);
}

fn with_gs(gs: &str, compute: Option<&str>) -> Options {
    Options {
        identity: compute.map_or(Identity::Anonymous, |_| Identity::ComputeAccount),
        endpoints: Endpoints {
            gs: format!("http://{gs}"),
            compute: format!("http://{}", compute.unwrap_or("127.0.0.1:1")),
            ..Endpoints::default()
        },
        ..Options::default()
    }
}

#[test]
fn cloud_storage_is_asked_as_the_machine_s_account_or_as_nobody() {
    let storage = |request: &Request| match request.header("authorization") {
        _ if request.path != "/storage/v1/b/bucket/o/a%20b%2Fc?alt=media" => {
            status("404 Not Found")
        }
        Some("Bearer T0KEN") => ok(b"private"),
        Some(_) => status("401 Unauthorized"),
        None => ok(b"public"),
    };
    let compute = |token: &'static str| {
        move |request: &Request| {
            assert_eq!(request.header("metadata-flavor"), Some("Google"));
            let path = "/computeMetadata/v1/instance/service-accounts/default/token";
            assert_eq!(request.path, path);
            ok(
                format!(r#"{{"access_token":"{token}","expires_in":3599,"token_type":"Bearer"}}"#)
                    .as_bytes(),
            )
        }
    };
    let url = "gs://bucket/a%20b/c";
    let (gs, _) = serve(storage);
    let (good, _) = serve(compute("T0KEN"));
    assert_eq!(fetch(with_gs(&gs, Some(&good)), url).unwrap(), b"private");
    assert_eq!(fetch(with_gs(&gs, None), url).unwrap(), b"public");
    let (none, _) = serve(|_| status("404 Not Found"));
    assert_eq!(fetch(with_gs(&gs, Some(&none)), url).unwrap(), b"public");
    // An account without the right to read.
    let (bad, _) = serve(compute("OTHER"));
    assert_eq!(fetch(with_gs(&gs, Some(&bad)), url).unwrap(), b"public");
    assert!(
        fetch(with_gs(&gs, None), "gs://bucket/none")
            .unwrap_err()
            .is_gone()
    );
}

#[test]
fn requests_go_by_the_proxy_but_not_those_that_are_excepted() {
    let (proxy, log) = serve(|_| ok(b"by proxy"));
    let options = |none: &[&str]| Options {
        proxy: Some(Proxy {
            http: Some(format!("http://me:word@{proxy}")),
            https: None,
            none: none.iter().map(|text| (*text).to_owned()).collect(),
        }),
        ..Options::default()
    };
    let url = "http://somewhere.example/x";
    assert_eq!(fetch(options(&[]), url).unwrap(), b"by proxy");
    let request = log.lock().unwrap()[0].clone();
    assert_eq!(request.path, url);
    // `me:word` in base64.
    assert_eq!(
        request.header("proxy-authorization"),
        Some("Basic bWU6d29yZA==")
    );
    // Requests to loopback bypass the proxy.
    let (here, _) = serve(|_| ok(b"straight"));
    assert_eq!(
        fetch(options(&[]), &format!("http://{here}/x")).unwrap(),
        b"straight"
    );
    // An unreachable address without a proxy: the failure shows that the proxy was not used.
    let refused = fetch(options(&["192.0.2.0/24"]), "http://192.0.2.1:1/x");
    assert!(refused.is_err());
    assert_eq!(log.lock().unwrap().len(), 1);
}
