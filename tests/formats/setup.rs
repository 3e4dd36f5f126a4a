//! What the bench is made of: programs that are not ours, a kernel, a root with a tree that is not ours.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use slipway::host::cache::Key;
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::layer::usage::Usage;
use slipway::lock;
use slipway::recipe::{Recipe, SetRequest};
use slipway::steps::kernel::{self, Kernel};
use slipway::steps::root::Root;

use super::PLACE;

/// The packages of the independent programs and of those that the builder runs.
const PROGRAMS: &[&str] = &[
    "coreutils",
    "cpio",
    "cryptsetup-bin",
    "dash",
    "diffutils",
    "dosfstools",
    "erofs-utils",
    "fdisk",
    "gdisk",
    "gzip",
    "kmod",
    "mtools",
    "python3-cyclonedx-lib",
    "python3-jsonschema",
    "qemu-utils",
    "skopeo",
    "systemd",
    "systemd-boot-efi",
    "systemd-ukify",
    "tar",
    "zstd",
];
/// The independent programs.
pub(super) fn programs(session: &Session, recipe: &Recipe) -> Result<Tools> {
    let request = SetRequest {
        name: "tools-formats".into(),
        packages: PROGRAMS.iter().map(|name| (*name).to_owned()).collect(),
        dependencies: true,
        essential: false,
        recommends: false,
        backports: Vec::new(),
    };
    let locked = lock::resolve(session, recipe, std::slice::from_ref(&request))?;
    tools::install(
        session,
        &request.name,
        &locked.fetch(session, &request.name)?,
    )
}

/// The kernel of a recipe.
pub(super) fn kernel(session: &Session, recipe: &Recipe, tools: &Tools) -> Result<Kernel> {
    let requests = recipe.sets();
    let request = requests
        .iter()
        .find(|request| request.name == "kernel")
        .context("a recipe has a kernel")?;
    let locked = lock::resolve(session, recipe, std::slice::from_ref(request))?;
    kernel::unpack(session, tools, &locked.fetch(session, &request.name)?)
}

/// A root that is never mounted, with a tree by veritysetup.
pub(super) fn root(tools: &Tools, place: &Path) -> Result<Root> {
    let mut noise = 1u32;
    let content: Vec<u8> = (0..5 << 20)
        .map(|at| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if (at >> 16) % 3 == 0 {
                0
            } else {
                noise.to_le_bytes()[3]
            }
        })
        .collect();
    fs::write(place.join("root.erofs"), content)?;
    tools
        .sandbox()
        .bind(place, PLACE)
        .command("/usr/sbin/veritysetup")
        .args([
            "format",
            "root.erofs",
            "root.verity",
            "--salt=00ff",
            "--root-hash-file=root.hash",
        ])
        .args(["--uuid=11111111-2222-3333-4444-555555555555"])
        .cwd(PLACE)
        .run()?;
    let hash = fs::read_to_string(place.join("root.hash"))?;
    Ok(Root {
        erofs: place.join("root.erofs"),
        verity: place.join("root.verity"),
        key: Key::of_data("formats", 1).text("hash", &hash).finish(),
        usage: Usage::default(),
        hash: hash.trim().parse().map_err(anyhow::Error::msg)?,
        changes: Vec::new(),
    })
}
