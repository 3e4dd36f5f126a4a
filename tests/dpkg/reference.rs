//! The reference: packages installed by real dpkg. First those of priority `required` with their dependencies are extracted
//! and installed, as debootstrap does it; then all others in the order of their dependencies, where those are configured
//! before it that a package pre-depends on, as apt does it.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use slipway::debian::pinned::Deb;
use slipway::debian::relation;
use slipway::host::sandbox::Sandbox;
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::lock::LockedRecipe;
use slipway::recipe::SetRequest;

/// The set of the programs that unpack the first packages.
const TOOLS: &str = "dpkg";
/// Path of the packages' files inside.
const DEBS: &str = "/slipway-debs";
/// Path of the tree inside the tools.
const TARGET: &str = "/slipway-target";
/// Packages that debootstrap installs first, one by one.
const CORE: &[&str] = &["base-passwd", "base-files", "dpkg", "libc6", "perl-base"];

/// The fields of a package that decide the order.
struct Fields {
    name: String,
    /// Path of its file inside.
    file: String,
    required: bool,
    provides: String,
    before: String,
    needs: String,
}

/// dpkg in a tools tree.
pub(crate) struct Reference {
    pub(crate) tools: Tools,
}

impl Reference {
    /// The request of its tools.
    pub(crate) fn tools() -> SetRequest {
        SetRequest {
            name: TOOLS.into(),
            packages: ["dpkg", "tar", "dash"].map(str::to_owned).to_vec(),
            dependencies: true,
            essential: false,
            recommends: false,
            backports: Vec::new(),
        }
    }

    pub(crate) fn new(session: &Session, locked: &LockedRecipe) -> Result<Self> {
        let debs = locked.fetch(session, TOOLS)?;
        Ok(Self {
            tools: tools::install(session, TOOLS, &debs)?,
        })
    }

    /// Installs packages into the new folder `root`.
    pub(crate) fn install(&self, debs: &[Deb], root: &Path, epoch: u64) -> Result<()> {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        for (number, deb) in debs.iter().enumerate() {
            let link = place.path().join(format!("{number}.deb"));
            if fs::hard_link(&deb.path, &link).is_err() {
                fs::copy(&deb.path, &link)?;
            }
        }
        let packages = self.fields(place.path(), debs.len())?;
        let order = in_order(&packages);
        let required = (0..packages.len()).filter(|at| packages[*at].required);
        let required = closure(&packages, required.collect());
        let (first, rest): (Vec<usize>, Vec<usize>) =
            order.into_iter().partition(|at| required.contains(at));
        let first: Vec<&str> = first.iter().map(|at| packages[*at].file.as_str()).collect();
        skeleton(root)?;
        self.extract(place.path(), root, &first)?;
        let run = tempfile::tempdir()?;
        let sandbox = surroundings(root, epoch)?
            .bind(run.path(), "/run")
            .bind_read_only(place.path(), DEBS);
        let dpkg = |arguments: &[&str], files: &[&str]| -> Result<()> {
            let said = sandbox
                .command("dpkg")
                .args(["--force-unsafe-io", "--force-confold"])
                .args(arguments)
                .args(files)
                .run()?;
            if std::env::var_os("SLIPWAY_SHOW_DPKG").is_some() {
                println!("{}", String::from_utf8_lossy(&said));
            }
            Ok(())
        };
        for name in CORE {
            if let Some(package) = packages.iter().find(|package| package.name == *name) {
                dpkg(&["--force-depends", "--install"], &[&package.file])?;
            }
        }
        dpkg(&["--force-depends", "--unpack"], &first)?;
        dpkg(&["--configure", "--pending"], &[])?;
        let names = names(&packages);
        let (mut configured, mut waiting) = (required, Vec::new());
        for at in rest {
            let before = closure(&packages, needs(&packages[at].before, &names));
            let before: Vec<usize> = before.difference(&configured).copied().collect();
            if !before.is_empty() {
                dpkg(&["--unpack"], &std::mem::take(&mut waiting))?;
                let names: Vec<&str> = before
                    .iter()
                    .map(|at| packages[*at].name.as_str())
                    .collect();
                dpkg(&["--configure"], &names)?;
                configured.extend(before);
            }
            waiting.push(packages[at].file.as_str());
        }
        if !waiting.is_empty() {
            dpkg(&["--unpack"], &waiting)?;
        }
        dpkg(&["--configure", "--pending"], &[])?;
        let audit = sandbox.command("dpkg").arg("--audit").run()?;
        ensure!(
            audit.is_empty(),
            "dpkg --audit: {}",
            String::from_utf8_lossy(&audit)
        );
        for path in ["usr/sbin/policy-rc.d", &DEBS[1..]] {
            let path = root.join(path);
            match path.is_dir() {
                true => fs::remove_dir(path)?,
                false => fs::remove_file(path)?,
            }
        }
        Ok(())
    }

