//! What a run asks of this host, looked at before a disk is copied and QEMU is started, whose own words for it are few.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result, ensure};

use super::machine::Forward;
use crate::host::meminfo;

/// The least memory of a machine, MiB: below it, kernel and initrd leave no room for the node, which then hangs.
pub const LEAST_MEMORY: u32 = 512;
/// The most processors of a machine: QEMU's limit for q35 without an interrupt remapper.
pub const MOST_CPUS: u32 = 255;

/// Checks a machine's memory, MiB, and its forwarded ports.
///
/// # Errors
/// If the host has less memory, swap space included, or a port of it is in use, given twice or not for this user.
pub fn check(wanted: u32, forwards: &[Forward]) -> Result<()> {
    memory(wanted, total(&meminfo::read()))?;
    ports(forwards)
}

/// `host` is the host's memory in MiB, if it is known.
fn memory(wanted: u32, host: Option<u64>) -> Result<()> {
    if let Some(host) = host {
        ensure!(
            u64::from(wanted) <= host,
            "--memory {wanted}: this host has {host} MiB"
        );
    }
    Ok(())
}

/// Memory and swap space, in MiB.
fn total(text: &str) -> Option<u64> {
    let swap = meminfo::bytes(text, "SwapTotal").unwrap_or(0);
    Some((meminfo::bytes(text, "MemTotal")? + swap) >> 20)
}

fn ports(forwards: &[Forward]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for Forward { host, guest } in forwards {
        let option = || format!("--forward {host}:{guest}");
        // A free port is QEMU's choice.
        if *host == 0 {
            continue;
        }
        ensure!(
            seen.insert(host),
            "{}: port {host} is given twice",
            option()
        );
        TcpListener::bind((Ipv4Addr::LOCALHOST, *host))
            .with_context(|| format!("{}: listening at port {host} of this host", option()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_the_host_has_is_refused() {
        let host = total("MemTotal:        7340032 kB\nMemFree: 1 kB\nSwapTotal: 1048576 kB\n");
        assert_eq!(host, Some(8192));
        memory(8192, host).unwrap();
        memory(u32::MAX, None).unwrap();
        let error = memory(999_999, host).unwrap_err().to_string();
        assert_eq!(error, "--memory 999999: this host has 8192 MiB");
    }

    #[test]
    fn a_port_that_is_in_use_or_given_twice_is_named() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let host = held.local_addr().unwrap().port();
        let error = ports(&[Forward { host, guest: 22 }]).unwrap_err();
        let said = format!("{error:#}");
        let start = format!("--forward {host}:22: listening at port {host} of this host: ");
        assert!(
            said.starts_with(&start) && said.contains("in use"),
            "{said}"
        );
        drop(held);
        let twice = [Forward { host, guest: 22 }, Forward { host, guest: 80 }];
        let error = ports(&twice).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("--forward {host}:80: port {host} is given twice")
        );
        ports(&[
            Forward { host: 0, guest: 22 },
            Forward { host: 0, guest: 80 },
        ])
        .unwrap();
    }
}
