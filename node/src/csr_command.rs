//! `csr`: requests of kubelets for serving certificates that nobody has decided over, and approving one; `csr-approve`, which a
//! unit runs, approves those that are right as they come.

use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use cluster::config::Config;
use cluster::serving::Name;
use linux::world::World;
use serde_json::{Value, json};

use crate::administrator;
use crate::object::{self, Bootstrap};
use crate::serving_requests::{Pending, approve, approve_all, pending, wait_for_another};
use api::{Api, is_temporary};

/// The command's name.
pub(crate) const COMMAND: &str = "csr";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str = "[--json | approve NAME [--dry-run]]: kubelets' requests for serving certificates, on a \
                                      control plane, and which of them are right";
/// The field of the kubelet's configuration by which it requests a serving certificate.
const BOOTSTRAP: &str = "serverTLSBootstrap";
/// How long a request to the API server may take: the next one is soon.
const REQUEST: Duration = Duration::from_secs(10);
/// How long the API server is asked for new requests, before all are looked at again: what was left may be right by then.
const WATCH: Duration = Duration::from_secs(30);
/// The same after a look that left a request for the first time: its Node may get its addresses at any moment.
const SOON: Duration = Duration::from_secs(3);
/// The time between two looks: all nodes are read for each, however fast somebody makes requests.
const PAUSE: Duration = Duration::from_millis(500);
/// The time to the next look after one that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Runs the command with its options; none for others.
pub(crate) fn command(program: &str, options: &[&str]) -> Option<ExitCode> {
    let world = World::real();
    let now = SystemTime::now();
    let printed = match options {
        [] => own(&world).and_then(|(api, own)| list(&api, config(&own), false)),
        ["--json"] => own(&world).and_then(|(api, own)| list(&api, config(&own), true)),
        ["approve", name] => {
            own(&world).and_then(|(api, own)| decide(&api, config(&own), name, false, now))
        }
        ["approve", name, "--dry-run"] => {
            own(&world).and_then(|(api, own)| decide(&api, config(&own), name, true, now))
        }
        _ => return None,
    };
    let written = printed.and_then(|text| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).context("writing the answer")
    });
    Some(match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {COMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Approves the requests that are right as they come, on a control plane whose object asks kubelets for them. Returns at
/// once on another node.
///
/// # Errors
/// A mistake in the object, and what the API server refuses for good. One that does not answer is asked again.
pub(crate) fn run(world: &World) -> Result<()> {
    let mut said = None;
    while let Some(bootstrap) = asking(world)? {
        let api = administrator::api(world, &bootstrap)?.within(REQUEST);
        let followed = follow(world, &api, config(&bootstrap));
        let Err(error) = followed else {
            said = None;
            thread::sleep(PAUSE);
            continue;
        };
        if !is_temporary(&error) {
            return Err(error);
        }
        let line = format!("requests of kubelets wait: {error:#}");
        if said.as_ref() != Some(&line) {
            tracing::warn!("{line}");
        }
        said = Some(line);
        thread::sleep(RETRY);
    }
    Ok(())
}

/// The object, if it asks kubelets for requests and this node is a control plane.
fn asking(world: &World) -> Result<Option<Bootstrap>> {
    let bootstrap = object::read(world, Duration::ZERO)?;
    Ok(bootstrap.filter(|bootstrap| {
        bootstrap.object.join.is_none() && config(bootstrap).kubelet.value[BOOTSTRAP] == true
    }))
}

/// Looks at all requests, and waits until there is another one, or for the time after which all are looked at again.
fn follow(world: &World, api: &Api, config: &Config) -> Result<()> {
    let look = approve_all(world, api, config, SystemTime::now())?;
    let time = match look.leaves_more {
        true => SOON,
        false => WATCH,
    };
    let Err(error) = wait_for_another(api, &look.version, time) else {
        return Ok(());
    };
    // The next look says what is wrong, if it is more than a connection that ended.
    tracing::debug!("{error:#}");
    thread::sleep(RETRY);
    Ok(())
}

fn config(bootstrap: &Bootstrap) -> &Config {
    &bootstrap.object.config
}

/// The administrator's client, on a control plane.
fn own(world: &World) -> Result<(Api, Bootstrap)> {
    let bootstrap = object::read(world, Duration::ZERO)?.context("this node has no cluster")?;
    ensure!(bootstrap.object.join.is_none(), "this node is a worker");
    let api = administrator::api(world, &bootstrap)?;
    Ok((api, bootstrap))
}

fn list(api: &Api, config: &Config, as_json: bool) -> Result<String> {
    let all = pending(api, config)?;
    if as_json {
        let all: Vec<Value> = all.iter().map(described).collect();
        return Ok(format!("{}\n", Value::from(all)));
    }
    if all.is_empty() {
        return Ok("no kubelet's request for a serving certificate waits\n".to_owned());
    }
    Ok(all.iter().map(line).collect())
}

fn described(request: &Pending) -> Value {
    let (names, reason) = match &request.verdict {
        Ok(right) => {
            let names = right.names.iter();
            (names.map(bare).collect(), None)
        }
        Err(wrong) => (Vec::new(), Some(wrong.to_string())),
    };
    json!({
        "name": request.name,
        "requester": request.requester(),
        "right": reason.is_none(),
        "names": names,
        "reason": reason,
    })
}

/// A name without the quotes of a message. Those of a request that is right are DNS names or addresses.
fn bare(name: &Name) -> String {
    match name {
        Name::Dns(name) => name.clone(),
        Name::Ip(address) => address.to_string(),
    }
}

fn line(request: &Pending) -> String {
    let verdict = match &request.verdict {
        Ok(right) => format!(
            "right: the node {} is {}",
            right.node,
            Pending::names(right)
        ),
        Err(wrong) => format!("left: {wrong}"),
    };
    format!("{:<16}  {verdict}\n", request.name)
}

/// Approves one request, by the same rules.
fn decide(
    api: &Api,
    config: &Config,
    name: &str,
    dry_run: bool,
    now: SystemTime,
) -> Result<String> {
    let all = pending(api, config)?;
    let Some(request) = all.iter().find(|request| request.name == name) else {
        let lines: String = all.iter().map(line).collect();
        bail!(
            "no kubelet's request for a serving certificate waits as {name:?}; there are\n{lines}"
        );
    };
    let right = match &request.verdict {
        Ok(right) => right,
        Err(wrong) => {
            bail!("{name} is not right: {wrong}; kubectl certificate approve asks for no reason")
        }
    };
    let names = Pending::names(right);
    if dry_run {
        return Ok(format!(
            "{name} would be approved: the node {} is {names}\n",
            right.node
        ));
    }
    match approve(api, request, right, now)? {
        true => Ok(format!(
            "{name} is approved: the node {} is {names}\n",
            right.node
        )),
        false => bail!("{name} was decided over meanwhile"),
    }
}

#[cfg(test)]
mod tests;
