//! Rules for files, directories, links and units.

use std::collections::BTreeSet;

use super::{Rules, Spot, clean};
use crate::mode::SPECIAL;
use crate::unit;

impl Rules {
    pub(super) fn nodes(&mut self, root: &Spot<'_>) {
        let Some(storage) = root.child("storage") else {
            return;
        };
        let of_units = unit_paths(root);
        for file in storage.items("files") {
            self.node(&file, &of_units);
            self.mode(&file);
            self.file(&file);
        }
        for directory in storage.items("directories") {
            self.node(&directory, &of_units);
            self.mode(&directory);
        }
        for link in storage.items("links") {
            self.node(&link, &of_units);
            self.link(&link);
        }
        self.below_links(&storage);
    }

    fn node(&mut self, spot: &Spot<'_>, of_units: &BTreeSet<String>) {
        let path = spot.text("path").unwrap_or_default();
        self.path(spot, "path", path);
        if of_units.contains(path) {
            self.error(spot, "path", "path conflicts with systemd unit or dropin");
        }
        for name in ["user", "group"] {
            if let Some(owner) = spot.child(name)
                && owner.node.number("id").is_some()
                && owner.text("name").is_some_and(|name| !name.is_empty())
            {
                self.error(spot, name, "cannot set both id and name");
            }
        }
    }

    fn mode(&mut self, spot: &Spot<'_>) {
        let Some(mode) = spot.node.number("mode") else {
            return;
        };
        if !(0..=0o7777).contains(&mode) {
            self.error(
                spot,
                "mode",
                "illegal file mode; expected 0 to 4095 (octal 7777)",
            );
        }
        if self.minor < 6 && mode & SPECIAL != 0 {
            let message = "setuid, setgid and sticky bits do nothing before specification 3.6.0";
            self.warn(spot, "mode", message);
        }
    }

    fn file(&mut self, spot: &Spot<'_>) {
        let contents = spot.child("contents");
        if let Some(contents) = &contents {
            self.resource(contents);
        }
        for append in spot.items("append") {
            self.resource(&append);
        }
        let source = contents
            .as_ref()
            .and_then(|contents| contents.text("source"));
        if spot.node.flag("overwrite") == Some(true) && source.is_none() {
            self.error(
                spot,
                "overwrite",
                "overwrite needs a source; it may be \"data:,\"",
            );
        }
    }

    fn link(&mut self, spot: &Spot<'_>) {
        if spot.text("target").unwrap_or_default().is_empty() && self.minor >= 3 {
            return self.error(spot, "target", "link target is required");
        }
        if spot.node.flag("hard") != Some(true) {
            return;
        }
        for name in ["user", "group"] {
            let Some(owner) = spot.child(name) else {
                continue;
            };
            if owner.node.number("id").is_some() {
                self.warn(
                    spot,
                    &format!("{name}.id"),
                    "user/group ignored for hard link",
                );
            }
            if owner.text("name").is_some() {
                self.warn(
                    spot,
                    &format!("{name}.name"),
                    "user/group ignored for hard link",
                );
            }
        }
    }

    fn below_links(&mut self, storage: &Spot<'_>) {
        let links = storage.items("links");
        for (list, what) in [
            ("directories", "directory"),
            ("files", "file"),
            ("links", "link"),
        ] {
            for spot in storage.items(list) {
                let path = spot.text("path").unwrap_or_default();
                for link in &links {
                    let above = link.text("path").unwrap_or_default();
                    let under = path
                        .strip_prefix(above)
                        .is_some_and(|rest| rest.starts_with('/'));
                    if under {
                        self.error(&spot, "", format!("{what} path includes link in config"));
                    }
                }
            }
        }
        for link in &links {
            let target = link.text("target").unwrap_or_default();
            if target.is_empty() && self.minor >= 3 {
                // Reported by itself.
                continue;
            }
            let from = link.text("path").unwrap_or_default();
            let target = match target.starts_with('/') {
                true => clean(target),
                false if from.starts_with('/') => clean(&format!("{from}/{target}")),
                false => continue,
            };
            let directories = storage.items("directories");
            let hits = |directory: &Spot<'_>| directory.text("path") == Some(target.as_str());
            if link.node.flag("hard") == Some(true) && directories.iter().any(hits) {
                self.error(link, "", "hard link target is a directory");
            }
        }
    }

    pub(super) fn units(&mut self, root: &Spot<'_>) {
        let Some(systemd) = root.child("systemd") else {
            return;
        };
        let units = systemd.items("units");
        for spot in &units {
            let name = spot.text("name").unwrap_or_default();
            if !has_unit_extension(name) {
                self.error(spot, "name", "invalid systemd unit extension");
            }
            let contents = spot.text("contents").unwrap_or_default();
            self.unit_contents(spot, contents, "unit");
            for dropin in spot.items("dropins") {
                if !dropin.text("name").unwrap_or_default().ends_with(".conf") {
                    self.error(&dropin, "name", "the name of a drop-in ends with .conf");
                }
                self.unit_contents(
                    &dropin,
                    dropin.text("contents").unwrap_or_default(),
                    "drop-in",
                );
            }
            self.enabled_without_install(spot, name, &units);
        }
    }

    fn unit_contents(&mut self, spot: &Spot<'_>, contents: &str, what: &str) {
        if let Err(wrong) = unit::parse(contents) {
            self.error(spot, "contents", format!("invalid {what} content: {wrong}"));
        }
    }

    /// The `[Install]` section of an instance may be in its template's entry.
    fn enabled_without_install(&mut self, spot: &Spot<'_>, name: &str, units: &[Spot<'_>]) {
        let contents = spot.text("contents").unwrap_or_default();
        if spot.node.flag("enabled") != Some(true) {
            return;
        }
        let template = name.split_once('@').and_then(|(stem, rest)| {
            let (instance, extension) = rest.rsplit_once('.')?;
            (!instance.is_empty()).then(|| format!("{stem}@.{extension}"))
        });
        let of_template = template.and_then(|template| {
            let found = units
                .iter()
                .find(|unit| unit.text("name") == Some(&template))?;
            found.text("contents")
        });
        let contents = match (contents, of_template) {
            ("", Some(template)) => template,
            ("", None) => return,
            (own, _) => own,
        };
        if let Ok(settings) = unit::parse(contents)
            && !settings.iter().any(|setting| setting.section == "Install")
        {
            let message = "the unit is enabled but has no [Install] section to enable it by";
            self.warn(spot, "contents", message);
        }
    }
}

fn has_unit_extension(name: &str) -> bool {
    const EXTENSIONS: [&str; 12] = [
        "service",
        "socket",
        "device",
        "mount",
        "automount",
        "swap",
        "target",
        "path",
        "timer",
        "snapshot",
        "slice",
        "scope",
    ];
    name.rsplit_once('.')
        .is_some_and(|(_, extension)| EXTENSIONS.contains(&extension))
}

fn unit_paths(root: &Spot<'_>) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let Some(systemd) = root.child("systemd") else {
        return out;
    };
    let filled = |spot: &Spot<'_>| spot.text("contents").is_some_and(|text| !text.is_empty());
    for unit in systemd.items("units") {
        let name = unit.text("name").unwrap_or_default();
        let path = format!("/etc/systemd/system/{name}");
        for dropin in unit.items("dropins").iter().filter(|dropin| filled(dropin)) {
            out.insert(format!(
                "{path}.d/{}",
                dropin.text("name").unwrap_or_default()
            ));
        }
        if filled(&unit) {
            out.insert(path);
        }
    }
    out
}
