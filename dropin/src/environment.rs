//! The environment of a stage: Ignition's environment variables, its configuration folders, the kernel command line.
//!
//! The variables are those of Ignition's `internal/distro` and of its provider `file`
//! (<https://github.com/coreos/ignition/blob/main/internal/distro/distro.go>).

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::cmdline::{self, words};
use platform::config_source::Named;
use platform::provider::Provider;

use apply::config_source::ConfigSource;

/// The folders that hold configs, those of higher precedence first: variable, default.
const FOLDERS: [(&str, &str); 3] = [
    ("IGNITION_SYSTEM_RUNTIME_CONFIG_DIR", "/run/ignition"),
    ("IGNITION_SYSTEM_LOCAL_CONFIG_DIR", "/etc/ignition"),
    ("IGNITION_SYSTEM_CONFIG_DIR", "/usr/lib/ignition"),
];

/// Whether SSH keys go to a separate file.
const FRAGMENT: &str = "IGNITION_WRITE_AUTHORIZED_KEYS_FRAGMENT";

/// The environment, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    folders: Vec<PathBuf>,
    cmdline: PathBuf,
    /// The file of the platform `file`.
    pub(crate) config_file: PathBuf,
    /// Whether SSH keys go to `authorized_keys.d/ignition`, else to `authorized_keys`.
    pub(crate) key_fragment: bool,
}

impl Environment {
    /// Reads the environment. A variable with an invalid value is an error.
    pub(crate) fn read() -> Result<Self> {
        Self::from_variables(&|name| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        })
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Result<Self> {
        let or = |name: &str, default: &str| variable(name).unwrap_or_else(|| default.into());
        let fragment = or(FRAGMENT, "true");
        Ok(Self {
            folders: FOLDERS
                .iter()
                .map(|(name, default)| or(name, default))
                .collect(),
            cmdline: or("IGNITION_KERNEL_CMDLINE_PATH", "/proc/cmdline"),
            config_file: or("IGNITION_CONFIG_FILE", "config.ign"),
            key_fragment: match fragment.to_str() {
                Some("true" | "1") => true,
                Some("false" | "0") => false,
                _ => bail!("{FRAGMENT}: found {fragment:?}, expected true or false"),
            },
        })
    }

    /// The fragments of the base config, in the order in which they are merged: those for every platform, then those
    /// for this platform, each by name. A fragment hides those of the same name in later folders.
    pub(crate) fn base_configs(&self, platform: &Provider) -> Result<Vec<ConfigSource>> {
        let mut out = Vec::new();
        for below in ["base.d".to_owned(), format!("base.platform.d/{platform}")] {
            let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
            for folder in self.folders.iter().map(|folder| folder.join(&below)) {
                for name in config_names(&folder)? {
                    let path = folder.join(&name);
                    found.entry(name).or_insert(path);
                }
            }
            for path in found.values() {
                let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
                out.push(ConfigSource::Text(text, path.display().to_string()));
            }
        }
        Ok(out)
    }

    /// The user's config in the first of the folders that has one.
    pub(crate) fn user_config(&self) -> Result<Option<ConfigSource>> {
        for path in self.folders.iter().map(|folder| folder.join("user.ign")) {
            match fs::read(&path) {
                Ok(text) => return Ok(Some(ConfigSource::Text(text, path.display().to_string()))),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("reading {}", path.display()));
                }
            }
        }
        Ok(None)
    }

    /// The user's config as the kernel command line names it. Not [`cmdline::Cmdline::parse`]: that refuses a malformed
    /// value of any of our keys, and here another system may use those keys.
    pub(crate) fn cmdline_config(&self) -> Result<Named> {
        let text = fs::read_to_string(&self.cmdline)
            .with_context(|| format!("reading {}", self.cmdline.display()))?;
        let words = words(&text);
        let last = |key: &str| {
            let value =
                |word: &String| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
            words
                .iter()
                .rev()
                .find_map(value)
                .filter(|value| !value.is_empty())
        };
        let device = match (last(cmdline::CONFIG_DEVICE), last(cmdline::CONFIG_PATH)) {
            (Some(device), Some(path)) => Some((device, path)),
            (None, None) => None,
            // With the platform's config instead the node would be another than the one that was asked for.
            (device, _) => bail!(
                "the kernel command line has only {}=; {}= and {}= are required together",
                device.map_or(cmdline::CONFIG_PATH, |_| cmdline::CONFIG_DEVICE),
                cmdline::CONFIG_DEVICE,
                cmdline::CONFIG_PATH
            ),
        };
        Ok(Named {
            url: last(cmdline::CONFIG_URL),
            device,
        })
    }
}

