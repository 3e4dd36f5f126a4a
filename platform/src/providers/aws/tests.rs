//! EC2, after "Use the Instance Metadata Service" of its user guide.

use std::sync::Mutex;

use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, Server, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, text};

const DOCUMENT: &str =
    r#"{"accountId": "123456789012", "region": "eu-central-1", "instanceId": "i-0abc"}"#;

fn item(path: &str) -> Reply {
    // Older versions do not have it.
    if path == "/2021-01-03/meta-data/ipv6" {
        return ok("2001:db8::7");
    }
    let Some(path) = path.strip_prefix("/2019-10-01") else {
        return ABSENT;
    };
    match path {
        "/user-data" => ok(CONFIG),
        "/meta-data/instance-id" => ok("i-0abc"),
        "/meta-data/instance-type" => ok("m5.large"),
        "/meta-data/placement/availability-zone" => ok("eu-central-1a"),
        "/meta-data/hostname" => ok("ip-10-0-0-7.eu-central-1.compute.internal"),
        "/meta-data/public-hostname" => ok("ec2-192-0-2-7.example"),
        "/meta-data/local-ipv4" => ok("10.0.0.7"),
        "/meta-data/public-ipv4" => ok("192.0.2.7"),
        "/meta-data/public-keys/" => ok("0=deploy key\n1=other"),
        "/meta-data/public-keys/0/openssh-key" => ok(format!("{KEY}\n")),
        "/meta-data/public-keys/1/openssh-key" => ok(KEY.replace(" me", " other")),
        "/dynamic/instance-identity/document" => ok(DOCUMENT),
        _ => ABSENT,
    }
}

/// A token is valid for `life` requests here, in place of seconds.
fn version_2(faults: Vec<Reply>, life: usize) -> Server {
    let state = Mutex::new((0_usize, 0_usize));
    serve(faults, move |request: &Request| {
        let (token, used) = &mut *state.lock().unwrap();
        if request.path == "/latest/api/token" {
            let seconds = request.header("x-aws-ec2-metadata-token-ttl-seconds");
            let good = seconds.is_some_and(|text| text.parse::<u32>().is_ok_and(|s| s <= 21600));
            return match (request.method.as_str(), good) {
                ("PUT", true) => {
                    (*token, *used) = (*token + 1, 0);
                    ok(format!("token-{token}"))
                }
                ("PUT", false) => Reply::Status(400, "bad request"),
                _ => Reply::Status(405, "method not allowed"),
            };
        }
        let shown = request.header("x-aws-ec2-metadata-token");
        if shown != Some(&format!("token-{token}")) || *used == life {
            return Reply::Status(401, "unauthorized");
        }
        *used += 1;
        item(&request.path)
    })
}

#[test]
fn config_and_metadata_come_with_one_token() {
    let server = version_2(Vec::new(), 1000);
    let bench = Bench::with(&server);
    let found = bench.obtain("aws").unwrap();
    assert_eq!(text(&found), CONFIG);
    let data = &found.metadata;
    assert_eq!(data.instance_id.as_deref(), Some("i-0abc"));
    assert_eq!(data.region.as_deref(), Some("eu-central-1"));
    assert_eq!(data.ssh_keys.len(), 2);
    assert_eq!(data.ssh_keys[0].key, KEY);
    let asked = server.asked();
    let tokens = asked.iter().filter(|path| path.contains("api/token"));
    assert_eq!(tokens.count(), 1, "{asked:?}");
    assert_eq!(
        crate::env::render(by_id("aws").unwrap(), data),
        "AFTERBURN_AWS_AVAILABILITY_ZONE=eu-central-1a\n\
         AFTERBURN_AWS_HOSTNAME=ip-10-0-0-7.eu-central-1.compute.internal\n\
         AFTERBURN_AWS_INSTANCE_ID=i-0abc\n\
         AFTERBURN_AWS_INSTANCE_TYPE=m5.large\n\
         AFTERBURN_AWS_IPV4_LOCAL=10.0.0.7\n\
         AFTERBURN_AWS_IPV4_PUBLIC=192.0.2.7\n\
         AFTERBURN_AWS_IPV6=2001:db8::7\n\
         AFTERBURN_AWS_PUBLIC_HOSTNAME=ec2-192-0-2-7.example\n\
         AFTERBURN_AWS_REGION=eu-central-1\n\
         SLIPWAY_HOSTNAME=ip-10-0-0-7.eu-central-1.compute.internal\n\
         SLIPWAY_INSTANCE_ID=i-0abc\n\
         SLIPWAY_INSTANCE_TYPE=m5.large\n\
         SLIPWAY_IPV4_LOCAL=10.0.0.7\n\
         SLIPWAY_IPV4_PUBLIC=192.0.2.7\n\
         SLIPWAY_IPV6_LOCAL=2001:db8::7\n\
         SLIPWAY_PLATFORM=aws\n\
         SLIPWAY_REGION=eu-central-1\n\
         SLIPWAY_ZONE=eu-central-1a\n"
    );
}

