//! VMware's guestinfo: variables of the virtual machine that the guest reads by the hypervisor's I/O port; else the
//! properties of its OVF environment, which is one such variable.
//!
//! The port exists on VMware only, and accessing it elsewhere kills the process: it is used only if both the firmware
//! and the processor identify VMware. The dependency `vmw_backdoor` reads variables; [`rpc`] sets them.

mod guest_metadata;
#[cfg(target_arch = "x86_64")]
mod port;
#[cfg(any(target_arch = "x86_64", test))]
mod rpc;

use std::collections::BTreeMap;

use fetch::Identity;
use image::modules::{BOND, VLAN};

use crate::base64;
use crate::dmi::Dmi;
use crate::drivers::SCSI_DISK;
use crate::env_keys;
use crate::found::Found;
use crate::machine::Machine;
use crate::metadata::Metadata;
use crate::network::Described;
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::provider::{Detection, Provider};
use crate::userdata::{self, Foreign, LIMIT};
use crate::xml::{Attributes, elements};

const DATA: &str = "guestinfo.ignition.config.data";
const ENCODING: &str = "guestinfo.ignition.config.data.encoding";
const OVF: &str = "guestinfo.ovfEnv";
/// The element of an OVF environment that holds a key and its value.
const PROPERTY: &str = "Property";
/// Words of the kernel command line for the network, where DHCP does not give it, as Afterburn reads them
/// (<https://coreos.github.io/afterburn/usage/initrd-network-cmdline/>).
const NETWORK: &str = "guestinfo.afterburn.initrd.network-kargs";
/// The host name of vSphere's customisation.
const HOSTNAME: &str = "guestinfo.hostname";

/// Reads a variable: none if it does not exist.
type Read<'a> = &'a mut dyn FnMut(&str) -> Result<Option<Vec<u8>>, String>;

/// Sets a variable.
type Write<'a> = &'a mut dyn FnMut(&str, &[u8]) -> Result<(), String>;

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "vmware",
    recipe_name: Some("vmware"),
    summary: "VMware: PVSCSI and VMXNET3.",
    // Clouds on VMware's hypervisor set an asset tag.
    detection: Detection::Fallback(is_machine),
    needs_network: false,
    media: &[],
    source_modules: &[],
    drivers: &[
        BOND,
        SCSI_DISK,
        VLAN,
        "ahci",
        "nvme",
        "vmw_pvscsi",
        "vmxnet3",
    ],
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: env_keys::CUSTOM,
    obtain,
    report: Some(delete),
    local: None,
};

fn is_machine(dmi: &Dmi) -> bool {
    dmi.vendor.starts_with("VMware")
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    check_machine(machine)?;
    with_port(|read, _| from_variables(read))
}

/// Accessing the port elsewhere kills the process.
fn check_machine(machine: &Machine<'_>) -> Result<(), Problem> {
    let dmi = Dmi::read(machine.sys);
    match is_machine(&dmi) {
        true => Ok(()),
        false => Err(Problem::local(format!(
            "vmware: the firmware's vendor is {:?}, expected VMware",
            dmi.vendor
        ))),
    }
}

/// Deletes the config once it is applied, as Ignition does: it may hold secrets, and every process of the machine may read
/// guestinfo.
fn delete(machine: &Machine<'_>, outcome: Outcome<'_>) -> Result<Option<String>, Problem> {
    if outcome != Outcome::Ready {
        return Ok(None);
    }
    check_machine(machine)?;
    with_port(|read, write| {
        let deletions = deletions(read)?;
        for (name, value) in &deletions {
            write(name, value)
                .map_err(|why| Problem::local(format!("deleting the config from {name}: {why}")))?;
        }
        Ok((!deletions.is_empty()).then(|| "deleted the config from guestinfo".to_owned()))
    })
}

/// The variables that hold the config or its encoding, each with the value that it gets: nothing, or the OVF environment
/// without them.
fn deletions(read: Read<'_>) -> Result<Vec<(&'static str, Vec<u8>)>, Problem> {
    let mut out = Vec::new();
    for name in [DATA, ENCODING, OVF] {
        let value = read(name).map_err(|why| Problem::local(format!("reading {name}: {why}")))?;
        let value = value.unwrap_or_default();
        let rest = match name {
            OVF => without(&String::from_utf8_lossy(&value), &[DATA, ENCODING])
                .map_err(|why| Problem::local(format!("{OVF}: {why}")))?
                .into_bytes(),
            _ => Vec::new(),
        };
        if rest != value {
            out.push((name, rest));
        }
    }
    Ok(out)
}

/// Calls `work` with the port's access to variables, for reading and for writing.
#[cfg(target_arch = "x86_64")]
fn with_port<T>(
    work: impl FnOnce(Read<'_>, Write<'_>) -> Result<T, Problem>,
) -> Result<T, Problem> {
    let wrong = |what: &str| Problem::local(format!("VMware's guestinfo: {what}"));
    if !vmw_backdoor::is_vmware_cpu() {
        return Err(wrong("the processor is not one of VMware's"));
    }
    // A kernel in lockdown refuses the privilege for ports (iopl). The hypervisor answers without it too: the port is its
    // own, and faults only where `monitor_control.restrict_backdoor` forbids just that.
    let guard = vmw_backdoor::probe_backdoor_privileged()
        .or_else(|_| vmw_backdoor::probe_backdoor())
        .map_err(|error| wrong(&format!("no access to the I/O port: {error}")))?;
    let guard = std::cell::RefCell::new(guard);
    let mut read = |name: &str| {
        let mut guard = guard.borrow_mut();
        let channel = guard.open_enhanced_chan();
        channel
            .and_then(|mut channel| channel.get_guestinfo(name.as_bytes()))
            .map_err(|error| error.to_string())
    };
    let mut write = |name: &str, value: &[u8]| {
        let guard = guard.borrow();
        rpc::set(&mut |registers| port::call(&guard, registers), name, value)
    };
    work(&mut read, &mut write)
}

