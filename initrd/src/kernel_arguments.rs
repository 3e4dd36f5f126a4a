//! Kernel arguments: those of a config, written to an addon of our boot entries, followed by one reboot.
//!
//! The command line proper is part of the image. systemd's stub appends the arguments of the addons on its ESP
//! (systemd-stub(7)), so the init can add an argument, and remove one that an addon added; an argument of the image
//! itself stays, and a config that forbids it is refused.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ignition::model;
use image::addon;
use image::cmdline::{LIMIT, ROOT_URL, ROOTHASH};
use image::guid::Guid;
use image::module_words::signed_only;

use crate::context::Boot;
use crate::restart::restart;
use crate::root::Root;
use image::fault::Fault;
use linux::atomic_file;
use linux::esp;
use linux::firmware;
use linux::log::say;
use linux::tools::load_module;
use linux::world::World;

/// The difference between the config's arguments and the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Difference {
    missing: Vec<String>,
    surplus: Vec<String>,
}

/// Makes the command line match the config. Returns if it does; else writes the addon and reboots the machine.
///
/// # Errors
/// If the config wants and forbids the same argument, this machine's loader reads no addon, the image has an argument that
/// the config forbids, or the addon was written and the loader does not pass its arguments to the kernel.
pub(crate) fn apply(boot: &Boot, root: &Root, model: &model::Config) -> Result<()> {
    refuse_contradictions(model)?;
    let path = boot.world.proc.join("cmdline");
    let current =
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let difference = difference(model, &current);
    if difference == Difference::default() {
        return Ok(());
    }
    check(&difference)?;
    check_signatures(&difference, boot.modules.index().signed)?;
    let loader = loader(&boot.world)?;
    // FAT, and the character sets that it would request itself.
    for module in ["vfat", "nls_cp437", "nls_ascii"] {
        load_module(&root.programs, module)?;
    }
    esp::within(&boot.world, loader, |folder| {
        change(folder, &difference, current.trim())
    })?;
    say(
        &boot.world,
        "slipway: the kernel's arguments are changed; the node reboots once",
    );
    Err(restart(&boot.world).context("rebooting with other kernel arguments"))
}

/// The words of a list's entries, each with its entry's number and text.
fn words(list: Option<&Vec<String>>) -> impl Iterator<Item = (usize, &str, &str)> + Clone {
    let entries = list.into_iter().flatten().enumerate();
    entries.flat_map(|(number, entry)| {
        let words = entry.split_whitespace();
        words.map(move |word| (number, entry.as_str(), word))
    })
}

/// Refuses words that are in both lists: every boot would add or remove them and reboot. The entries themselves may differ.
fn refuse_contradictions(model: &model::Config) -> Result<()> {
    let Some(wanted) = &model.kernel_arguments else {
        return Ok(());
    };
    let forbidden = words(wanted.should_not_exist.as_ref());
    let mut both = Vec::new();
    for (i, entry, word) in words(wanted.should_exist.as_ref()) {
        let mut forbidden = forbidden.clone();
        if let Some((j, other, _)) = forbidden.find(|(_, _, forbidden)| *forbidden == word) {
            both.push(format!(
                "{word:?} in {entry:?} ($.kernelArguments.shouldExist.{i}) and in {other:?} \
                 ($.kernelArguments.shouldNotExist.{j})"
            ));
        }
    }
    if both.is_empty() {
        return Ok(());
    }
    Err(
        Fault::new("the config wants and forbids the same kernel arguments")
            .expected("each word of $.kernelArguments in one of the two lists")
            .found(both.join("; "))
            .fix("take the word out of one of the lists")
            .into(),
    )
}

fn difference(model: &model::Config, current: &str) -> Difference {
    let current: Vec<&str> = current.split_whitespace().collect();
    let words = |list: Option<&Vec<String>>| -> Vec<String> {
        words(list).map(|(_, _, word)| word.to_owned()).collect()
    };
    let Some(wanted) = &model.kernel_arguments else {
        return Difference::default();
    };
    let mut missing = words(wanted.should_exist.as_ref());
    missing.retain(|word| !current.contains(&word.as_str()));
    let mut surplus = words(wanted.should_not_exist.as_ref());
    surplus.retain(|word| current.contains(&word.as_str()));
    Difference { missing, surplus }
}

/// Only the image may set the arguments that decide which root is trusted.
fn check(difference: &Difference) -> Result<()> {
    let ours = [ROOTHASH, ROOT_URL];
    let of_ours = |word: &&String| ours.contains(&word.split('=').next().unwrap_or_default());
    let words = difference.missing.iter().chain(&difference.surplus);
    if let Some(word) = words.clone().find(of_ours) {
        return Err(Fault::new("the config changes which root is started")
            .expected("kernel arguments that the image leaves to the config")
            .found(format!("{word:?} in $.kernelArguments"))
            .fix("leave it out; another root is another image")
            .into());
    }
    if let Some(word) = words
        .clone()
        .find(|word| word.chars().any(char::is_control))
    {
        bail!("the kernel argument {word:?} has a control character");
    }
    Ok(())
}

