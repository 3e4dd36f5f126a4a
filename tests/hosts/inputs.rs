//! Inputs of the commands that start no program: two images, a lock, the record of a boot, configs. The tool's own code writes the
//! images; kernel and loader in them are programs that do nothing.

use std::fs;
use std::path::Path;

use image::guid::Guid;
use image::layout::{Architecture, MIB, SectorSize, Sizes};
use image::manifest::{CONTRACT, ImageId, Manifest};
use image::node::NodeSettings;
use image::paths::INITRD_MANIFEST;
use image::verity::RootHash;
use slipway::format::{cpio, uki, verity};
use slipway::host::cache::{Cache, Key};
use slipway::host::progress::{Kind, Progress};
use slipway::host::session::Session;
use slipway::install::tools::Tools;
use slipway::layer::usage::Usage;
use slipway::publish::sbom::{self, Component};
use slipway::recipe::{SetRequest, load};
use slipway::steps::bootable::Bootable;
use slipway::steps::disk::{self, Parts};
use slipway::steps::root::Root;
use slipway::{artifact, lock};

use crate::host::Host;

const EPOCH: u64 = 1_795_140_670;
const KERNEL: &str = "6.12.0-test";
/// Bytes of the root, whole blocks of a hash tree.
const ROOT: usize = 64 << 10;
/// Bytes of the headers of [`program`], with room for those of more sections, and the alignment of sections in its file.
const HEADERS: usize = 1024;
const ALIGNMENT: usize = 512;
/// Small files, by name.
const FILES: [(&str, &str); 5] = [
    (
        "boot.jsonl",
        "{\"source\":\"init\",\"name\":\"verity\",\"start\":1000000,\"end\":3000000}\n",
    ),
    (
        "a.ign",
        "{\"ignition\":{\"version\":\"3.4.0\"},\"storage\":{\"files\":[{\"path\":\"/etc/a\"}]}}",
    ),
    (
        "b.ign",
        "{\"ignition\":{\"version\":\"3.4.0\"},\"storage\":{\"files\":[{\"path\":\"/etc/b\"}]}}",
    ),
    (
        "a.bu",
        "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - path: /etc/a\n",
    ),
    ("boot.ipxe", "#!ipxe\n"),
];

/// Writes all of them into the host's folder: the images `one` and `two`, the lock of `small.toml`, and the small files.
pub(crate) fn write(host: &Host) {
    image(&host.path("one"), "1");
    image(&host.path("two"), "2");
    fs::write(host.path("small.lock"), lock_of(&host.path("small.toml"))).unwrap();
    for (name, text) in FILES {
        fs::write(host.path(name), text).unwrap();
    }
}

/// A lock that fits a recipe, with one package. Its hashes are those of the recipe's requirements, which a lock is for.
fn lock_of(recipe: &Path) -> String {
    let recipe = load(recipe).unwrap_or_else(|mistakes| panic!("{}", mistakes.render(false)));
    let mut request = recipe.lock_request();
    let (tools, own): (Vec<SetRequest>, Vec<SetRequest>) =
        request.sets.into_iter().partition(SetRequest::is_tools);
    request.sets = own;
    let version = lock::VERSION;
    let of_recipe = Key::of_data("lock", version).value("request", &request);
    let of_tools = Key::of_data("tools of a lock", version).value("sets", &tools);
    format!(
        "version = {version}\nrecipe-digest = \"{}\"\ntools-digest = \"{}\"\nepoch = {EPOCH}\nsources = []\n\n[sets]\n\
         root = [{{ name = \"bash\", version = \"5.2\", architecture = \"amd64\", archive = \"debian\", \
         path = \"pool/main/b/bash/bash_5.2_amd64.deb\", size = 4096, sha256 = \"{}\" }}]\n",
        of_recipe.unwrap().finish(),
        of_tools.unwrap().finish(),
        "ab".repeat(32)
    )
}

/// An output folder: a disk, and its unified kernel image.
fn image(folder: &Path, version: &str) {
    let made = tempfile::tempdir().unwrap();
    let place = made.path();
    let session = Session::new(
        Cache::at(place.join("cache")).unwrap(),
        Progress::new(Kind::Quiet),
    );
    let id = ImageId {
        name: "small".to_owned(),
        version: version.to_owned(),
    };
    let sizes = Sizes {
        esp: 64 * MIB,
        root: MIB,
        verity: MIB,
        ..Sizes::default()
    };
    let root = root(place, version);
    let bootable = bootable(place, &id, &sizes, root.hash);
    let package = Component::program("bash", version, "pkg:generic/bash", &"ab".repeat(32));
    let parts = Parts {
        tools: &tools(&place.join("tools")),
        bootable: &bootable,
        root: &root,
        image: &id,
        architecture: Architecture::X86_64,
        sizes: &sizes,
        sector: SectorSize::default(),
        epoch: EPOCH,
        sbom: &sbom::text(&id, EPOCH, [package]).unwrap(),
        size_multiple: MIB,
    };
    fs::create_dir(folder).unwrap();
    disk::write(&session, &parts, &folder.join(artifact::DISK), &|_| {}).unwrap();
    fs::copy(&bootable.uki, folder.join("small.efi")).unwrap();
}

