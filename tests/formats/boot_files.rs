//! The UKI and the initramfs against ukify, cpio, zstd and modprobe.

use std::collections::BTreeSet;
use std::fs::{self, File};

use anyhow::{Context as _, Result, ensure};
use image::modules::ModuleIndex;
use slipway::format::cpio;

use super::{Bench, INIT, OS_RELEASE};

impl Bench {
    pub(super) fn ukify(&self) -> Result<()> {
        fs::copy(&self.bootable.vmlinuz, self.place.path().join("vmlinuz"))?;
        fs::copy(&self.initrd, self.place.path().join("initrd"))?;
        fs::write(self.place.path().join("osrel"), OS_RELEASE)?;
        self.shell(&format!(
            "ukify build --linux=vmlinuz --initrd=initrd --cmdline='{}' --os-release=@osrel --uname={} \
             --stub=/usr/lib/systemd/boot/efi/linuxx64.efi.stub --output=oracle.efi",
            self.bootable.cmdline, self.kernel.release
        ))?;
        let (theirs, ours) = (
            fs::read(self.place.path().join("oracle.efi"))?,
            fs::read(&self.bootable.uki)?,
        );
        let differs = theirs.iter().zip(&ours).position(|(a, b)| a != b);
        ensure!(
            theirs == ours,
            "ukify's image has {} bytes, ours {}; the first difference is at {differs:?}",
            theirs.len(),
            ours.len()
        );
        Ok(())
    }

    fn archive(&self) -> Result<Vec<u8>> {
        Ok(zstd::stream::decode_all(File::open(&self.initrd)?)?)
    }

    pub(super) fn initramfs(&self) -> Result<()> {
        fs::copy(&self.initrd, self.place.path().join("initrd"))?;
        // Three archives: the init, the modules, what is the image's own.
        let listed = self.shell(
            "zstd -dqc initrd > initrd.cpio; { cpio --quiet -t; cpio --quiet -t; cpio --quiet -t; } < initrd.cpio",
        )?;
        let archive = self.archive()?;
        let ours: Vec<&str> = cpio::read(&archive)?
            .iter()
            .map(|entry| entry.name)
            .collect();
        ensure!(
            listed.lines().eq(ours.iter().copied()),
            "cpio lists {listed}"
        );
        // Without the last one an init that has no console does not start.
        for name in ["init", "etc/slipway/base.ign", "dev/console", "dev/null"] {
            ensure!(ours.contains(&name), "{name} is missing");
        }
        self.shell("mkdir x; cd x; cpio --quiet -i --no-absolute-filenames init < ../initrd.cpio")?;
        ensure!(fs::read(self.place.path().join("x/init"))? == INIT);
        Ok(())
    }

    pub(super) fn module_order(&self) -> Result<()> {
        let archive = self.archive()?;
        let entries = cpio::read(&archive)?;
        let entry = entries
            .iter()
            .find(|entry| entry.name.ends_with("slipway-modules.json"))
            .context("the initramfs has no index of modules")?;
        let index: ModuleIndex = serde_json::from_slice(entry.content)?;
        ensure!(
            index.modules.len() > 10,
            "found {} modules",
            index.modules.len()
        );
        let tree = self
            .kernel
            .modules
            .ancestors()
            .nth(4)
            .context("a kernel's tree")?;
        for module in &index.modules {
            let out = self
                .sandbox()
                .bind_read_only(tree, "/kernel")
                .command("/usr/sbin/modprobe")
                .args(["-d", "/kernel", "-S", &self.kernel.release])
                .args(["--show-depends", &module.name])
                .run()?;
            let theirs: Vec<String> = String::from_utf8(out)?
                .lines()
                .filter_map(|line| line.strip_prefix("insmod "))
                .filter_map(|path| {
                    Some(
                        path.trim()
                            .rsplit('/')
                            .next()?
                            .split(".ko")
                            .next()?
                            .replace('-', "_"),
                    )
                })
                .collect();
            let ours: Vec<&str> = index
                .order(module)
                .iter()
                .map(|load| load.module.name.as_str())
                .collect();
            let (a, b): (BTreeSet<&str>, BTreeSet<&str>) = (
                theirs.iter().map(String::as_str).collect(),
                ours.iter().copied().collect(),
            );
            ensure!(
                a == b,
                "{}: modprobe loads {theirs:?}, the index {ours:?}",
                module.name
            );
            // The order matters only between a module and its dependencies.
            for load in index.order(module) {
                let at = |name: &str| ours.iter().position(|other| *other == name);
                for needed in &load.module.dependencies {
                    ensure!(
                        at(needed) < at(&load.module.name),
                        "{needed} comes too late in {ours:?}"
                    );
                }
            }
        }
        Ok(())
    }
}