/// Only an image whose recipe says so has modules with signatures in its initramfs: another one would find no disk, and no
/// later boot could take the argument back.
fn check_signatures(difference: &Difference, are_signed: bool) -> Result<()> {
    if are_signed {
        return Ok(());
    }
    let signed_only = |word: &str| signed_only(word).is_some();
    let Some(word) = difference.missing.iter().find(|word| signed_only(word)) else {
        return Ok(());
    };
    Err(
        Fault::new("the config lets the kernel load modules with a signature only")
            .expected(
                "an image whose modules have one: `module-signatures` in [kernel] of its recipe",
            )
            .found(format!(
                "{word:?} in $.kernelArguments, and none in this image's initramfs"
            ))
            .fix("leave it out, and set `module-signatures = true` in the recipe")
            .into(),
    )
}

/// The partition from which the next boot of this machine reads addons.
fn loader(world: &World) -> Result<Guid> {
    let refused = |found: &str, fix: &str| {
        Fault::new("the config's kernel arguments cannot be set on this machine")
            .expected("a start by UEFI from this image's own boot entry")
            .found(found)
            .fix(fix)
    };
    let Some(wanted) = firmware::loader_partition(world) else {
        return Err(refused(
            "the kernel was started by something else",
            "name the arguments where the kernel is started (iPXE script, `slipway run --append`)",
        )
        .into());
    };
    if firmware::secure_boot(world) {
        return Err(refused(
            "Secure Boot is on, with which an addon without a signature is passed over",
            "name the arguments in [kernel] cmdline of the recipe",
        )
        .into());
    }
    Ok(wanted)
}

/// Writes the addon below the mounted ESP.
fn change(esp: &Path, difference: &Difference, current: &str) -> Result<()> {
    let place = |path: &str| esp.join(path.trim_start_matches('/'));
    let (template, target) = (place(addon::TEMPLATE), place(addon::PATH));
    let template = fs::read(&template)
        .context(Fault::new("this image's ESP has no room for kernel arguments")
            .expected(format!("the file {} on it", addon::TEMPLATE))
            .fix("build the image with this version of slipway, or name the arguments in [kernel] cmdline of the recipe"))?;
    let before = fs::read(&target).unwrap_or_default();
    let before: Vec<&str> = addon::words(&before)
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    if let Some(word) = difference
        .surplus
        .iter()
        .find(|word| !before.contains(&word.as_str()))
    {
        return Err(Fault::new("the config forbids a kernel argument of the image")
            .expected(format!("a command line without {word:?}"))
            .found("it in the image's own command line")
            .fix("take it out of [kernel] cmdline of the recipe, or out of $.kernelArguments.shouldNotExist")
            .into());
    }
    let is_there = |word: &String| before.contains(&word.as_str());
    if difference.surplus.is_empty() && difference.missing.iter().all(is_there) {
        return Err(Fault::new("the config's kernel arguments do not reach the kernel")
            .expected(format!("{:?} on the command line", difference.missing))
            .found("them in the addon on the ESP, and not on the command line")
            .fix("look whether the firmware starts this image's own boot entry with systemd's stub")
            .into());
    }
    let mut words = before.clone();
    words.retain(|word| !difference.surplus.iter().any(|surplus| surplus == word));
    words.extend(difference.missing.iter().map(String::as_str));
    let words = words.join(" ");
    let too_long = || {
        Fault::new("the config's kernel arguments are too long")
            .expected(format!(
                "less than {} bytes, and less than {LIMIT} with the image's own",
                addon::ROOM
            ))
            .found(format!("{} bytes", words.len()))
            .fix("name fewer, or name them in [kernel] cmdline of the recipe")
    };
    if current.len() + 1 + words.len() >= LIMIT {
        return Err(too_long().into());
    }
    let content = addon::with_words(&template, &words).with_context(too_long)?;
    place_file(&target, &content)
        .map_err(|error| not_written(&error, content.len()))
        .with_context(|| format!("writing {}", addon::PATH))
}

fn place_file(target: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    atomic_file::write(target, content, 0o644)
}

