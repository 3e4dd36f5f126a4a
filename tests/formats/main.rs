//! All output formats of a build against independent programs: ukify, fsck.fat, mtools, sgdisk, cpio, modprobe,
//! qemu-img, GNU tar and systemd's analyzer, all from a pinned tools tree.
//!
//! Without the standard test harness, since an ordinary user becomes root of a namespace before the first thread
//! starts.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic and talks to who runs it"
)]

mod setup;
mod units;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use image::guid::Guid;
use image::layout::{Architecture, GIB, LABEL_VERITY_A, MIB, SectorSize, Sizes};
use image::manifest::{CONTRACT, ImageId, Manifest};
use image::modules::ModuleIndex;
use slipway::artifact::{self, Inputs};
use slipway::format::{cpio, verity};
use slipway::host::progress::Kind;
use slipway::host::sandbox::{Sandbox, become_root_of_namespace};
use slipway::host::session::Session;
use slipway::inspect::inspect;
use slipway::install::tools::Tools;
use slipway::layer::Entry;
use slipway::oci;
use slipway::publish::sbom::{self, Component};
use slipway::recipe::{Platform, load};
use slipway::steps::bootable::{self, Bootable};
use slipway::steps::disk::{self, Disk};
use slipway::steps::initramfs::{self, Contents, Signatures};
use slipway::steps::kernel::Kernel;
use slipway::steps::root::Root;
use slipway::vm::disks::partition;

use setup::{kernel, programs, root};

/// Path of the test's files inside the sandbox.
const PLACE: &str = "/formats";
const EPOCH: u64 = 1_780_000_000;
const OS_RELEASE: &str =
    "ID=debian\nIMAGE_ID=formats\nIMAGE_VERSION=1.2\nPRETTY_NAME=\"Formats\"\n";
/// Not a program: this test boots nothing.
const INIT: &[u8] = b"the init of the formats test";

fn main() -> Result<()> {
    become_root_of_namespace()?;
    let bench = Bench::new()?;
    for (name, proof) in [
        (
            "veritysetup_makes_the_same_tree",
            Bench::tree as fn(&Bench) -> Result<()>,
        ),
        ("ukify_lays_the_same_bytes", Bench::ukify),
        ("cpio_and_zstd_read_the_initramfs", Bench::initramfs),
        ("modprobe_loads_in_the_same_order", Bench::module_order),
        ("sgdisk_finds_no_fault_in_the_table", Bench::table),
        ("fsck_and_mtools_read_the_esp", Bench::esp),
        ("sfdisk_and_fsck_read_large_sectors", Bench::large_sectors),
        ("qemu_img_and_tar_give_back_the_disk", Bench::archives),
        ("inspect_reads_disk_qcow2_and_uki", Bench::inspect),
        ("two_disks_are_equal_bytes", Bench::twice),
        ("skopeo_reads_the_oci_layout", Bench::layout),
        (
            "systemd_analyze_finds_our_units_as_closed_as_documented",
            Bench::units,
        ),
    ] {
        proof(&bench).with_context(|| format!("test {name}"))?;
        println!("test {name} ... ok");
    }
    Ok(())
}

/// One small image and a tree of programs.
struct Bench {
    tools: Tools,
    place: tempfile::TempDir,
    kernel: Kernel,
    initrd: PathBuf,
    bootable: Bootable,
    root: Root,
    sbom: String,
    disk: Disk,
}

fn image() -> ImageId {
    ImageId {
        name: "formats".into(),
        version: "1.2".into(),
    }
}

fn sizes() -> Sizes {
    Sizes {
        esp: 64 * MIB,
        root: 64 * MIB,
        verity: 8 * MIB,
        ..Sizes::default()
    }
}

