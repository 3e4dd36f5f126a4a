//! Modules that the kernel requests itself: ciphers, RAID levels, targets of device mapper.
//!
//! The kernel runs the program that `/proc/sys/kernel/modprobe` names, outside of the root, with the arguments `-q --
//! NAME` (`kernel/module/kmod.c`). While [`Serving`] lives that is this program, which enters the root and becomes its
//! modprobe; so the initramfs needs none of these modules.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use nix::unistd::{chdir, chroot, execve};

use crate::world::World;

/// This program in the initramfs.
const INIT: &str = "/init";
/// The root's modprobe.
const MODPROBE: &std::ffi::CStr = c"/usr/sbin/modprobe";

/// Serves the kernel's requests until it is dropped.
#[derive(Debug)]
pub struct Serving {
    setting: PathBuf,
    before: String,
}

impl Serving {
    /// Names this program to the kernel. The root must be mounted.
    ///
    /// # Errors
    /// If the kernel's setting cannot be changed.
    pub fn begin(world: &World) -> Result<Self> {
        let setting = world.proc.join("sys/kernel/modprobe");
        let before = fs::read_to_string(&setting)
            .with_context(|| format!("reading {}", setting.display()))?;
        fs::write(&setting, format!("{INIT}\n"))
            .with_context(|| format!("writing {}", setting.display()))?;
        Ok(Self { setting, before })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.setting, &self.before) {
            tracing::warn!("{}: {error}", self.setting.display());
        }
    }
}

/// Answers a request of the kernel by executing modprobe, so it returns only if that fails; none if these arguments are
/// not such a request.
pub fn answer(arguments: &[String], world: &World) -> Option<ExitCode> {
    let name = requested(arguments)?;
    match become_modprobe(world, name) {
        Ok(never) => match never {},
        // The kernel reads the exit code only.
        Err(_) => Some(ExitCode::FAILURE),
    }
}

fn requested(arguments: &[String]) -> Option<&str> {
    match arguments {
        [_, quiet, end, name] if quiet == "-q" && end == "--" => Some(name),
        _ => None,
    }
}

fn become_modprobe(world: &World, name: &str) -> Result<Infallible> {
    let arguments = [
        c"modprobe".to_owned(),
        c"-q".to_owned(),
        c"--".to_owned(),
        CString::new(name)?,
    ];
    chroot(&world.sysroot)?;
    chdir("/")?;
    Ok(execve(
        MODPROBE,
        &arguments,
        &[c"PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Clock;

    #[test]
    fn only_the_kernels_own_arguments_are_a_request() {
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        assert_eq!(
            requested(&words("/init -q -- crypto-xts(aes)")),
            Some("crypto-xts(aes)")
        );
        for other in ["/init", "/init gate", "/init -q x y", "/init -q -- a b"] {
            assert_eq!(requested(&words(other)), None, "{other}");
        }
    }

    #[test]
    fn the_kernels_setting_is_as_before_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert!(Serving::begin(&world).is_err());
        let setting = world.proc.join("sys/kernel/modprobe");
        fs::create_dir_all(setting.parent().unwrap()).unwrap();
        fs::write(&setting, "/sbin/modprobe\n").unwrap();
        let serving = Serving::begin(&world).unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "/init\n");
        drop(serving);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "/sbin/modprobe\n");
    }
}