/// Why an addon of so many bytes is not on the ESP.
fn not_written(error: &io::Error, bytes: usize) -> anyhow::Error {
    let fault = Fault::new("the config's kernel arguments cannot be written to the ESP");
    let fault = fault.found(error.to_string());
    match error.kind() {
        io::ErrorKind::StorageFull => fault
            .expected(format!("{bytes} bytes free on it for {}", addon::PATH))
            .fix("remove from the ESP what no boot entry needs; the next boot tries again"),
        _ => fault.expected(format!("the file {} on it", addon::PATH)),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use linux::programs::Programs;
    use linux::world::Clock;

    use super::*;
    use crate::root::Search;

    fn wanted(exist: &[&str], not: &[&str]) -> model::Config {
        let list = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());
        model::Config {
            kernel_arguments: Some(model::KernelArguments {
                should_exist: list(exist),
                should_not_exist: list(not),
            }),
            ..model::Config::default()
        }
    }

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn only_what_is_not_so_is_a_difference() {
        let model = wanted(&["quiet", "a=1 b"], &["debug", "nosmt"]);
        let found = difference(&model, "root=x quiet nosmt a=2\n");
        assert_eq!(found.missing, ["a=1", "b"]);
        assert_eq!(found.surplus, ["nosmt"]);
        let same = difference(&model, "quiet a=1 b");
        assert_eq!(same, Difference::default());
        assert_eq!(
            difference(&model::Config::default(), "x"),
            Difference::default()
        );
    }

    #[test]
    fn a_word_that_is_wanted_and_forbidden_is_refused_before_the_loader_is_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let world = Arc::new(World::below(folder.path(), Clock::Real));
        fs::create_dir_all(&world.proc).unwrap();
        let root = Root {
            programs: Programs::of_host(Arc::clone(&world)),
            disk: None,
            verity: None,
            search: Search::default(),
        };
        let boot = Boot::of_tests(&world);
        let model = wanted(&["a b", "quiet loglevel=3"], &["debug", "nosmt quiet"]);
        // With the word and without.
        for current in ["quiet\n", "loglevel=3 a b\n"] {
            fs::write(world.proc.join("cmdline"), current).unwrap();
            let fault = apply(&boot, &root, &model).unwrap_err();
            let fault = fault.downcast::<Fault>().unwrap();
            assert!(fault.what.contains("wants and forbids"), "{fault}");
            assert_eq!(
                fault.found.unwrap(),
                "\"quiet\" in \"quiet loglevel=3\" ($.kernelArguments.shouldExist.1) and in \
                 \"nosmt quiet\" ($.kernelArguments.shouldNotExist.1)"
            );
        }
        // Another value of the same argument is another word.
        assert!(refuse_contradictions(&wanted(&["a=1", "b"], &["a=2", "a"])).is_ok());
        assert!(refuse_contradictions(&model::Config::default()).is_ok());
    }

    #[test]
    fn the_root_is_not_the_configs() {
        for word in [
            format!("{ROOTHASH}=00"),
            format!("{ROOT_URL}=http://a.example/"),
        ] {
            let wrong = Difference {
                missing: owned(&[&word]),
                ..Difference::default()
            };
            assert!(check(&wrong).unwrap_err().to_string().contains(&word));
        }
    }

    #[test]
    fn a_kernel_without_signed_modules_is_not_locked_down() {
        let check = |word: &str, are_signed: bool| {
            let difference = Difference {
                missing: owned(&["quiet", word]),
                ..Difference::default()
            };
            check_signatures(&difference, are_signed)
        };
        for word in [
            "lockdown=integrity",
            "module.sig_enforce=1",
            "module.sig-enforce",
        ] {
            let refused = check(word, false).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
            assert!(check(word, true).is_ok());
        }
        for word in ["lockdown.x", "module.sig_enforce=0", "debug"] {
            assert!(check(word, false).is_ok(), "{word}");
        }
    }

    #[test]
    fn a_full_esp_is_named_with_the_file_that_has_no_room() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let fault = not_written(&full, 4096).downcast::<Fault>().unwrap();
        let expected = fault.expected.unwrap();
        assert!(expected.contains("4096 bytes free") && expected.contains(addon::PATH));
        assert!(fault.found.is_some() && fault.fix.is_some());
        let other = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        let fault = not_written(&other, 4096).downcast::<Fault>().unwrap();
        assert!(fault.fix.is_none(), "{fault}");
    }

    #[test]
    fn the_addon_is_written_once_and_then_must_have_reached_the_kernel() {
        let esp = tempfile::tempdir().unwrap();
        let change = |missing: &[&str], surplus: &[&str]| {
            let difference = Difference {
                missing: owned(missing),
                surplus: owned(surplus),
            };
            super::change(esp.path(), &difference, "roothash=00")
        };
        let read = || {
            let bytes = fs::read(esp.path().join(&addon::PATH[1..])).unwrap();
            addon::words(&bytes).unwrap().to_owned()
        };
        let absent = change(&["a"], &[]).unwrap_err();
        assert!(absent.to_string().contains(addon::TEMPLATE), "{absent}");
        let template = esp.path().join(&addon::TEMPLATE[1..]);
        fs::create_dir_all(template.parent().unwrap()).unwrap();
        fs::write(&template, addon::reserved()).unwrap();

        change(&["a", "b=1"], &[]).unwrap();
        assert_eq!(read(), "a b=1");
        let again = change(&["a"], &[]).unwrap_err();
        assert!(again.to_string().contains("do not reach"), "{again}");
        change(&["c"], &["a"]).unwrap();
        assert_eq!(read(), "b=1 c");
        let baked = change(&[], &["quiet"]).unwrap_err();
        assert!(baked.to_string().contains("\"quiet\""), "{baked}");
        let long = "x".repeat(addon::ROOM);
        let long = change(&[&long], &[]).unwrap_err();
        assert!(long.to_string().contains("too long"), "{long}");
        assert_eq!(read(), "b=1 c");
        assert!(!esp.path().join("loader/addons/.slipway.addon.new").exists());
    }
}