impl Bench {
    fn new() -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let recipe = load(&folder.join("recipes/demo.toml"))
            .map_err(|mistakes| anyhow::anyhow!("{mistakes}"))?;
        let session = Session::open(Kind::Quiet)?;
        let tools = programs(&session, &recipe)?;
        let place = tempfile::tempdir()?;
        let kernel = kernel(&session, &recipe, &tools)?;
        let manifest = Manifest {
            contract: CONTRACT,
            image: image(),
            architecture: Architecture::X86_64,
            kernel: kernel.release.clone(),
            epoch: EPOCH,
            sizes: sizes(),
            kubernetes: None,
            node: recipe.node.clone(),
            platforms: Vec::new(),
        };
        let contents = Contents {
            init: INIT,
            manifest: &manifest,
            base_config: Some(b"{}"),
            ca_bundle: None,
            platforms: &[Platform::named("qemu").unwrap()],
            modules: &[],
            files: &[],
            signatures: Signatures::LeftOut,
            rootfs: None,
            layers: &[],
        };
        let initramfs = initramfs::pack(&session, &kernel, &contents)?;
        let root = root(&tools, place.path())?;
        let cmdline = vec![format!("roothash={}", root.hash), "console=ttyS0".into()];
        let options = bootable::Options {
            cmdline,
            os_release: OS_RELEASE,
            architecture: Architecture::X86_64,
        };
        let bootable = bootable::link(&session, &tools, &kernel, &initramfs, &options)?;
        let package = Component::program("kubelet", "v1.36.3", "pkg:generic/kubelet@v1.36.3", "ab");
        let sbom = sbom::text(&image(), EPOCH, [package])?;
        let path = place.path().join(artifact::DISK);
        let disk = write_disk(&session, &path, &bootable, &root, &tools, &sbom)?;
        Ok(Self {
            tools,
            place,
            kernel,
            initrd: initramfs.path,
            bootable,
            root,
            sbom,
            disk,
        })
    }

    fn sandbox(&self) -> Sandbox {
        self.tools.sandbox().bind(self.place.path(), PLACE)
    }

    /// Runs a line of shell in the test's folder; gives its output.
    fn shell(&self, line: &str) -> Result<String> {
        let line = format!("set -e; cd {PLACE}; {line}");
        Ok(String::from_utf8(
            self.sandbox()
                .command("/bin/sh")
                .args(["-c", &line])
                .run()?,
        )?)
    }

    /// skopeo verifies every digest of the blobs that it copies.
    fn layout(&self) -> Result<()> {
        let entries = [
            Entry::directory("/usr", 0o755),
            Entry::file("/usr/program", 0o755, "program"),
            Entry::symlink("/program", "usr/program"),
        ];
        let image = oci::Image {
            name: "slipway.local/program:1".to_owned(),
            architecture: "amd64".to_owned(),
            run: oci::RunConfig {
                entrypoint: vec!["/usr/program".to_owned()],
                ..oci::RunConfig::default()
            },
            layers: vec![oci::layer(
                &entries,
                EPOCH,
                &self.place.path().join("layer"),
            )?],
        };
        oci::write_layout(&self.place.path().join("layout"), &[image], EPOCH)?;
        let said = self.shell(
            "mkdir -p var-tmp; export TMPDIR=$PWD/var-tmp; \
             skopeo --insecure-policy copy --quiet oci:layout:1 dir:copied; \
             skopeo inspect --config dir:copied; \
             for f in copied/*; do case $f in *.json|*/version) ;; *) tar -tvf $f 2>/dev/null || true;; esac; done",
        )?;
        for word in ["\"/usr/program\"", "\"amd64\"", "program -> usr/program"] {
            ensure!(said.contains(word), "skopeo's copy has no {word}: {said}");
        }
        Ok(())
    }

    /// Superblock, hash tree and root hash are those of `veritysetup format`, to the byte: of one block, of one level and of
    /// two, with a salt of a usual length and with the shortest one.
    fn tree(&self) -> Result<()> {
        let place = self.place.path();
        let uuid = Guid::constant("11111111-2222-3333-4444-555555555555");
        for (blocks, salt) in [(1, vec![0xa5; 32]), (128, vec![0x00, 0xff]), (129, vec![7])] {
            let data: Vec<u8> = (0..blocks * 4096_usize)
                .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1])
                .collect();
            fs::write(place.join("tree.data"), data)?;
            let hex: String = salt.iter().map(|byte| format!("{byte:02x}")).collect();
            self.shell(&format!(
                "/usr/sbin/veritysetup format tree.data tree.theirs --salt={hex} --uuid={uuid} --root-hash-file=tree.hash"
            ))?;
            let hash = verity::write(
                &place.join("tree.data"),
                &place.join("tree.ours"),
                &salt,
                uuid,
            )?;
            let theirs = fs::read_to_string(place.join("tree.hash"))?;
            ensure!(
                hash.to_string() == theirs.trim(),
                "{blocks} blocks: the root hash is {hash}, veritysetup's {theirs}"
            );
            ensure!(
                fs::read(place.join("tree.ours"))? == fs::read(place.join("tree.theirs"))?,
                "{blocks} blocks: another superblock or tree than veritysetup's"
            );
        }
        Ok(())
    }

    fn ukify(&self) -> Result<()> {
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

    fn initramfs(&self) -> Result<()> {
        fs::copy(&self.initrd, self.place.path().join("initrd"))?;
        let listed = self.shell("zstd -dqc initrd > initrd.cpio; cpio --quiet -t < initrd.cpio")?;
        let archive = self.archive()?;
        let ours: Vec<&str> = cpio::read(&archive)?
            .iter()
            .map(|entry| entry.name)
            .collect();
        ensure!(
            listed.lines().eq(ours.iter().copied()),
            "cpio lists {listed}"
        );
        ensure!(ours.contains(&"init") && ours.contains(&"etc/slipway/base.ign"));
        self.shell("mkdir x; cd x; cpio --quiet -i --no-absolute-filenames init < ../initrd.cpio")?;
        ensure!(fs::read(self.place.path().join("x/init"))? == INIT);
        Ok(())
    }

    fn module_order(&self) -> Result<()> {
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

    fn table(&self) -> Result<()> {
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

    fn esp(&self) -> Result<()> {
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
    fn large_sectors(&self) -> Result<()> {
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
        disk::write(&session, &parts, &path)?;
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

    fn archives(&self) -> Result<()> {
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

    fn inspect(&self) -> Result<()> {
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
                .is_some_and(|found| found[0].name == "kubelet")
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

    /// The exposure that `systemd-analyze security` computes for each of our units is at most the one of `docs/security.md`.
    fn units(&self) -> Result<()> {
        let bounds = units::documented()?;
        let files = units::files()?;
        let names: BTreeSet<&String> = files.keys().collect();
        ensure!(
            names == bounds.keys().collect(),
            "the units are {names:?}, those of docs/security.md {:?}",
            bounds.keys()
        );
        let folder = self.place.path().join("units/usr/lib/systemd/system");
        fs::create_dir_all(&folder)?;
        fs::create_dir_all(self.place.path().join("units/etc"))?;
        for (name, text) in &files {
            fs::write(folder.join(name), text)?;
            let said = self.shell(&format!(
                "LC_ALL=C systemd-analyze security --no-pager --offline=true --root={PLACE}/units {name}"
            ))?;
            let last = format!("Overall exposure level for {name}: ");
            let exposure: Option<f64> = said
                .lines()
                .find_map(|line| line.split_once(&last)?.1.split(' ').next()?.parse().ok());
            let exposure = exposure.with_context(|| format!("no exposure in {said}"))?;
            println!("{name}: {exposure}");
            ensure!(
                exposure <= bounds[name],
                "{name} has an exposure of {exposure}; docs/security.md allows {}: {said}",
                bounds[name]
            );
        }
        Ok(())
    }

    fn twice(&self) -> Result<()> {
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

fn write_disk(
    session: &Session,
    path: &Path,
    bootable: &Bootable,
    root: &Root,
    tools: &Tools,
    sbom: &str,
) -> Result<Disk> {
    let parts = disk::Parts {
        tools,
        bootable,
        root,
        image: &image(),
        architecture: Architecture::X86_64,
        sizes: &sizes(),
        sector: SectorSize::default(),
        epoch: EPOCH,
        sbom,
        size_multiple: GIB,
    };
    disk::write(session, &parts, path)
}
