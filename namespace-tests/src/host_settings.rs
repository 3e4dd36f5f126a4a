//! Settings of the kernel that a kubelet changes for the whole host: they are put back at the end.

use std::fs;

use anyhow::{Context, Result};

/// What the kubelet sets at its start (`pkg/util/sysctl`), and kube-proxy for the connections that it follows.
const SETTINGS: &[&str] = &[
    "/proc/sys/kernel/keys/root_maxbytes",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/net/netfilter/nf_conntrack_max",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
];

/// Files of settings, each with its value.
pub(crate) type Values = Vec<(&'static str, String)>;

/// The values of this host before the first node.
#[derive(Debug)]
pub(crate) struct HostSettings(Values);

impl HostSettings {
    /// Reads them.
    ///
    /// # Errors
    /// If one that is there cannot be read.
    pub(crate) fn keep() -> Result<Self> {
        let there = SETTINGS.iter().filter(|file| fs::metadata(file).is_ok());
        let values = there.map(|file| {
            let value = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
            Ok((*file, value))
        });
        Ok(Self(values.collect::<Result<_>>()?))
    }
}

impl HostSettings {
    /// A copy, for the process that outlives this one if it is killed.
    pub(crate) fn values(&self) -> Values {
        self.0.clone()
    }
}

impl Drop for HostSettings {
    fn drop(&mut self) {
        put_back(&self.0);
    }
}

/// Writes the values that have changed.
pub(crate) fn put_back(values: &Values) {
    for (file, value) in values {
        if fs::read_to_string(file).is_ok_and(|now| now != *value)
            && let Err(error) = fs::write(file, value)
        {
            eprintln!("putting {file} back to {value:?}: {error}");
        }
    }
}
