//! Container images that the recipe composes of Debian packages: installed as the kubelet's container is, each in a folder of the root.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use image::container_images::{ContainerImage as Listed, folder};

use super::prebuilt::below;
use crate::code;
use crate::host::cache::Key;
use crate::host::sandbox::Sandbox;
use crate::host::session::Session;
use crate::install::{self, Purpose, Report, Rootfs};
use crate::layer::Entry;
use crate::lock::LockedRecipe;
use crate::oci::{self, RunConfig};
use crate::recipe::Composed;
use crate::steps::{accounts, rootfs};

/// The file of a step's folder with the image's documents.
const DOCUMENTS: &str = "documents.json";
/// Where a program finds others, unless the recipe says it.
const PATH: (&str, &str) = (
    "PATH",
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
);

/// An image for the root.
pub(super) struct Made {
    /// What the node tells containerd.
    pub(super) listed: Listed,
    /// Its files, below its folder of the root.
    pub(super) entries: Vec<Entry>,
    /// What became of its packages.
    pub(super) report: Report,
    /// Hash of its content and its name.
    pub(super) key: Key,
}

/// Installs the packages of an image, checks it, and makes its documents.
///
/// # Errors
/// If a package cannot be installed, or the command that has to succeed in the image fails; files that scripts generate differently
/// each time, as [`crate::recipe::Mistakes`].
pub(super) fn make(session: &Session, locked: &LockedRecipe, wanted: &Composed) -> Result<Made> {
    let set = wanted.set();
    let debs = locked.packages(session, &set)?;
    let options = rootfs::options(locked, Purpose::Container, wanted.packages.clone());
    let rootfs = install::install(session, &format!("{set} rootfs"), &debs, &options)?;
    let given = (debs.as_slice(), &options);
    let rootfs = rootfs::without_generated(session, locked, &set, given, rootfs)?;
    let rootfs = accounts::of_container(&locked.recipe, rootfs)?;
    let files = files(&rootfs);
    let (key, documents) = documents(session, locked, wanted, (&rootfs, &files))?;
    let folder = folder(&documents.chain_id);
    // The folder of the image is its root.
    let entries = files.into_iter().filter(|entry| entry.path != "/");
    Ok(Made {
        entries: below(&folder, entries.collect()),
        listed: Listed {
            names: vec![wanted.name.clone()],
            manifest: documents.manifest,
            config: documents.config,
            chain_id: documents.chain_id,
            folder,
        },
        report: rootfs.report,
        key,
    })
}

/// Its files. None gives the rights of another user, as of the root's packages.
fn files(rootfs: &Rootfs) -> Vec<Entry> {
    let entries = rootfs.entries().iter().cloned();
    entries.map(Entry::without_set_id).collect()
}

/// The step that writes the layer, whose digest is the image's, and runs the check in it.
fn documents(
    session: &Session,
    locked: &LockedRecipe,
    wanted: &Composed,
    (rootfs, files): (&Rootfs, &[Entry]),
) -> Result<(Key, oci::Unpacked)> {
    let created = locked.lock.epoch;
    let architecture = locked.recipe.image.architecture.debian();
    let step = session
        .progress
        .step(&format!("composed image {}", wanted.name));
    let key = Key::of("composed image", code::CONTAINERS)
        .key("rootfs", &rootfs.key)
        .text("image", &serde_json::to_string(wanted)?)
        .text("architecture", architecture)
        .bytes("created", &created.to_le_bytes())
        .finish();
    let made = session.cache.step("composed-image", &key, |out| {
        let scratch = session.cache.scratch()?;
        session.do_deferred()?;
        let layer = oci::layer(files, created, &scratch.path().join("layer.tar"))?;
        if !wanted.check.is_empty() {
            prove(wanted, &layer, &scratch.path().join("proof"))?;
        }
        let image = oci::Image {
            name: wanted.name.clone(),
            architecture: architecture.to_owned(),
            run: run_config(wanted),
            layers: vec![layer],
        };
        let documents = oci::unpacked(&image, created)?;
        let text = serde_json::to_vec(&documents)?;
        Ok(fs::write(out.join(DOCUMENTS), text)?)
    })?;
    step.done(made.hit, None);
    let documents = serde_json::from_slice(&fs::read(made.path.join(DOCUMENTS))?)?;
    Ok((key, documents))
}

