//! The disk and its artifacts against sgdisk, sfdisk, fsck.fat, mtools, qemu-img, GNU tar, and against our own `inspect`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result, ensure};
use image::layout::{Architecture, GIB, LABEL_VERITY_A, MIB, SectorSize, Sizes};
use slipway::artifact::{self, Inputs};
use slipway::host::progress::Kind;
use slipway::host::session::Session;
use slipway::inspect::inspect;
use slipway::steps::disk;
use slipway::vm::disks::partition;

use super::{Bench, EPOCH, image, sizes, write_disk};

impl Bench {
    pub(super) fn table(&self) -> Result<()> {
        let found = self.shell("sgdisk -v disk.raw")?;
        ensure!(found.contains("No problems found"), "{found}");
        let listed = self
            .shell("sgdisk -i 2 disk.raw; sgdisk -i 3 disk.raw")?
            .to_lowercase();
        let hash = self.root.hash.to_string();
        for part in [&hash[..8], &hash[20..32], &hash[32..40], &hash[52..64]] {
            ensure!(
                listed.contains(part),
                "the root hash {hash} is not in {listed}"
            );
        }
        ensure!(
            listed.contains("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"),
            "{listed}"
        );
        ensure!(
            listed.contains("2c7357ed-ebd2-46d9-aec1-23d437ec2bf5"),
            "{listed}"
        );
        ensure!(
            self.disk.size == GIB,
            "the disk has {} bytes",
            self.disk.size
        );
        Ok(())
    }

    pub(super) fn esp(&self) -> Result<()> {
        self.shell("dd if=disk.raw of=esp.img bs=1M skip=1 count=64 conv=sparse status=none")?;
        let found = self.shell("fsck.fat -nv esp.img")?;
        ensure!(
            found.contains("FAT32") || found.contains("32 bit entries"),
            "{found}"
        );
        self.shell(
            "mcopy -i esp.img '::EFI/Linux/formats_1.2+3-0.efi' esp.efi; \
             mcopy -i esp.img ::EFI/BOOT/BOOTX64.EFI boot.efi; \
             cmp boot.efi /usr/lib/systemd/boot/efi/systemd-bootx64.efi",
        )?;
        ensure!(fs::read(self.place.path().join("esp.efi"))? == fs::read(&self.bootable.uki)?);
        let listed = self.shell("mdir -/ -b -i esp.img ::")?;
        ensure!(
            listed.contains("loader.conf") && listed.contains("sbom.cdx.json"),
            "{listed}"
        );
        Ok(())
    }

    /// The whole disk for sectors of 4096 bytes.
    pub(super) fn large_sectors(&self) -> Result<()> {
        let session = Session::open(Kind::Quiet)?;
        let sizes = Sizes {
            esp: 260 * MIB,
            ..sizes()
        };
        let parts = disk::Parts {
            tools: &self.tools,
            bootable: &self.bootable,
            root: &self.root,
            image: &image(),
            architecture: Architecture::X86_64,
            sizes: &sizes,
            sector: SectorSize::B4096,
            epoch: EPOCH,
            sbom: &self.sbom,
            size_multiple: MIB,
        };
        let path = self.place.path().join("large.raw");
        disk::write(&session, &parts, &path, &|_| {})?;
        let found = self.shell("/usr/sbin/sfdisk --sector-size 4096 --verify large.raw")?;
        ensure!(found.contains("No errors detected"), "{found}");
        let listed = self.shell("/usr/sbin/sfdisk --sector-size 4096 --dump large.raw")?;
        ensure!(
            listed.contains("sector-size: 4096") && listed.contains("start=         256,"),
            "{listed}"
        );
        let found = self.shell(
            "dd if=large.raw of=large.img bs=1M skip=1 count=260 conv=sparse status=none; fsck.fat -nv large.img",
        )?;
        for word in ["4096 bytes per logical sector", "4096 bytes per cluster"] {
            ensure!(found.contains(word), "{word:?} is not in {found}");
        }
        let report = inspect(&path)?;
        let sector = report.disk.map(|disk| disk.sector_size);
        ensure!(
            sector == Some(4096) && report.root.is_some_and(|root| root.tree_fits),
            "inspected: sectors of {sector:?} bytes, notes {:?}",
            report.notes
        );
        let uki = report.kernels.first().map(|kernel| kernel.size);
        ensure!(uki == Some(fs::read(&self.bootable.uki)?.len()));
        Ok(())
    }

