//! mkosi's side of the builds: its configuration, derived from our recipe, and its runs in the peers' tree.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use slipway::debian::Mirrors;
use slipway::debian::archive::suites;
use slipway::debian::mirror::Host;
use slipway::host::cache;
use slipway::host::sandbox::Sandbox;
use slipway::recipe::{FileEntry, FileKind, Recipe};

use crate::ours::OVERLAY;
use crate::packages::{self, Installed};
use crate::peers::{Peers, WORK};

/// Name of the image.
const NAME: &str = "bench";

/// A kind of build by mkosi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// Builds all; the packages and the archive's indexes are in mkosi's cache. No incremental image is written or
    /// read.
    Cold,
    /// Builds all, as [`Run::Cold`], and writes an incremental image for [`Run::Overlay`].
    Prime,
    /// Builds the overlay on the cached incremental image.
    Overlay,
    /// Builds nothing: no input changed.
    Unchanged,
}

/// mkosi with its configuration and its caches in one folder.
#[derive(Debug)]
pub(crate) struct Mkosi {
    sandbox: Sandbox,
    folder: PathBuf,
}

impl Mkosi {
    /// Writes the configuration below `work`, the peers' folder, and runs the first build, which fills mkosi's cache of
    /// packages.
    pub(crate) fn prepare(peers: &Peers, work: &Path, recipe: &Recipe) -> Result<Self> {
        let folder = work.join("mkosi");
        for name in ["packages", "cache", "out", "extra", "repart", "sandbox"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let mirrors = Mirrors::find(
            recipe.debian.mirror.as_deref(),
            recipe.debian.security_mirror.as_deref(),
            &Host::here(),
        )?;
        fs::write(folder.join("mkosi.conf"), configuration(recipe))?;
        for (name, text) in partitions(recipe) {
            fs::write(folder.join("repart").join(name), text)?;
        }
        let sources = folder.join("sandbox/etc/apt/sources.list.d");
        fs::create_dir_all(&sources)?;
        // mkosi writes its default list unless a file of this name exists.
        fs::write(
            sources.join("mkosi.sources"),
            self::sources(recipe, &mirrors)?,
        )?;
        extra(recipe, &folder.join("extra"))?;
        let overlay = recipe.folder().join(OVERLAY);
        let mkosi = Self {
            sandbox: peers
                .sandbox(work)?
                .network(true)
                .bind_read_only(&overlay, format!("/{OVERLAY}")),
            folder,
        };
        mkosi.run(&[
            "--incremental=no",
            "--manifest-format=json",
            "--force",
            "build",
        ])?;
        Ok(mkosi)
    }

    fn run(&self, arguments: &[&str]) -> Result<f64> {
        let begin = Instant::now();
        self.sandbox
            .command("mkosi")
            .args(["--directory", &format!("{WORK}/mkosi")])
            .args(arguments)
            .run()
            .context("building with mkosi")?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Runs one build; gives its seconds.
    pub(crate) fn build(&self, run: Run) -> Result<f64> {
        // Without the network: packages and indexes are in the cache.
        let offline = "--cache-only=always";
        if matches!(run, Run::Cold | Run::Prime) {
            cache::remove(&self.folder.join("cache"))?;
            fs::create_dir_all(self.folder.join("cache"))?;
        }
        match run {
            Run::Cold => self.run(&[offline, "--incremental=no", "--force", "build"]),
            Run::Prime | Run::Overlay => {
                self.run(&[offline, "--incremental=yes", "--force", "build"])
            }
            Run::Unchanged => self.run(&[offline, "--incremental=yes", "build"]),
        }
    }

    /// The packages that the first build installed, from mkosi's manifest.
    pub(crate) fn installed(&self) -> Result<Installed> {
        let path = self.output("manifest")?;
        packages::of_manifest(&fs::read_to_string(path)?)
    }

    /// mkosi's default initrd.
    pub(crate) fn initrd(&self) -> Result<PathBuf> {
        self.output("initrd")
    }

    fn output(&self, suffix: &str) -> Result<PathBuf> {
        let path = self.folder.join("out").join(format!("{NAME}.{suffix}"));
        if !path.exists() {
            bail!("mkosi wrote no {}", path.display());
        }
        Ok(path)
    }
}

/// A `mkosi.conf(5)` with the recipe's packages, kernel and command line.
fn configuration(recipe: &Recipe) -> String {
    let mut packages = recipe.debian.packages.clone();
    packages.push(recipe.kernel.package.clone());
    // mkosi takes the boot loader and the stub from the image, Slipway from its tools.
    packages.push("systemd-boot".into());
    let removed: Vec<&str> = recipe
        .files
        .iter()
        .filter(|file| file.kind == FileKind::Remove)
        .map(|file| file.path.as_str())
        .collect();
    let lines = |key: &str, values: &[String]| {
        values
            .iter()
            .map(|value| format!("{key}={value}\n"))
            .collect::<String>()
    };
    let removed: Vec<String> = removed.into_iter().map(str::to_owned).collect();
    format!(
        "[Distribution]\nDistribution=debian\nRelease={suite}\nArchitecture=x86-64\n\
         [Output]\nFormat=disk\nOutput={NAME}\nOutputDirectory={WORK}/mkosi/out\n\
         RepartDirectories={WORK}/mkosi/repart\nSplitArtifacts=initrd\nCompressOutput=no\n\
         [Content]\n{packages}{removed}Bootable=yes\nBootloader=systemd-boot\nWithDocs=no\n\
         CleanPackageMetadata=yes\nKernelCommandLine={cmdline}\n\
         ExtraTrees={WORK}/mkosi/extra,/{OVERLAY}\n\
         [Build]\nCacheDirectory={WORK}/mkosi/cache\nPackageCacheDirectory={WORK}/mkosi/packages\n\
         WorkspaceDirectory=/var/tmp\nSandboxTrees={WORK}/mkosi/sandbox\n\
         Environment=SYSTEMD_REPART_MKFS_OPTIONS_EROFS=-C{cluster}\n",
        suite = recipe.debian.suite,
        packages = lines("Packages", &packages),
        removed = lines("RemoveFiles", &removed),
        cmdline = recipe.kernel.cmdline.join(" "),
        cluster = recipe.root.cluster,
    )
}

/// Definitions of `repart.d(5)` for those partitions that our disk has too.
fn partitions(recipe: &Recipe) -> [(&'static str, String); 3] {
    let size = |bytes: u64| format!("SizeMinBytes={bytes}\nSizeMaxBytes={bytes}\n");
    let (compression, level) = recipe
        .root
        .compression
        .split_once(',')
        .unwrap_or((&recipe.root.compression, ""));
    let level = if level.is_empty() {
        String::new()
    } else {
        format!("CompressionLevel={level}\n")
    };
    [
        (
            "00-esp.conf",
            format!(
                "[Partition]\nType=esp\nFormat=vfat\nCopyFiles=/efi:/\nCopyFiles=/boot:/\n{}",
                size(recipe.sizes.esp)
            ),
        ),
        (
            "10-root.conf",
            format!(
                "[Partition]\nType=root\nFormat=erofs\nCompression={compression}\n{level}CopyFiles=/\n\
                 Verity=data\nVerityMatchKey=root\nMinimize=best\n"
            ),
        ),
        (
            "11-root-verity.conf",
            "[Partition]\nType=root-verity\nVerity=hash\nVerityMatchKey=root\nMinimize=best\n"
                .to_owned(),
        ),
    ]
}

/// The archives of our build, in apt's format (`sources.list(5)`).
fn sources(recipe: &Recipe, mirrors: &Mirrors) -> Result<String> {
    let mut text = String::new();
    for suite in suites(&recipe.debian.suite, false) {
        let (base, _) = mirrors
            .archive(&suite.archive)
            .with_context(|| format!("there is no archive {}", suite.archive))?;
        text += &format!(
            "Types: deb\nURIs: {base}\nSuites: {}\nComponents: {}\nSigned-By: \
             /usr/share/keyrings/debian-archive-keyring.gpg\n\n",
            suite.name,
            recipe.debian.components.join(" ")
        );
    }
    Ok(text)
}

/// The recipe's files and units, as a tree and presets.
fn extra(recipe: &Recipe, folder: &Path) -> Result<()> {
    let overlay = recipe.folder().join(OVERLAY);
    for file in &recipe.files {
        put(file, folder, &overlay).with_context(|| format!("writing {}", file.path))?;
    }
    let preset = folder.join("usr/lib/systemd/system-preset/00-bench.preset");
    let line = |word: &str, units: &[String]| {
        units
            .iter()
            .map(|unit| format!("{word} {unit}\n"))
            .collect::<String>()
    };
    parents(&preset)?;
    let text = line("enable", &recipe.units.enable) + &line("disable", &recipe.units.disable);
    fs::write(preset, text)?;
    for unit in &recipe.units.mask {
        let path = folder.join("etc/systemd/system").join(unit);
        parents(&path)?;
        symlink("/dev/null", path)?;
    }
    Ok(())
}

fn put(file: &FileEntry, folder: &Path, overlay: &Path) -> Result<()> {
    let path = folder.join(file.path.trim_start_matches('/'));
    parents(&path)?;
    match &file.kind {
        FileKind::Content(bytes) => fs::write(&path, bytes)?,
        // mkosi gets the overlay as a folder.
        FileKind::Source(source) if source.starts_with(overlay) => return Ok(()),
        FileKind::Source(source) => drop(fs::copy(source, &path)?),
        // The benchmark's recipe has none, and mkosi fetches nothing by URL.
        FileKind::Download(download) => bail!("{} is fetched from {}", file.path, download.url),
        FileKind::Link(target) => return Ok(symlink(target, &path)?),
        FileKind::Directory => fs::create_dir_all(&path)?,
        FileKind::Remove => return Ok(()),
    }
    Ok(fs::set_permissions(
        &path,
        fs::Permissions::from_mode(file.mode),
    )?)
}

fn parents(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_follows_the_recipe() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes/node.toml");
        let recipe = slipway::recipe::load(&base).unwrap();
        let text = configuration(&recipe);
        for package in &recipe.debian.packages {
            assert!(text.contains(&format!("\nPackages={package}\n")), "{text}");
        }
        for line in [
            "Packages=linux-image-cloud-amd64",
            "RemoveFiles=/usr/lib/udev/hwdb.d",
            "Environment=SYSTEMD_REPART_MKFS_OPTIONS_EROFS=-C65536",
        ] {
            assert!(
                text.contains(&format!("{line}\n")),
                "{line} is not in {text}"
            );
        }
        let [_, (_, root), _] = partitions(&recipe);
        assert!(
            root.contains("Compression=lz4\n") && !root.contains("Level"),
            "{root}"
        );
    }

    #[test]
    fn the_recipe_s_files_and_units_become_a_tree() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes/node.toml");
        let recipe = slipway::recipe::load(&base).unwrap();
        let folder = tempfile::tempdir().unwrap();
        extra(&recipe, folder.path()).unwrap();
        let link = fs::read_link(folder.path().join("etc/resolv.conf")).unwrap();
        assert_eq!(link, Path::new("../run/systemd/resolve/stub-resolv.conf"));
        let preset = folder
            .path()
            .join("usr/lib/systemd/system-preset/00-bench.preset");
        let preset = fs::read_to_string(preset).unwrap();
        assert!(preset.contains("enable containerd.service\n"), "{preset}");
        assert!(preset.contains("disable apparmor.service\n"), "{preset}");
        assert!(!folder.path().join("usr/lib/udev/hwdb.d").exists());
    }
}
