//! Compute Engine, after "About VM metadata" of its documentation.

use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, Server, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, text};

const INSTANCE: &str = r#"{
  "attributes": {"ssh-keys": "alice:KEY\nbob:ssh-rsa AAAA google-ssh {\"userName\":\"bob\",\"expireOn\":\"2026-01-01T00:00:00+0000\"}",
                 "user-data": "…"},
  "cpuPlatform": "Intel Broadwell",
  "hostname": "web-1.europe-west3-a.c.demo.internal",
  "id": 5928374650192837465,
  "machineType": "projects/123456/machineTypes/n2-standard-2",
  "networkInterfaces": [
    {"accessConfigs": [{"externalIp": "192.0.2.8", "type": "ONE_TO_ONE_NAT"}], "ip": "10.156.0.2", "mtu": 1460},
    {"accessConfigs": [{"externalIp": "", "type": "ONE_TO_ONE_NAT"}], "ip": "10.157.0.2"}],
  "zone": "projects/123456/zones/europe-west3-a"}"#;

fn vendor(faults: Vec<Reply>, user_data: &'static str, instance: String) -> Server {
    serve(faults, move |request: &Request| {
        if request.header("metadata-flavor") != Some("Google") {
            return Reply::Status(403, "Missing Metadata-Flavor:Google header.");
        }
        match request.path.as_str() {
            "/computeMetadata/v1/instance/attributes/user-data" => match user_data {
                "" => ABSENT,
                data => ok(data),
            },
            "/computeMetadata/v1/instance/?recursive=true&alt=json" => ok(instance.clone()),
            "/computeMetadata/v1/project/attributes/?recursive=true&alt=json" => ok(format!(
                r#"{{"ssh-keys": "carol:{KEY}", "enable-oslogin": "FALSE"}}"#
            )),
            _ => ABSENT,
        }
    })
}

fn instance() -> String {
    INSTANCE.replace("KEY", KEY)
}

#[test]
fn config_and_metadata_come_in_three_requests() {
    let server = vendor(Vec::new(), CONFIG, instance());
    let found = Bench::with(&server).obtain("gcp").unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(server.asked().len(), 3);
    let keys = &found.metadata.ssh_keys;
    let users: Vec<_> = keys.iter().map(|key| key.user.as_deref()).collect();
    // Bob's key would have expired.
    assert_eq!(users, [Some("alice"), Some("carol")]);
    assert_eq!(keys[0].key, KEY);
    assert_eq!(
        crate::env::render(by_id("gcp").unwrap(), &found.metadata),
        "AFTERBURN_GCP_HOSTNAME=web-1.europe-west3-a.c.demo.internal\n\
         AFTERBURN_GCP_IP_EXTERNAL_0=192.0.2.8\n\
         AFTERBURN_GCP_IP_LOCAL_0=10.156.0.2\n\
         AFTERBURN_GCP_IP_LOCAL_1=10.157.0.2\n\
         AFTERBURN_GCP_MACHINE_TYPE=projects/123456/machineTypes/n2-standard-2\n\
         SLIPWAY_HOSTNAME=web-1.europe-west3-a.c.demo.internal\n\
         SLIPWAY_INSTANCE_ID=5928374650192837465\n\
         SLIPWAY_INSTANCE_TYPE=n2-standard-2\n\
         SLIPWAY_IPV4_LOCAL=10.156.0.2\n\
         SLIPWAY_IPV4_PUBLIC=192.0.2.8\n\
         SLIPWAY_PLATFORM=gcp\n\
         SLIPWAY_REGION=europe-west3\n\
         SLIPWAY_ZONE=europe-west3-a\n"
    );
}

