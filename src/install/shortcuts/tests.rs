//! The shorter ways beside the scripts' own.

use std::process::{Command, Output};

use super::*;

/// The lines of Debian 13's script that are changed, with what they need around them.
const CONFIG: &str = r#"#!/bin/sh
set -e
for crt in a.crt b.crt c.crt; do
   if (echo "$CERTS_DISABLED" | grep -F -q -x "$crt") > /dev/null 2>&1; then
     : # ignore
   elif (echo "$CERTS_TRUST" | grep -F -q -x "$crt") > /dev/null 2>&1; then
     echo "trusted $crt"
   else
     echo "new $crt"
   fi
done
"#;

#[allow(
    clippy::disallowed_methods,
    reason = "a script of the test, on this host"
)]
fn shell(script: &str, variables: &[(&str, &str)]) -> Output {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]).env_clear();
    shell
        .envs(variables.iter().copied())
        .env("PATH", "/usr/bin:/bin");
    shell.output().unwrap()
}

#[test]
fn the_questions_of_the_authorities_are_answered_the_same() {
    let shorter = without_greps(CONFIG).unwrap();
    for disabled in ["", "b.crt", "x.crt\nc.crt"] {
        for trusted in ["", "a.crt", "a.crt\nc.crt"] {
            let lists = [("CERTS_DISABLED", disabled), ("CERTS_TRUST", trusted)];
            assert_eq!(shell(CONFIG, &lists), shell(&shorter, &lists), "{lists:?}");
        }
    }
    let other = CONFIG.replace("grep -F -q -x", "grep -q");
    assert_eq!(without_greps(&other), None);
}

/// A root in which the helper's place prints that it was asked.
fn root() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for path in ["usr/bin", "etc/systemd/system", "var/lib/systemd"] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    folder
}

/// What the answers say in this root to a call, and whether they ask the helper.
fn answer(root: &Path, call: &str, variables: &[(&str, &str)]) -> (Option<i32>, String, bool) {
    let below = root.display();
    let script = ANSWERS
        .replace("/etc/systemd", &format!("{below}/etc/systemd"))
        .replace("/var/lib", &format!("{below}/var/lib"))
        .replace("exec /usr/bin/.deb-systemd-helper.slipway", "echo asked");
    let script = format!("set -- {call}\n{script}");
    let package = [("DPKG_MAINTSCRIPT_PACKAGE", "a")];
    let all = [&package[..], variables].concat();
    let output = shell(&script, &all);
    let said = String::from_utf8(output.stderr).unwrap();
    let asked = String::from_utf8(output.stdout)
        .unwrap()
        .starts_with("asked");
    (output.status.code(), said, asked)
}

#[test]
fn the_helper_is_asked_for_all_but_what_is_new() {
    let folder = root();
    let root = folder.path();
    let answer = |call: &str| answer(root, call, &[]);
    let short = |code, said: &str| (Some(code), said.to_owned(), false);
    for call in ["unmask a.service", "--user unmask a.socket"] {
        assert_eq!(answer(call), short(0, ""), "{call}");
    }
    assert_eq!(answer("--quiet was-enabled a.service"), short(0, ""));
    assert_eq!(answer("was-enabled a.service"), short(0, "enabled\n"));
    assert_eq!(answer("debian-installed a.service"), short(1, ""));
    for call in [
        "",
        "enable a.service",
        "update-state a.service",
        "unmask a.service b.service",
        "unmask /usr/lib/systemd/system/a.service",
        "--quiet --other was-enabled a.service",
        "purge a.service",
    ] {
        assert!(answer(call).2, "{call}");
    }
    // Once the helper has written anything about a unit, it answers.
    let state = root.join("var/lib/systemd/deb-systemd-helper-enabled");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("a.service.dsh-also"), "").unwrap();
    assert!(answer("--quiet was-enabled a.service").2);
    assert_eq!(answer("debian-installed a.service"), short(0, ""));
    assert_eq!(answer("--quiet --user was-enabled a.service"), short(0, ""));
    std::os::unix::fs::symlink("/dev/null", root.join("etc/systemd/system/a.service")).unwrap();
    assert!(answer("unmask a.service").2);
    assert!(!answer("unmask b.service").2);
    fs::create_dir(root.join("var/lib/systemd/deb-systemd-user-helper-masked")).unwrap();
    assert!(answer("unmask b.service").2);
}

#[test]
fn the_helper_is_asked_outside_of_dpkg_and_for_another_root() {
    let folder = root();
    for variables in [
        ("DPKG_MAINTSCRIPT_PACKAGE", ""),
        ("DPKG_ROOT", "/other"),
        ("_DEB_SYSTEMD_HELPER_DEBUG", "1"),
    ] {
        let (_, _, asked) = answer(folder.path(), "unmask a.service", &[variables]);
        assert!(asked, "{variables:?}");
    }
}

#[test]
fn files_are_as_before_afterwards_and_unknown_ones_all_the_time() {
    let folder = root();
    let root = folder.path();
    let info = root.join(FOLDER).join("info");
    fs::create_dir_all(&info).unwrap();
    fs::create_dir(root.join("run")).unwrap();
    let config = info.join("ca-certificates.config");
    fs::write(&config, CONFIG).unwrap();
    fs::write(root.join(HELPER), "another helper").unwrap();
    during(root, || {
        assert_ne!(fs::read_to_string(&config)?, CONFIG);
        assert_eq!(fs::read_to_string(root.join(HELPER))?, "another helper");
        Ok(())
    })
    .unwrap();
    assert_eq!(fs::read_to_string(&config).unwrap(), CONFIG);
    assert!(!root.join(QUESTIONS_AWAY).exists());
}
