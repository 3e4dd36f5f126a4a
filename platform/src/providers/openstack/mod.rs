//! OpenStack: reads the config drive and asks the metadata service at the same time; the first answer wins.
//!
//! A deployment has one of them, both or none, and a machine cannot know which: neither is given up while the other is
//! silent, and the network is brought up meanwhile. The service has a link-local address of each version of IP.
//! <https://docs.openstack.org/nova/latest/user/metadata.html>

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fetch::{Identity, Want, hosts};
use tokio::sync::oneshot;

use crate::config_drive::{self, Ec2, Nova};
use crate::dmi::Dmi;
use crate::drivers::VIRTIO_WITH_DRIVE;
use crate::env_keys::{EnvKeys, Value};
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::problem::Problem;
use crate::provider::{Detection, Provider};
use crate::service::{Service, options, present};
use crate::userdata::{self, Foreign, LIMIT};

const USER_DATA: &str = "/openstack/latest/user_data";
const META_DATA: &str = "/openstack/latest/meta_data.json";
/// The pause after a service's refusal.
const PAUSE: Duration = Duration::from_secs(5);

enum Winner {
    Drive(PathBuf),
    Service(Option<Vec<u8>>),
}

const DRIVE: Medium<'static> = Medium::Labels(config_drive::CONFIG_2);

/// The row of the table.
pub(super) static PROVIDER: Provider = Provider {
    id: "openstack",
    recipe_name: Some("openstack"),
    summary: "OpenStack on KVM: virtio, and a config drive.",
    // Ironic and Metal3 deploy to servers of any vendor, with a config drive on the disk.
    detection: Detection::FirmwareOrServer(is_server),
    needs_network: true,
    media: &[DRIVE],
    source_modules: &[],
    drivers: VIRTIO_WITH_DRIVE,
    disks: None,
    storage_identity: Identity::Anonymous,
    env_keys: EnvKeys {
        name: "OPENSTACK",
        keys: &[
            ("HOSTNAME", Value::Hostname),
            ("INSTANCE_ID", Value::InstanceId),
            ("INSTANCE_TYPE", Value::InstanceType),
            ("IPV4_LOCAL", Value::Local4),
            ("IPV4_PUBLIC", Value::Public4),
        ],
    },
    obtain,
    report: None,
    local: None,
};

/// Asset tags of machines, Nova's and those of clouds that set their own, as cloud-init knows them: Huawei's, Open Telekom
/// Cloud's, and SAP's, whose machines are VMware's
/// (<https://docs.cloud-init.io/en/latest/reference/datasources/openstack.html>).
const ASSET_TAGS: [&str; 5] = [
    "OpenStack Nova",
    "OpenStack Compute",
    "HUAWEICLOUD",
    "OpenTelekomCloud",
    "SAP CCloud VM",
];

/// Distributions of OpenStack change the vendor, and keep Nova's product or asset tag.
fn is_server(dmi: &Dmi) -> bool {
    dmi.vendor == "OpenStack Foundation"
        || dmi.product.starts_with("OpenStack")
        || ASSET_TAGS.contains(&dmi.asset_tag.as_str())
}

fn obtain(machine: &Machine<'_>) -> Result<Found, Problem> {
    let stop = AtomicBool::new(false);
    let (up, is_up) = oneshot::channel();
    let winner = std::thread::scope(|scope| {
        // The receiver is dropped if the drive answered first.
        scope.spawn(|| up.send((machine.network)(&stop)).is_ok());
        let won = race(machine, is_up);
        stop.store(true, Ordering::Relaxed);
        won
    })?;
    match winner {
        Winner::Drive(folder) => config_drive::openstack(machine, &folder),
        Winner::Service(data) => by_service(machine, data),
    }
}

fn race(
    machine: &Machine<'_>,
    is_up: oneshot::Receiver<anyhow::Result<()>>,
) -> Result<Winner, Problem> {
    let failed = |error: std::io::Error| Problem::remote(format!("making a runtime: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let first = async {
            tokio::select! {
                folder = watch_drive(machine) => Winner::Drive(folder),
                data = ask_service(machine, is_up) => Winner::Service(data),
            }
        };
        match machine.patience.total {
            None => Ok(first.await),
            Some(total) => tokio::time::timeout(total, first).await.map_err(|_| {
                Problem::remote("neither a config drive nor the metadata service answered")
            }),
        }
    })
}

async fn watch_drive(machine: &Machine<'_>) -> PathBuf {
    let began = Instant::now();
    let mut next_line = PAUSE;
    loop {
        let missing = match machine.look(&DRIVE) {
            Ok(Some(folder)) => return folder,
            Ok(None) => String::new(),
            // The service may still answer.
            Err(problem) => format!(" ({problem})"),
        };
        if began.elapsed() >= next_line {
            let seconds = began.elapsed().as_secs();
            (machine.say)(&format!(
                "waiting for {DRIVE}{missing} or the metadata service for {seconds} s"
            ));
            next_line += PAUSE;
        }
        tokio::time::sleep(machine.look_every).await;
    }
}

/// The user data from the service; absence is an answer too.
async fn ask_service(
    machine: &Machine<'_>,
    is_up: oneshot::Receiver<anyhow::Result<()>>,
) -> Option<Vec<u8>> {
    match is_up.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            (machine.say)(&format!("no network: {error:#}"));
            std::future::pending::<()>().await;
        }
        Err(_) => std::future::pending().await,
    }
    let url = format!("{}{USER_DATA}", machine.service.unwrap_or(hosts::OPENSTACK));
    let want = Want {
        patience: machine.patience,
        ..Want::new(&url, LIMIT)
    };
    loop {
        let problem = match fetch::Client::new(&options(machine)) {
            Ok(client) => {
                let received = |bytes| (machine.received)(&url, bytes);
                match present(fetch::bytes(&client, &want, machine.say, &received).await) {
                    Ok(data) => return data,
                    Err(problem) => problem.what,
                }
            }
            Err(error) => format!("{error:#}"),
        };
        (machine.say)(&format!("{problem}; asking again in {PAUSE:?}"));
        tokio::time::sleep(PAUSE).await;
    }
}

fn by_service(machine: &Machine<'_>, data: Option<Vec<u8>>) -> Result<Found, Problem> {
    let name = "OpenStack's user data";
    let config = userdata::only(data, name, Foreign::Refuse, true)?;
    let service = Service::at(machine, hosts::OPENSTACK, &[])?;
    let nova: Nova = service.json(META_DATA)?.unwrap_or_default();
    let one = |key: &str| service.text(&format!("/latest/meta-data/{key}"));
    let ec2 = Ec2 {
        instance_id: one("instance-id")?,
        instance_type: one("instance-type")?,
        local_ipv4: one("local-ipv4")?,
        public_ipv4: one("public-ipv4")?,
    };
    Ok(Found::new(config, config_drive::nova_metadata(nova, ec2)))
}

#[cfg(test)]
mod tests;
