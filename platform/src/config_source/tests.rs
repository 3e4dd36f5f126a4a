//! The order of the sources, on a machine whose media are plain folders.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use image::cmdline::Cmdline;

use super::{Named, Source, user, user_within};
use crate::providers::by_id;
use crate::testing::{Bench, CONFIG};
use crate::userdata::UserConfig;

const FW_CFG: &str = "sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw";
const DEVICE: &str = "ignition.config.device=data ignition.config.path=/node.ign";

fn named(words: &str) -> Named {
    Named::from(&Cmdline::parse(words).unwrap())
}

fn text(text: &str, name: &str) -> Option<Source> {
    Some(Source::Text(UserConfig {
        text: text.as_bytes().to_vec(),
        name: name.to_owned(),
    }))
}

#[test]
fn the_command_line_comes_before_the_platform() {
    let mut bench = Bench::new();
    bench.write(FW_CFG, "{}");
    bench.write("data/node.ign", CONFIG);
    bench.medium = Some((2, Some("data"), bench.path("data")));
    let qemu = by_id("qemu").unwrap();
    let ask = |words: &str| {
        let found = bench.run(|machine| user(qemu, &named(words), machine));
        found.unwrap()
    };

    let found = ask("");
    assert_eq!(found.source, text("{}", "fw_cfg"));
    assert!(found.notes.is_empty(), "{:?}", found.notes);

    let found = ask(DEVICE);
    assert_eq!(found.source, text(CONFIG, "/node.ign of data"));
    let note = "ignoring fw_cfg: the command line names a config";
    assert_eq!(found.notes, [note]);

    let found = ask(&format!("{DEVICE} ignition.config.url=http://a/b"));
    assert_eq!(found.source, Some(Source::Url("http://a/b".to_owned())));
    let modules = bench.modules.lock().unwrap();
    assert!(modules.iter().any(|name| name == "qemu_fw_cfg"));
}

#[test]
fn a_device_that_is_missing_or_whose_path_leads_out_of_it_is_refused() {
    let mut bench = Bench::new();
    let ask = |bench: &Bench| {
        let found = bench.run(|machine| named(DEVICE).find(machine));
        found.unwrap_err()
    };
    let problem = ask(&bench);
    assert!(problem.what.contains("did not appear"), "{problem}");
    bench.write("secret", "x");
    fs::create_dir_all(bench.path("data")).unwrap();
    symlink("../secret", bench.path("data/node.ign")).unwrap();
    bench.medium = Some((0, Some("data"), bench.path("data")));
    let problem = ask(&bench);
    assert!(
        problem.what.contains("leads out of") && !problem.remote,
        "{problem}"
    );
}

#[test]
fn missing_metadata_does_not_hold_up_a_config_of_the_command_line() {
    let mut bench = Bench::new();
    // The service refuses each request at once.
    bench.patience.attempts = Some(1);
    let named = named("ignition.config.url=http://a/b");
    let aws = by_id("aws").unwrap();
    let found = bench.run(|machine| user(aws, &named, machine)).unwrap();
    assert!(found.source.is_some());
    let note = &found.notes[0];
    assert!(
        note.starts_with("no metadata from the platform: "),
        "{note}"
    );
}

#[test]
fn a_network_that_does_not_come_up_does_not_hold_up_a_config_of_the_command_line() {
    let bench = Bench::new();
    bench.dark.store(true, Ordering::SeqCst);
    let named = named("ignition.config.url=http://a/b");
    // OpenStack has a thread for the network, the others have none.
    for (id, why) in [
        ("aws", "the network is not up within 0.1 s"),
        (
            "openstack",
            "neither a config drive nor the metadata service answered",
        ),
    ] {
        let provider = by_id(id).unwrap();
        let limit = Duration::from_millis(100);
        let found = bench.run(|machine| user_within(provider, &named, machine, limit));
        let found = found.unwrap();
        assert!(found.source.is_some());
        let note = format!("no metadata from the platform: {why}");
        assert_eq!(found.notes, [note]);
    }
}

#[test]
fn a_network_that_comes_up_in_time_is_waited_for_no_longer() {
    let bench = Bench::new();
    let began = Instant::now();
    let up = bench.run(|machine| machine.bring_up().map(|()| began.elapsed()));
    assert!(up.unwrap() < bench.patience.total.unwrap());
    assert_eq!(bench.network.load(Ordering::SeqCst), 1);
}
