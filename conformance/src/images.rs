//! The container images of the tests, made of Debian packages and of programs of the suite, under the names that the tests
//! use, in one archive for `ctr images import`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use slipway::host::atomic_file;
use slipway::host::cache::Key;
use slipway::host::session::Session;
use slipway::layer::Entry;
use slipway::oci::{self, Blob, Image, RunConfig};

use crate::suite::{AGNHOST, KITTEN, NAUTILUS, NONEWPRIVS, PORTER, SAMPLE_APISERVER, Suite};
use crate::userland::{BUSYBOX, Userland};

/// Where most of them are.
const E2E_IMAGES: &str = "registry.k8s.io/e2e-test-images/";
/// Their architecture, that of the host.
const ARCHITECTURE: &str = "amd64";
/// Version of this file's recipes, a part of the archive's key.
const VERSION: u32 = 3;

/// What an image consists of beside the layers that several have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    /// The layers below its own files.
    base: &'static [Base],
    files: Vec<Entry>,
    run: RunConfig,
}

/// A layer of several images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Base {
    /// The Debian packages.
    Packages,
    /// Busybox's applets for what they lack, as in an image of Alpine.
    Applets,
    /// The test server, on top of both.
    Agnhost,
}

/// Debian's tree, with the applets.
const DEBIAN: &[Base] = &[Base::Packages, Base::Applets];
/// What derives from agnhost.
const OF_AGNHOST: &[Base] = &[Base::Packages, Base::Applets, Base::Agnhost];

/// A configuration without the files that a package's sites would need; errors go to the container's log.
const NGINX: &str = "daemon off;\nuser www-data;\nerror_log stderr;\nevents {}\nhttp {\n  access_log off;\n  server {\n    \
                     listen 80 default_server;\n    root /usr/share/nginx/html;\n  }\n}\n";

/// Makes the archive of all images that the suite names and that can be made here; gives its path and the names in it.
///
/// # Errors
/// If the suite does not name its images, a file is missing, or the archive cannot be written.
pub fn make(
    session: &Session,
    suite: &Suite,
    userland: &Userland,
) -> Result<(PathBuf, Vec<String>)> {
    let names = wanted(suite, userland)?;
    let mut key = Key::of_data("test images", VERSION)
        .key("userland", &userland.rootfs.key)
        .text("release", &suite.obtained.release);
    for (package, path) in &suite.obtained.programs {
        key = key.big_file(&session.cache, package, path)?;
    }
    let key = key.text("names", &names.join(" ")).finish();
    let step = session.progress.step("test images");
    let made = session.cache.step("test-images", &key, |folder| {
        let scratch = session.cache.scratch()?;
        let bases = bases(suite, userland, scratch.path())?;
        let images = names.iter().enumerate().map(|(number, name)| {
            let content = content(repository(name), suite, userland)?
                .with_context(|| format!("no recipe for {name}"))?;
            image(
                number,
                name,
                content,
                &bases,
                userland.epoch,
                scratch.path(),
            )
            .with_context(|| format!("making {name}"))
        });
        let images = images.collect::<Result<Vec<_>>>()?;
        let layout = scratch.path().join("layout");
        fs::create_dir(&layout)?;
        oci::write_layout(&layout, &images, userland.epoch)?;
        archive(&layout, &folder.join("images.tar"))
    })?;
    let path = made.path.join("images.tar");
    step.done(made.hit, Some(fs::metadata(&path)?.len()));
    Ok((path, names))
}

/// Copies the archive to a place of the user's.
///
/// # Errors
/// If it cannot be read or written.
pub fn export(archive: &Path, dest: &Path) -> Result<()> {
    atomic_file::write(dest, 0o644, |file| {
        std::io::copy(&mut File::open(archive)?, file)?;
        Ok(())
    })
    .with_context(|| format!("writing {}", dest.display()))
}

/// The names of the images that the tests of this release use and that we make.
fn wanted(suite: &Suite, userland: &Userland) -> Result<Vec<String>> {
    let sandbox = (userland.sandbox())
        .bind_read_only(suite.program(crate::suite::E2E)?, "/conformance/e2e.test");
    let list = sandbox
        .command("/conformance/e2e.test")
        .arg("--list-images");
    let list = String::from_utf8(list.run().context("asking the tests for their images")?)?;
    let names = known(&list);
    ensure!(
        !names.is_empty(),
        "the tests name no image that Slipway can make; they named:\n{list}"
    );
    Ok(names)
}

