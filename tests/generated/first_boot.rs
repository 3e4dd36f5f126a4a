//! Secrets and identities of packages: in no image, and made by the units' own programs in a tree as a node has it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Result, ensure};
use slipway::host::sandbox::Sandbox;

use super::{Place, has, start};

/// Packages whose scripts make a secret or an identity.
const PACKAGES: &[&str] = &["ssl-cert", "munge", "bind9", "nvme-cli", "systemd"];
/// What they make, the unit that does it on a node, and the file's mode.
const MADE: &[(&str, &str, u32)] = &[
    (
        "/etc/ssl/certs/ssl-cert-snakeoil.pem",
        "slipway-snakeoil.service",
        0o644,
    ),
    (
        "/etc/ssl/private/ssl-cert-snakeoil.key",
        "slipway-snakeoil.service",
        0o640,
    ),
    ("/etc/munge/munge.key", "slipway-munge-key.service", 0o400),
    ("/etc/bind/rndc.key", "slipway-rndc-key.service", 0o640),
    ("/etc/nvme/hostnqn", "slipway-nvme-host.service", 0o644),
    ("/etc/nvme/hostid", "slipway-nvme-host.service", 0o644),
];

pub(super) fn secrets() -> Result<()> {
    let place = Place::new(PACKAGES, "");
    let rootfs = place.install()?;
    for (path, unit, _) in MADE {
        ensure!(!has(&rootfs, path), "{path} is in the image");
        let listed = rootfs.report.first_boot.iter();
        let mut listed = listed.filter(|made| made.unit.as_deref() == Some(unit));
        ensure!(
            listed.any(|made| made.path == *path),
            "{path} is not reported"
        );
    }
    // Nothing else is generated, so the packages are not installed twice.
    ensure!(rootfs.report.suspects.is_empty(), "{:?}", rootfs.report);
    ensure!(!place.folder.join("cache/steps/generated").exists());
    let tree = place.tree(&rootfs)?;
    let units: BTreeSet<&str> = MADE.iter().map(|(_, unit, _)| *unit).collect();
    for unit in units {
        start(&tree, unit)?;
        let wanted = format!("usr/lib/systemd/system/sysinit.target.wants/{unit}");
        ensure!(tree.join(wanted).exists(), "{unit} is not enabled");
    }
    let passwd = fs::read_to_string(tree.join("etc/passwd"))?;
    let uid = |name: &str| -> Option<u32> {
        let line = passwd
            .lines()
            .find(|line| line.starts_with(&format!("{name}:")))?;
        line.split(':').nth(2)?.parse().ok()
    };
    for (path, _, mode) in MADE {
        let meta = fs::metadata(tree.join(&path[1..]))?;
        let found = meta.permissions().mode() & 0o7777;
        ensure!(
            found == *mode && meta.len() > 0,
            "{path} has mode {found:o}"
        );
        let owner = match *path {
            "/etc/munge/munge.key" => uid("munge"),
            "/etc/bind/rndc.key" => uid("bind"),
            _ => Some(0),
        };
        ensure!(
            Some(meta.uid()) == owner,
            "{path} belongs to {}",
            meta.uid()
        );
    }
    used_by_their_programs(&tree)
}

/// What was made is what the programs take: a certificate of this node's name with its key, and no half files beside.
fn used_by_their_programs(tree: &Path) -> Result<()> {
    let run = |program: &str, arguments: &[&str]| -> Result<String> {
        let said = Sandbox::new(tree).command(program).args(arguments).run()?;
        Ok(String::from_utf8(said)?.trim().to_owned())
    };
    let certificate = "/etc/ssl/certs/ssl-cert-snakeoil.pem";
    let key = "/etc/ssl/private/ssl-cert-snakeoil.key";
    let subject = run(
        "openssl",
        &["x509", "-noout", "-subject", "-in", certificate],
    )?;
    ensure!(subject.contains("node-1"), "{subject}");
    let of_certificate = run(
        "openssl",
        &["x509", "-noout", "-pubkey", "-in", certificate],
    )?;
    let of_key = run("openssl", &["pkey", "-pubout", "-in", key])?;
    ensure!(of_certificate == of_key, "the key is another one's");
    let hash = run("openssl", &["x509", "-noout", "-hash", "-in", certificate])?;
    ensure!(fs::metadata(tree.join(format!("etc/ssl/certs/{hash}.0"))).is_ok());
    run("named-checkconf", &["/etc/bind/rndc.key"])?;
    for folder in ["etc/ssl/private", "etc/munge", "etc/bind", "etc/nvme"] {
        for entry in fs::read_dir(tree.join(folder))? {
            let name = entry?.file_name().into_string().unwrap();
            ensure!(
                !name.ends_with(".new") && !name.starts_with('.'),
                "{folder}/{name}"
            );
        }
    }
    Ok(())
}

/// ssl-cert's key differed from build to build.
pub(super) fn same_bytes() -> Result<()> {
    let place = Place::new(&["ssl-cert"], "");
    let one = place.install()?;
    let other = place.again();
    let two = other.install()?;
    ensure!(one.key == two.key && one.tar != two.tar);
    ensure!(
        fs::read(&one.tar)? == fs::read(&two.tar)?,
        "the roots differ"
    );
    ensure!(one.entries().len() == two.entries().len() && one.report == two.report);
    Ok(())
}