/// What a pod that says nothing runs.
fn run_config(wanted: &Composed) -> RunConfig {
    RunConfig {
        user: wanted.user.clone(),
        entrypoint: wanted.entrypoint.clone(),
        cmd: wanted.arguments.clone(),
        env: environment(wanted)
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        ..RunConfig::default()
    }
}

/// The variables of its programs.
fn environment(wanted: &Composed) -> BTreeMap<String, String> {
    let mut environment = wanted.environment.clone();
    let (name, value) = PATH;
    environment
        .entry(name.to_owned())
        .or_insert_with(|| value.to_owned());
    environment
}

/// Runs the image's check in it, with the image's variables. As root, whose number is the only one that is sure to be mapped where an ordinary
/// user builds.
fn prove(wanted: &Composed, layer: &oci::Blob, tree: &Path) -> Result<()> {
    tar::Archive::new(fs::File::open(&layer.path)?).unpack(tree)?;
    let command = &wanted.check;
    let (program, arguments) = command.split_first().context("the check of an image")?;
    // An empty one counts as none (setlocale(3)): the sandbox's would hide LANG, and no container runtime sets it.
    let mut sandbox = Sandbox::new(tree).env("LC_ALL", "");
    for (name, value) in environment(wanted) {
        sandbox = sandbox.env(name, value);
    }
    let run = sandbox.command(program).args(arguments).run();
    run.map(drop).with_context(|| {
        format!(
            "the check of the image, {}, failed in it",
            command.join(" ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::sandbox::c_program;

    /// A check that succeeds with the image's variables alone.
    #[test]
    fn the_check_has_the_variables_of_the_image() {
        if !linux::host::is_root() {
            return linux::host::skipped("a sandbox needs root");
        }
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("check");
        let source = "#include <stdlib.h>\n#include <string.h>\n\
             static int is(const char *name, const char *value) {\n\
             \x20 const char *found = getenv(name);\n\
             \x20 return found && !strcmp(found, value);\n}\n\
             int main() { return !(is(\"LANG\", \"C.UTF-8\") && is(\"LC_ALL\", \"\") && is(\"PATH\", \"/opt/bin\")); }\n";
        c_program::compile(source, &program);
        let entries = [Entry::copy("/check", 0o755, &program)];
        let layer = oci::layer(&entries, 7, &folder.path().join("layer.tar")).unwrap();
        let mut wanted = Composed {
            check: vec!["/check".to_owned()],
            environment: [("LANG", "C.UTF-8"), ("PATH", "/opt/bin")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Composed::default()
        };
        prove(&wanted, &layer, &folder.path().join("one")).unwrap();
        wanted.environment.remove("PATH");
        let error = prove(&wanted, &layer, &folder.path().join("two")).unwrap_err();
        let said = format!("{error:#}");
        assert!(
            said.contains("the check of the image, /check, failed in it"),
            "{said}"
        );
    }

    #[test]
    fn a_program_has_a_path_unless_the_recipe_has_one() {
        let mut wanted = Composed {
            entrypoint: vec!["/usr/bin/jq".to_owned()],
            arguments: vec!["--help".to_owned()],
            user: "1000:1000".to_owned(),
            environment: [("A".to_owned(), "b=c".to_owned())].into(),
            ..Composed::default()
        };
        let run = run_config(&wanted);
        assert_eq!(run.env[0], "A=b=c");
        assert!(
            run.env[1].starts_with("PATH=/usr/local/sbin:"),
            "{:?}",
            run.env
        );
        assert_eq!(
            (run.entrypoint, run.cmd),
            (wanted.entrypoint.clone(), wanted.arguments.clone())
        );
        wanted.environment = [("PATH".to_owned(), "/opt/bin".to_owned())].into();
        assert_eq!(run_config(&wanted).env, ["PATH=/opt/bin"]);
    }
}
