//! What `systemctl enable` does, without a running systemd: the links that the sections `[Install]` of units ask for
//! (systemd.unit(5); `src/shared/install.c` of systemd).

use std::collections::{BTreeMap, BTreeSet};

use super::found::{ENABLED, Found, template};

/// The keys of a section `[Install]`.
#[derive(Debug, Default)]
struct Install {
    alias: Vec<String>,
    wanted_by: Vec<String>,
    required_by: Vec<String>,
    upheld_by: Vec<String>,
    also: Vec<String>,
    default_instance: Option<String>,
}

/// The links that enable a unit and those that its `Also=` names, by their paths; of the latter not those that are `kept` as they are. An
/// alias is the unit that it leads to, as for systemctl.
///
/// # Errors
/// Why the unit itself cannot be enabled, for people.
pub(super) fn links(
    found: &Found,
    unit: &str,
    kept: &[&str],
) -> Result<BTreeMap<String, String>, String> {
    let unit = found.unit_name(unit);
    let mut links = BTreeMap::new();
    for name in with_also(found, &unit, kept) {
        // A unit of `Also=` that is not there, is masked or has nothing to install is passed over.
        let made = found
            .unit_file(&name)
            .map(|path| of_one(found, &name, &path));
        match made {
            Some(Ok(more)) => links.extend(more),
            Some(Err(why)) if name == unit => return Err(why),
            _ => {}
        }
    }
    Ok(links)
}

/// The links of the tree `below` that go when a unit is disabled: what is enabled together is disabled together, but for units that are
/// `kept`. The units are those of `found`, and an alias is the unit that it leads to.
pub(super) fn disabled(found: &Found, below: &Found, unit: &str, kept: &[&str]) -> Vec<String> {
    let unit = found.unit_name(unit);
    let units = with_also(found, &unit, kept).into_iter();
    units.flat_map(|unit| below.links_to(&unit)).collect()
}

/// A unit, and those that its `Also=` names, and theirs, but for those that are `kept`.
fn with_also(found: &Found, unit: &str, kept: &[&str]) -> Vec<String> {
    let mut seen = BTreeSet::from([unit.to_owned()]);
    let mut all = vec![unit.to_owned()];
    let mut at = 0;
    while let Some(name) = all.get(at).cloned() {
        at += 1;
        let Some(path) = found.unit_file(&name) else {
            continue;
        };
        let install = read(found, &name, &path);
        for also in &install.also {
            if let Some(also) = filled(also, &name, install.default_instance.as_deref())
                && !kept.contains(&also.as_str())
                && seen.insert(also.clone())
            {
                all.push(also);
            }
        }
    }
    all
}

/// The links of one unit, whose file is at `path`.
fn of_one(found: &Found, name: &str, path: &str) -> Result<Vec<(String, String)>, String> {
    let install = read(found, name, path);
    let default = install.default_instance.as_deref();
    let fill = |text: &String| filled(text, name, default);
    let mut links = Vec::new();
    for alias in install.alias.iter().filter_map(fill) {
        if let Some(alias) = usable_alias(name, &alias) {
            links.push((format!("{ENABLED}/{alias}"), path.to_owned()));
        }
    }
    // A template is started as its default instance; without one, only other templates and instances can want it.
    let (started, needs_instance) = match (is_template(name), default) {
        (true, Some(instance)) => (name.replacen('@', &format!("@{instance}"), 1), false),
        (is_template, _) => (name.to_owned(), is_template),
    };
    for (words, kind) in [
        (&install.wanted_by, "wants"),
        (&install.required_by, "requires"),
        (&install.upheld_by, "upholds"),
    ] {
        for word in words.iter().filter_map(fill) {
            if needs_instance && !word.contains('@') {
                return Err(format!(
                    "`{name}` is a template without DefaultInstance=, and {word} cannot want it: an instance has to be named"
                ));
            }
            links.push((
                format!("{ENABLED}/{word}.{kind}/{started}"),
                path.to_owned(),
            ));
        }
    }
    links.retain(|(link, target)| link != target);
    Ok(links)
}

