//! Kernels that are not taken as Debian has them: with modules that DKMS compiles, and of a package of no archive.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use slipway::debian::pinned::{Deb, LockedPackage};
use slipway::host::cache::Cache;
use slipway::install;
use slipway::lock;

use super::servers::run;
use super::{Place, RECIPE};

/// The word for the kernel in [`RECIPE`].
const KERNEL: &str = "package = \"linux-image-cloud-amd64\"";

/// A package of a module that does not compile.
const BROKEN: &str = "PACKAGE_NAME=\"broken\"\nPACKAGE_VERSION=\"1\"\nBUILT_MODULE_NAME[0]=\"broken\"\n\
                      DEST_MODULE_LOCATION[0]=\"/extra\"\nAUTOINSTALL=\"yes\"\n\
                      MAKE[0]=\"make -C ${kernel_source_dir} M=${dkms_tree}/broken/1/build\"\n";

/// A Debian package of these fields and this data archive (deb(5)), uncompressed.
fn package(control: &str, data: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    append(&mut archive, "./control", control.as_bytes());
    let control = archive.into_inner().unwrap();
    let mut out = b"!<arch>\n".to_vec();
    let members: [(&str, &[u8]); 3] = [
        ("debian-binary", b"2.0\n"),
        ("control.tar", &control),
        ("data.tar", data),
    ];
    for (name, content) in members {
        let size = content.len();
        let header = format!(
            "{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
            0, 0, 0, 100_644
        );
        out.extend(header.bytes());
        out.extend(content);
        if size % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    archive.append_data(&mut header, path, content).unwrap();
}

/// The pinned packages of a set of the place's lock.
fn pinned(place: &Place, set: &str) -> Vec<LockedPackage> {
    let lock = lock::read(&place.folder.join("recipes/small.lock")).unwrap();
    lock.sets[set].clone()
}

/// The recipe with these words for the kernel, and more of `[debian]`.
fn write(place: &Place, kernel: &str, debian: &str) {
    let text = RECIPE.replace(KERNEL, kernel).replace(
        "suite = \"trixie\"",
        &format!("suite = \"trixie\"\n{debian}"),
    );
    fs::write(place.folder.join("recipes/small.toml"), text).unwrap();
}

/// A package in the SBOM of the output folder.
fn component(place: &Path, name: &str) -> serde_json::Value {
    let text = fs::read(place.join("out/small-1.0/sbom.cdx.json")).unwrap();
    let sbom: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let all = sbom["components"].as_array().unwrap();
    let mut found = all.iter().filter(|one| one["name"] == name);
    let one = found.next().unwrap_or_else(|| panic!("no {name}")).clone();
    assert!(found.next().is_none());
    one
}

/// The content of a file of the unpacked kernel whose path ends so.
fn made(place: &Place, end: &str) -> Vec<u8> {
    let mut open = vec![place.folder.join("cache/steps/kernel")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.to_string_lossy().ends_with(end) {
                return fs::read(path).unwrap();
            }
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            }
        }
    }
    panic!("no step has {end}")
}

const BUILD: [&str; 4] = ["build", "recipes/small.toml", "-o", "out"];

/// A real package of Debian's: its module is among the kernel's, and two builds of the image are the same bytes.
#[test]
#[ignore = "a compiler's packages and a minute"]
fn dkms_compiles_modules_for_the_kernel_of_the_image() {
    let kernel = format!(
        "{KERNEL}\ndkms = [\"acpi-call-dkms\"]\nload = [\"acpi_call\"]\nmodules = [\"acpi_call\"]"
    );
    let place = Place::new("dkms", None);
    write(&place, &kernel, "");
    let (good, said) = run(&place, &BUILD);
    assert!(good, "{said}");
    let module = made(&place, "updates/dkms/acpi_call.ko");
    assert!(module.starts_with(b"\x7fELF"));
    assert!(!module.ends_with(b"~Module signature appended~\n"));
    let listed = String::from_utf8(made(&place, "modules.dep")).unwrap();
    assert!(listed.contains("updates/dkms/acpi_call.ko:"), "{listed}");
    let component = component(&place.folder, "acpi-call-dkms");
    let properties = component["properties"].to_string();
    assert!(
        properties.contains("/updates/dkms/acpi_call.ko"),
        "{properties}"
    );
    let root = pinned(&place, "root");
    for name in ["dkms", "gcc", "acpi-call-dkms"] {
        assert!(root.iter().all(|package| package.name != name), "{name}");
    }
    let (good, said) = run(&place, &["inspect", "out/small-1.0"]);
    assert!(good && said.contains("acpi_call.ko"), "{said}");

    let lock = fs::read_to_string(place.folder.join("recipes/small.lock")).unwrap();
    let other = Place::new("another/folder/of/dkms", Some(&lock));
    write(&other, &kernel, "");
    let (good, said) = run(&other, &BUILD);
    assert!(good, "{said}");
    assert_eq!(other.sums(), place.sums());
}

