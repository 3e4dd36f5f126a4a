//! The connections of the clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::spawn;
use tokio::time::sleep;

use super::backends::Health;
use super::relay::relay;
use super::shared::{Shared, connect, random};

/// Connections at the same time. A kubelet has two or three; each that is open has two buffers of 8 KiB.
pub(super) const CONNECTIONS: usize = 256;
/// The pause after a connection that could not be taken, as when the process has no file descriptor left: it would be tried again at
/// once, for ever.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the log says that connections were refused.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Takes connections for ever, [`CONNECTIONS`] at the same time; one more is closed at once, and the log says it.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut said: Option<Instant> = None;
    loop {
        let refused = match listener.accept().await {
            Ok((client, _)) => match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => {
                    let shared = Arc::clone(&shared);
                    spawn(async move {
                        carry(&shared, client).await;
                        drop(permit);
                    });
                    continue;
                }
                Err(_) => format!("{CONNECTIONS} connections are open"),
            },
            Err(error) => {
                sleep(PAUSE).await;
                error.to_string()
            }
        };
        if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            said = Some(Instant::now());
            tracing::warn!("a connection is refused: {refused}");
        }
    }
}

/// Carries a connection to the first API server that takes it.
async fn carry(shared: &Shared, client: TcpStream) {
    let order = shared.backends().order(random);
    for address in order {
        match connect(address, shared.times.connect).await {
            Ok(server) => {
                let open = shared.backends().opened(address);
                let Some(open) = open else {
                    continue;
                };
                relay(client, server, open, shared.times.half_open).await;
                shared.backends().closed(address);
                return;
            }
            Err(reason) => {
                let health = Health::Away(reason.clone());
                let changed = shared.backends().refused(address, reason, Instant::now());
                if changed {
                    shared.noted(address, &health);
                    shared.check.notify_waiters();
                }
            }
        }
    }
}