/// The name of an alias that a unit may have, in the folder of links: of the same kind, and an instance if the unit is one.
fn usable_alias(name: &str, alias: &str) -> Option<String> {
    if let Some((folder, inner)) = alias.split_once('/') {
        let (wanting, kind) = folder.rsplit_once('.')?;
        let good = ["wants", "requires", "upholds"].contains(&kind)
            && wanting.contains('.')
            && (inner == name || template(name).as_deref() == Some(inner));
        return good.then(|| alias.to_owned());
    }
    let kind = |unit: &str| unit.rsplit_once('.').map(|(_, kind)| kind.to_owned());
    if kind(name) != kind(alias) {
        return None;
    }
    let instance = instance(name);
    match (is_template(alias), is_template(name), instance) {
        (true, true, _) => Some(alias.to_owned()),
        // An instance's alias is an instance of the alias.
        (true, false, Some(instance)) => Some(alias.replacen('@', &format!("@{instance}"), 1)),
        (true, false, None) => None,
        (false, true, _) => None,
        (false, false, instance) => {
            (self::instance(alias) == instance || instance.is_none()).then(|| alias.to_owned())
        }
    }
}

fn is_template(name: &str) -> bool {
    name.split_once('@')
        .is_some_and(|(_, rest)| rest.starts_with('.') && !rest[1..].contains('.'))
}

/// The instance in a name.
fn instance(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('@')?;
    let (instance, _) = rest.rsplit_once('.')?;
    Some(instance).filter(|instance| !instance.is_empty())
}

/// A word with its specifiers, as far as an image knows them; none if it has others.
fn filled(word: &str, name: &str, default: Option<&str>) -> Option<String> {
    let instance = instance(name).or(default).unwrap_or_default();
    let (stem, _) = name.rsplit_once('.')?;
    let prefix = stem.split('@').next().unwrap_or_default();
    let mut out = String::new();
    let mut rest = word.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next()? {
            'i' => out += instance,
            'p' => out += prefix,
            'j' => out += prefix.rsplit('-').next().unwrap_or_default(),
            'n' => out += name,
            'N' => out += stem,
            '%' => out.push('%'),
            _ => return None,
        }
    }
    Some(out)
}

/// The section of a unit's file and of its drop-ins.
fn read(found: &Found, name: &str, path: &str) -> Install {
    let mut install = Install::default();
    let texts = found.text(path).into_iter();
    for text in texts.chain(found.drop_ins(name)) {
        parse(&String::from_utf8_lossy(&text), &mut install);
    }
    install
}

fn parse(text: &str, install: &mut Install) {
    let mut inside = false;
    // A line goes on behind a backslash at its end.
    let text = text.replace("\\\n", " ");
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[Install]";
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside) else {
            continue;
        };
        let list = match key.trim() {
            "Alias" => &mut install.alias,
            "WantedBy" => &mut install.wanted_by,
            "RequiredBy" => &mut install.required_by,
            "UpheldBy" => &mut install.upheld_by,
            "Also" => &mut install.also,
            "DefaultInstance" => {
                let value = value.trim();
                install.default_instance = (!value.is_empty()).then(|| value.to_owned());
                continue;
            }
            _ => continue,
        };
        let mut words = value.split_whitespace().peekable();
        if words.peek().is_none() {
            list.clear();
        }
        let bare = |word: &str| word.trim_matches(['"', '\'']).to_owned();
        list.extend(words.map(bare));
    }
}

#[cfg(test)]
mod tests {
    use super::super::found::tests::found;
    use super::*;
    use crate::layer::Entry;

    const UNITS: &str = "/usr/lib/systemd/system";

    fn links_of(units: &[(&str, &str)], unit: &str) -> Result<Vec<String>, String> {
        let entries = units.iter().map(|(name, text)| {
            let path = match name.starts_with('/') {
                true => (*name).to_owned(),
                false => format!("{UNITS}/{name}"),
            };
            match text.strip_prefix("-> ") {
                Some(target) => Entry::symlink(path, target),
                None => Entry::file(path, 0o644, *text),
            }
        });
        let found = found(entries.collect());
        let links = links(&found, unit, &["kept.timer"])?;
        let short = |path: &str| path.replace(ENABLED, "E").replace(UNITS, "U");
        let shown = links
            .iter()
            .map(|(link, target)| format!("{} -> {}", short(link), short(target)));
        Ok(shown.collect())
    }

    #[test]
    fn sections_become_links() {
        let text = "[Unit]\nWantedBy=not.me\n[Install]\n# WantedBy=nor.me\nWantedBy=multi-user.target \\\n a.target\n\
                    RequiredBy=r.target\nUpheldBy=u.target\nAlias=dbus-x.service x.socket\n";
        assert_eq!(
            links_of(&[("x.service", text)], "x.service").unwrap(),
            [
                "E/a.target.wants/x.service -> U/x.service",
                "E/dbus-x.service -> U/x.service",
                "E/multi-user.target.wants/x.service -> U/x.service",
                "E/r.target.requires/x.service -> U/x.service",
                "E/u.target.upholds/x.service -> U/x.service",
            ]
        );
    }

