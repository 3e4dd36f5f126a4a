//! The kubelet's credential providers on the node: their configuration and their programs, before the kubelet reads them. The
//! kubelet would end at its start, again and again, and its reason be one line among many.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cluster::credential_providers;
use image::kubelet::{CREDENTIAL_PROVIDER_PROGRAMS, CREDENTIAL_PROVIDERS};
use linux::atomic_file;
use linux::world::World;

/// The argument that names the configuration.
const CONFIG: &str = "--image-credential-provider-config";
/// The argument that names the folder of the programs.
const PROGRAMS: &str = "--image-credential-provider-bin-dir";

/// The kubelet's arguments for its credential providers: those that `given` has not. None without a configuration: the kubelet takes
/// either both or none.
pub(crate) fn arguments(world: &World, given: &[String]) -> Vec<String> {
    let is_given = |name: &&str| given.iter().any(|argument| is_of(argument, name));
    if !is_given(&CONFIG) && !world.in_initrd(CREDENTIAL_PROVIDERS).exists() {
        return Vec::new();
    }
    let all = [
        (CONFIG, CREDENTIAL_PROVIDERS),
        (PROGRAMS, CREDENTIAL_PROVIDER_PROGRAMS),
    ];
    let missing = all.iter().filter(|(name, _)| !is_given(name));
    missing
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// Whether an argument is the one of this name.
fn is_of(argument: &str, name: &str) -> bool {
    let value = argument.strip_prefix(name);
    value.is_some_and(|value| value.is_empty() || value.starts_with('='))
}

/// Checks the configuration, if there is one.
///
/// # Errors
/// All its mistakes, and the programs that the image does not have.
pub(crate) fn check(world: &World) -> Result<()> {
    let file = world.in_initrd(CREDENTIAL_PROVIDERS);
    let about = || format!("reading {}", file.display());
    let Some(text) = atomic_file::read(&file).with_context(about)? else {
        return Ok(());
    };
    let text = String::from_utf8(text).with_context(about)?;
    let programs = programs(&world.in_initrd(CREDENTIAL_PROVIDER_PROGRAMS));
    let Err(report) = credential_providers::check(&text, CREDENTIAL_PROVIDER_PROGRAMS, &programs)
    else {
        return Ok(());
    };
    let lines: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
    bail!("{CREDENTIAL_PROVIDERS} is refused: {}", lines.join("; "))
}

/// The names of the executable files in a folder, sorted.
fn programs(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let executable = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let mut names: Vec<String> = entries
        .filter(|entry| executable(&entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use linux::world::Clock;

    use super::*;
    use crate::samples::put;

    const TEXT: &str = "apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: registry-login
  matchImages: [registry.example]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
";

    #[test]
    fn arguments_come_with_the_configuration_unless_they_are_given() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert_eq!(arguments(&world, &[]), [""; 0]);
        check(&world).unwrap();
        put(&world.in_initrd(CREDENTIAL_PROVIDERS), TEXT);
        assert_eq!(
            arguments(&world, &[]),
            [
                "--image-credential-provider-config=/etc/kubernetes/credential-providers.yaml",
                "--image-credential-provider-bin-dir=/usr/libexec/kubernetes/credential-providers",
            ]
        );
    }

    #[test]
    fn a_configuration_that_is_given_keeps_the_images_programs_unless_they_are_given_too() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let own = "--image-credential-provider-config=/etc/kubernetes/mine.yaml".to_owned();
        let programs = "--image-credential-provider-bin-dir".to_owned();
        assert_eq!(
            arguments(&world, std::slice::from_ref(&own)),
            [format!("{programs}={CREDENTIAL_PROVIDER_PROGRAMS}")]
        );
        assert_eq!(
            arguments(&world, &[own, programs, "/opt".to_owned()]),
            [""; 0]
        );
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_absent() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        put(&world.in_initrd(CREDENTIAL_PROVIDERS), TEXT);
        let program = world
            .in_initrd(CREDENTIAL_PROVIDER_PROGRAMS)
            .join("registry-login");
        put(&program, "#!/bin/sh\n");
        let error = check(&world).unwrap_err().to_string();
        assert!(
            error.contains("no executable \"registry-login\""),
            "{error}"
        );
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        check(&world).unwrap();
    }
}