/// What does not compile is named with the end of its log; a package that the root would have with the word that works, and one without
/// a source at its place.
#[test]
#[ignore = "a compiler's packages and a minute"]
fn dkms_names_what_does_not_compile() {
    let kernel = format!("{KERNEL}\ndkms = [\"broken-dkms\"]");
    let place = Place::new("broken", None);
    let mut data = tar::Builder::new(Vec::new());
    let source = "./usr/src/broken-1";
    append(&mut data, &format!("{source}/dkms.conf"), BROKEN.as_bytes());
    append(
        &mut data,
        &format!("{source}/Makefile"),
        b"obj-m := broken.o\n",
    );
    append(
        &mut data,
        &format!("{source}/broken.c"),
        b"#error not today\n",
    );
    let control = "Package: broken-dkms\nVersion: 1\nArchitecture: all\nDepends: dkms\nMaintainer: a <a@a.example>\nDescription: a\n";
    let deb = package(control, &data.into_inner().unwrap());
    fs::write(place.folder.join("recipes/broken.deb"), deb).unwrap();
    let debs = "debs = [{ file = \"broken.deb\" }]";
    write(&place, &kernel, debs);
    let (good, said) = run(&place, &BUILD);
    assert!(!good);
    for expected in [
        "compiling broken/1 of broken-dkms for the kernel 6.",
        "make.log",
        "#error not today",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    // A package that the root would have is refused with the word that works, and one without a source at its place.
    write(&place, KERNEL, debs);
    let (good, said) = run(&place, &BUILD);
    assert!(
        !good && said.contains("dkms = [\"broken-dkms\"] in [kernel]"),
        "{said}"
    );
    write(&place, &kernel.replace("broken-dkms", "jq"), "");
    let (good, said) = run(&place, &BUILD);
    assert!(
        !good && said.contains("`jq` has no module that DKMS compiles"),
        "{said}"
    );
}

/// As `make bindeb-pkg` makes it: no template of Debian's, modules below `/lib`, another name. The image is made without a network.
#[test]
fn a_kernel_of_no_archive_is_the_kernel_of_an_image() {
    let reference = super::reference();
    let place = Place::new("kernel", Some(&reference.lock));
    let cache = Cache::open().unwrap();
    let debs: Vec<Deb> = pinned(&place, "kernel")
        .into_iter()
        .map(|package| Deb {
            path: cache.object(&package.sha256),
            package,
        })
        .collect();
    let tree = place.folder.join("tree");
    install::unpack_only(&debs, &tree).unwrap();
    let mut data = tar::Builder::new(Vec::new());
    data.append_dir_all("./boot", tree.join("boot")).unwrap();
    data.append_dir_all("./lib/modules", tree.join("usr/lib/modules"))
        .unwrap();
    let control = "Package: linux-image-6.12.0-custom\nSource: linux-upstream\nVersion: 6.12.0-1\nArchitecture: amd64\n\
                   Maintainer: a <a@a.example>\nSection: kernel\nDescription: Linux kernel, version 6.12.0-custom\n";
    let deb = package(control, &data.into_inner().unwrap());
    fs::write(place.folder.join("recipes/kernel.deb"), &deb).unwrap();
    write(
        &place,
        "package = \"linux-image-6.12.0-custom\"",
        "debs = [{ file = \"kernel.deb\" }]",
    );
    let (good, said) = run(&place, &["lock", "recipes/small.toml"]);
    assert!(good, "{said}");
    let names = |set: &str| -> Vec<String> {
        let pins = pinned(&place, set).into_iter();
        pins.map(|package| package.name).collect()
    };
    assert_eq!(names("kernel"), ["linux-image-6.12.0-custom"]);
    assert!(!names("root").contains(&"linux-image-6.12.0-custom".to_owned()));
    let (good, said) = run(
        &place,
        &["build", "--offline", "recipes/small.toml", "-o", "out"],
    );
    assert!(good, "{said}");
    let component = component(&place.folder, "linux-image-6.12.0-custom");
    let mut properties = component["properties"].as_array().unwrap().iter();
    let set = properties.find(|property| property["name"] == "slipway:set");
    assert_eq!(set.unwrap()["value"], "kernel");
    // The same kernel and modules as the reference's image; only the package's name is another.
    let mut vmlinuz = Vec::new();
    let boot = fs::read_dir(tree.join("boot")).unwrap();
    for entry in boot {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains("/vmlinuz-") {
            let mut file = fs::File::open(path).unwrap();
            file.read_to_end(&mut vmlinuz).unwrap();
        }
    }
    let uki = made_uki(&place);
    assert!(uki.windows(4096).any(|part| part == &vmlinuz[4096..8192]));
}

/// The bytes of the only UKI in the output folder.
fn made_uki(place: &Place) -> Vec<u8> {
    let folder = fs::read_dir(place.folder.join("out/small-1.0")).unwrap();
    let mut files = folder.map(|entry| entry.unwrap().path());
    let uki = files.find(|path| path.extension().is_some_and(|end| end == "efi"));
    fs::read(uki.unwrap()).unwrap()
}
