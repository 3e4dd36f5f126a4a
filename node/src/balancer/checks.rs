//! Checks of the API servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use api::probe::{Probe, Unready};
use cluster::object::balancer::SERVER_NAME;
use tokio::time::sleep;

use super::backends::{FAILURES, Health};
use super::shared::{Shared, Times, connect, jittered};

/// Checks an API server again and again: one that fails more often at first, and then less.
pub(super) async fn check_for_ever(shared: Arc<Shared>, address: SocketAddr) {
    let mut probe: Option<(String, Probe)> = None;
    loop {
        let health = check(&shared, address, &mut probe).await;
        let failures = {
            let mut backends = shared.backends();
            let changed = backends.checked(address, health.clone(), Instant::now());
            let failures = backends.failures(address);
            drop(backends);
            if changed {
                shared.noted(address, &health);
            }
            failures
        };
        let Times { every, again, .. } = shared.times;
        let pause = match failures {
            0 => every,
            count => again
                .saturating_mul(1 << count.saturating_sub(FAILURES).min(16))
                .min(every * 2),
        };
        tokio::select! {
            () = sleep(jittered(pause)) => {}
            // A connection has failed: the check says whether that was a chance.
            () = shared.check.notified() => {}
        }
    }
}

/// One check: by TLS and `/readyz`, since an API server that has lost its etcd takes connections; by a connection alone as long as
/// the cluster's authority is not known here.
async fn check(
    shared: &Shared,
    address: SocketAddr,
    probe: &mut Option<(String, Probe)>,
) -> Health {
    let limit = shared.times.check;
    let Ok(authority) = std::fs::read_to_string(&shared.authority) else {
        return match connect(address, limit).await {
            Ok(_) => Health::Well,
            Err(reason) => Health::Away(reason),
        };
    };
    // Authorities may be replaced.
    if probe.as_ref().is_none_or(|(known, _)| *known != authority) {
        match Probe::new(address, SERVER_NAME, &authority, limit) {
            Ok(made) => *probe = Some((authority, made)),
            Err(error) => return Health::Away(format!("{error:#}")),
        }
    }
    let Some((_, made)) = probe.as_ref() else {
        return Health::Unknown;
    };
    match made.ready().await {
        Ok(()) => Health::Well,
        Err(error) if error.is::<Unready>() => Health::NotReady(format!("{error:#}")),
        Err(error) => Health::Away(format!("{error:#}")),
    }
}
