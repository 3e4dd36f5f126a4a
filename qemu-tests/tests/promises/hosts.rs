//! Hosts of builds that only a machine of their own shows: a cache on NFS, and AppArmor.

use std::fs;

use anyhow::{Context, Result, ensure};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;

use crate::leave::program;

/// Exports a folder and mounts it, as version 4.2, the one with extended attributes of users.
const NFS: &str = "set -e
mkdir -p /var/srv/nfs /run/nfs
systemctl restart nfs-server
mount -t nfs -o vers=4.2 127.0.0.1:/var/srv/nfs /run/nfs
stat -f -c %T /run/nfs
grep -c . /sys/kernel/security/apparmor/profiles || true
cat /sys/module/apparmor/parameters/enabled";
/// The commands that start no program, with their cache and their files on NFS.
const NO_PROGRAM: &str = "set -e
export SLIPWAY_CACHE=/run/nfs/cache
cd /run/nfs
slipway new box
slipway check box.toml
slipway cache show
slipway cache prune
rm -r /run/nfs/box.toml";
/// What a build says of the host, and its exit code.
const BUILD: &str = "slipway build /run/box.toml 2>&1; echo \"exit code $?\"";
const PROFILE: &str = "/run/profile";
/// The documentation, whose profile is loaded as it stands there.
const HOSTS: &str = include_str!("../../../docs/hosts.md");

/// A cache on NFS is refused by that name before a download, and what starts no program works there. AppArmor takes the profile of
/// docs/hosts.md, and an ordinary user has namespaces by it.
pub(crate) fn a_cache_on_nfs_is_refused_and_the_documented_profile_is_taken(
    lab: &mut Lab,
) -> Result<()> {
    let recipe = lab.folder().join("host.toml");
    let text = format!(
        "extends = \"../../qemu-tests/host.toml\"\n[files.\"/usr/local/bin/slipway\"]\nsource = {:?}\nmode = \"0755\"\n",
        program()?
    );
    fs::write(&recipe, text).context("writing the recipe")?;
    let image = lab.builder().build("target/qemu-tests/host")?;
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        etcd: false,
        image: Some(image),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    running.wait_services()?;
    let found = running.run(NFS)?;
    ensure!(found.starts_with("nfs") && found.ends_with('Y'), "{found}");
    running.run(NO_PROGRAM)?;
    running.run("cd /run && slipway new box && chmod 755 box.toml")?;
    says(
        &running,
        &format!("export SLIPWAY_CACHE=/run/nfs/cache; {BUILD}"),
        &[
            "/run/nfs/cache (NFS) cannot ",
            "set SLIPWAY_CACHE",
            "exit code 1",
        ],
    )?;

    load(&running, &documented()?)?;
    says(
        &running,
        &as_builder("slipway doctor 2>&1; cat /proc/self/attr/apparmor/current; true"),
        &["as a user with subordinate ids; a program ran in them"],
    )?;
    // A shutdown would wait for the server that it has stopped.
    running.run("umount /run/nfs")?;
    running.power_off()
}

/// Runs a script and looks for words in what it prints.
fn says(running: &Running, script: &str, words: &[&str]) -> Result<()> {
    let found = running.run(script)?;
    for word in words {
        ensure!(
            found.contains(word),
            "{word:?} is not in what `{script}` says: {found}"
        );
    }
    Ok(())
}

fn as_builder(script: &str) -> String {
    let script = script.replace('\'', r"'\''");
    format!(
        "runuser -u builder -- env HOME=/var/home/builder bash -c 'cd /var/home/builder; {script}'"
    )
}

fn load(running: &Running, profile: &str) -> Result<()> {
    running
        .run(&format!(
            "cat >{PROFILE} <<'END'\n{profile}END\napparmor_parser -r {PROFILE}"
        ))
        .map(drop)
}

/// The profile that docs/hosts.md gives.
fn documented() -> Result<String> {
    let begin = HOSTS.find("abi <abi/4.0>").context("finding the profile")?;
    let text = &HOSTS[begin..];
    let end = text.find("```").context("finding the profile's end")?;
    Ok(text[..end].to_owned())
}
