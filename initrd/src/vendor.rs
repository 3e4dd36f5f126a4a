//! Vendor: what a platform wants done when a first boot has ended: a report to its vendor, the config deleted. Best effort,
//! bounded in time: a node does not fail for it.

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

/// Does what the platform wants at the end of a first boot, and announces the result; whether it is done. `failure` is the
/// reason of a failed one.
pub(crate) fn report(
    world: &Arc<World>,
    network: &Arc<Network>,
    modules: Arc<Modules>,
    provider: &'static Provider,
    failure: Option<String>,
) -> bool {
    let (inside, network) = (Arc::clone(world), Arc::clone(network));
    let what = format!("{provider}, at the end of the first boot");
    let again = match failure {
        Some(_) => "",
        None => "; the next boot tries again",
    };
    let done = within(world, &what, REPORT, move || {
        send(&inside, &network, &modules, provider, failure.as_deref())
    });
    match &done {
        Ok(None) => {}
        Ok(Some(done)) => announce(world, &format!("slipway: {provider}: {done}")),
        Err(error) => announce(world, &format!("slipway: {provider}: {error:#}{again}")),
    }
    done.is_ok()
}

fn send(
    world: &World,
    network: &Arc<Network>,
    modules: &Modules,
    provider: &Provider,
    failure: Option<&str>,
) -> Result<Option<String>> {
    let Some(report) = provider.report else {
        return Ok(None);
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
