//! What stays of the packages that only the packaging needs: what the recipe names, and what runs.

use std::fs;

use anyhow::{Result, ensure};
use slipway::host::sandbox::Sandbox;
use slipway::install::{Dropped, Rootfs};

use super::{Place, has};

fn dropped<'a>(rootfs: &'a Rootfs, package: &str) -> Option<&'a Dropped> {
    let mut dropped = rootfs.report.dropped.iter();
    dropped.find(|dropped| dropped.package == package)
}

/// Its unit stops it by a program of dpkg's.
pub(super) fn nginx() -> Result<()> {
    let place = Place::new(&["nginx", "systemd"], "");
    let rootfs = place.install()?;
    let program = "/usr/sbin/start-stop-daemon";
    ensure!(has(&rootfs, program), "{:?}", rootfs.report);
    ensure!(!has(&rootfs, "/usr/bin/dpkg") && !has(&rootfs, "/usr/bin/perl"));
    let dpkg = dropped(&rootfs, "dpkg");
    ensure!(
        dpkg.is_some_and(|dpkg| dpkg.kept == [program]),
        "{:?}",
        rootfs.report
    );
    let perl = dropped(&rootfs, "perl-base");
    let missed = perl
        .map(|perl| perl.missed_by.as_slice())
        .unwrap_or_default();
    let by_pam = missed
        .iter()
        .find(|missed| missed.path == "/usr/sbin/pam-auth-update");
    ensure!(by_pam.is_some_and(|m| m.program == "/usr/bin/perl" && m.package == "libpam-runtime"));
    let tree = place.tree(&rootfs)?;
    Sandbox::new(&tree)
        .command(program)
        .arg("--version")
        .run()?;
    Ok(())
}

/// A recipe that names them has them, with what they need.
pub(super) fn named() -> Result<()> {
    let place = Place::new(&["adduser", "dpkg", "perl-base", "ucf", "systemd"], "");
    let rootfs = place.install()?;
    for package in ["adduser", "dpkg", "perl-base", "ucf"] {
        ensure!(dropped(&rootfs, package).is_none(), "{package} is removed");
    }
    let tree = place.tree(&rootfs)?;
    let run = |program: &str, arguments: &[&str]| -> Result<String> {
        let said = Sandbox::new(&tree).command(program).args(arguments).run()?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    run("adduser", &["--system", "--quiet", "somebody"])?;
    ensure!(fs::read_to_string(tree.join("etc/passwd"))?.contains("\nsomebody:"));
    let found = run("dpkg-query", &["-W", "-f", "${Status}", "adduser"])?;
    ensure!(found == "install ok installed", "{found}");
    run("perl", &["-MFile::Temp", "-e", "print 1"])?;
    run("ucf", &["/usr/lib/os-release", "/etc/new"])?;
    ensure!(tree.join("etc/new").is_file());
    Ok(())
}

/// Postfix's scripts are Perl's, and php-fpm's unit has update-alternatives make its socket's link.
pub(super) fn postfix_and_php() -> Result<()> {
    let place = Place::new(&["postfix", "php8.4-fpm", "openssl", "systemd"], "");
    let rootfs = place.install()?;
    ensure!(
        dropped(&rootfs, "perl-base").is_none(),
        "{:?}",
        rootfs.report
    );
    let tree = place.tree(&rootfs)?;
    let run = |program: &str, arguments: &[&str]| -> Result<String> {
        let said = Sandbox::new(&tree).command(program).args(arguments).run()?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    run("/usr/bin/c_rehash", &["/etc/ssl/certs"])?;
    // qshape wants all of Perl, which its package does not depend on.
    run("perl", &["-c", "/usr/sbin/postfix-collate"])?;
    let socket = [
        "/run/php/php-fpm.sock",
        "php-fpm.sock",
        "/run/php/php8.4-fpm.sock",
        "84",
    ];
    fs::create_dir_all(tree.join("run/php"))?;
    fs::write(tree.join("run/php/php8.4-fpm.sock"), "")?;
    let install = [&["--quiet", "--install"], &socket[..]].concat();
    // `/run` is the sandbox's own there.
    let script = format!(
        "mkdir -p /run/php && touch {} && update-alternatives {}",
        socket[2],
        install.join(" ")
    );
    run("sh", &["-c", &script])?;
    ensure!(fs::read_link(tree.join("etc/alternatives/php-fpm.sock")).is_ok());
    Ok(())
}