    pub(super) fn archives(&self) -> Result<()> {
        let inputs = Inputs {
            tools: &self.tools.root,
            image: &image(),
            architecture: Architecture::X86_64,
            disk: &self.disk.path,
            disk_size: self.disk.size,
            vmlinuz: &self.bootable.vmlinuz,
            initrd: &self.bootable.initrd,
            cmdline: &self.bootable.cmdline,
            erofs: &self.root.erofs,
            verity: &self.root.verity,
            sizes: &Sizes::default(),
            epoch: EPOCH,
        };
        let session = Session::open(Kind::Quiet)?;
        for kind in artifact::Kind::all() {
            for file in artifact::write(&session, kind, &inputs, self.place.path())? {
                ensure!(
                    self.place.path().join(&file).exists(),
                    "{} is missing",
                    file.display()
                );
            }
        }
        self.shell(
            "qemu-img check disk.qcow2; qemu-img compare -f raw -F qcow2 disk.raw disk.qcow2",
        )?;
        let listed = self.shell("gzip -t gce.tar.gz; tar -tvzf gce.tar.gz")?;
        ensure!(
            listed.lines().count() == 1
                && listed.contains(" 1073741824 ")
                && listed.ends_with("disk.raw\n"),
            "{listed}"
        );
        self.shell("mkdir gce; tar -C gce -xzSf gce.tar.gz; cmp disk.raw gce/disk.raw")?;
        self.shell("cmp pxe/vmlinuz vmlinuz; cat root.erofs root.verity | cmp - pxe/root")?;
        Ok(())
    }

    pub(super) fn inspect(&self) -> Result<()> {
        let disk = inspect(&self.disk.path)?;
        let root = disk.root.as_ref().context("no root found")?;
        ensure!(
            root.hash == self.root.hash && root.tree_fits,
            "found root {root:?}"
        );
        let [kernel] = disk.kernels.as_slice() else {
            anyhow::bail!("found {} kernels", disk.kernels.len());
        };
        ensure!(kernel.cmdline == self.bootable.cmdline && kernel.release == self.kernel.release);
        ensure!(
            kernel.name == "Formats" && kernel.base_config,
            "found {kernel:?}"
        );
        ensure!(
            kernel
                .manifest
                .as_ref()
                .is_some_and(|found| found.image == image())
        );
        ensure!(
            disk.packages
                .as_ref()
                .is_some_and(|found| found.iter().any(|one| one.name == "kubelet"))
        );
        ensure!(disk.notes.is_empty(), "{:?}", disk.notes);
        let mut qcow2 = inspect(&self.place.path().join("disk.qcow2"))?;
        ensure!(qcow2.kind == "qcow2 disk");
        qcow2.kind = disk.kind;
        ensure!(qcow2.to_string() == disk.to_string(), "{qcow2}");
        let uki = inspect(&self.bootable.uki)?;
        ensure!(
            uki.notes
                .iter()
                .any(|note| note.starts_with("packages: not in a UKI"))
        );
        // A flipped bit in the top of the tree is detected.
        let damaged = self.place.path().join("damaged.raw");
        fs::copy(&self.disk.path, &damaged)?;
        let file = File::options().read(true).write(true).open(&damaged)?;
        let mut byte = [0];
        let at = partition(&damaged, LABEL_VERITY_A)?.0 + 4096 + 5;
        file.read_exact_at(&mut byte, at)?;
        file.write_all_at(&[byte[0] ^ 1], at)?;
        ensure!(
            inspect(&damaged)?
                .notes
                .iter()
                .any(|note| note.contains("hash tree"))
        );
        Ok(())
    }

    pub(super) fn twice(&self) -> Result<()> {
        let other = tempfile::tempdir()?;
        let path = other.path().join("another name.raw");
        let session = Session::open(Kind::Quiet)?;
        write_disk(
            &session,
            &path,
            &self.bootable,
            &self.root,
            &self.tools,
            &self.sbom,
        )?;
        fs::rename(&path, self.place.path().join("again.raw"))
            .or_else(|_| fs::copy(&path, self.place.path().join("again.raw")).map(drop))?;
        self.shell("cmp disk.raw again.raw")?;
        Ok(())
    }
}
