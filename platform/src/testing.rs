//! A machine for tests: folders for sysfs and devices, a medium that can appear, and a record of all messages.

pub(crate) mod server;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fetch::Patience;
use server::Server;
use tempfile::TempDir;

use crate::config_source;
use crate::detect;
use crate::dmi::Dmi;
use crate::found::Found;
use crate::machine::Machine;
use crate::medium::Medium;
use crate::problem::Problem;
use crate::provider::Provider;
use crate::providers::{TABLE, by_id};

/// A config, short enough to be readable in a failure.
pub(crate) const CONFIG: &str = r#"{"ignition": {"version": "3.5.0"}}"#;
/// A public key.
pub(crate) const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBjYTHGYkNK7DZ4Gn0NGN1sjFUVapus4GXybEYg me";

pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    /// Base of the metadata service: no server listens on loopback's discard port.
    pub(crate) service: String,
    /// The requested modules.
    pub(crate) modules: Mutex<Vec<String>>,
    pub(crate) said: Mutex<Vec<String>>,
    /// The number of requests for the network.
    pub(crate) network: AtomicUsize,
    /// Whether the network never comes up.
    pub(crate) dark: AtomicBool,
    /// The number of searches after which a medium appears, its label (none for a disc), and its folder.
    pub(crate) medium: Option<(usize, Option<&'static str>, PathBuf)>,
    looks: AtomicUsize,
    pub(crate) patience: Patience,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let patience = Patience {
            attempts: None,
            header_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(5),
            total: Some(Duration::from_secs(20)),
            first_wait: Duration::from_millis(5),
            ..Patience::default()
        };
        Self {
            folder: tempfile::tempdir().unwrap(),
            service: "http://127.0.0.1:9".to_owned(),
            modules: Mutex::default(),
            said: Mutex::default(),
            network: AtomicUsize::new(0),
            dark: AtomicBool::new(false),
            medium: None,
            looks: AtomicUsize::new(0),
            patience,
        }
    }

    /// A machine for which every vendor's service is this server.
    pub(crate) fn with(server: &Server) -> Self {
        Self {
            service: server.base.clone(),
            ..Self::new()
        }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    /// Writes a file with the folders above it.
    pub(crate) fn write(&self, below: &str, content: impl AsRef<[u8]>) {
        let path = self.path(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Calls `obtain` of the platform with this id.
    pub(crate) fn obtain(&self, id: &str) -> Result<Found, Problem> {
        self.obtain_by(by_id(id).unwrap())
    }

    /// Calls `obtain` of this platform.
    pub(crate) fn obtain_by(&self, provider: &Provider) -> Result<Found, Problem> {
        self.run(|machine| config_source::obtain(provider, machine))
    }

    /// Runs `work` with the machine as providers see it.
    pub(crate) fn run<T>(&self, work: impl FnOnce(&Machine<'_>) -> T) -> T {
        let network = |stop: &AtomicBool| {
            self.network.fetch_add(1, Ordering::SeqCst);
            while self.dark.load(Ordering::SeqCst) {
                if stop.load(Ordering::SeqCst) {
                    anyhow::bail!("stopped");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        };
        let mount = |wanted: &Medium<'_>| {
            let look = self.looks.fetch_add(1, Ordering::SeqCst);
            Ok(self.medium.as_ref().and_then(|(after, label, folder)| {
                let fits = match (wanted, label) {
                    (Medium::Labels(labels), Some(label)) => labels.contains(label),
                    (Medium::Disc(file), None) => folder.join(file).exists(),
                    _ => false,
                };
                (fits && look >= *after).then(|| folder.clone())
            }))
        };
        let say = |text: &str| self.said.lock().unwrap().push(text.to_owned());
        let load_modules = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            self.modules.lock().unwrap().extend(names);
        };
        work(&Machine {
            service: Some(&self.service),
            load_modules: &load_modules,
            sys: &self.path("sys"),
            dev: &self.path("dev"),
            file: &self.path("config.ign"),
            patience: self.patience,
            look_every: Duration::from_millis(5),
            media_wait: Duration::from_millis(100),
            links: &fetch::Links::default(),
            network: &network,
            mount: &mount,
            say: &say,
            received: &|_, _| (),
        })
    }

    pub(crate) fn has_said(&self, word: &str) -> bool {
        self.said
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains(word))
    }
}

/// The id of the platform that an image for all platforms detects for these fields.
pub(crate) fn recognised(dmi: &Dmi) -> &'static str {
    // In reverse order, so that no row is chosen for its position in the table.
    let all = TABLE.iter().rev().map(|row| row.id);
    detect::identify(None, all, dmi).unwrap().id
}

/// The text of the config.
pub(crate) fn text(found: &Found) -> String {
    let config = found.config.as_ref().expect("a config");
    String::from_utf8(config.text.clone()).unwrap()
}
