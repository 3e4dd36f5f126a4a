//! Provisioned: the report to the platform's vendor that the config is applied, or that it cannot be. Best effort.
//!
//! A note in `state` is written before the node counts as provisioned and removed when the vendor has the report, so that a
//! boot that ends between the two is made up for by the next one.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use image::paths;
use linux::atomic_file;

use crate::context::Boot;
use crate::state::State;
use crate::vendor;

/// Begins a first boot: from now on the vendor waits, if it is one that does. The command line alone cannot choose it: the
/// image must be for the platform.
pub(crate) fn begin(boot: &Boot) {
    let provider = boot.identity.platform;
    let of_image = &boot.manifest.platforms;
    let listed = of_image.iter().any(|id| id.as_str() == provider.id);
    let waits = provider.report.is_some() && listed;
    boot.awaiting.set(waits.then_some(provider));
}

/// Notes in `state` that the vendor waits. Before the node is marked as provisioned.
///
/// # Errors
/// If the note cannot be written.
pub(crate) fn note(boot: &Boot, state: &State) -> Result<()> {
    note_in(boot, state.dir()?)
}

fn note_in(boot: &Boot, state: &Path) -> Result<()> {
    if boot.awaiting.get().is_none() {
        return Ok(());
    }
    let path = state.join(paths::STATE_REPORT);
    atomic_file::write(&path, b"", 0o644).with_context(|| format!("writing {}", path.display()))
}

/// Reports that the config is applied: on a first boot, and on a later one as long as the vendor has no report.
pub(crate) fn report(boot: &Boot, state: &State) {
    if let Some(dir) = state.made() {
        report_by(boot, dir, state.first_boot);
    }
}

fn report_by(boot: &Boot, state: &Path, first_boot: bool) {
    let note = state.join(paths::STATE_REPORT);
    if !first_boot && note.exists() {
        begin(boot);
    }
    let Some(provider) = boot.awaiting.get() else {
        return;
    };
    // What fails from now on does not concern the config.
    boot.awaiting.set(None);
    let modules = Arc::clone(&boot.modules);
    if vendor::report(&boot.world, &boot.network, modules, provider, None)
        && let Err(error) = atomic_file::remove(&note)
    {
        tracing::warn!("the note of the vendor's report stays: {error}");
    }
}

/// Reports that the config cannot be applied, for this reason. A later report may still say that it is.
pub(crate) fn report_failure(boot: &Boot, why: &str) {
    if let Some(provider) = boot.awaiting.get() {
        let modules = Arc::clone(&boot.modules);
        let why = Some(why.to_owned());
        vendor::report(&boot.world, &boot.network, modules, provider, why);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use image::platform::PlatformId;
    use linux::world::{Clock, World};
    use platform::machine::Machine;
    use platform::outcome::Outcome;
    use platform::problem::Problem;
    use platform::provider::Provider;
    use platform::providers::by_id;

    use super::*;

    /// The reports that came, and whether the vendor takes them.
    static VENDOR: Mutex<(Vec<String>, bool)> = Mutex::new((Vec::new(), false));

    fn take(_: &Machine<'_>, outcome: Outcome<'_>) -> Result<Option<String>, Problem> {
        let mut vendor = VENDOR.lock().unwrap();
        vendor.0.push(format!("{outcome:?}"));
        match vendor.1 {
            true => Ok(Some("taken".to_owned())),
            false => Err(Problem {
                what: "no answer".to_owned(),
                remote: true,
            }),
        }
    }

    #[test]
    fn a_vendor_that_waits_gets_its_report_at_the_first_boot_that_can_send_it() {
        let folder = tempfile::tempdir().unwrap();
        let world = Arc::new(World::below(folder.path(), Clock::Real));
        let dir = folder.path().join("state");
        std::fs::create_dir_all(&dir).unwrap();
        let mut boot = Boot::of_tests(&world);
        boot.identity.platform = Box::leak(Box::new(Provider {
            report: Some(take),
            ..*by_id("azure").unwrap()
        }));
        let came = || std::mem::take(&mut VENDOR.lock().unwrap().0);
        // The command line alone does not choose the vendor.
        begin(&boot);
        report_by(&boot, &dir, true);
        assert!(came().is_empty());
        boot.manifest.platforms = vec![PlatformId::of("azure")];
        begin(&boot);
        report_failure(&boot, "no such user");
        assert_eq!(came(), ["Failed(\"no such user\")"]);
        note_in(&boot, &dir).unwrap();
        report_by(&boot, &dir, true);
        assert_eq!(came(), ["Ready"]);
        // What fails behind the report does not concern the vendor.
        report_failure(&boot, "later");
        assert!(came().is_empty());
        // The vendor did not take it: the next boot sends it, the one after that does not.
        VENDOR.lock().unwrap().1 = true;
        report_by(&boot, &dir, false);
        report_by(&boot, &dir, false);
        assert_eq!(came(), ["Ready"]);
        assert!(!dir.join(paths::STATE_REPORT).exists());
    }
}
