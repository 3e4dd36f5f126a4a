//! The packages of the lock that are not in the image, and what may miss them: those of `removed.txt`, and what else the SBOM has as
//! excluded.

use super::{Removed, escape};
use crate::install::Dropped;
use crate::publish::removed;
use crate::publish::sbom::Component;

/// What the table shows.
pub(super) const ABOUT: &str = "Packages of the lock whose files are not in the image, what of them stays, and the files that still name a program of them.";

/// What a root lacks of its packages, and the components that are in no other set either, by name.
pub(super) fn of(dropped: &[Dropped], components: &[Component]) -> Vec<Removed> {
    let is_of_root = |name: &str| dropped.iter().any(|dropped| dropped.package == name);
    let version = |name: &str| {
        let found = components.iter().find(|found| found.name == name);
        found.map(|found| found.version.clone())
    };
    let of_root = dropped.iter().map(|dropped| Removed {
        name: dropped.package.clone(),
        version: version(&dropped.package).unwrap_or_default(),
        stays: dropped.kept.join(", "),
        missed_by: dropped.missed_by.iter().map(removed::missed_by).collect(),
    });
    let others = components.iter();
    let others = others.filter(|found| found.is_removed() && !is_of_root(&found.name));
    let others = others.map(|found| Removed {
        name: found.name.clone(),
        version: found.version.clone(),
        stays: found.description.clone().unwrap_or_default(),
        missed_by: found.missed_by().map(str::to_owned).collect(),
    });
    let mut all: Vec<Removed> = of_root.chain(others).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The table.
pub(super) fn html(removed: &[Removed]) -> String {
    let mut out = format!(
        "<p>{} of them.</p>\n<table id=\"removed\">\n<thead><tr><th>Name</th><th>Version</th><th>Stays</th><th>May be missed by</th></tr></thead>\n<tbody>\n",
        removed.len()
    );
    for package in removed {
        let missed_by: Vec<String> = package.missed_by.iter().map(|file| escape(file)).collect();
        out += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            escape(&package.name),
            escape(&package.version),
            escape(&package.stays),
            missed_by.join("<br>")
        );
    }
    out + "</tbody>\n</table>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::Missed;

    #[test]
    fn what_a_root_lacks_and_what_is_in_no_set_is_listed_with_what_may_miss_it() {
        let component = |name: &str, scope: Option<&str>, description: Option<&str>| Component {
            name: name.into(),
            version: "1".into(),
            scope: scope.map(str::to_owned),
            description: description.map(str::to_owned),
            ..Component::default()
        };
        let dropped = |package: &str, kept: &[&str], missed_by: Vec<Missed>| Dropped {
            package: package.into(),
            kept: kept.iter().map(|&path| path.to_owned()).collect(),
            missed_by,
        };
        let missed = Missed {
            path: "/usr/bin/c_rehash".into(),
            package: "openssl".into(),
            program: "/usr/bin/perl".into(),
        };
        let removed = of(
            &[
                dropped("dpkg", &["/usr/sbin/start-stop-daemon"], Vec::new()),
                dropped("perl-base", &[], vec![missed]),
            ],
            &[
                // A part of it stays: it is no less a component.
                component("dpkg", None, Some("Of its files only these are there")),
                component("jq", None, None),
                component("locales", Some("excluded"), Some("compiled")),
                component("perl-base", Some("excluded"), None),
            ],
        );
        let row = |name: &str, stays: &str, missed_by: &[&str]| Removed {
            name: name.into(),
            version: "1".into(),
            stays: stays.into(),
            missed_by: missed_by.iter().map(|&file| file.to_owned()).collect(),
        };
        let expected = [
            row("dpkg", "/usr/sbin/start-stop-daemon", &[]),
            row("locales", "compiled", &[]),
            row(
                "perl-base",
                "",
                &["/usr/bin/c_rehash (openssl): /usr/bin/perl"],
            ),
        ];
        assert_eq!(removed, expected);
        let table = html(&removed);
        for text in ["3 of them", "<td>compiled</td>", "c_rehash (openssl)"] {
            assert!(table.contains(text), "{text}: {table}");
        }
    }
}