pub(super) fn postgresql() -> Result<()> {
    let place = Place::new(&["postgresql", "systemd"], "");
    let rootfs = place.install()?;
    let data = "/usr/share/factory/var/lib/postgresql/17/main";
    ensure!(!has(&rootfs, data) && !has(&rootfs, "/etc/postgresql/17"));
    let tree = place.tree(&rootfs)?;
    start(&tree, "slipway-snakeoil.service")?;
    start(&tree, "slipway-postgresql.service")?;
    ensure!(
        tree.join("etc/postgresql/17/main/postgresql.conf")
            .is_file()
    );
    let control = |tree: &Path| -> Result<String> {
        let program = "/usr/lib/postgresql/17/bin/pg_controldata";
        let sandbox = Sandbox::new(tree).env("LC_ALL", "C.UTF-8");
        let said = sandbox
            .command(program)
            .arg("/var/lib/postgresql/17/main")
            .run()?;
        Ok(String::from_utf8(said)?)
    };
    let first = control(&tree)?;
    ensure!(first.contains("Database system identifier"), "{first}");
    // A second start leaves the cluster alone; what a cut left half is made again.
    start(&tree, "slipway-postgresql.service")?;
    ensure!(control(&tree)? == first);
    let folder = tree.join("var/lib/postgresql");
    let making = folder.join(".slipway-making-17");
    ensure!(!making.exists());
    fs::write(&making, "")?;
    fs::remove_file(folder.join("17/main/global/pg_control"))?;
    start(&tree, "slipway-postgresql.service")?;
    ensure!(control(&tree)? != first && !making.exists());
    Ok(())
}

/// MariaDB's data differs in each installation, in hundreds of files: a recipe with the server could not be built.
pub(super) fn mariadb() -> Result<()> {
    let place = Place::new(&["mariadb-server", "systemd"], "");
    let rootfs = place.install()?;
    ensure!(!has(&rootfs, "/usr/share/factory/var/lib/mysql/ibdata1"));
    let tree = place.tree(&rootfs)?;
    let data = tree.join("var/lib/mysql");
    let unit = "slipway-mariadb.service";
    start(&tree, unit)?;
    let whole = || data.join("mysql/global_priv.frm").is_file() && data.join("ibdata1").is_file();
    ensure!(whole() && !data.join(".slipway-making").exists());
    let owner = fs::metadata(data.join("ibdata1"))?.uid();
    ensure!(owner != 0, "root owns MariaDB's data");
    // A second start leaves it alone; what a cut left half is made again.
    fs::write(data.join("mine"), "kept")?;
    start(&tree, unit)?;
    ensure!(data.join("mine").exists());
    fs::write(data.join(".slipway-making"), "")?;
    fs::remove_file(data.join("ibdata1"))?;
    start(&tree, unit)?;
    ensure!(whole() && !data.join("mine").exists());
    ensure!(!data.join(".slipway-making").exists());
    Ok(())
}

/// The script of Postfix makes the database of its aliases, which needs a loopback interface, and it is another one in each
/// installation. A node makes its own, from the text that it has.
pub(super) fn aliases() -> Result<()> {
    let place = Place::new(&["postfix", "systemd"], "");
    let rootfs = place.install()?;
    ensure!(has(&rootfs, "/etc/aliases") && !has(&rootfs, "/etc/aliases.db"));
    let unit = "slipway-aliases.service";
    let made = rootfs.report.first_boot.iter();
    let made = made.filter(|made| made.unit.as_deref() == Some(unit));
    let made: Vec<&str> = made.map(|made| made.path.as_str()).collect();
    // With it the package's script did not fail.
    ensure!(made == ["/etc/aliases.db"], "{made:?}");
    // The second installation differs in the host's name alone.
    let host_name = &rootfs.report.host_name;
    ensure!(host_name == &["/etc/postfix/main.cf"], "{host_name:?}");
    let tree = place.tree(&rootfs)?;
    let ask = |name: &str| -> Result<String> {
        let said = Sandbox::new(&tree)
            .command("sh")
            .args([
                "-c",
                &format!("postalias -q {name} hash:/etc/aliases || true"),
            ])
            .run()?;
        Ok(String::from_utf8(said)?.trim().to_owned())
    };
    start(&tree, unit)?;
    ensure!(ask("postmaster")? == "root", "{:?}", ask("postmaster"));
    let meta = fs::metadata(tree.join("etc/aliases.db"))?;
    ensure!(meta.permissions().mode() & 0o7777 == 0o644 && meta.uid() == 0);
    // Another text that is older than the database, as an image's is.
    let text = tree.join("etc/aliases");
    fs::write(&text, "postmaster: root\nprobe: somebody\n")?;
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
    fs::File::options()
        .write(true)
        .open(&text)?
        .set_modified(old)?;
    start(&tree, unit)?;
    ensure!(ask("probe")? == "somebody", "{:?}", ask("probe"));
    Ok(())
}
