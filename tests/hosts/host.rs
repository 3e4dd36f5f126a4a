//! A host with restrictions: the program runs in a mount namespace, with fewer rights, or as another user.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// An unused id.
pub(crate) const USER: u32 = 54_321;
/// A mirror at which nothing listens.
pub(crate) const NOWHERE: &str = "http://127.0.0.1:1/debian";
/// The bound of each refusal, on a machine that is at other work.
const SOON: Duration = Duration::from_secs(10);
/// What a refusal takes at most.
const FIRST_SECOND: Duration = Duration::from_secs(1);
/// Runs of which one has to be within it: the machine may be at other work.
const RUNS: u32 = 10;
/// When a program is started again that somebody has open.
const AGAIN: Duration = Duration::from_millis(10);
/// `CAP_SYS_ADMIN` and `CAP_NET_ADMIN` (linux/capability.h).
pub(crate) const SYS_ADMIN: libc::c_ulong = 21;
pub(crate) const NET_ADMIN: libc::c_ulong = 12;
/// Calls for namespaces and mounts that Docker's own filter denies, but for clone(2), which it denies by its flags
/// (<https://docs.docker.com/engine/security/seccomp/>).
const NAMESPACES: [libc::c_long; 11] = [
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
];
/// Where the first argument of a call is in `seccomp_data` (linux/seccomp.h), its low half on little-endian machines.
const FIRST_ARGUMENT: u32 = 16;

/// A mount in the program's own mount namespace.
#[derive(Clone, Debug)]
pub(crate) enum Mount {
    /// A new file system of this type, with its options, at a path.
    New(&'static str, PathBuf, &'static str, MsFlags),
    /// A path at another one.
    Bind(PathBuf, PathBuf),
}

