//! A machine on which the API server needs long to serve.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use namespace_tests::lab::Lab;

use crate::control_plane::{OBJECT, READY, is_taken_over};

/// The liveness probe waits 10 s, and ends a container after 8 failures of at most 15 s; the kubelet kills what does not end in 30 s.
const LONGER_THAN_LIVENESS: Duration = Duration::from_secs(10 + 8 * 15 + 30 + 10);
/// Holds the API server from its first moments on.
const HOLD: &str =
    "for i in {1..600}; do pkill -STOP -x kube-apiserver && exit 0; sleep 0.05; done; exit 1";

/// An API server that was started ahead of the kubelet has the time of its startup probe, as one has that the kubelet starts.
pub(crate) fn an_api_server_ahead_of_the_kubelet_has_the_time_of_its_startup_probe(
    lab: &mut Lab,
) -> Result<()> {
    let mut node = lab.control_plane("cp1", 11, OBJECT)?;
    node.start(&lab.hub)?;
    node.run(HOLD)?;
    sleep(LONGER_THAN_LIVENESS);
    node.run("pkill -CONT -x kube-apiserver")?;
    node.wait_ready(READY)?;
    is_taken_over(&node, 0)
}