#[test]
fn a_token_that_expires_in_between_is_renewed() {
    let server = version_2(Vec::new(), 4);
    let bench = Bench::with(&server);
    let found = bench.obtain("aws").unwrap();
    assert_eq!(found.metadata.ssh_keys.len(), 2);
    let tokens = server
        .asked()
        .iter()
        .filter(|p| p.contains("token"))
        .count();
    assert!(tokens >= 3, "{tokens}");
}

#[test]
fn a_service_without_tokens_is_asked_the_old_way() {
    let server = serve(Vec::new(), |request: &Request| item(&request.path));
    let bench = Bench::with(&server);
    let found = bench.obtain("aws").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert!(
        server
            .requests()
            .iter()
            .all(|r| r.header("x-aws-ec2-metadata-token").is_none())
    );
}

#[test]
fn faults_are_survived_and_told() {
    let server = version_2(
        vec![
            Reply::Later(429, 1),
            Reply::Status(503, ""),
            Reply::Status(503, ""),
            Reply::Reset,
        ],
        1000,
    );
    let bench = Bench::with(&server);
    let begin = std::time::Instant::now();
    let found = bench.obtain("aws").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert!(begin.elapsed() >= std::time::Duration::from_secs(1));
    assert!(
        bench.has_said("429") && bench.has_said("503"),
        "{:?}",
        bench.said
    );
}

#[test]
fn an_instance_without_user_data_or_keys_has_none() {
    let server = serve(Vec::new(), |request: &Request| {
        match request.path.as_str() {
            "/latest/api/token" => ok("t"),
            "/2019-10-01/meta-data/instance-id" => ok("i-1"),
            "/2019-10-01/dynamic/instance-identity/document" => ok("no json: SECRET"),
            _ => ABSENT,
        }
    });
    let bench = Bench::with(&server);
    let found = bench.obtain("aws").unwrap();
    assert_eq!(found.config, None);
    assert_eq!(found.metadata.region, None);
    assert!(bench.has_said("identity document"));
    assert!(!bench.has_said("SECRET"));
}

#[test]
fn a_service_that_is_switched_off_is_told() {
    let server = serve(Vec::new(), |_: &Request| Reply::Status(403, "forbidden"));
    let problem = Bench::with(&server).obtain("aws").unwrap_err();
    assert!(problem.remote && problem.what.contains("403"), "{problem}");
}

#[test]
fn a_cut_body_is_resumed() {
    // The token is the first request, the user data the second.
    let faults = vec![ok("token-0"), Reply::Cut(CONFIG.into(), 9)];
    let server = version_2(faults, 1000);
    let found = Bench::with(&server).obtain("aws").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(server.requests()[2].header("range"), Some("bytes=9-"));
}