    #[test]
    fn units_of_also_are_enabled_in_circles_too_and_missing_ones_passed_over() {
        let units = [
            (
                "a.service",
                "[Install]\nAlso=a.socket gone.timer masked.service kept.timer\n",
            ),
            (
                "a.socket",
                "[Install]\nWantedBy=sockets.target\nAlso=a.service b.timer\n",
            ),
            ("b.timer", "[Install]\nWantedBy=timers.target\n"),
            ("kept.timer", "[Install]\nWantedBy=timers.target\n"),
            ("/etc/systemd/system/masked.service", "-> /dev/null"),
        ];
        let expected = [
            "E/sockets.target.wants/a.socket -> U/a.socket",
            "E/timers.target.wants/b.timer -> U/b.timer",
        ];
        assert_eq!(links_of(&units, "a.service").unwrap(), expected);
    }

    #[test]
    fn templates_are_started_as_instances() {
        let getty =
            "[Install]\nWantedBy=getty.target\nDefaultInstance=tty1\nAlias=autovt@.service\n";
        let plain = "[Install]\nWantedBy=b.target %i.target\n";
        let units = [("getty@.service", getty), ("p@.service", plain)];
        assert_eq!(
            links_of(&units, "getty@.service").unwrap(),
            [
                "E/autovt@.service -> U/getty@.service",
                "E/getty.target.wants/getty@tty1.service -> U/getty@.service",
            ]
        );
        assert_eq!(
            links_of(&units, "getty@tty2.service").unwrap(),
            [
                "E/autovt@tty2.service -> U/getty@.service",
                "E/getty.target.wants/getty@tty2.service -> U/getty@.service",
            ]
        );
        assert_eq!(
            links_of(&units, "p@x.service").unwrap(),
            [
                "E/b.target.wants/p@x.service -> U/p@.service",
                "E/x.target.wants/p@x.service -> U/p@.service",
            ]
        );
        let why = links_of(&units, "p@.service").unwrap_err();
        assert!(why.contains("an instance has to be named"), "{why}");
    }

    #[test]
    fn units_of_the_recipe_and_drop_ins_count() {
        let units = [
            (
                "/etc/systemd/system/own.service",
                "[Install]\nWantedBy=a.target\n",
            ),
            ("x.service", "[Install]\nWantedBy=a.target\n"),
            (
                "/etc/systemd/system/x.service.d/50-more.conf",
                "[Install]\nWantedBy=\nWantedBy=b.target\n",
            ),
        ];
        assert_eq!(
            links_of(&units, "own.service").unwrap(),
            ["E/a.target.wants/own.service -> E/own.service"]
        );
        assert_eq!(
            links_of(&units, "x.service").unwrap(),
            ["E/b.target.wants/x.service -> U/x.service"]
        );
    }

    #[test]
    fn an_alias_is_enabled_and_disabled_as_its_unit() {
        let unit = format!("{UNITS}/ssh.service");
        let own = |path: &str| format!("{ENABLED}/{path}");
        let found = found(vec![
            Entry::file(
                unit.as_str(),
                0o644,
                "[Install]\nWantedBy=multi-user.target\nAlias=sshd.service\n",
            ),
            Entry::symlink(own("sshd.service"), unit.as_str()),
            Entry::symlink(own("multi-user.target.wants/ssh.service"), unit.as_str()),
            // By the alias.
            Entry::symlink(own("a.target.wants/sshd.service"), "../sshd.service"),
            Entry::symlink(
                own("multi-user.target.wants/cron.service"),
                format!("{UNITS}/cron.service"),
            ),
        ]);
        for name in ["sshd.service", "ssh.service"] {
            let made = links(&found, name, &[]).unwrap();
            let expected = [
                own("multi-user.target.wants/ssh.service"),
                own("sshd.service"),
            ];
            assert!(made.keys().eq(&expected), "{name}: {made:?}");
            assert!(made.values().all(|target| *target == unit), "{made:?}");
            let gone = disabled(&found, &found, name, &[]);
            let expected = [
                own("a.target.wants/sshd.service"),
                own("multi-user.target.wants/ssh.service"),
                own("sshd.service"),
            ];
            assert_eq!(gone, expected, "{name}");
        }
    }
}
