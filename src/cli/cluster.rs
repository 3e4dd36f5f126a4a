//! `slipway cluster`: a function for each of its commands.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slipway::cluster::administrator;
use slipway::cluster::launch::Cluster;
use slipway::cluster::machines;
use slipway::cluster::node::{self, Own};
use slipway::cluster::object::ClusterFile;
use slipway::cluster::secrets::{self, Secrets};
use slipway::cluster::state::{Folder, State};
use slipway::cluster::token;
use slipway::cluster::up;
use slipway::cluster::validate;
use slipway::cluster::wizard;
use slipway::host::atomic_file;
use slipway::host::interrupt::Interrupt;
use slipway::host::progress::Step;
use slipway::host::sandbox::background;
use slipway::host::session::Session;

use super::arguments::cluster::{
    ClusterCommand, DownArgs, FileArgs, IdentityArgs, JoinArgs, KubeconfigArgs, NewArgs, Role,
    ToArgs, UpArgs, ValidateArgs,
};
use super::arguments::{self, Output};
use super::commands;

/// How often the state of machines in the background is looked at.
const LOOK: Duration = Duration::from_millis(300);
/// How often a cluster that is not valid yet is asked again.
const ASK_EVERY: Duration = Duration::from_secs(3);
/// How long the process of the machines may take beyond their power-off, and in all where it does not say how long that takes.
const MORE: Duration = Duration::from_secs(45);
/// Bytes of the log that an error shows.
const TAIL: u64 = 2000;

pub(crate) fn run(
    command: &ClusterCommand,
    output: Output,
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    match command {
        ClusterCommand::New(args) => new(args, output),
        ClusterCommand::JoinConfig(args) => join_config(args),
        ClusterCommand::Kubeconfig(args) => kubeconfig(args),
        ClusterCommand::Up(args) if args.foreground => foreground(args, output, interrupt),
        ClusterCommand::Up(args) => background(args, output, interrupt),
        ClusterCommand::Status(args) => status(args, output),
        ClusterCommand::Validate(args) => validate(args, output, interrupt),
        ClusterCommand::Down(args) => down(args, output, interrupt),
    }
}