    fn fields(&self, folder: &Path, count: usize) -> Result<Vec<Fields>> {
        let format = "${Package}\\t${Essential}\\t${Priority}\\t${Provides}\\t${Pre-Depends}\\t${Depends}\\n";
        let mut script = String::new();
        for number in 0..count {
            writeln!(
                script,
                "dpkg-deb --showformat='{format}' -W {DEBS}/{number}.deb || exit 1"
            )?;
        }
        let said = self
            .tools
            .sandbox()
            .bind_read_only(folder, DEBS)
            .command("sh")
            .args(["-c", &script])
            .run()?;
        let read = |(number, line): (usize, &str)| {
            let words: Vec<&str> = line.split('\t').collect();
            let [name, essential, priority, provides, before, needs] = words[..] else {
                anyhow::bail!("dpkg-deb: {line}");
            };
            Ok(Fields {
                name: name.to_owned(),
                file: format!("{DEBS}/{number}.deb"),
                required: essential == "yes" || priority == "required",
                provides: provides.to_owned(),
                before: before.to_owned(),
                needs: format!("{before}, {needs}"),
            })
        };
        let said = String::from_utf8(said)?;
        let fields: Vec<Fields> = said.lines().enumerate().map(read).collect::<Result<_>>()?;
        ensure!(
            fields.len() == count,
            "dpkg-deb has read {} packages of {count}",
            fields.len()
        );
        Ok(fields)
    }

    fn extract(&self, folder: &Path, root: &Path, files: &[&str]) -> Result<()> {
        let mut script = String::new();
        for file in files {
            writeln!(
                script,
                "dpkg-deb --fsys-tarfile {file} | tar -C {TARGET} -xf - || exit 1"
            )?;
        }
        self.tools
            .sandbox()
            .bind_read_only(folder, DEBS)
            .bind(root, TARGET)
            .command("sh")
            .args(["-c", &script])
            .run()
            .context("extracting the required packages")?;
        Ok(())
    }
}

/// A tree with a merged `/usr`, and an empty database.
fn skeleton(root: &Path) -> Result<()> {
    for folder in [
        "etc",
        "var/lib/dpkg",
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
    ] {
        fs::create_dir_all(root.join(folder))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.join(name))?;
    }
    for name in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(name), "")?;
    }
    Ok(())
}

/// What debootstrap gives the scripts, with a host's name that is the same everywhere.
fn surroundings(root: &Path, epoch: u64) -> Result<Sandbox> {
    let policy = root.join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
    fs::set_permissions(&policy, Permissions::from_mode(0o755))?;
    let hosts = "127.0.0.1\tlocalhost\n::1\t\tlocalhost ip6-localhost ip6-loopback\n";
    for (path, content) in [
        ("etc/hosts", hosts),
        ("etc/hostname", "localhost\n"),
        ("etc/resolv.conf", ""),
    ] {
        fs::write(root.join(path), content)?;
    }
    Ok(Sandbox::new(root)
        .hostname("localhost")
        .epoch(epoch)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("DEBCONF_NONINTERACTIVE_SEEN", "true")
        .env("DEBCONF_NOWARNINGS", "yes"))
}

/// The packages, and all that they need.
fn closure(packages: &[Fields], mut open: Vec<usize>) -> BTreeSet<usize> {
    let names = names(packages);
    let mut found = BTreeSet::new();
    while let Some(at) = open.pop() {
        if found.insert(at) {
            open.extend(needs(&packages[at].needs, &names));
        }
    }
    found
}

/// Packages after their dependencies.
fn in_order(packages: &[Fields]) -> Vec<usize> {
    fn visit(
        at: usize,
        packages: &[Fields],
        names: &HashMap<&str, usize>,
        order: &mut (BTreeSet<usize>, Vec<usize>),
    ) {
        if order.0.insert(at) {
            for next in needs(&packages[at].needs, names) {
                visit(next, packages, names, order);
            }
            order.1.push(at);
        }
    }
    let names = names(packages);
    let mut order = (BTreeSet::new(), Vec::new());
    for at in 0..packages.len() {
        visit(at, packages, &names, &mut order);
    }
    order.1
}

fn names(packages: &[Fields]) -> HashMap<&str, usize> {
    let mut names = HashMap::new();
    for (at, package) in packages.iter().enumerate() {
        for provided in relation::groups(&package.provides).flatten() {
            names.entry(provided.name).or_insert(at);
        }
    }
    for (at, package) in packages.iter().enumerate() {
        names.insert(package.name.as_str(), at);
    }
    names
}

fn needs(field: &str, names: &HashMap<&str, usize>) -> Vec<usize> {
    relation::groups(field)
        .filter_map(|group| group.iter().find_map(|one| names.get(one.name).copied()))
        .collect()
}