/// Names of the configs in a folder; none if there is no folder.
fn config_names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", folder.display())),
    };
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".ign"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_hide_those_of_later_folders() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (path, text) in [
            ("run/base.d/20-b.ign", "run b"),
            ("usr/base.d/20-b.ign", "usr b"),
            ("usr/base.d/10-a.ign", "usr a"),
            ("usr/base.d/README", "no config"),
            ("etc/base.platform.d/file/05.ign", "etc file"),
            ("etc/base.platform.d/qemu/05.ign", "etc qemu"),
            ("usr/user.ign", "usr user"),
            ("etc/user.ign", "etc user"),
            (
                "cmdline",
                "quiet ignition.config.url=http://a.example/x ip=nonsense ignition.config.url=\"http://b.example/a b\"\n",
            ),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let variable = |name: &str| match name {
            "IGNITION_SYSTEM_RUNTIME_CONFIG_DIR" => Some(root.join("run")),
            "IGNITION_SYSTEM_LOCAL_CONFIG_DIR" => Some(root.join("etc")),
            "IGNITION_SYSTEM_CONFIG_DIR" => Some(root.join("usr")),
            "IGNITION_KERNEL_CMDLINE_PATH" => Some(root.join("cmdline")),
            _ => None,
        };
        let found = Environment::from_variables(&variable).unwrap();
        let text = |place: &ConfigSource| match place {
            ConfigSource::Text(text, _) => String::from_utf8(text.clone()).unwrap(),
            ConfigSource::Url(url) => url.clone(),
        };
        let file = platform::providers::by_id("file").unwrap();
        let base = found.base_configs(file).unwrap();
        let texts: Vec<String> = base.iter().map(text).collect();
        assert_eq!(texts, ["usr a", "run b", "etc file"]);
        assert_eq!(
            found.user_config().unwrap().as_ref().map(text).as_deref(),
            Some("etc user")
        );
        assert_eq!(
            found.cmdline_config().unwrap().url.as_deref(),
            Some("http://b.example/a b")
        );
        assert!(found.key_fragment);
        assert_eq!(found.config_file, PathBuf::from("config.ign"));
    }

    #[test]
    fn a_device_without_a_path_is_refused_and_the_reverse() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cmdline");
        let variable = |name: &str| (name == "IGNITION_KERNEL_CMDLINE_PATH").then(|| path.clone());
        let environment = Environment::from_variables(&variable).unwrap();
        let device = |text: &str| {
            fs::write(&path, text).unwrap();
            environment.cmdline_config().map(|named| named.device)
        };
        let (one, other) = ("ignition.config.device=data", "ignition.config.path=/a.ign");
        assert_eq!(device("quiet").unwrap(), None);
        assert_eq!(
            device(&format!("{one} {other}")).unwrap(),
            Some(("data".to_owned(), "/a.ign".to_owned()))
        );
        for (text, found) in [
            (one, "only ignition.config.device="),
            (other, "only ignition.config.path="),
        ] {
            let error = device(text).unwrap_err().to_string();
            assert!(error.contains(found), "{error}");
        }
    }

    #[test]
    fn a_switch_is_true_or_false() {
        let with = |text: &'static str| {
            Environment::from_variables(&move |name| {
                (name == "IGNITION_WRITE_AUTHORIZED_KEYS_FRAGMENT").then(|| PathBuf::from(text))
            })
        };
        assert!(!with("false").unwrap().key_fragment);
        assert!(with("1").unwrap().key_fragment);
        assert!(with("perhaps").is_err());
    }
}
