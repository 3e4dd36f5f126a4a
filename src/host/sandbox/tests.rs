//! The sandbox, with the host's root as its tree, so that the tests need no download.

use super::*;
use std::io::Read;
use std::time::{Duration, Instant};

fn host() -> Sandbox {
    Sandbox::read_only(Path::new("/"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim()
}

#[test]
fn a_program_sees_little_of_the_host() {
    let script = "echo $$; hostname 2>/dev/null || cat /proc/sys/kernel/hostname; umask; ls /run; ls /dev; \
                  cat /proc/net/dev | tail -n +3 | cut -d: -f1; env | sort";
    let out = host().command("sh").args(["-c", script]).run().unwrap();
    let out = text(&out);
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some("2"), "process 2 of its own namespace");
    assert_eq!(lines.next(), Some("slipway"));
    assert_eq!(lines.next(), Some("0022"));
    assert!(out.contains("LC_ALL=C.UTF-8\n"), "{out}");
    assert!(out.contains("SOURCE_DATE_EPOCH=0\n"), "{out}");
    assert!(!out.contains("CARGO"), "{out}");
    assert!(!out.contains("eth0") && !out.contains("kvm"), "{out}");
}

/// The only network is the loopback, and it works: a listener of the host at the same address is not reached.
#[test]
fn loopback_is_up_and_nothing_is_beyond_it() {
    let host_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host_listener.local_addr().unwrap().port();
    let script = format!(
        "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' \\n'; echo; \
         tail -n +2 /proc/net/route | wc -l; \
         exec 2>&1; grep -c 127.0.0.1 /proc/net/fib_trie; \
         (exec 3<>/dev/tcp/127.0.0.1/{port}); (exec 3<>/dev/tcp/192.0.2.1/80); true"
    );
    let out = host().command("bash").args(["-c", &script]).run().unwrap();
    let out = text(&out);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..2], ["lo", "0"], "{out}");
    // The kernel adds the address when the interface goes up.
    assert_ne!(lines[2], "0", "{out}");
    assert!(out.contains("Connection refused"), "{out}");
    assert!(out.contains("Network is unreachable"), "{out}");
    // The host's own network is as it was where it is asked for.
    let script = "cat /proc/net/dev";
    let shared = host().network(true).command("sh").args(["-c", script]);
    assert_eq!(
        text(&shared.run().unwrap()).lines().count(),
        fs::read_to_string("/proc/net/dev")
            .unwrap()
            .trim()
            .lines()
            .count()
    );
}

#[test]
fn read_only_means_read_only_and_binds_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = host().bind(folder.path(), "/slipway-test/out");
    let error = sandbox
        .command("sh")
        .args(["-c", "echo x > /usr/slipway-was-here"])
        .run()
        .unwrap_err();
    assert!(format!("{error:#}").contains("Read-only"), "{error:#}");
    sandbox
        .command("sh")
        .args(["-c", "echo made > /slipway-test/out/file"])
        .run()
        .unwrap();
    let made = fs::read_to_string(folder.path().join("file")).unwrap();
    assert_eq!(made, "made\n");
    let error = host()
        .bind_read_only(folder.path(), "/slipway-test/out")
        .command("touch")
        .arg("/slipway-test/out/again")
        .run()
        .unwrap_err();
    assert!(format!("{error:#}").contains("Read-only"), "{error:#}");
}

#[test]
fn requests_to_sync_succeed_at_once_where_nothing_needs_them() {
    // A device without storage refuses them.
    let sync = |sandbox: &Sandbox, kind: &str| {
        let command = sandbox.command("sync").arg(kind).arg("/dev/null");
        command.run().map_err(|error| format!("{error:#}"))
    };
    let unsynced = host().without_syncs();
    for kind in ["--", "--data"] {
        let error = sync(&host(), kind).unwrap_err();
        assert!(error.contains("Invalid argument"), "{error}");
        assert_eq!(sync(&unsynced, kind), Ok(Vec::new()));
    }
    // Other calls are as before.
    let failed = unsynced.command("ls").arg("/nothing").run().unwrap_err();
    assert!(format!("{failed:#}").contains("No such file"), "{failed:#}");
}

#[test]
fn a_failure_shows_the_command_and_what_it_said() {
    let error = host()
        .command("sh")
        .args(["-c", "echo first >&2; echo the end >&2; exit 7"])
        .run()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "sh -c 'echo first >&2; echo the end >&2; exit 7': exit status: 7; its last lines:\n  first\n  the end"
    );
    let error = host().command("no-such-program").run().unwrap_err();
    assert!(
        format!("{error:#}").contains("starting no-such-program: No such file"),
        "{error:#}"
    );
    let missing = Sandbox::read_only(Path::new("/nowhere-at-all"));
    let error = missing.command("sh").run().unwrap_err();
    assert!(
        format!("{error:#}").contains("finding /nowhere-at-all"),
        "{error:#}"
    );
}

#[test]
fn a_program_that_is_open_for_writing_is_started_once_it_is_closed() {
    const OPEN: Duration = Duration::from_millis(200);
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    fs::copy("/bin/echo", &program).unwrap();
    let sandbox = host().bind_read_only(folder.path(), "/slipway-test");
    let command = || sandbox.command("/slipway-test/program").arg("ran");
    let writer = fs::OpenOptions::new().append(true).open(&program).unwrap();
    // What the kernel says of it, without the door's patience.
    #[allow(clippy::disallowed_methods, reason = "asks the kernel")]
    let refused = Command::new(&program)
        .output()
        .map_err(|error| error.kind());
    assert_eq!(refused.unwrap_err(), std::io::ErrorKind::ExecutableFileBusy);
    let begin = Instant::now();
    let said = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(OPEN);
            drop(writer);
        });
        command().run().unwrap()
    });
    assert_eq!(text(&said), "ran");
    assert!(begin.elapsed() >= OPEN);
}

#[test]
fn a_killed_sandbox_takes_everything_with_it() {
    // The program's child holds the pipe open: the pipe closes only if the whole namespace ends.
    let mut child = host()
        .command("sh")
        .args(["-c", "sleep 1000 & echo started; sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut started = [0; 8];
    out.read_exact(&mut started).unwrap();
    let begin = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn arguments_are_shown_as_a_shell_needs_them() {
    let shown = host().command("a b").arg("plain=1").arg("it's").arg("");
    assert_eq!(shown.to_string(), r"'a b' plain=1 'it'\''s' ''");
}
