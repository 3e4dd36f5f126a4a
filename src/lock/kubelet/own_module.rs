//! Programs with releases of their own, compiled from their Go modules: a module of ours requires the program's, so that the lock's
//! go.sum pins every byte.

mod rows;

use std::borrow::Cow;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::program::{go, keep};
use super::toolchain::{Go, Target};
use crate::code;
use crate::host::cache::Key;
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedProgram};

pub(super) use rows::{
    AWS_CLOUD_CONTROLLER, CNI_PLUGINS, CONTAINERD, CRICTL, ETCD, FLANNEL, METRICS_SERVER, OF_IMAGES,
};
use rows::{ROWS, Row};

/// The file of our module that names the packages. Its tag keeps it out of every build: programs cannot be imported.
const SOURCE: &str = "packages/packages.go";
/// The folder of our module with a program of ours: another name than that of what is compiled, which Go would put below it.
const OWN: &str = "own";

/// `go list -m -versions -json`.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    #[serde(default)]
    versions: Vec<String>,
}

/// Whether a lock's program has a release of its own.
pub(super) fn is_own(name: &str) -> bool {
    ROWS.iter().any(|row| row.name == name)
}

/// The package URL of such a program (<https://github.com/package-url/purl-spec>).
pub(super) fn purl(name: &str, version: &str) -> Option<String> {
    let row = ROWS.iter().find(|row| row.name == name)?;
    let package = match row.packages {
        [package] if !package.is_empty() => format!("#{package}"),
        _ => String::new(),
    };
    Some(format!("pkg:golang/{}@{version}{package}", row.module))
}

fn row(name: &str) -> Result<&'static Row> {
    let row = ROWS.iter().find(|row| row.name == name);
    row.with_context(|| format!("{name} has no Go module of its own"))
}