fn key() -> Key {
    Key::of_data("test", 1).finish()
}

/// The boot loader and the stub of an addon, as far as a disk needs them.
fn tools(root: &Path) -> Tools {
    let folder = root.join("usr/lib/systemd/boot/efi");
    fs::create_dir_all(&folder).unwrap();
    for name in ["systemd-bootx64.efi", "addonx64.efi.stub"] {
        fs::write(folder.join(name), program()).unwrap();
    }
    Tools {
        root: root.to_owned(),
        key: key(),
        packages: key(),
    }
}

/// A root that nobody mounts, and its hash tree.
fn root(place: &Path, version: &str) -> Root {
    let (erofs, tree) = (place.join("root.erofs"), place.join("root.verity"));
    fs::write(&erofs, version.repeat(ROOT)).unwrap();
    let uuid = Guid::constant("11111111-2222-3333-4444-555555555555");
    Root {
        hash: verity::write(&erofs, &tree, &[7; 32], uuid).unwrap(),
        erofs,
        verity: tree,
        usage: Usage::default(),
        key: key(),
        changes: Vec::new(),
    }
}

/// A unified kernel image whose initramfs has a manifest alone.
fn bootable(place: &Path, id: &ImageId, sizes: &Sizes, hash: RootHash) -> Bootable {
    let manifest = Manifest {
        contract: CONTRACT,
        image: id.clone(),
        architecture: Architecture::X86_64,
        kernel: KERNEL.to_owned(),
        epoch: EPOCH,
        sizes: *sizes,
        kubernetes: None,
        platforms: Vec::new(),
        node: NodeSettings::default(),
    };
    let mut archive = cpio::Archive::new();
    let text = manifest.to_text();
    archive
        .file(INITRD_MANIFEST, 0o644, text.as_bytes())
        .unwrap();
    let archive = archive.finish().unwrap();
    let initrd = zstd::stream::encode_all(archive.as_slice(), 1).unwrap();
    let cmdline = format!("roothash={hash} console=ttyS0");
    let uki = uki::write(&uki::Parts {
        stub: &program(),
        os_release: "PRETTY_NAME=\"Small\"\n",
        cmdline: &cmdline,
        release: KERNEL,
        kernel: &program(),
        initrd: &initrd,
    });
    let bootable = Bootable {
        uki: place.join("linux.efi"),
        vmlinuz: place.join("linux"),
        initrd: place.join("initrd"),
        cmdline,
        key: key(),
    };
    fs::write(&bootable.uki, uki.unwrap()).unwrap();
    bootable
}

/// A program of the firmware, with one section for revocations and nothing to run
/// (<https://learn.microsoft.com/windows/win32/debug/pe-format>).
fn program() -> Vec<u8> {
    const SIGNATURE: usize = 0x40;
    const COFF: usize = SIGNATURE + 4;
    const OPTIONAL: usize = COFF + 20;
    const OPTIONAL_SIZE: u16 = 240;
    const SECTION: usize = OPTIONAL + OPTIONAL_SIZE as usize;
    let long = |value: usize| u32::try_from(value).unwrap().to_le_bytes();
    let mut bytes = vec![0; HEADERS + ALIGNMENT];
    for (at, field) in [
        (0, b"MZ".as_slice()),
        (0x3c, &long(SIGNATURE)),
        (SIGNATURE, b"PE\0\0"),
        // One section.
        (COFF + 2, &[1, 0]),
        (COFF + 16, &OPTIONAL_SIZE.to_le_bytes()),
        // PE32+
        (OPTIONAL, &0x20b_u16.to_le_bytes()),
        // Alignments in memory and in the file, and the size of the headers.
        (OPTIONAL + 32, &long(4096)),
        (OPTIONAL + 36, &long(ALIGNMENT)),
        (OPTIONAL + 60, &long(HEADERS)),
        (SECTION, b".sbat"),
        // Sizes and places in memory and in the file.
        (SECTION + 8, &long(ALIGNMENT)),
        (SECTION + 12, &long(4096)),
        (SECTION + 16, &long(ALIGNMENT)),
        (SECTION + 20, &long(HEADERS)),
    ] {
        bytes[at..at + field.len()].copy_from_slice(field);
    }
    bytes
}
