//! What each container image of the tests consists of.

use std::path::Path;

use anyhow::Result;
use slipway::layer::Entry;
use slipway::oci::RunConfig;

use crate::suite::{AGNHOST, KITTEN, NAUTILUS, NONEWPRIVS, PORTER, SAMPLE_APISERVER, Suite};
use crate::userland::{BUSYBOX, Userland};

/// Where most of them are.
pub const E2E_IMAGES: &str = "registry.k8s.io/e2e-test-images/";

/// What an image consists of beside the layers that several have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The layers below its own files.
    pub base: &'static [Base],
    /// Its own files.
    pub files: Vec<Entry>,
    /// How it runs.
    pub run: RunConfig,
}

/// A layer of several images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Base {
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

/// Upstream's images are of Alpine, for whose name a spec looks in the one that it mounts as a volume. Ours say what they are.
const OS_RELEASE: &str = "PRETTY_NAME=\"Debian GNU/Linux, in place of Alpine Linux\"\nNAME=\"Debian GNU/Linux\"\nID=debian\n";

/// A configuration without the files that a package's sites would need; errors go to the container's log.
const NGINX: &str = "daemon off;\nuser www-data;\nerror_log stderr;\nevents {}\nhttp {\n  access_log off;\n  server {\n    \
                     listen 80 default_server;\n    root /usr/share/nginx/html;\n  }\n}\n";
/// What an image consists of; none for one that we do not make.
///
/// # Errors
/// If the suite or the userland lacks a file.
pub fn content(repository: &str, suite: &Suite, userland: &Userland) -> Result<Option<Content>> {
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
        "nautilus" => agnhost(website(suite, NAUTILUS)?, &["test-webserver"]),
        "kitten" => agnhost(website(suite, KITTEN)?, &["test-webserver"]),
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
                userland.rootfs().read("/usr/bin/catatonit")?,
            )],
            run(&["/pause", "-P"], &[]),
        ),
        _ => return Ok(None),
    }))
}

/// What the images of the rolling update have beside the server.
fn website(suite: &Suite, files: [&str; 2]) -> Result<Vec<Entry>> {
    let mut entries = served(suite, files)?;
    entries.push(Entry::file("/etc/os-release", 0o644, OS_RELEASE));
    Ok(entries)
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
    let read = |path| userland.rootfs().read(path);
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

/// The test server by both of its names, with its certificate, and the account whose groups a spec looks at.
///
/// # Errors
/// If the suite or the userland lacks a file.
pub fn agnhost(suite: &Suite, userland: &Userland) -> Result<Vec<Entry>> {
    let mut passwd = userland.rootfs().read("/etc/passwd")?;
    passwd.extend_from_slice(b"user-defined-in-image:x:1000:1000::/home:/bin/sh\n");
    let mut group = userland.rootfs().read("/etc/group")?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