/// Compiles a program for a lock: of the version that is wanted or, where the proxy does not have that, of the newest older one.
/// Tells whether it came from the cache.
pub(super) fn pin(
    name: &str,
    wanted: &str,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<(LockedProgram, bool)> {
    let row = row(name)?;
    let go = Go::new(go(session, locked)?, session)?;
    let version = served(&go, row, wanted)?;
    let (go_mod, go_sum) = resolve(&go, row, &version, session, step)?;
    let (path, hit) = compile(&go, row, &version, (&go_mod, &go_sum), session, step)?;
    let (sha256, size) = keep(&session.cache, &path)?;
    let program = LockedProgram {
        version,
        sha256,
        size,
        source: LockedFrom::GoModule { go_mod, go_sum },
    };
    Ok((program, hit))
}

/// Compiles a locked program again and compares the digests.
pub(super) fn fetch(
    name: &str,
    program: &LockedProgram,
    modules: (&str, &str),
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<()> {
    let go = Go::new(go(session, locked)?, session)?;
    let (path, _) = compile(&go, row(name)?, &program.version, modules, session, step)?;
    let (sha256, _) = keep(&session.cache, &path)?;
    ensure!(
        sha256 == program.sha256,
        "the compiled program has SHA-256 {sha256}, expected {} as the lock says: it was made \
         with another Go, or by another version of Slipway; `slipway lock --renew` makes it anew",
        program.sha256
    );
    Ok(())
}

/// The version that is wanted, or the newest older one that the proxy serves.
fn served(go: &Go, row: &Row, wanted: &str) -> Result<String> {
    let said = go.online(&["list", "-m", "-versions", "-json", row.module])?;
    let listed: Listed = serde_json::from_str(&said).context("reading what `go list` says")?;
    let module = row.module;
    newest(&listed.versions, wanted).with_context(|| {
        format!(
            "the module proxy has no {module} {wanted} or older; it has {}",
            match listed.versions.as_slice() {
                [] => "none".to_owned(),
                all => all.join(", "),
            }
        )
    })
}

/// The newest release of a list that is not newer than the wanted one.
fn newest(versions: &[String], wanted: &str) -> Option<String> {
    let numbers = |text: &str| -> Option<Vec<u32>> {
        let parts = text.strip_prefix('v')?.split('.');
        parts.map(|part| part.parse().ok()).collect()
    };
    let wanted = numbers(wanted)?;
    let usable = versions
        .iter()
        .filter_map(|version| Some((numbers(version)?, version)));
    let newest = usable.filter(|(numbers, _)| *numbers <= wanted).max();
    newest.map(|(_, version)| version.clone())
}

/// The source of our module, a path and a text: our own program, or what makes the module require the packages.
fn source(row: &Row) -> (String, Cow<'static, str>) {
    if let Some(text) = row.own {
        return (format!("{OWN}/main.go"), text.into());
    }
    let mut text = "//go:build tools\n\npackage packages\n\nimport (\n".to_owned();
    for package in row.packages {
        text += &format!("\t_ \"{}\"\n", row.full(package));
    }
    text.push_str(")\n");
    (SOURCE.to_owned(), text.into())
}

/// The name of a package for the compiler.
fn target(row: &Row, package: &str) -> String {
    match row.own {
        Some(_) => format!("./{OWN}"),
        None => row.full(package),
    }
}

/// `go.mod` and `go.sum` of our module. A published version never changes, so they are made once.
fn resolve(
    go: &Go,
    row: &Row,
    version: &str,
    session: &Session,
    step: &Step,
) -> Result<(String, String)> {
    let (file, source) = source(row);
    let key = Key::of("own modules", code::OWN_PROGRAMS)
        .key("go", go.compiler())
        .text("version", version)
        .text("source", &source)
        .finish();
    let made = session.cache.step("own-modules", &key, |folder| {
        let sources = go.sources_of(&format!("{}@{version}", row.module))?;
        let theirs = fs::read_to_string(sources.join("go.mod")).context("reading its go.mod")?;
        let ours = go_mod(&theirs, row, version)?;
        go.write([(file, &*source)], &ours, None)?;
        go.resolve(folder, step)
    })?;
    let read = |name: &str| fs::read_to_string(made.path.join(name));
    Ok((read("go.mod")?, read("go.sum")?))
}

/// `go.mod` of our module. Go ignores the replacements of a dependency, so one by another module is repeated, and one by a folder is
/// none: the module that it stands for is published with the same version. What the row keeps is not replaced either.
fn go_mod(theirs: &str, row: &Row, version: &str) -> Result<String> {
    let go = theirs
        .lines()
        .find(|line| line.starts_with("go "))
        .with_context(|| format!("the go.mod of {} {version} names no Go version", row.module))?;
    let mut text = format!(
        "module slipway/program\n\n{go}\n\nrequire {} {version}\n",
        row.module
    );
    for line in theirs.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let line = line.strip_prefix("replace ").unwrap_or(line);
        let Some((from, to)) = line.split_once(" => ") else {
            continue;
        };
        let (from, to) = (from.trim(), to.trim());
        let name = from.split(' ').next().unwrap_or_default();
        if !to.starts_with('.') && !row.kept.contains(&name) {
            text += &format!("replace {from} => {to}\n");
        }
    }
    Ok(text)
}

/// The program, or the archive of all, and whether it came from the cache.
fn compile(
    go: &Go,
    row: &Row,
    version: &str,
    (go_mod, go_sum): (&str, &str),
    session: &Session,
    step: &Step,
) -> Result<(std::path::PathBuf, bool)> {
    let flags = row.flags(version);
    let (file, source) = source(row);
    let key = Key::of("own program", code::OWN_PROGRAMS)
        .key("go", go.compiler())
        .text("source", &source)
        .text("go.mod", go_mod)
        .text("go.sum", go_sum)
        .text("flags", &flags)
        .finish();
    let made = session.cache.step("own-program", &key, |folder| {
        go.write([(file, &*source)], go_mod, Some(go_sum))?;
        for package in row.packages {
            let target = Target {
                package: &target(row, package),
                tests: false,
            };
            let dest = folder.join(last(&row.full(package)));
            go.compile(target, &flags, &dest, step)
                .with_context(|| format!("compiling {} {version}", target.package))?;
        }
        pack(row, folder)
    })?;
    Ok((made.path.join("content"), made.hit))
}

/// The last part of a package's name, by which Go calls its program.
fn last(package: &str) -> &str {
    package.rsplit('/').next().unwrap_or(package)
}

/// Puts the programs of `folder` into its file `content`: the one program, or an archive of them that is the same each time.
fn pack(row: &Row, folder: &Path) -> Result<()> {
    let content = folder.join("content");
    if let [package] = row.packages {
        let program = folder.join(last(&row.full(package)));
        return Ok(fs::rename(program, content)?);
    }
    let mut names: Vec<&str> = row.packages.iter().map(|package| last(package)).collect();
    names.sort_unstable();
    let mut archive = tar::Builder::new(File::create(&content)?);
    for name in names {
        let path = folder.join(name);
        let mut file = File::open(&path)?;
        let mut header = tar::Header::new_ustar();
        header.set_size(file.metadata()?.len());
        header.set_mode(0o755);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, name, &mut file)?;
        fs::remove_file(&path)?;
    }
    archive.into_inner()?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_that_is_served_is_not_newer_than_the_wanted_one() {
        let served = ["v1.34.0", "v1.37.0", "v1.9.1", "v1.35.0-rc.1"].map(str::to_owned);
        for (wanted, found) in [
            ("v1.35.0", Some("v1.34.0")),
            ("v1.34.0", Some("v1.34.0")),
            ("v1.10.0", Some("v1.9.1")),
            ("v1.9.0", None),
        ] {
            assert_eq!(newest(&served, wanted).as_deref(), found, "{wanted}");
        }
    }

    #[test]
    fn our_module_requires_theirs_with_its_replacements() {
        let theirs = "module x\n\ngo 1.24.1\n\nrequire a v1\n\n// replace c => d v1\nreplace (\n\ta => b v2 // why\n\tapi => ../api\n)\n\
                      replace e => f v3\n";
        let row = row(CRICTL).unwrap();
        assert_eq!(
            go_mod(theirs, row, "v1.34.0").unwrap(),
            "module slipway/program\n\ngo 1.24.1\n\nrequire sigs.k8s.io/cri-tools v1.34.0\nreplace a => b v2\nreplace e => f v3\n"
        );
        assert!(go_mod("module x\n", row, "v1.34.0").is_err());
        let kept = super::row(AWS_CLOUD_CONTROLLER).unwrap();
        let theirs = "module x\n\ngo 1.26.0\n\nreplace github.com/google/cel-go => github.com/cel-expr/cel-go v0.31.0\nreplace e => f v3\n";
        assert_eq!(
            go_mod(theirs, kept, "v1.36.2").unwrap(),
            "module slipway/program\n\ngo 1.26.0\n\nrequire k8s.io/cloud-provider-aws v1.36.2\nreplace e => f v3\n"
        );
    }

    #[test]
    fn a_program_of_ours_is_compiled_in_place_of_the_modules_own() {
        let row = row(FLANNEL).unwrap();
        let (file, text) = source(row);
        assert_eq!(
            (file.as_str(), target(row, "").as_str()),
            ("own/main.go", "./own")
        );
        // Nothing of the module's root is imported, which has its program.
        let import = format!("\"{}", row.module);
        let imports: Vec<_> = text.lines().filter(|line| line.contains(&import)).collect();
        assert!(
            imports.len() > 4 && imports.iter().all(|line| line.contains("/pkg/")),
            "{imports:?}"
        );
        let etcd = super::row(ETCD).unwrap();
        assert_eq!(target(etcd, ""), etcd.module);
        assert_eq!(source(etcd).0, SOURCE);
    }

    #[test]
    fn metrics_server_says_its_own_version_and_is_listed_by_its_module() {
        let row = row(METRICS_SERVER).unwrap();
        let flags = row.flags("v0.9.0");
        assert!(
            flags.ends_with(" -X k8s.io/client-go/pkg/version.gitVersion=v0.9.0"),
            "{flags}"
        );
        assert_eq!(
            purl(METRICS_SERVER, "v0.9.0").unwrap(),
            "pkg:golang/sigs.k8s.io/metrics-server@v0.9.0#cmd/metrics-server"
        );
    }

    #[test]
    fn amazons_controller_says_its_own_version_and_is_listed_by_its_module() {
        let flags = row(AWS_CLOUD_CONTROLLER).unwrap().flags("v1.36.2");
        let expected = " -X k8s.io/component-base/version.gitVersion=v1.36.2";
        assert!(flags.ends_with(expected), "{flags}");
        assert_eq!(
            purl(AWS_CLOUD_CONTROLLER, "v1.36.2").unwrap(),
            "pkg:golang/k8s.io/cloud-provider-aws@v1.36.2#cmd/aws-cloud-controller-manager"
        );
    }

    #[test]
    fn several_programs_are_an_archive_that_is_the_same_each_time() {
        let row = row(CNI_PLUGINS).unwrap();
        let pack_once = || {
            let folder = tempfile::tempdir().unwrap();
            for package in row.packages {
                fs::write(folder.path().join(last(package)), package).unwrap();
            }
            pack(row, folder.path()).unwrap();
            fs::read(folder.path().join("content")).unwrap()
        };
        let archive = pack_once();
        assert_eq!(archive, pack_once());
        let mut read = tar::Archive::new(archive.as_slice());
        let names = read.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            let (mode, owner) = (header.mode().unwrap(), header.uid().unwrap());
            assert_eq!((mode, owner, header.gid().unwrap()), (0o755, 0, 0));
            entry.path().unwrap().display().to_string()
        });
        let names: Vec<String> = names.collect();
        assert_eq!(names.len(), row.packages.len());
        assert!(names.is_sorted() && names.contains(&"host-local".to_owned()));
    }
}
