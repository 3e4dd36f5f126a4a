//! Logins from each of their places, and helpers that answer, fail, and hang.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use tempfile::TempDir;

use super::*;

/// Surroundings below a folder.
fn surroundings(folder: &TempDir, variables: &[(&'static str, String)]) -> Surroundings {
    let home = folder.path().join("home");
    let mut all = BTreeMap::from([("HOME", home.to_str().unwrap().to_owned())]);
    all.extend(variables.iter().cloned());
    Surroundings {
        variables: all,
        apt: folder.path().join("apt"),
        helper: Duration::from_secs(20),
    }
}

fn write(path: &Path, text: &str) -> String {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn machine(user: &str) -> String {
    format!("machine h.example login {user} password secret\n")
}

fn config(user: &str) -> String {
    let auth = data_encoding::BASE64.encode(format!("{user}:secret").as_bytes());
    format!(r#"{{"auths": {{"h.example": {{"auth": "{auth}"}}}}}}"#)
}

#[test]
fn the_environment_counts_before_the_users_files_and_these_before_apts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let user = |variables: &[(&'static str, String)]| {
        let logins = HostLogins::of(surroundings(&folder, variables));
        let login = logins.of_url("https://h.example/x").unwrap();
        login.map(|login| format!("{} of {}", login.user, login.from))
    };
    assert_eq!(user(&[]), None);
    write(&at("apt/auth.conf.d/b.conf"), &machine("b"));
    write(&at("apt/auth.conf.d/a.conf"), &machine("a"));
    write(&at("apt/auth.conf.d/a.bak"), &machine("never"));
    assert!(user(&[]).unwrap().starts_with("a of "));
    write(&at("apt/auth.conf"), &machine("apt"));
    assert!(user(&[]).unwrap().starts_with("apt of "));
    write(&at("home/.config/slipway/auth.conf"), &machine("own"));
    assert!(user(&[]).unwrap().starts_with("own of "));
    let named = [(AUTH_FILE, write(&at("named"), &machine("named")))];
    assert!(user(&named).unwrap().starts_with("named of "));
    let both = [named[0].clone(), (AUTH, machine("variable"))];
    assert_eq!(
        user(&both).as_deref(),
        Some("variable of the variable SLIPWAY_AUTH")
    );
}

#[test]
fn a_registrys_login_is_dockers_then_that_of_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let user = |variables: &[(&'static str, String)]| {
        let logins = HostLogins::of(surroundings(&folder, variables));
        let login = logins.of_repository("h.example", "group/app").unwrap();
        login.map(|login| login.user)
    };
    write(&at("apt/auth.conf"), &machine("apt"));
    assert_eq!(user(&[]).as_deref(), Some("apt"));
    write(&at("home/.docker/config.json"), &config("docker"));
    assert_eq!(user(&[]).as_deref(), Some("docker"));
    let other = write(&at("other/config.json"), &config("other"));
    let other = other.trim_end_matches("/config.json").to_owned();
    assert_eq!(user(&[("DOCKER_CONFIG", other)]).as_deref(), Some("other"));
    write(&at("home/.config/containers/auth.json"), &config("podman"));
    assert_eq!(user(&[]).as_deref(), Some("podman"));
    write(&at("run/containers/auth.json"), &config("run"));
    let run = ("XDG_RUNTIME_DIR", at("run").to_str().unwrap().to_owned());
    assert_eq!(user(std::slice::from_ref(&run)).as_deref(), Some("run"));
    let named = ("REGISTRY_AUTH_FILE", write(&at("named"), &config("named")));
    assert_eq!(user(&[run, named.clone()]).as_deref(), Some("named"));
    let variable = (DOCKER_AUTH, config("variable"));
    assert_eq!(user(&[named, variable]).as_deref(), Some("variable"));
}

#[test]
fn what_the_user_named_must_be_readable_and_the_rest_is_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let gone = at("gone").to_str().unwrap().to_owned();
    let logins = HostLogins::of(surroundings(&folder, &[(AUTH_FILE, gone)]));
    let why = logins.of_url("https://h.example/").unwrap_err();
    assert!(why.contains("gone: No such file"), "{why}");
    let broken = (DOCKER_AUTH, r#"{"auths": "secret"}"#.to_owned());
    let logins = HostLogins::of(surroundings(&folder, &[broken]));
    let why = logins.of_repository("h.example", "x").unwrap_err();
    assert!(
        why.contains(DOCKER_AUTH) && !why.contains("secret"),
        "{why}"
    );

    write(&at("home/.docker/config.json"), "{secret");
    let logins = HostLogins::of(surroundings(&folder, &[(AUTH, machine("joe"))]));
    assert_eq!(logins.of_repository("r.example", "x"), Ok(None));
    let said = logins.missing("r.example");
    assert!(
        said.contains("machine r.example login USER")
            && said.contains(".docker/config.json is not of the form"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
    let said = logins.missing("http://h.example");
    assert!(
        said.contains("write `machine http://h.example` there"),
        "{said}"
    );
}

/// The path of a helper that is this script.
fn helper(folder: &Path, name: &str, script: &str) -> String {
    let path = folder.join(format!("docker-credential-{name}"));
    write(&path, &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn helpers_answer_fail_or_hang() {
    let folder = tempfile::tempdir().unwrap();
    for (script, expected) in [
        (
            r#"read -r server; test "$1" = get && echo "{\"Username\":\"joe\",\"Secret\":\"of $server\"}""#,
            "joe of h.example",
        ),
        (
            "echo credentials not found in native keychain; exit 1",
            "none",
        ),
        (
            "echo the keyring is locked; exit 1",
            "exit status: 1: the keyring is locked",
        ),
        (
            r#"echo '{"Secret":"secret"}'; exit 1"#,
            "exit status: 1: it said nothing",
        ),
        (
            r#"echo '{"Secret":"secret"}'"#,
            "answered without Username and Secret",
        ),
        ("exec sleep 60", "did not end in time"),
    ] {
        let path = helper(folder.path(), "t", script);
        let began = Instant::now();
        let limit = match script.contains("sleep") {
            true => Duration::from_millis(300),
            false => Duration::from_secs(20),
        };
        let found = match ask_program(&path, "the helper", "h.example", limit) {
            Ok(Some(login)) => format!("{} {}", login.user, login.password),
            Ok(None) => "none".to_owned(),
            Err(why) => why,
        };
        assert!(found.contains(expected), "{script}: {found}");
        assert!(!found.contains("secret"), "{found}");
        assert!(began.elapsed() < Duration::from_secs(15), "{script}");
    }
    let wrong = super::helper("../x", "h.example", "/f", HELPER).unwrap_err();
    assert!(wrong.contains("is not a program's name"), "{wrong}");
    let gone = super::helper("slipway-none", "h.example", "/f", HELPER).unwrap_err();
    assert!(
        gone.contains("/f names about h.example: it is not on the PATH"),
        "{gone}"
    );
}

#[test]
fn a_helper_of_one_registry_must_work_and_one_of_all_may_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("home/.docker/config.json");
    write(&at, r#"{"credsStore": "slipway-none"}"#);
    let logins = HostLogins::of(surroundings(&folder, &[]));
    assert_eq!(logins.of_repository("h.example", "x"), Ok(None));
    write(&at, r#"{"credHelpers": {"h.example": "slipway-none"}}"#);
    let logins = HostLogins::of(surroundings(&folder, &[]));
    let why = logins.of_repository("h.example", "x").unwrap_err();
    assert!(why.contains("docker-credential-slipway-none"), "{why}");
    assert_eq!(logins.of_repository("other.example", "x"), Ok(None));
}