/// The restrictions of a host, with a folder for the program's files.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) mounts: Vec<Mount>,
    /// Numbers of system calls that fail with `EPERM`.
    pub(crate) denied: Vec<i64>,
    /// Whether every call for namespaces and mounts fails, clone(2) with their flags too.
    pub(crate) no_namespaces: bool,
    /// Whether setuid programs give the program nothing (`no_new_privs`, prctl(2)).
    pub(crate) no_new_privileges: bool,
    /// Numbers of capabilities that are dropped.
    pub(crate) dropped: Vec<libc::c_ulong>,
    pub(crate) user: Option<u32>,
    /// A folder that becomes the root, with nothing of the host but `/proc`, `/dev` and `/sys`.
    pub(crate) root: Option<PathBuf>,
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Host {
    /// A host without restrictions, in whose folder is a recipe, `small.toml`.
    pub(crate) fn new() -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// The host of an ordinary user that owns the folder. It is not in Cargo's, since the folders above that may be closed to the
    /// user, as root's home is.
    pub(crate) fn of_user(user: u32) -> Self {
        let host = Self::below(&std::env::temp_dir());
        chown(host.folder.path(), Some(user), Some(user)).unwrap();
        Self {
            user: Some(user),
            ..host
        }
    }

    /// The host of an ordinary user to whom `/etc/subuid` and `/etc/subgid` give this many ids. The programs that map ids have this
    /// mode, and map nothing.
    pub(crate) fn of_user_with_ids(count: u32, mode: u32) -> Self {
        let mut host = Self::of_user(USER);
        let programs = host.path("bin");
        fs::create_dir(&programs).unwrap();
        for name in ["newuidmap", "newgidmap"] {
            fs::write(programs.join(name), "#!/bin/sh\n").unwrap();
            fs::set_permissions(programs.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let ids = host.path("ids");
        fs::write(&ids, format!("{USER}:100000:{count}\n")).unwrap();
        host.mounts = vec![
            Mount::Bind(ids.clone(), "/etc/subuid".into()),
            Mount::Bind(ids, "/etc/subgid".into()),
        ];
        host.set("PATH", programs.display().to_string());
        host
    }

    fn below(folder: &Path) -> Self {
        let folder = tempfile::tempdir_in(folder).unwrap();
        let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/recipe/tests/small.toml");
        fs::copy(recipe, folder.path().join("small.toml")).unwrap();
        Self {
            folder,
            mounts: Vec::new(),
            denied: Vec::new(),
            no_namespaces: false,
            no_new_privileges: false,
            dropped: Vec::new(),
            user: None,
            root: None,
            environment: Vec::new(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.environment.push((name, value.into()));
    }

    /// Makes this URL the host's mirror.
    pub(crate) fn set_mirror(&mut self, url: impl Into<String>) {
        self.set("SLIPWAY_DEBIAN_MIRROR", url);
    }

    /// Mounts a new file system of this type at a folder of the host's own.
    pub(crate) fn add_file_system(
        &mut self,
        kind: &'static str,
        name: &str,
        options: &'static str,
        flags: MsFlags,
    ) {
        let folder = self.path(name);
        fs::create_dir(&folder).unwrap();
        self.mounts.push(Mount::New(kind, folder, options, flags));
    }

    /// Makes an empty folder of the host's own stand in for one that the test's host has. Returns the new one.
    pub(crate) fn replace_folder(&mut self, name: &str, replaced: impl Into<PathBuf>) -> PathBuf {
        let folder = self.path(name);
        fs::create_dir(&folder).unwrap();
        self.mounts
            .push(Mount::Bind(folder.clone(), replaced.into()));
        folder
    }

    /// Makes it a host of the distribution of this `os-release`.
    pub(crate) fn set_distribution(&mut self, os_release: &str) {
        let path = self.path("os-release");
        fs::write(&path, os_release).unwrap();
        self.mounts
            .push(Mount::Bind(path, "/etc/os-release".into()));
    }

    /// The program. None of the variables that it reads comes from the test's own environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        #[allow(clippy::disallowed_methods, reason = "the program under test")]
        let mut command = Command::new(self.program());
        if self.root.is_none() {
            command.current_dir(self.folder.path());
        }
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.folder.path())
            .env("SLIPWAY_CACHE", self.path("cache"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        let (mounts, denied) = (self.mounts.clone(), self.denied.clone());
        let (dropped, user) = (self.dropped.clone(), self.user);
        let (no_namespaces, no_new_privileges) = (self.no_namespaces, self.no_new_privileges);
        let root = self.root.clone();
        let restrict = move || {
            enter(&mounts)?;
            if let Some(root) = &root {
                change_root(root)?;
            }
            deny(&denied, no_namespaces)?;
            for capability in &dropped {
                // SAFETY: a call without memory.
                check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) })?;
            }
            if no_new_privileges {
                nix::sys::prctl::set_no_new_privs()?;
            }
            if let Some(user) = user {
                nix::unistd::setgroups(&[])?;
                nix::unistd::setresgid(user.into(), user.into(), user.into())?;
                nix::unistd::setresuid(user.into(), user.into(), user.into())?;
            }
            Ok(())
        };
        // SAFETY: the child has one thread; glibc lets it allocate after a fork.
        unsafe { command.pre_exec(restrict) };
        command
    }

    /// Runs the program.
    pub(crate) fn run(&self, arguments: &[&str]) -> Answer {
        let mut command = self.command(arguments);
        let first = Instant::now();
        loop {
            let began = Instant::now();
            match command.output() {
                // A child that another test has begun still has the copy open that was just written.
                Err(error)
                    if error.kind() == ErrorKind::ExecutableFileBusy && first.elapsed() < SOON =>
                {
                    std::thread::sleep(AGAIN);
                }
                output => {
                    return Answer {
                        output: output.unwrap(),
                        took: began.elapsed(),
                    };
                }
            }
        }
    }

    /// Runs the program until it refuses within the first second, a few times at most; it says all of this each time.
    #[track_caller]
    pub(crate) fn refuses_in_the_first_second(&self, arguments: &[&str], words: &[&str]) {
        let mut least = Duration::MAX;
        for _ in 0..RUNS {
            let answer = self.run(arguments);
            answer.refuses(words);
            least = least.min(answer.took);
            if least <= FIRST_SECOND {
                break;
            }
        }
        assert!(least <= FIRST_SECOND, "{arguments:?}: {least:?}");
    }

    /// Makes a root in the host's folder that has this program as `/slipway`, the libraries that it is linked with (a release has
    /// none), and a folder for the cache.
    pub(crate) fn with_root_of_one_program(mut self) -> Self {
        let root = self.path("root");
        for name in ["proc", "dev", "sys", "cache"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let program = Path::new(env!("CARGO_BIN_EXE_slipway"));
        fs::copy(program, root.join("slipway")).unwrap();
        #[allow(clippy::disallowed_methods, reason = "asks for the libraries")]
        let libraries = Command::new("ldd").arg(program).output().unwrap();
        let libraries = String::from_utf8(libraries.stdout).unwrap();
        for library in libraries
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            let target = root.join(library.trim_start_matches('/'));
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(library, target).unwrap();
        }
        self.root = Some(root);
        self.set("SLIPWAY_CACHE", "/cache");
        self
    }

    /// A copy that the other user may read: the folders above the compiled program may be closed to it.
    fn program(&self) -> PathBuf {
        if self.root.is_some() {
            return "/slipway".into();
        }
        let program = PathBuf::from(env!("CARGO_BIN_EXE_slipway"));
        if self.user.is_none() {
            return program;
        }
        let copy = self.path("slipway");
        if !copy.exists() {
            fs::copy(program, &copy).unwrap();
        }
        copy
    }
}

/// What the program said.
#[derive(Debug)]
pub(crate) struct Answer {
    output: Output,
    took: Duration,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        let stdout = String::from_utf8_lossy(&self.output.stdout);
        format!("{stdout}{}", String::from_utf8_lossy(&self.output.stderr))
    }

    /// The program failed, soon, and said all of this.
    #[track_caller]
    pub(crate) fn refuses(&self, words: &[&str]) {
        let text = self.text();
        assert_eq!(self.output.status.code(), Some(1), "{text}");
        assert!(self.took < SOON, "{:?}: {text}", self.took);
        for word in words {
            assert!(text.contains(word), "{word:?} is not in:\n{text}");
        }
    }

    #[track_caller]
    pub(crate) fn succeeds(&self) -> String {
        let text = self.text();
        assert!(self.output.status.success(), "{text}");
        text
    }
}

