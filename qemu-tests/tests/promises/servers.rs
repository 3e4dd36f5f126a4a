//! Servers of Debian's packages on a node: their keys and first data are made by the first boot, and they answer.

use anyhow::{Context, Result, ensure};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::running::Running;
use qemu_tests::timeouts;

/// What is asked of each server, and what is in its answer; on both boots.
const ANSWERS: &[(&str, &str)] = &[
    (
        "curl -sS --max-time 60 http://localhost/probe.php",
        "visits: 42",
    ),
    // By the certificate that the first boot made, which is the node's own.
    (
        "curl -sS --max-time 60 --cacert /etc/ssl/certs/ssl-cert-snakeoil.pem https://$(hostname)/probe.php",
        "visits: 42",
    ),
    ("mariadb -N probe -e 'select word from words'", "kept"),
    // Its zebra writes "can't send message on closed connection" many times in each second until mgmtd listens: FRR's script
    // starts zebra first (DAEMONS in /usr/lib/frr/frrcommon.sh), on any Debian, <https://github.com/FRRouting/frr/issues/17931>.
    ("vtysh -c 'show version'", "FRRouting"),
    ("munge -n | unmunge", "Success (0)"),
    ("rndc status", "server is up and running"),
    (
        "bash -c 'exec 3<>/dev/tcp/127.0.0.1/25; read -r line <&3; echo \"$line\"; echo QUIT >&3'",
        "220 ",
    ),
    // By an alias of the recipe, whose database the node makes: without it Postfix defers all local mail.
    (
        "id=$(cat /proc/sys/kernel/random/boot_id); printf 'Subject: probe\\n\\n%s\\n' $id | /usr/sbin/sendmail probe; \
         for i in $(seq 60); do grep -qs $id /var/mail/root && echo delivered && exit; sleep 1; done; \
         postqueue -p; journalctl -b -u postfix -o cat | tail -n 20",
        "delivered",
    ),
];

/// Gives every server something to keep.
const FILLED: &[&str] = &[
    "runuser -u postgres -- psql -q -c 'create role \"www-data\" login' -c 'create database www owner \"www-data\"'",
    "runuser -u www-data -- psql -q www -c 'create table visits (number int)' -c 'insert into visits values (40), (2)'",
    "mariadb -e \"create database probe; create table probe.words (word text); insert into probe.words values ('kept')\"",
];

/// Files that the first boot makes and that stay the same: one line of hashes.
const MADE: &str = "cat /etc/ssl/private/ssl-cert-snakeoil.key /etc/munge/munge.key /etc/bind/rndc.key /etc/nvme/hostnqn \
     /etc/nvme/hostid /etc/iscsi/initiatorname.iscsi /run/postgresql-identity | sha256sum";

/// PostgreSQL's identity of its cluster, in a file, since the control file itself changes with each start.
const IDENTITY: &str = "LC_ALL=C.UTF-8 /usr/lib/postgresql/*/bin/pg_controldata /var/lib/postgresql/*/main \
     | grep 'system identifier' > /run/postgresql-identity";

/// PostgreSQL, nginx with PHP, MariaDB, FRR, Postfix, BIND and MUNGE start on a node without a cluster, whose kubelet nothing
/// waits for; they answer, and after a restart have their data and the same keys.
pub(crate) fn servers_of_packages_answer_on_both_boots(lab: &mut Lab) -> Result<()> {
    let image = lab.builder().build("qemu-tests/servers")?;
    let node = lab.node_of(&image.disk)?;
    let plan = BootOptions {
        etcd: false,
        image: Some(image),
        ..BootOptions::default()
    };
    let running = lab.boot(&node, &plan)?;
    up(&running).context("on the first boot")?;
    for script in FILLED {
        running.run(script)?;
    }
    running.run(IDENTITY)?;
    let made = running.run(MADE)?;
    answers(&running).context("on the first boot")?;
    running.power_off()?;
    let running = lab.boot(&node, &plan)?;
    up(&running).context("on the second boot")?;
    running.run(IDENTITY)?;
    ensure!(
        running.run(MADE)? == made,
        "a key or an identity was made anew"
    );
    answers(&running).context("on the second boot")?;
    running.power_off()
}

/// The node has come up with no unit that failed.
fn up(running: &Running) -> Result<()> {
    running.wait_handoff(timeouts::HANDOFF)?;
    running.wait_services()?;
    let state = running.agent()?.ask(
        "timeout 230 systemctl is-system-running --wait",
        timeouts::AGENT,
    )?;
    ensure!(
        state.output == "running",
        "systemd says {:?}: {}",
        state.output,
        running
            .ask(
                "for unit in $(systemctl --failed --plain --no-legend | cut -d' ' -f1); do \
                 journalctl -b -u $unit --no-pager -o cat | tail -n 20; done; systemctl list-jobs"
            )?
            .output
    );
    // Which no cluster has to wait for.
    running.run("systemctl is-active multi-user.target")?;
    Ok(())
}

fn answers(running: &Running) -> Result<()> {
    for (script, expected) in ANSWERS {
        let found = running.run(script)?;
        ensure!(
            found.contains(expected),
            "`{script}` answered {found:?}, expected {expected:?}"
        );
    }
    Ok(())
}
