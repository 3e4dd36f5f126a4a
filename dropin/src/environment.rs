//! What a stage finds around it: Ignition's environment variables, its folders, the kernel's command line.

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

/// Where configs are looked for, first one wins: variable, default.
const FOLDERS: [(&str, &str); 3] = [
    ("IGNITION_SYSTEM_RUNTIME_CONFIG_DIR", "/run/ignition"),
    ("IGNITION_SYSTEM_LOCAL_CONFIG_DIR", "/etc/ignition"),
    ("IGNITION_SYSTEM_CONFIG_DIR", "/usr/lib/ignition"),
];

/// The surroundings, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Surroundings {
    folders: Vec<PathBuf>,
    cmdline: PathBuf,
    /// The file of the platform `file`.
    pub(crate) config_file: PathBuf,
    /// Whether ssh keys go to a file of their own.
    pub(crate) key_fragment: bool,
}

impl Surroundings {
    /// Reads the environment.
    ///
    /// # Errors
    /// If a variable has a value that means nothing.
    pub(crate) fn read() -> Result<Self> {
        Self::of(&|name| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        })
    }

    fn of(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Result<Self> {
        let or = |name: &str, default: &str| variable(name).unwrap_or_else(|| default.into());
        const FRAGMENT: &str = "IGNITION_WRITE_AUTHORIZED_KEYS_FRAGMENT";
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

    /// The fragments of the base config, in the order in which they are merged: those for every platform, then those for
    /// this one, each by name. A fragment hides those of the same name in later folders.
    ///
    /// # Errors
    /// If one cannot be read.
    pub(crate) fn base(&self, platform: &Provider) -> Result<Vec<ConfigSource>> {
        let mut out = Vec::new();
        for below in ["base.d".to_owned(), format!("base.platform.d/{platform}")] {
            let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
            for folder in self.folders.iter().map(|folder| folder.join(&below)) {
                for name in names(&folder)? {
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
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn user(&self) -> Result<Option<ConfigSource>> {
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

    /// What the kernel's command line says of the config. Words that are none of ours are no concern here.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn named(&self) -> Result<Named> {
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
        Ok(Named {
            url: last(cmdline::CONFIG_URL),
            device: last(cmdline::CONFIG_DEVICE).zip(last(cmdline::CONFIG_PATH)),
        })
    }
}

fn names(folder: &Path) -> Result<Vec<String>> {
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
        let found = Surroundings::of(&variable).unwrap();
        let text = |place: &ConfigSource| match place {
            ConfigSource::Text(text, _) => String::from_utf8(text.clone()).unwrap(),
            ConfigSource::Url(url) => url.clone(),
        };
        let base = found
            .base(platform::providers::by_id("file").unwrap())
            .unwrap();
        let texts: Vec<String> = base.iter().map(text).collect();
        assert_eq!(texts, ["usr a", "run b", "etc file"]);
        assert_eq!(
            found.user().unwrap().as_ref().map(text).as_deref(),
            Some("etc user")
        );
        assert_eq!(
            found.named().unwrap().url.as_deref(),
            Some("http://b.example/a b")
        );
        assert!(found.key_fragment);
        assert_eq!(found.config_file, PathBuf::from("config.ign"));
    }

    #[test]
    fn a_switch_is_true_or_false() {
        let with = |text: &'static str| {
            Surroundings::of(&move |name| {
                (name == "IGNITION_WRITE_AUTHORIZED_KEYS_FRAGMENT").then(|| PathBuf::from(text))
            })
        };
        assert!(!with("false").unwrap().key_fragment);
        assert!(with("1").unwrap().key_fragment);
        assert!(with("perhaps").is_err());
    }
}