/// Whether this host can build at all: what is tested comes after the namespaces. If not, it says so.
pub(crate) fn can_build() -> bool {
    let mut host = Host::new();
    host.set_mirror(NOWHERE);
    let can = host.run(&["doctor"]).text().contains("good     namespaces");
    if !can {
        linux::host::skipped("builds need root, or a user with subordinate ids");
    }
    can
}

#[allow(clippy::disallowed_methods, reason = "the mounts of the tested hosts")]
fn enter(mounts: &[Mount]) -> io::Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    for item in mounts {
        match item {
            Mount::New(kind, at, options, flags) => {
                mount(Some(*kind), at, Some(*kind), *flags, Some(*options))?;
            }
            Mount::Bind(from, at) => mount(Some(from), at, none, MsFlags::MS_BIND, none)?,
        }
    }
    Ok(())
}

/// Makes a folder the root, as a container's program does.
#[allow(clippy::disallowed_methods, reason = "the mounts of the tested hosts")]
fn change_root(root: &Path) -> io::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(root), root, none, MsFlags::MS_BIND, none)?;
    for name in ["proc", "dev", "sys"] {
        let target = root.join(name);
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&Path::new("/").join(name)), &target, none, flags, none)?;
    }
    std::env::set_current_dir(root)?;
    nix::unistd::pivot_root(".", ".")?;
    nix::mount::umount2(".", nix::mount::MntFlags::MNT_DETACH)?;
    std::env::set_current_dir("/")
}

/// A seccomp filter as Docker's: these calls fail with `EPERM` (seccomp(2); the number is the first field of `seccomp_data`), and
/// with `no_namespaces` those that make namespaces and mounts.
fn deny(calls: &[i64], no_namespaces: bool) -> io::Result<()> {
    let mut calls = calls.to_vec();
    if no_namespaces {
        calls.extend(NAMESPACES);
    }
    if calls.is_empty() {
        return Ok(());
    }
    let statement = |code: u32, jump: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: jump,
        k,
    };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset);
    // The statements that are passed over if it is another number.
    let is = |number: libc::c_long, others: u8| {
        let number = u32::try_from(number).unwrap();
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, others, number)
    };
    let fail = |error: libc::c_int| {
        let error = libc::SECCOMP_RET_ERRNO | u32::try_from(error).unwrap();
        statement(libc::BPF_RET | libc::BPF_K, 0, error)
    };
    let mut program = vec![load(0)];
    for call in calls {
        program.extend([is(call, 1), fail(libc::EPERM)]);
    }
    if no_namespaces {
        let flags = CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWCGROUP
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNET;
        let flags = u32::try_from(flags.bits()).unwrap();
        program.extend([
            // Its flags are in memory, which no filter reads: without it the C library takes clone(2).
            is(libc::SYS_clone3, 1),
            fail(libc::ENOSYS),
            is(libc::SYS_clone, 3),
            load(FIRST_ARGUMENT),
            statement(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 1, flags),
            fail(libc::EPERM),
        ]);
    }
    program.push(statement(
        libc::BPF_RET | libc::BPF_K,
        0,
        libc::SECCOMP_RET_ALLOW,
    ));
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap(),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the filter is valid for the call, which copies it. Root needs no `no_new_privs`.
    check(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    })
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
