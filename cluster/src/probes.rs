//! The probes of static pods.

use serde_json::{Value, json};

use crate::config::Config;
use crate::duration::Duration;

/// How long a component may take to start, if the configuration says nothing.
const START: Duration = Duration(240_000_000_000);
/// Seconds between two probes of the start.
const PERIOD: i64 = 10;

/// Where a component answers.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The host, or empty for the pod's.
    pub(crate) host: String,
    /// `HTTP` or `HTTPS`.
    pub(crate) scheme: &'static str,
}

impl Target {
    /// A component that answers to HTTPS at an address; at all addresses it answers at the pod's.
    pub(crate) fn https(address: &str) -> Self {
        let everywhere = matches!(address, "0.0.0.0" | "::");
        let host = if everywhere { "" } else { address };
        Self {
            host: host.to_owned(),
            scheme: "HTTPS",
        }
    }

    fn get(&self, path: &str) -> Value {
        let mut get = json!({"path": path, "port": "probe-port", "scheme": self.scheme});
        if !self.host.is_empty() {
            get["host"] = self.host.as_str().into();
        }
        get
    }

    /// Whether the component lives.
    pub(crate) fn liveness(&self, path: &str) -> Value {
        self.patient(path, 8)
    }

    /// Whether it is ready.
    pub(crate) fn readiness(&self, path: &str) -> Value {
        json!({
            "failureThreshold": 3,
            "httpGet": self.get(path),
            "periodSeconds": 1,
            "timeoutSeconds": 15,
        })
    }

    /// Whether it has started: it may take the configuration's time.
    pub(crate) fn startup(&self, path: &str, config: &Config) -> Value {
        let limit = config.init.timeouts.control_plane_component_health_check;
        // A part of a period counts as one.
        let period = PERIOD * 1_000_000_000;
        let failures = -(-limit.unwrap_or(START).0).div_euclid(period);
        self.patient(path, failures)
    }

    fn patient(&self, path: &str, failures: i64) -> Value {
        let mut probe = json!({
            "httpGet": self.get(path),
            "initialDelaySeconds": 10,
            "periodSeconds": PERIOD,
            "timeoutSeconds": 15,
        });
        if failures != 0 {
            probe["failureThreshold"] = failures.into();
        }
        probe
    }
}
