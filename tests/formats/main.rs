//! All output formats of a build against independent programs: erofs-utils, ukify, fsck.fat, mtools, sgdisk, cpio, modprobe,
//! qemu-img, GNU tar and systemd's analyzer, all from a pinned tools tree.
//!
//! Without the standard test harness, since an ordinary user becomes root of a namespace before the first thread
//! starts.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic and talks to who runs it"
)]

mod bill;
mod boot_files;
mod disks;
mod enable;
mod root;
mod setup;
mod units;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use image::guid::Guid;
use image::layout::{Architecture, GIB, MIB, SectorSize, Sizes};
use image::manifest::{CONTRACT, ImageId, Manifest};
use slipway::artifact;
use slipway::format::verity;
use slipway::host::progress::Kind;
use slipway::host::sandbox::{Sandbox, become_root_of_namespace};
use slipway::host::session::Session;
use slipway::install::tools::Tools;
use slipway::layer::Entry;
use slipway::oci;
use slipway::publish::sbom;
use slipway::recipe::{Platform, load};
use slipway::steps::bootable::{self, Bootable};
use slipway::steps::disk::{self, Disk};
use slipway::steps::initramfs::{self, Base, Contents, Signatures};
use slipway::steps::kernel::Kernel;
use slipway::steps::root::Root;

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
        (
            "erofs_utils_read_every_kind_of_file",
            Bench::root_file_system,
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
        (
            "systemctl_enables_and_disables_the_same_links",
            Bench::enable,
        ),
        (
            "a_unit_behind_network_online_target_starts_with_a_link",
            |_| Bench::network(),
        ),
        ("cyclonedx_lib_accepts_the_sbom", Bench::bill),
    ] {
        // With a word of the command line only the tests whose names have it.
        if std::env::args()
            .nth(1)
            .is_some_and(|word| !name.contains(&word))
        {
            continue;
        }
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
            base: Base {
                init: INIT,
                platforms: &[Platform::named("qemu").unwrap()],
                modules: &[],
                files: &[],
                signatures: Signatures::LeftOut,
            },
            manifest: &manifest,
            base_config: Some(b"{}"),
            ca_bundle: None,
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
        let sbom = sbom::text(&image(), EPOCH, bill::components(folder)?)?;
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
    disk::write(session, &parts, path, &|_| {})
}
