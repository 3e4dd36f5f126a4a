//! The kubelet's credential providers on the node: their configuration and their programs, before the kubelet reads them. The
//! kubelet would end at its start, again and again, and its reason be one line among many.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cluster::credential_providers::{self, Programs};
use image::kubelet::{CREDENTIAL_PROVIDER_PROGRAMS, CREDENTIAL_PROVIDERS, reaches_on_host};
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
    let programs = programs(world);
    let Err(report) = credential_providers::check(&text, CREDENTIAL_PROVIDER_PROGRAMS, &programs)
    else {
        return Ok(());
    };
    let lines: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
    bail!("{CREDENTIAL_PROVIDERS} is refused: {}", lines.join("; "))
}

/// The executable files in the folder of the plugins, sorted by name.
fn programs(world: &World) -> Programs {
    let folder = world.in_initrd(CREDENTIAL_PROVIDER_PROGRAMS);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let executable = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let mut programs = Programs::default();
    for path in entries.map(|entry| entry.path()) {
        if let Some(name) = path.file_name()
            && executable(&path)
        {
            let name = name.to_string_lossy().into_owned();
            let list = match is_in_container(world, &name) {
                true => &mut programs.present,
                false => &mut programs.outside,
            };
            list.push(name);
        }
    }
    programs.present.sort();
    programs.outside.sort();
    programs
}

/// Whether the kubelet's container has the file to which this program's path leads, and each link on the way.
fn is_in_container(world: &World, name: &str) -> bool {
    let path = format!("{CREDENTIAL_PROVIDER_PROGRAMS}/{name}");
    reaches_on_host(&path, |path| {
        let target = fs::read_link(world.in_initrd(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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

    #[test]
    fn a_link_to_a_program_that_the_kubelets_container_does_not_have_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        put(&world.in_initrd(CREDENTIAL_PROVIDERS), TEXT);
        let programs = world.in_initrd(CREDENTIAL_PROVIDER_PROGRAMS);
        fs::create_dir_all(&programs).unwrap();
        // It leads on to a file that the container has, and is itself in none of its mounts.
        let alternative = world.in_initrd("/etc/alternatives/login");
        fs::create_dir_all(alternative.parent().unwrap()).unwrap();
        symlink("../../usr/libexec/kubernetes/login", &alternative).unwrap();
        for (file, target, fits) in [
            ("/usr/bin/login", "../../../bin/login", false),
            ("/usr/libexec/kubernetes/login", "../login", true),
            (
                "/usr/libexec/kubernetes/login",
                "../../../../etc/alternatives/login",
                false,
            ),
        ] {
            let file = world.in_initrd(file);
            put(&file, "#!/bin/sh\n");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            let link = programs.join("registry-login");
            symlink(target, &link).unwrap();
            let error = check(&world).err().map(|error| error.to_string());
            let words = "registry-login is a link to a file that the kubelet's container";
            let refused = error.as_ref().is_some_and(|error| error.contains(words));
            assert_eq!((error.is_none(), refused), (fits, !fits), "{error:?}");
            fs::remove_file(link).unwrap();
        }
    }
}
