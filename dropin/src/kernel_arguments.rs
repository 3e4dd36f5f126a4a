//! Kernel arguments, set by the distribution's own helper: only it knows the boot loader's configuration.

use anyhow::{Context, Result};
use ignition::model::KernelArguments;

use linux::programs;
use linux::programs::Programs;

/// The helper that Ignition calls too
/// (<https://coreos.github.io/ignition/distributor-notes/#kernel-arguments>). It reboots the machine itself if it changed
/// anything.
const HELPER: &str = "ignition-kargs-helper";
/// The folders that may hold it.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Calls the helper, if the config has kernel arguments.
pub(crate) fn apply(host: &Programs, wanted: Option<&KernelArguments>) -> Result<()> {
    let Some(wanted) = wanted else {
        return Ok(());
    };
    let args = arguments(wanted);
    if args.is_empty() {
        return Ok(());
    }
    let found = FOLDERS.iter().map(|folder| format!("{folder}/{HELPER}"));
    let program = found
        .into_iter()
        .find(|path| host.sysroot.join(path.trim_start_matches('/')).exists())
        .with_context(|| {
            let folders = FOLDERS.join(", ");
            format!("$.kernelArguments: expected the program {HELPER} in {folders}, found none")
        })?;
    programs::succeed(host, &program, &args).context("$.kernelArguments")?;
    Ok(())
}

fn arguments(wanted: &KernelArguments) -> Vec<String> {
    let of = |flag: &'static str, list: &Option<Vec<String>>| {
        let list = list.clone().unwrap_or_default();
        list.into_iter()
            .flat_map(move |word| [flag.to_owned(), word])
    };
    of("--should-exist", &wanted.should_exist)
        .chain(of("--should-not-exist", &wanted.should_not_exist))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_called_as_ignition_calls_it() {
        let wanted = KernelArguments {
            should_exist: Some(vec!["a=1".into(), "b".into()]),
            should_not_exist: Some(vec!["c".into()]),
        };
        let expected = [
            "--should-exist",
            "a=1",
            "--should-exist",
            "b",
            "--should-not-exist",
            "c",
        ];
        assert_eq!(arguments(&wanted), expected);
    }
}