#[test]
fn keys_of_the_project_can_be_blocked() {
    for (value, keys) in [
        ("TRUE", 1),
        ("1", 1),
        ("t", 1),
        ("Yes", 1),
        ("FALSE", 2),
        ("0", 2),
        ("", 2),
    ] {
        let blocked = format!(r#""block-project-ssh-keys": "{value}""#);
        let blocked = instance().replace(r#""user-data": "…""#, &blocked);
        let server = vendor(Vec::new(), "", blocked);
        let found = Bench::with(&server).obtain("gcp").unwrap();
        assert_eq!(found.config, None);
        assert_eq!(found.metadata.ssh_keys.len(), keys, "{value:?}");
    }
}

/// As by Google's guest agent.
#[test]
fn keys_under_the_old_name_are_beside_the_instances_and_block_the_projects() {
    let old = instance().replace(
        r#""user-data": "…""#,
        &format!(r#""sshKeys": "dave:{KEY}""#),
    );
    let server = vendor(Vec::new(), "", old);
    let found = Bench::with(&server).obtain("gcp").unwrap();
    let keys = found.metadata.ssh_keys.iter();
    let users: Vec<_> = keys.map(|key| key.user.as_deref()).collect();
    assert_eq!(users, [Some("alice"), Some("dave")]);
}

#[test]
fn with_os_login_no_key_of_the_metadata_counts() {
    let with = |attributes: &str| instance().replace(r#""user-data": "…""#, attributes);
    let blocked = r#""block-project-ssh-keys": "TRUE", "enable-oslogin": "TRUE""#;
    for (attributes, project, keys) in [
        (r#""enable-oslogin": "TRUE""#, "FALSE", 0),
        (r#""x": "y""#, "true", 0),
        // The instance's word counts.
        (r#""enable-oslogin": "FALSE""#, "TRUE", 2),
        (r#""x": "y""#, "FALSE", 2),
        (r#""enable-oslogin": "1""#, "FALSE", 0),
        (r#""x": "y""#, "Y", 0),
        // What is no boolean says nothing.
        (r#""enable-oslogin": """#, "TRUE", 0),
        (blocked, "FALSE", 0),
    ] {
        let instance = with(attributes);
        let server = serve(Vec::new(), move |request: &Request| {
            match request.path.as_str() {
                "/computeMetadata/v1/instance/?recursive=true&alt=json" => ok(instance.clone()),
                "/computeMetadata/v1/project/attributes/?recursive=true&alt=json" => ok(format!(
                    r#"{{"ssh-keys": "carol:{KEY}", "enable-oslogin": "{project}"}}"#
                )),
                _ => ABSENT,
            }
        });
        let bench = Bench::with(&server);
        let found = bench.obtain("gcp").unwrap();
        assert_eq!(
            found.metadata.ssh_keys.len(),
            keys,
            "{attributes} {project}"
        );
        assert_eq!(bench.has_said("enable-oslogin"), keys == 0);
        // Where both are known from the instance, the project is not asked.
        assert_eq!(
            server.asked().len(),
            if attributes == blocked { 2 } else { 3 }
        );
    }
}

#[test]
fn packed_user_data_says_that_it_is_in_base64() {
    let encoded = instance().replace(r#""user-data": "…""#, r#""user-data-encoding": "base64""#);
    let server = vendor(Vec::new(), "e30=\n", encoded);
    let found = Bench::with(&server).obtain("gcp").unwrap();
    assert_eq!(text(&found), "{}");
}

#[test]
fn faults_are_survived() {
    let faults = vec![
        Reply::Status(503, ""),
        Reply::Status(503, ""),
        Reply::Cut(CONFIG.into(), 11),
    ];
    let server = vendor(faults, CONFIG, instance());
    let bench = Bench::with(&server);
    assert_eq!(text(&bench.obtain("gcp").unwrap()), CONFIG);
    let resumed = &server.requests()[3];
    assert_eq!(resumed.header("range"), Some("bytes=11-"));
    assert!(bench.has_said("503"));
}

#[test]
fn a_cloud_config_is_refused_by_name() {
    let server = vendor(Vec::new(), "#cloud-config\npassword: SECRET\n", instance());
    let problem = Bench::with(&server).obtain("gcp").unwrap_err();
    assert!(
        problem.remote && problem.what.contains("cloud-config"),
        "{problem}"
    );
    assert!(!problem.what.contains("SECRET"), "{problem}");
}
