//! Azure, after "Azure Instance Metadata Service" of its documentation.

use std::time::Duration;

use crate::found::Found;
use crate::problem::Problem;
use crate::provider::Provider;
use crate::providers::by_id;
use crate::testing::server::{ABSENT, Reply, Request, Server, ok, serve};
use crate::testing::{Bench, CONFIG, KEY, text};

const USER_DATA: &str = "/metadata/instance/compute/userData?api-version=2021-01-01&format=text";
const INSTANCE: &str = "/metadata/instance?api-version=2021-02-01";
/// `{"ignition": {"version": "3.5.0"}}`
const ENCODED: &str = "eyJpZ25pdGlvbiI6IHsidmVyc2lvbiI6ICIzLjUuMCJ9fQ==";

fn instance() -> String {
    format!(
        r#"{{"compute": {{"azEnvironment": "AzurePublicCloud", "location": "westeurope", "name": "web-1",
            "osProfile": {{"adminUsername": "azureuser", "computerName": "web-1"}},
            "publicKeys": [{{"keyData": "{KEY}\r\n", "path": "/home/azureuser/.ssh/authorized_keys"}}],
            "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6", "vmSize": "Standard_D2s_v5", "zone": "2"}},
           "network": {{"interface": [{{"ipv4": {{"ipAddress": [
              {{"privateIpAddress": "10.144.133.132", "publicIpAddress": "192.0.2.9"}}],
              "subnet": [{{"address": "10.144.133.128", "prefix": "26"}}]}},
              "ipv6": {{"ipAddress": []}}, "macAddress": "0011AAFFBB22"}}]}}}}"#
    )
}

/// Obtains from a service whose updates take much less than 70 s, and from a disc that comes within a second.
fn obtain(bench: &Bench) -> Result<Found, Problem> {
    bench.obtain_by(&Provider {
        obtain: |machine| {
            let times = super::Times {
                update: Duration::from_millis(300),
                disc: Duration::from_secs(1),
            };
            super::obtain_within(machine, times)
        },
        ..super::PROVIDER
    })
}

fn vendor(faults: Vec<Reply>, user_data: &'static str) -> Server {
    serve(faults, move |request: &Request| {
        if request.header("metadata") != Some("true") {
            return Reply::Status(
                400,
                r#"{"error": "Bad request. Required metadata header not specified"}"#,
            );
        }
        match request.path.as_str() {
            USER_DATA => ok(user_data),
            INSTANCE => ok(instance()),
            _ => ABSENT,
        }
    })
}

#[test]
fn user_data_is_in_base64() {
    let server = vendor(Vec::new(), ENCODED);
    let found = obtain(&Bench::with(&server)).unwrap();
    assert_eq!(text(&found), CONFIG);
    let key = &found.metadata.ssh_keys[0];
    assert_eq!(
        (key.user.as_deref(), key.key.as_str()),
        (Some("azureuser"), KEY)
    );
    assert_eq!(
        crate::env::render(by_id("azure").unwrap(), &found.metadata),
        "AFTERBURN_AZURE_IPV4_DYNAMIC=10.144.133.132\n\
         AFTERBURN_AZURE_IPV4_VIRTUAL=192.0.2.9\n\
         AFTERBURN_AZURE_VMSIZE=Standard_D2s_v5\n\
         SLIPWAY_HOSTNAME=web-1\n\
         SLIPWAY_INSTANCE_ID=02aab8a4-74ef-476e-8182-f6d2ba4166a6\n\
         SLIPWAY_INSTANCE_TYPE=Standard_D2s_v5\n\
         SLIPWAY_IPV4_LOCAL=10.144.133.132\n\
         SLIPWAY_IPV4_PUBLIC=192.0.2.9\n\
         SLIPWAY_PLATFORM=azure\n\
         SLIPWAY_REGION=westeurope\n\
         SLIPWAY_ZONE=2\n"
    );
}

#[test]
fn a_service_that_is_being_updated_is_waited_for() {
    let faults = vec![ABSENT, ABSENT, Reply::Status(410, ""), Reply::Later(429, 0)];
    let server = vendor(faults, ENCODED);
    let found = obtain(&Bench::with(&server)).unwrap();
    assert_eq!(text(&found), CONFIG);
}

#[test]
fn a_service_that_knows_no_user_data_ends_in_the_disc() {
    let server = serve(Vec::new(), |request: &Request| {
        match request.path.as_str() {
            INSTANCE => ok(instance()),
            _ => ABSENT,
        }
    });
    let mut bench = Bench::with(&server);
    bench.write("disc/CustomData.bin", CONFIG);
    bench.write("disc/ovf-env.xml", "<Environment/>");
    // Later than any optional medium is waited for: the profile shows that it comes.
    bench.medium = Some((60, None, bench.path("disc")));
    let found = obtain(&bench).unwrap();
    assert_eq!(text(&found), CONFIG);
    assert_eq!(found.config.unwrap().name, "Azure's custom data");
}

#[test]
fn a_disc_that_does_not_describe_the_machine_does_not_count() {
    let server = vendor(Vec::new(), "");
    let mut bench = Bench::with(&server);
    bench.write("disc/CustomData.bin", CONFIG);
    bench.medium = Some((0, None, bench.path("disc")));
    assert_eq!(obtain(&bench).unwrap().config, None);
    assert!(bench.has_said("ovf-env.xml"));
}

#[test]
fn a_machine_of_a_specialised_image_waits_for_no_disc() {
    let empty = instance()
        .replace("azureuser\",", "\",")
        .replace("\"web-1\"}", "\"\"}");
    let server = serve(Vec::new(), move |request: &Request| {
        match request.path.as_str() {
            USER_DATA => ok(""),
            INSTANCE => ok(empty.clone()),
            _ => ABSENT,
        }
    });
    let bench = Bench::with(&server);
    let began = std::time::Instant::now();
    assert_eq!(obtain(&bench).unwrap().config, None);
    assert!(began.elapsed() < Duration::from_millis(900));
    assert!(!bench.has_said("did not appear"));
}

#[test]
fn without_user_data_and_without_custom_data_there_is_no_config() {
    let server = vendor(Vec::new(), "");
    let mut bench = Bench::with(&server);
    assert_eq!(obtain(&bench).unwrap().config, None);
    bench.write("disc/ovf-env.xml", "<Environment/>");
    bench.medium = Some((0, None, bench.path("disc")));
    let found = obtain(&bench).unwrap();
    assert_eq!(found.config, None);
    assert_eq!(found.metadata.hostname.as_deref(), Some("web-1"));
}

#[test]
fn user_data_that_is_no_base64_is_refused() {
    let server = vendor(Vec::new(), "SECRET!");
    let problem = obtain(&Bench::with(&server)).unwrap_err();
    assert!(
        problem.what.contains("base64") && !problem.what.contains("SECRET"),
        "{problem}"
    );
}