#[cfg(not(target_arch = "x86_64"))]
fn with_port<T>(
    _work: impl FnOnce(Read<'_>, Write<'_>) -> Result<T, Problem>,
) -> Result<T, Problem> {
    let what = "VMware's guestinfo: this architecture has no I/O ports";
    Err(Problem::local(what))
}

fn from_variables(read: Read<'_>) -> Result<Found, Problem> {
    let mut get = |name: &str| match read(name) {
        Ok(value) => Ok(value.filter(|value| !value.is_empty())),
        Err(why) => Err(Problem::local(format!("reading {name}: {why}"))),
    };
    let properties = get(OVF)?.map(|xml| properties(&String::from_utf8_lossy(&xml)));
    let properties = properties
        .unwrap_or_else(|| Ok(BTreeMap::new()))
        .map_err(|why| Problem::local(format!("{OVF}: {why}")))?;
    let property = |name: &str| properties.get(name).map(|text| text.clone().into_bytes());
    let mut value = |name: &str| match get(name)? {
        None => Ok::<_, Problem>(property(name)),
        some => Ok(some),
    };
    let data = value(DATA)?;
    let encoding = value(ENCODING)?;
    let hostname = value(HOSTNAME)?;
    let words = value(NETWORK)?;
    let cloud_init = value(guest_metadata::METADATA)?;
    let its_encoding = value(guest_metadata::ENCODING)?;
    let name = "guestinfo";
    let data = match data {
        Some(data) => {
            let encoding = encoding.unwrap_or_default();
            Some(decoded(&data, &encoding, (DATA, ENCODING)).map_err(Problem::local)?)
        }
        None => None,
    };
    let config = userdata::only(data, name, Foreign::Refuse, false)?;
    let mut notes = Vec::new();
    let metadata = metadata(cloud_init, its_encoding, &mut notes);
    let mut found = Found::new(config, metadata);
    found.notes.extend(notes);
    // vSphere's own customisation is newer than what a template brought.
    let hostname = hostname.as_deref().and_then(crate::service::text);
    found.metadata.hostname = hostname.or(found.metadata.hostname);
    match words.map(|words| Described::read_words(words, NETWORK)) {
        None | Some(Ok(None)) => {}
        Some(Ok(described)) => found.metadata.network = described,
        // The machine may boot without them.
        Some(Err(lines)) => {
            found.notes.extend(lines);
            found.notes.push(format!("ignoring {NETWORK}"));
        }
    }
    Ok(found)
}

/// What `guestinfo.metadata` says. A text that cannot be decoded is noted: the machine may boot without it.
fn metadata(data: Option<Vec<u8>>, encoding: Option<Vec<u8>>, notes: &mut Vec<String>) -> Metadata {
    let names = (guest_metadata::METADATA, guest_metadata::ENCODING);
    let Some(data) = data else {
        return Metadata::default();
    };
    let network = |text: &[u8], encoding: &str| {
        let names = ("network", "network.encoding");
        decoded(text, encoding.as_bytes(), names)
    };
    match decoded(&data, &encoding.unwrap_or_default(), names) {
        Ok(text) => guest_metadata::read(&text, network, notes),
        Err(why) => {
            notes.push(format!("{why}; it is ignored"));
            Metadata::default()
        }
    }
}

/// Decodes the value of a variable by that of its encoding; both names are for messages.
fn decoded(
    data: &[u8],
    encoding: &[u8],
    (name, of_encoding): (&str, &str),
) -> Result<Vec<u8>, String> {
    let encoding = String::from_utf8_lossy(encoding).trim().to_owned();
    let gunzip = |data: &[u8]| {
        ignition::contents::gunzip(data, LIMIT).map_err(|why| format!("{name}: {why}"))
    };
    match encoding.as_str() {
        "" => Ok(data.to_vec()),
        "b64" | "base64" => base64::decode(data, name),
        "gz" | "gzip" => gunzip(data),
        "gz+base64" | "gzip+base64" | "gz+b64" | "gzip+b64" => gunzip(&base64::decode(data, name)?),
        other => Err(format!(
            "{of_encoding}: {other:?} is not an encoding; expected none, base64, gzip or gzip+base64"
        )),
    }
}

/// The `Property` elements of an OVF environment (DSP0243): `oe:key` and `oe:value`, with any prefix.
fn properties(xml: &str) -> Result<BTreeMap<String, String>, String> {
    let found = elements(xml, PROPERTY)?.into_iter();
    let pair = |mut of: Attributes| Some((of.remove("key")?, of.remove("value")?));
    Ok(found.filter_map(|(of, _)| pair(of)).collect())
}

/// An OVF environment without the properties of these keys.
fn without(xml: &str, keys: &[&str]) -> Result<String, String> {
    let mut rest = xml.to_owned();
    let found = elements(xml, PROPERTY)?.into_iter();
    let has = |of: &Attributes| {
        of.get("key")
            .is_some_and(|key| keys.contains(&key.as_str()))
    };
    let mut ranges: Vec<_> = found
        .filter(|(of, _)| has(of))
        .map(|(_, range)| range)
        .collect();
    // From the last one on, so that the others keep their places; one inside of another goes with it.
    ranges.sort_by_key(|range| std::cmp::Reverse((range.end, std::cmp::Reverse(range.start))));
    let mut from = rest.len();
    for range in ranges {
        if range.end <= from {
            from = range.start;
            rest.replace_range(range, "");
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests;