impl IdentityArgs {
    fn file(&self) -> Result<PathBuf> {
        if let Some(path) = &self.identity {
            return Ok(path.clone());
        }
        let folder = std::env::var_os("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty());
        let folder = match folder {
            Some(folder) => PathBuf::from(folder),
            None => std::env::home_dir()
                .context("this user has no home folder; name an identity by --identity")?
                .join(".config"),
        };
        Ok(folder.join("slipway/age.key"))
    }

    /// The secrets of an object's cluster.
    fn secrets(&self, file: &ClusterFile) -> Result<Secrets> {
        let path = self.file()?;
        ensure!(
            path.exists(),
            "{} does not exist: name the age identity that the secrets of the cluster {:?} are encrypted for by --identity",
            path.display(),
            file.name()
        );
        Secrets::read(file.path(), file.name(), &secrets::identity(&path)?)
    }
}

impl ToArgs {
    fn write(&self, text: &str) -> Result<()> {
        match &self.output {
            Some(path) => {
                atomic_file::write(path, 0o600, |file| Ok(file.write_all(text.as_bytes())?))
            }
            None => arguments::print(text),
        }
    }
}

fn new(args: &NewArgs, output: Output) -> Result<ExitCode> {
    let path = &args.object.file;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = args.name.as_deref().unwrap_or(&stem);
    let secret = Secrets::file(path);
    ensure!(
        !secret.exists(),
        "{} is there already, with the keys of a cluster",
        secret.display()
    );
    let identity = args.identity.file()?;
    let recipient = secrets::identity(&identity)?.to_public();
    let text = match args.wizard {
        true => wizard::ask(
            path,
            name,
            &mut std::io::stdin().lock(),
            &mut std::io::stderr(),
        )?,
        false => ClusterFile::template(name)?,
    };
    let file = ClusterFile::create(path, &text)?;
    let secret = Secrets::make(file.config(), SystemTime::now())?.write(path, &recipient)?;
    if output.json {
        let text = |path: &Path| path.display().to_string();
        let files = serde_json::json!({
            "object": text(path), "secrets": text(&secret), "identity": text(&identity),
        });
        arguments::print_json(&files)?;
    } else {
        arguments::print(&format!(
            "{}: the cluster {name:?}\n{}: its keys and its token, for the identity in {}, without which they are lost\n",
            path.display(),
            secret.display(),
            identity.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn join_config(args: &JoinArgs) -> Result<ExitCode> {
    ensure!(
        !args.fresh_token || !matches!(args.role, Role::FurtherControlPlane),
        "--fresh-token makes a bootstrap token, which a further control plane does not have: it joins by the cluster's keys"
    );
    let file = ClusterFile::read(&args.object.file)?;
    let own = Own {
        name: args.name.clone(),
        address: args.address.clone(),
    };
    let mut secrets = args.identity.secrets(&file)?;
    if args.fresh_token {
        // No token for a config that cannot be made.
        node::config(&file, &secrets, args.role.into(), &own)?;
        let kubeconfig = access(&args.object, args.server.as_deref(), &args.identity)?;
        secrets.token = token::fresh(&file, &secrets, &kubeconfig)?;
    }
    let config = node::config(&file, &secrets, args.role.into(), &own)?;
    args.to.write(&format!("{config}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn kubeconfig(args: &KubeconfigArgs) -> Result<ExitCode> {
    let text = access(&args.object, args.server.as_deref(), &args.identity)?;
    args.to.write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The administrator's kubeconfig: for this server, else for the cluster on this host, else for the object's endpoint.
fn access(object: &FileArgs, server: Option<&str>, identity: &IdentityArgs) -> Result<String> {
    let file = ClusterFile::read(&object.file)?;
    let folder = Folder::of(file.path());
    let is_building = || anyhow::Ok(folder.state()?.is_some_and(|state| state.building));
    if server.is_none() && folder.is_held()? && !is_building()? {
        let path = folder.kubeconfig();
        return fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()));
    }
    let secrets = identity.secrets(&file)?;
    administrator::kubeconfig(&file, &secrets, server, SystemTime::now())
}

fn validate(args: &ValidateArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let kubeconfig = access(&args.object, args.server.as_deref(), &args.identity)?;
    let until = deadline(args.wait);
    let session = output.session(interrupt)?;
    let step = session.progress.step("validate");
    let mut said = None;
    let report = loop {
        let report = validate::validate(&kubeconfig, args.nodes)?;
        if report.valid || until.is_some_and(|until| Instant::now() >= until) {
            break report;
        }
        let first = report.waits_for();
        if let Some(line) = first.filter(|line| said.as_ref() != Some(line)) {
            step.reason(&line);
            said = Some(line);
        }
        pause(interrupt, ASK_EVERY)?;
    };
    step.made(None);
    if output.json {
        arguments::print_json(&report)?;
    } else {
        arguments::print(&(report.lines().join("\n") + "\n"))?;
    }
    Ok(ExitCode::from(u8::from(!report.valid)))
}

/// The end of a wait of so many seconds; none if the clock cannot count them.
fn deadline(seconds: u64) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_secs(seconds))
}

/// Waits, but not on if the user interrupts.
fn pause(interrupt: &Interrupt, time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        ensure!(!interrupt.requested(), "interrupted");
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Refuses what cannot start, before anything is built or fetched. Machines that run already have their port, so they are looked for first.
fn check_start(args: &UpArgs, file: &ClusterFile) -> Result<()> {
    Folder::of(file.path()).check_free()?;
    machines::members(file, args.control_planes, args.workers)?;
    up::check_host(args.machine.options().memory, args.port)
}

fn foreground(args: &UpArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let session = &output.session(interrupt)?;
    let file = ClusterFile::read(&args.object.file)?;
    check_start(args, &file)?;
    let secrets = args.identity.secrets(&file)?;
    let mut options = args.machine.options();
    let folder = Folder::of(file.path());
    // Before the build, which may take an hour: `down` and another `up` find this process.
    let held = up::begin(&file, &folder)?;
    let (image, tools, bus) =
        commands::image_or_cluster(session, args.image.as_deref(), &args.out)?;
    options.bus = bus;
    let cluster = Cluster {
        file: &file,
        secrets: &secrets,
        image: &image,
        tools: &tools,
        options: &options,
        control_planes: args.control_planes,
        workers: args.workers,
        port: args.port,
    };
    up::run(session, &cluster, (&folder, held))?;
    Ok(ExitCode::SUCCESS)
}

/// Starts this program again in the background, and tells what it does until all nodes are Ready.
fn background(args: &UpArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let session = output.session(interrupt)?;
    let file = ClusterFile::read(&args.object.file)?;
    // Errors of the arguments go to the terminal; those of the background process only to its log file.
    check_start(args, &file)?;
    args.identity.secrets(&file)?;
    let folder = Folder::of(file.path());
    drop(folder.hold()?);
    folder.forget()?;
    // Ctrl-C ends the machines before it ends this process.
    let _guard = interrupt.guard();
    interrupt.allow(up::end(&file) + MORE);
    let log = fs::File::create(folder.log())
        .with_context(|| format!("making {}", folder.log().display()))?;
    let mut child = background::start_again(&["--foreground"], &log)?;
    let step = session.progress.step("cluster");
    step.reason(&format!(
        "building the image; {} has the details",
        folder.log().display()
    ));
    let mut said = String::new();
    loop {
        if let Some(status) = child.try_wait()? {
            // `down` ends the process, and removes the folder with the log.
            ensure!(
                folder.log().exists(),
                "the cluster was ended before it was Ready: {status}"
            );
            bail!(
                "the cluster did not come up: {status}\n{}",
                tail(&folder.log())?
            );
        }
        if interrupt.requested() {
            end_child(&mut child, &folder, &step, interrupt)?;
            bail!("interrupted");
        }
        match folder.state()? {
            Some(state) if state.ready => {
                step.made(None);
                return told(&folder, &state, output);
            }
            Some(state) if state.waits_for != said => {
                step.reason(&state.waits_for);
                said = state.waits_for;
            }
            _ => {}
        }
        std::thread::sleep(LOOK);
    }
}

/// Passes each signal on to the process of the machines, of which the first ends them in order, and waits for its end.
fn end_child(child: &mut Child, folder: &Folder, step: &Step, interrupt: &Interrupt) -> Result<()> {
    let process = Pid::from_raw(i32::try_from(child.id())?);
    let (mut passed, mut said) = (0, String::new());
    while child.try_wait()?.is_none() {
        if passed < interrupt.requests() {
            kill(process, Signal::SIGTERM).ok();
            passed += 1;
        }
        say_end(folder, step, &mut said)?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Shows which machines are waited for while they power off, unless it is shown.
fn say_end(folder: &Folder, step: &Step, said: &mut String) -> Result<()> {
    let state = folder.state()?.filter(|state| state.ending);
    if let Some(state) = state.filter(|state| state.waits_for != *said) {
        step.reason(&format!("waiting for {}", state.waits_for));
        *said = state.waits_for;
    }
    Ok(())
}

fn told(folder: &Folder, state: &State, output: Output) -> Result<ExitCode> {
    if output.json {
        let all = serde_json::json!({
            "ready": state.ready, "waitsFor": state.waits_for, "process": state.process,
            "kubeconfig": folder.kubeconfig().display().to_string(),
        });
        arguments::print_json(&all)?;
    } else if state.ready {
        arguments::print(&format!(
            "{}\n\nexport KUBECONFIG={}\n",
            state.cluster.trim(),
            folder.kubeconfig().display()
        ))?;
    } else {
        arguments::print(&format!("not Ready: {}\n", state.waits_for))?;
    }
    Ok(ExitCode::from(u8::from(!state.ready)))
}

/// The end of a log.
fn tail(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| format!("reading {}", path.display()))?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn status(args: &FileArgs, output: Output) -> Result<ExitCode> {
    let folder = Folder::of(&args.file);
    ensure!(
        folder.is_held()?,
        "no machines of {} run on this host; `slipway cluster up` starts them",
        args.file.display()
    );
    let state = folder.state()?.unwrap_or_default();
    told(&folder, &state, output)
}

fn down(args: &DownArgs, output: Output, interrupt: &Interrupt) -> Result<ExitCode> {
    let session: Session = output.session(interrupt)?;
    let folder = Folder::of(&args.object.file);
    ensure!(
        folder.path().is_dir(),
        "{} has no machines on this host: {} does not exist",
        args.object.file.display(),
        folder.path().display()
    );
    let step = session.progress.step("down");
    if folder.is_held()? {
        let _guard = interrupt.guard();
        end(&folder, args.cut, &step, interrupt)?;
    }
    if !args.keep {
        // Not from below an `up` that has begun since.
        let _held = folder.hold()?;
        fs::remove_dir_all(folder.path())
            .with_context(|| format!("removing {}", folder.path().display()))?;
    }
    step.made(None);
    Ok(ExitCode::SUCCESS)
}

/// Ends the process that has the machines, and waits for it. Its lock is proof that the number is still its own. `cut` repeats the signal:
/// the second one cuts the power.
fn end(folder: &Folder, cut: bool, step: &Step, interrupt: &Interrupt) -> Result<()> {
    let state = folder
        .state()?
        .context("the machines' process has not begun yet; try again")?;
    let process = i32::try_from(state.process)?;
    if state.building {
        step.reason(&format!("ending process {process}, which builds the image"));
    }
    let signal = || {
        kill(Pid::from_raw(process), Signal::SIGTERM)
            .with_context(|| format!("ending process {process}"))
    };
    // Another `down` has asked for it: a second signal would cut the power.
    if !state.ending {
        signal()?;
    }
    let limit = Duration::from_secs(state.end_seconds) + MORE;
    let (until, mut said) = (Instant::now() + limit, String::new());
    while folder.is_held()? {
        ensure!(
            Instant::now() < until,
            "process {process} has not ended within {} s",
            limit.as_secs()
        );
        ensure!(
            !interrupt.requested(),
            "interrupted: the machines go on powering off; `slipway cluster down` waits for them again, and with --cut cuts their power"
        );
        say_end(folder, step, &mut said)?;
        std::thread::sleep(LOOK);
        if cut && folder.is_held()? {
            // It may have ended since.
            signal().ok();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_beyond_the_clock_has_no_end() {
        assert!(deadline(u64::MAX).is_none());
        assert!(deadline(0).is_some_and(|end| end <= Instant::now()));
    }
}
