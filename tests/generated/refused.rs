//! What a script generates and nothing on a node makes: refused, unless the recipe says what becomes of it.

use anyhow::{Context as _, Result, ensure};
use slipway::recipe::Mistakes;

use super::{Place, has, package};

/// Files of each kind: a secret, an identity in `/var`, a cache, a host name, days and years by programs that read the clock in
/// different ways, and the same bytes each time.
const POSTINST: &str = "#!/bin/bash
set -e
mkdir -p /etc/maker /var/lib/maker /var/cache/maker
head -c 16 /dev/urandom | od >/etc/maker/secret
cat /proc/sys/kernel/random/uuid >/var/lib/maker/instance
date +%s%N >/var/cache/maker/index
echo \"name $(uname -n)\" >/etc/maker/host
date +%d >/etc/maker/day
printf '%(%Y)T\n' >/etc/maker/year
perl -e 'print((localtime)[5])' >/etc/maker/years
echo same >/etc/maker/settings
";

fn place(more: &str) -> Place {
    let place = Place::new(
        &["systemd"],
        &format!("debs = [{{ file = \"maker.deb\" }}]\n{more}"),
    );
    package::write(&place.folder.join("maker.deb"), "maker", POSTINST);
    place
}

fn mistakes(place: &Place) -> Result<String> {
    let error = place.install().err().context("it was not refused")?;
    let mistakes = error.downcast::<Mistakes>()?;
    Ok(mistakes.render(false))
}

pub(super) fn generated() -> Result<()> {
    let first = place("");
    let said = mistakes(&first)?;
    for expected in [
        "a script of `maker` generates what is different in each build",
        "/etc/maker/secret",
        "/var/lib/maker/instance",
        "/etc/maker/day",
        "/etc/maker/year,",
        "/etc/maker/years",
        "`same-on-every-node = [\"/etc/maker/day\"]` in [root]",
    ] {
        ensure!(said.contains(expected), "{expected} is not in\n{said}");
    }
    for other in [
        "/etc/maker/host",
        "/etc/maker/settings",
        "/var/cache/maker",
        "another-day",
        "ld.so.preload",
    ] {
        ensure!(!said.contains(other), "{other} is in\n{said}");
    }
    // Its word is wrong in one place, right in the others.
    let wrong = place("[root]\nsame-on-every-node = [\"/etc/maker/secre\"]\n");
    let said = mistakes(&wrong)?;
    for expected in [
        "no package's script generates /etc/maker/secre\n",
        "test.toml:12:23",
        "did you mean `/etc/maker/secret`?",
    ] {
        ensure!(said.contains(expected), "{expected} is not in\n{said}");
    }
    let right = place(
        "[root]\nsame-on-every-node = [\"/var/lib/maker\", \"/etc/maker/day\", \"/etc/maker/year\", \"/etc/maker/years\"]\n\
         [files.\"/etc/maker/secret\"]\ncontent = \"ours\"\n",
    );
    let rootfs = right.install()?;
    ensure!(has(&rootfs, "/usr/share/factory/var/lib/maker/instance"));
    ensure!(has(&rootfs, "/etc/maker/settings"));
    ensure!(!has(&rootfs, "/usr/share/factory/var/cache/maker/index"));
    ensure!(
        rootfs.report.host_name == ["/etc/maker/host"],
        "{:?}",
        rootfs.report
    );
    Ok(())
}
