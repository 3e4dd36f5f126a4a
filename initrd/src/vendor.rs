//! Vendor: the report to a cloud how a first boot ended, where the cloud waits for one. Best effort, bounded in time: a node
//! does not fail for it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;
use fetch::Patience;
use linux::log::announce;
use linux::modules::Modules;
use linux::world::World;
use net::network::Network;
use platform::machine::{LOOK_EVERY, MEDIA_WAIT, Machine};
use platform::outcome::Outcome;
use platform::provider::Provider;

use crate::context::links;
use crate::deadline::within;

/// Time limit for the vendor's server.
const SERVER: Duration = Duration::from_secs(60);
/// Time limit for the report, the network included.
const REPORT: Duration = Duration::from_secs(90);

/// Reports the end of a first boot to the vendor, and announces the result; whether the vendor took it. `failure` is the
/// reason of a failed one.
pub(crate) fn report(
    world: &Arc<World>,
    network: &Arc<Network>,
    modules: Arc<Modules>,
    provider: &'static Provider,
    failure: Option<String>,
) -> bool {
    let subject = match &failure {
        None => "the node is provisioned",
        Some(_) => "the node cannot be provisioned",
    };
    let (inside, network) = (Arc::clone(world), Arc::clone(network));
    let what = format!("{provider}, to report that {subject}");
    let done = within(world, &what, REPORT, move || {
        send(&inside, &network, &modules, provider, failure.as_deref())
    });
    let line = match &done {
        Ok(()) => format!("slipway: reported to {provider} that {subject}"),
        Err(error) => format!("slipway: not reported to {provider} that {subject}: {error:#}"),
    };
    announce(world, &line);
    done.is_ok()
}

fn send(
    world: &World,
    network: &Arc<Network>,
    modules: &Modules,
    provider: &Provider,
    failure: Option<&str>,
) -> Result<()> {
    let Some(report) = provider.report else {
        return Ok(());
    };
    let up = |stop: &AtomicBool| network.up_unless(modules, stop);
    let machine = Machine {
        service: None,
        sys: &world.sys,
        dev: &world.dev,
        file: Path::new(""),
        patience: Patience {
            attempts: None,
            total: Some(SERVER),
            ..Patience::default()
        },
        look_every: LOOK_EVERY,
        media_wait: MEDIA_WAIT,
        load_modules: &|_| (),
        links: &links(network),
        network: &up,
        // A report needs no medium.
        mount: &|_| Ok(None),
        say: &|text| tracing::warn!("report: {text}"),
        received: &|_, _| (),
    };
    let outcome = failure.map_or(Outcome::Ready, Outcome::Failed);
    Ok(report(&machine, outcome)?)
}
