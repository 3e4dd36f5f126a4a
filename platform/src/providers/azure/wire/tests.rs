//! The wire server as WALinuxAgent and cloud-init know it.

use std::time::Duration;

use super::*;
use crate::testing::Bench;
use crate::testing::server::{ABSENT, Reply, Request, Server, ok, serve};

const TAG: &str = "7783-7084-3265-9085-8269-3286-77\n";
const SUPPORTED: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<Versions><Preferred><Version>2015-04-05</Version></Preferred>
  <Supported><Version>2015-04-05</Version><Version>2012-11-30</Version></Supported></Versions>"#;

fn goal(incarnation: u32) -> String {
    format!(
        r#"<?xml version="1.0" encoding="utf-8"?>
<GoalState xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="goalstate10.xsd">
  <Version>{PROTOCOL}</Version>
  <Incarnation>{incarnation}</Incarnation>
  <Machine><ExpectedState>Started</ExpectedState></Machine>
  <Container>
    <ContainerId>c6d5526c-5ac2-4200-b6e2-56f2b70c5ab2</ContainerId>
    <RoleInstanceList><RoleInstance><InstanceId>MachineRole_IN_0</InstanceId>
      <Configuration><SharedConfig>http://168.63.129.16/x</SharedConfig></Configuration>
    </RoleInstance></RoleInstanceList>
  </Container>
</GoalState>"#
    )
}

/// A wire server whose goal state has the number 1.
fn vendor(faults: Vec<Reply>) -> Server {
    serve(faults, |request: &Request| {
        if request.header("x-ms-version") != Some(PROTOCOL) {
            return Reply::Status(400, "the version is missing");
        }
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", VERSIONS) => ok(SUPPORTED),
            ("GET", GOAL_STATE) => ok(goal(1)),
            ("POST", HEALTH) => ok(""),
            _ => ABSENT,
        }
    })
}

fn bench(server: &Server) -> Bench {
    let bench = Bench::with(server);
    bench.write("sys/class/dmi/id/chassis_asset_tag", TAG);
    bench
}

fn send(bench: &Bench, outcome: Outcome<'_>) -> Result<Option<String>, Problem> {
    bench.run(|machine| report(machine, outcome))
}

/// The document that was posted last.
fn posted(server: &Server) -> String {
    let last = server.requests().pop().unwrap();
    assert_eq!((last.method.as_str(), last.path.as_str()), ("POST", HEALTH));
    assert_eq!(last.header("content-type"), Some("text/xml; charset=utf-8"));
    last.body
}

#[test]
fn a_machine_that_is_provisioned_is_ready() {
    let server = vendor(Vec::new());
    send(&bench(&server), Outcome::Ready).unwrap();
    let body = posted(&server);
    for (name, expected) in [
        ("GoalStateIncarnation", "1"),
        ("ContainerId", "c6d5526c-5ac2-4200-b6e2-56f2b70c5ab2"),
        ("InstanceId", "MachineRole_IN_0"),
        ("State", "Ready"),
    ] {
        assert_eq!(texts(&body, name).unwrap(), [expected], "{body}");
    }
    assert!(!body.contains("Details"), "{body}");
}

#[test]
fn a_failure_is_reported_with_its_reason() {
    let server = vendor(Vec::new());
    let why = format!("files[0].path: \"a\" < b & c\n{}", "é".repeat(600));
    send(&bench(&server), Outcome::Failed(&why)).unwrap();
    let body = posted(&server);
    assert_eq!(texts(&body, "State").unwrap(), ["NotReady"]);
    assert_eq!(texts(&body, "SubStatus").unwrap(), ["ProvisioningFailed"]);
    let description = &texts(&body, "Description").unwrap()[0];
    assert!(
        description.starts_with("files[0].path: \"a\" < b & c é"),
        "{body}"
    );
    assert_eq!(description.chars().count(), DESCRIPTION);
}

#[test]
fn a_server_that_throttles_or_is_updated_is_asked_again() {
    let faults = vec![
        Reply::Later(429, 0),
        Reply::Status(403, ""),
        Reply::Status(205, ""),
        ok(SUPPORTED),
        Reply::Status(410, ""),
        Reply::Reset,
        ok(goal(1)),
        Reply::Status(503, ""),
        Reply::Status(403, ""),
    ];
    let server = vendor(faults);
    send(&bench(&server), Outcome::Ready).unwrap();
    assert_eq!(texts(&posted(&server), "State").unwrap(), ["Ready"]);
}

#[test]
fn a_report_on_a_goal_state_that_was_replaced_is_made_anew() {
    let faults = vec![
        ok(SUPPORTED),
        ok(goal(1)),
        Reply::Status(410, ""),
        ok(goal(2)),
    ];
    let server = vendor(faults);
    let bench = bench(&server);
    send(&bench, Outcome::Ready).unwrap();
    assert_eq!(
        texts(&posted(&server), "GoalStateIncarnation").unwrap(),
        ["2"]
    );
    assert!(bench.has_said("has been replaced"));
}

#[test]
fn a_server_that_does_not_take_the_report_is_given_up_in_time() {
    let server = serve(Vec::new(), |_: &Request| Reply::Status(503, ""));
    let mut bench = bench(&server);
    bench.patience.total = Some(Duration::from_millis(300));
    let began = Instant::now();
    let problem = send(&bench, Outcome::Ready).unwrap_err();
    assert!(problem.what.contains("given up"), "{problem}");
    assert!(began.elapsed() < Duration::from_secs(5));
    // Answers that another attempt does not change.
    for (faults, word) in [
        (vec![Reply::Status(400, "")], "400"),
        (vec![ok("<Versions/>")], PROTOCOL),
        (vec![ok(SUPPORTED), ok("<GoalState/>")], "no Incarnation"),
        (vec![ok(SUPPORTED), ok("no XML")], "no Incarnation"),
        (
            vec![ok(SUPPORTED), ok(goal(1)), Reply::Status(404, "")],
            "404",
        ),
    ] {
        let server = vendor(faults);
        let problem = send(&self::bench(&server), Outcome::Ready).unwrap_err();
        assert!(problem.what.contains(word), "{problem}");
    }
}

#[test]
fn nothing_is_reported_from_a_machine_that_is_not_azures() {
    let server = vendor(Vec::new());
    let bench = Bench::with(&server);
    let problem = send(&bench, Outcome::Ready).unwrap_err();
    assert!(problem.what.contains("asset tag"), "{problem}");
    assert!(server.requests().is_empty());
}
