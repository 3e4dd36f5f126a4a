//! Azure's wire server: the report that a machine is provisioned, or why it is not. Azure restarts a machine that it made
//! from a generalized image, and at last gives it up, unless it gets one.
//!
//! The machine reads its goal state, which names its container, its role instance and a number, and posts its health with
//! these. The server's address is the same in all regions and national clouds, and is part of no network: the machine's
//! host answers (<https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16>). Option 245 of DHCP
//! repeats it and is not asked: a foreign DHCP server must not redirect the report. Requests and statuses are those of
//! WALinuxAgent, the reference (<https://github.com/Azure/WALinuxAgent>), and of cloud-init, whose reports have the same
//! form.

use std::time::{Duration, Instant};

use fetch::Failure;

use super::is_machine;
use crate::dmi::Dmi;
use crate::machine::Machine;
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::service::{Ask, Service};
use crate::xml::{escaped, texts};

const BASE: &str = "http://168.63.129.16";
const VERSIONS: &str = "/?comp=versions";
const GOAL_STATE: &str = "/machine/?comp=goalstate";
const HEALTH: &str = "/machine?comp=health";
/// The version of the protocol.
const PROTOCOL: &str = "2012-11-30";
const HEADERS: [(&str, &str); 2] = [("x-ms-agent-name", "slipway"), ("x-ms-version", PROTOCOL)];
/// Statuses by which the server throttles or is being updated, beside those that are always repeated.
const BUSY: &[u16] = &[205, 403];
/// The status for a goal state that has been replaced: the new one is to be read.
const REPLACED: u16 = 410;
/// The time limit of a report where the machine's patience has none.
const TIME: Duration = Duration::from_secs(60);
/// Characters of a description that cloud-init sends at most.
const DESCRIPTION: usize = 512;

/// The names by which a report is assigned to the machine.
#[derive(Debug, PartialEq, Eq)]
struct GoalState {
    incarnation: String,
    container: String,
    instance: String,
}

/// Reports the outcome. Only from a machine whose firmware is Azure's: elsewhere the address leads to the internet.
pub(super) fn report(
    machine: &Machine<'_>,
    outcome: Outcome<'_>,
) -> Result<Option<String>, Problem> {
    if !is_machine(&Dmi::read(machine.sys)) {
        return Err(Problem::local(
            "azure: no report, since the firmware's asset tag is not Azure's",
        ));
    }
    let total = machine.patience.total.unwrap_or(TIME);
    let begin = Instant::now();
    // A time beyond the clock's range.
    let until = begin.checked_add(total).unwrap_or(begin + TIME);
    let left = || until.saturating_duration_since(Instant::now());
    let service = Service::at(machine, BASE, &HEADERS)?;
    check_protocol(&get(&service, VERSIONS, left())?)?;
    loop {
        let goal = goal_state(&get(&service, GOAL_STATE, left())?)?;
        match service.post_xml(HEALTH, &health(&goal, outcome), BUSY, left()) {
            Err(Failure::Status { code: REPLACED, .. }) if !left().is_zero() => {
                (machine.say)("Azure's goal state has been replaced; reading the new one");
                std::thread::sleep(machine.patience.first_wait);
            }
            Ok(()) => return Ok(Some(done(outcome).to_owned())),
            Err(failure) => return Err(failed(failure)),
        }
    }
}

fn done(outcome: Outcome<'_>) -> &'static str {
    match outcome {
        Outcome::Ready => "reported that the node is provisioned",
        Outcome::Failed(_) => "reported that the node cannot be provisioned",
    }
}

fn failed(failure: Failure) -> Problem {
    Problem::remote(format!("reporting to Azure's wire server: {failure}"))
}

/// The document at `path`. The server answers 410 while a goal state is replaced.
fn get(service: &Service<'_>, path: &str, left: Duration) -> Result<String, Problem> {
    let ask = Ask {
        repeat: &[BUSY[0], BUSY[1], REPLACED],
        total: Some(left),
        ..Ask::default()
    };
    let bytes = service.ask(path, &ask).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn check_protocol(versions: &str) -> Result<(), Problem> {
    let known = texts(versions, "Version").map_err(not_xml)?;
    match known.iter().any(|version| version == PROTOCOL) {
        true => Ok(()),
        false => Err(Problem::remote(format!(
            "Azure's wire server has the versions {known:?}, expected {PROTOCOL} among them"
        ))),
    }
}

fn not_xml(why: String) -> Problem {
    Problem::remote(format!("the answer of Azure's wire server: {why}"))
}

fn goal_state(xml: &str) -> Result<GoalState, Problem> {
    let first = |name: &str| {
        let missing = || Problem::remote(format!("Azure's goal state has no {name}"));
        let texts = texts(xml, name).map_err(not_xml)?;
        texts.into_iter().next().ok_or_else(missing)
    };
    Ok(GoalState {
        incarnation: first("Incarnation")?,
        container: first("ContainerId")?,
        instance: first("InstanceId")?,
    })
}

/// The report's document.
fn health(goal: &GoalState, outcome: Outcome<'_>) -> String {
    let health = match outcome {
        Outcome::Ready => "<State>Ready</State>".to_owned(),
        Outcome::Failed(why) => {
            let why: String = why.chars().take(DESCRIPTION).collect();
            format!(
                "<State>NotReady</State><Details><SubStatus>ProvisioningFailed</SubStatus>\
                 <Description>{}</Description></Details>",
                escaped(&why)
            )
        }
    };
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
         <Health xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
         xmlns:xsd=\"http://www.w3.org/2001/XMLSchema\">\
         <GoalStateIncarnation>{}</GoalStateIncarnation>\
         <Container><ContainerId>{}</ContainerId>\
         <RoleInstanceList><Role><InstanceId>{}</InstanceId>\
         <Health>{health}</Health></Role></RoleInstanceList></Container></Health>\n",
        escaped(&goal.incarnation),
        escaped(&goal.container),
        escaped(&goal.instance),
    )
}

#[cfg(test)]
mod tests;
