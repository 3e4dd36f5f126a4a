//! systemd unit files: the syntax that Ignition accepts, the `[Install]` section, names of instances.

pub mod mount;

/// The longest line, bytes; systemd's own limit for unit files, as in go-systemd.
const LONGEST: usize = 2048;

/// One setting of a unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Section's name.
    pub section: String,
    /// Setting's name.
    pub name: String,
    /// Value, continued lines joined.
    pub value: String,
}

/// Reads a unit file.
///
/// # Errors
/// The mistake, with the line's number; never a value of it.
pub fn parse(text: &str) -> Result<Vec<Setting>, String> {
    let mut out = Vec::new();
    let mut section: Option<String> = None;
    let mut lines = text.split_inclusive('\n').enumerate();
    while let Some((number, line)) = lines.next() {
        let number = number + 1;
        if line.len() > LONGEST {
            return Err(format!("line {number} is longer than {LONGEST} bytes"));
        }
        let body = line.trim_start();
        if body.is_empty() || body.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = body.strip_prefix('[') {
            let (name, garbage) = rest
                .split_once(']')
                .ok_or(format!("line {number}: the section's name is not closed"))?;
            if !garbage.trim().is_empty() {
                return Err(format!("line {number}: text after the section's name"));
            }
            section = Some(name.to_owned());
            continue;
        }
        // Text before the first section is skipped, as go-systemd does.
        let Some(section) = &section else { continue };
        let (name, value) = body
            .trim_end_matches(['\n', '\r'])
            .split_once('=')
            .ok_or(format!("line {number}: expected NAME=VALUE"))?;
        let mut value = value.to_owned();
        while value.ends_with('\\') {
            let Some((number, next)) = lines.next() else {
                break;
            };
            if next.len() > LONGEST {
                return Err(format!(
                    "line {} is longer than {LONGEST} bytes",
                    number + 1
                ));
            }
            let next = next.trim_end_matches(['\n', '\r']);
            if next.trim().is_empty() {
                break;
            }
            value.pop();
            value.push(' ');
            value.push_str(next);
        }
        out.push(Setting {
            section: section.clone(),
            name: name.trim().to_owned(),
            value: value.trim().to_owned(),
        });
    }
    Ok(out)
}

/// The `[Install]` section of a unit, drop-ins included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Install {
    /// Whether the section exists.
    pub present: bool,
    /// `WantedBy=`
    pub wanted_by: Vec<String>,
    /// `RequiredBy=`
    pub required_by: Vec<String>,
    /// `UpheldBy=`
    pub upheld_by: Vec<String>,
    /// `Alias=`
    pub alias: Vec<String>,
    /// `Also=`
    pub also: Vec<String>,
    /// `DefaultInstance=`
    pub default_instance: Option<String>,
}

impl Install {
    /// Adds the settings of one file; an empty value clears its list, as in systemd.
    pub fn read(&mut self, settings: &[Setting]) {
        for setting in settings.iter().filter(|s| s.section == "Install") {
            self.present = true;
            let list = match setting.name.as_str() {
                "WantedBy" => &mut self.wanted_by,
                "RequiredBy" => &mut self.required_by,
                "UpheldBy" => &mut self.upheld_by,
                "Alias" => &mut self.alias,
                "Also" => &mut self.also,
                "DefaultInstance" => {
                    self.default_instance = Some(setting.value.clone()).filter(|v| !v.is_empty());
                    continue;
                }
                _ => continue,
            };
            if setting.value.is_empty() {
                list.clear();
            }
            list.extend(setting.value.split_whitespace().map(str::to_owned));
        }
    }
}

/// The template of an instance, as `a@.container` of `a@b.container`.
#[must_use]
pub fn template_of(name: &str) -> Option<String> {
    let (stem, rest) = name.split_once('@')?;
    let (instance, kind) = rest.rsplit_once('.')?;
    (!instance.is_empty()).then(|| format!("{stem}@.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn install_sections_are_read() {
        let settings = parse(
            "junk\n[Unit]\nDescription=x \\\n  y\n# c\n[Install]\nWantedBy=a.target b.target\r\nWantedBy=\nWantedBy=c.target\nAlias=z.service\n",
        )
        .unwrap();
        assert_eq!(settings[0].value, "x    y");
        let mut install = Install::default();
        install.read(&settings);
        assert_eq!(install.wanted_by, ["c.target"]);
        assert_eq!(install.alias, ["z.service"]);
    }

    #[test]
    fn broken_units_are_refused() {
        for text in [
            "[A",
            "[A] x\n",
            "[A]\nfoo\n",
            &format!("[A]\nb={}\n", "x".repeat(2050)),
        ] {
            assert!(parse(text).is_err(), "{text:.10}");
        }
    }
}