/// Those of a list of names that [`content`] makes.
fn known(list: &str) -> Vec<String> {
    const KNOWN: &[&str] = &[
        "agnhost",
        "busybox",
        "glibc-dns-testing",
        "kitten",
        "nautilus",
        "nginx",
        "nonewprivs",
        "nonroot",
        "sample-apiserver",
    ];
    let ours = |name: &&str| {
        let repository = repository(name);
        let test = repository.strip_prefix(E2E_IMAGES);
        test.is_some_and(|test| KNOWN.contains(&test))
            || ["registry.k8s.io/etcd", "registry.k8s.io/pause"].contains(&repository)
    };
    let mut names: Vec<String> = list
        .lines()
        .map(str::trim)
        .filter(ours)
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// A name without its tag.
fn repository(name: &str) -> &str {
    name.rsplit_once(':')
        .map_or(name, |(repository, _)| repository)
}

/// What an image consists of; none for one that we do not make.
fn content(repository: &str, suite: &Suite, userland: &Userland) -> Result<Option<Content>> {
    let name = repository.strip_prefix(E2E_IMAGES).unwrap_or(repository);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let run = |entrypoint: &[&str], cmd: &[&str]| RunConfig {
        entrypoint: words(entrypoint),
        cmd: words(cmd),
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        ..RunConfig::default()
    };
    let of = |base, files, run| Content { base, files, run };
    let agnhost = |files, cmd: &[&str]| of(OF_AGNHOST, files, run(&["/agnhost"], cmd));
    Ok(Some(match name {
        "agnhost" => agnhost(Vec::new(), &["pause"]),
        "nautilus" => agnhost(served(suite, NAUTILUS)?, &["test-webserver"]),
        "kitten" => agnhost(served(suite, KITTEN)?, &["test-webserver"]),
        "glibc-dns-testing" => of(DEBIAN, Vec::new(), run(&[], &["/bin/bash"])),
        "nonroot" => of(
            DEBIAN,
            Vec::new(),
            RunConfig {
                user: "1234".to_owned(),
                ..run(&[], &["/bin/sh"])
            },
        ),
        "nginx" => of(
            DEBIAN,
            vec![Entry::file("/etc/nginx/nginx.conf", 0o644, NGINX)],
            run(&[], &["/usr/sbin/nginx"]),
        ),
        "registry.k8s.io/etcd" => of(
            DEBIAN,
            vec![Entry::symlink("/usr/local/bin/etcd", "/usr/bin/etcd")],
            run(&[], &["/usr/local/bin/etcd"]),
        ),
        "nonewprivs" => of(
            &[],
            // The set-user-id bit is what the specs are about.
            alone("/usr/local/bin/nnp", 0o6755, suite.program(NONEWPRIVS)?),
            run(&[], &["/usr/local/bin/nnp"]),
        ),
        "sample-apiserver" => of(
            &[],
            alone("/sample-apiserver", 0o755, suite.program(SAMPLE_APISERVER)?),
            run(&["/sample-apiserver"], &[]),
        ),
        "busybox" => of(&[], busybox(userland)?, run(&[], &["sh"])),
        "registry.k8s.io/pause" => of(
            &[],
            vec![Entry::file(
                "/pause",
                0o755,
                userland.rootfs.read("/usr/bin/catatonit")?,
            )],
            run(&["/pause", "-P"], &[]),
        ),
        _ => return Ok(None),
    }))
}

/// The files that a web server of the tests serves, from its working folder.
fn served(suite: &Suite, files: [&str; 2]) -> Result<Vec<Entry>> {
    let files = files.iter().map(|path| {
        let name = path.rsplit_once('/').map_or(*path, |(_, name)| name);
        Ok(Entry::file(format!("/{name}"), 0o644, suite.file(path)?))
    });
    files.collect()
}

/// A static program, and what a container's root must have besides.
fn alone(path: &str, mode: u32, program: &Path) -> Vec<Entry> {
    let ends = path.match_indices('/').skip(1);
    let parents = ends.map(|(at, _)| Entry::directory(&path[..at], 0o755));
    let mut entries: Vec<Entry> = parents.collect();
    entries.push(Entry::directory("/tmp", 0o1777));
    entries.push(Entry::copy(path, mode, program));
    entries
}

/// Busybox with its applets in one folder, where each of the usual paths leads. The `sh` of the search path is another shell:
/// Debian's ash drops variables of the environment whose names no shell can have, which upstream's hands on, and specs print
/// them by `sh -c env`. The one at `/bin/sh` is ash, whose messages another spec compares.
fn busybox(userland: &Userland) -> Result<Vec<Entry>> {
    let read = |path| userland.rootfs.read(path);
    let mut entries = vec![
        Entry::directory("/bin", 0o755),
        Entry::file("/bin/busybox", 0o755, read(BUSYBOX)?),
        Entry::directory("/etc", 0o755),
        Entry::file("/etc/group", 0o644, read("/etc/group")?),
        Entry::file("/etc/passwd", 0o644, read("/etc/passwd")?),
        Entry::directory("/home", 0o755),
        Entry::directory("/root", 0o700),
        Entry::symlink("/sbin", "bin"),
        Entry::directory("/tmp", 0o1777),
        Entry::directory("/usr", 0o755),
        Entry::symlink("/usr/bin", "../bin"),
        Entry::directory("/usr/local", 0o755),
        Entry::directory("/usr/local/bin", 0o755),
        Entry::file("/usr/local/bin/sh", 0o755, read("/usr/bin/bash-static")?),
        Entry::symlink("/usr/sbin", "../bin"),
        Entry::directory("/var", 0o755),
    ];
    let applets = userland
        .applets
        .iter()
        .filter(|applet| *applet != "busybox");
    entries.extend(applets.map(|applet| Entry::symlink(format!("/bin/{applet}"), "busybox")));
    Ok(entries)
}

/// The layers that several images have.
fn bases(suite: &Suite, userland: &Userland, folder: &Path) -> Result<BTreeMap<Base, Blob>> {
    let packages = oci::layer_of_tar(&userland.rootfs.tar, &folder.join("packages.tar"))?;
    let applets: Vec<Entry> = (userland.missing())
        .map(|applet| Entry::symlink(format!("/usr/bin/{applet}"), "busybox"))
        .collect();
    let layer = |entries, name: &str| layer(entries, userland.epoch, &folder.join(name));
    Ok(BTreeMap::from([
        (Base::Packages, packages),
        (Base::Applets, layer(applets, "applets.tar")?),
        (
            Base::Agnhost,
            layer(agnhost(suite, userland)?, "agnhost.tar")?,
        ),
    ]))
}

/// The test server by both of its names, with its certificate, and the account whose groups a spec looks at.
fn agnhost(suite: &Suite, userland: &Userland) -> Result<Vec<Entry>> {
    let mut passwd = userland.rootfs.read("/etc/passwd")?;
    passwd.extend_from_slice(b"user-defined-in-image:x:1000:1000::/home:/bin/sh\n");
    let mut group = userland.rootfs.read("/etc/group")?;
    group.extend_from_slice(
        b"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
    );
    let mut entries = served(suite, PORTER)?;
    entries.extend([
        Entry::copy("/agnhost", 0o755, suite.program(AGNHOST)?),
        Entry::symlink("/agnhost-2", "agnhost"),
        Entry::directory("/uploads", 0o755),
        Entry::file("/etc/group", 0o644, group),
        Entry::file("/etc/passwd", 0o644, passwd),
    ]);
    Ok(entries)
}

/// A layer of entries in any order.
fn layer(mut entries: Vec<Entry>, epoch: u64, dest: &Path) -> Result<Blob> {
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    oci::layer(&entries, epoch, dest)
}

fn image(
    number: usize,
    name: &str,
    content: Content,
    bases: &BTreeMap<Base, Blob>,
    epoch: u64,
    folder: &Path,
) -> Result<Image> {
    let base = content.base.iter().map(|base| bases[base].clone());
    let mut layers: Vec<Blob> = base.collect();
    if !content.files.is_empty() {
        layers.push(layer(
            content.files,
            epoch,
            &folder.join(format!("{number}.tar")),
        )?);
    }
    Ok(Image {
        name: name.to_owned(),
        architecture: ARCHITECTURE.to_owned(),
        run: content.run,
        layers,
    })
}

/// The layout as one file.
fn archive(layout: &Path, dest: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(dest)?);
    let mut archive = tar::Builder::new(&mut file);
    archive.mode(tar::HeaderMode::Deterministic);
    archive.append_dir_all(".", layout)?;
    archive.finish()?;
    drop(archive);
    Ok(file.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_taken_from_the_list_of_the_tests() {
        let list = "gcr.io/authenticated-image-pulling/agnhost:2.6\nregistry.k8s.io/e2e-test-images/agnhost:2.63.0\n\
                    registry.k8s.io/e2e-test-images/agnhost:2.55\nregistry.k8s.io/e2e-test-images/volume/nfs:1.6.0\n\
                    registry.k8s.io/pause:3.10.2\ninvalid.registry.k8s.io/invalid/alpine:3.1\n\n\
                    registry.k8s.io/e2e-test-images/agnhost:2.55\n";
        assert_eq!(
            known(list),
            [
                "registry.k8s.io/e2e-test-images/agnhost:2.55",
                "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
                "registry.k8s.io/pause:3.10.2",
            ]
        );
    }

    #[test]
    fn a_program_that_is_alone_has_its_folders() {
        let entries = alone("/usr/local/bin/nnp", 0o6755, Path::new("/nnp"));
        let paths: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "/usr",
                "/usr/local",
                "/usr/local/bin",
                "/tmp",
                "/usr/local/bin/nnp"
            ]
        );
        assert_eq!(entries[4].mode, 0o6755);
    }
}
