//! `removed.txt`: what an image lacks of its packages, who may miss it, what a node makes itself, and what its containers are without.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::install::{Missed, Report};
use crate::steps::rootfs;

/// The file's name in the output folder.
pub const FILE: &str = "removed.txt";

/// The text for a root and its containers, these by the sets of their packages.
#[must_use]
pub fn text(report: &Report, containers: &BTreeMap<String, Report>) -> String {
    let mut text = String::new();
    if !report.dropped.is_empty() {
        text += "Packages whose files are removed, since only the packaging needs them. A package that the recipe names stays.\n";
    }
    for dropped in &report.dropped {
        writeln!(text, "\n{}", dropped.package).ok();
        for path in &dropped.kept {
            writeln!(text, "  stays: {path}").ok();
        }
        for missed in &dropped.missed_by {
            writeln!(text, "  may be missed by {}", missed_by(missed)).ok();
        }
    }
    if !report.first_boot.is_empty() {
        text += "\nFiles that packages' scripts made, and each node makes for itself on its first boot\n\n";
    }
    for made in &report.first_boot {
        let unit = match &made.unit {
            Some(unit) => format!("by {unit}"),
            None => "when its program wants it".to_owned(),
        };
        writeln!(text, "{} {unit}", made.path).ok();
    }
    text += &named("", &report.host_name);
    for (set, report) in containers {
        let container = rootfs::container(set);
        if !report.first_boot.is_empty() {
            writeln!(text, "\nFiles that packages' scripts made, and that {container} lacks: nothing makes them there at its start\n").ok();
        }
        for made in &report.first_boot {
            writeln!(text, "{}", made.path).ok();
        }
        text += &named(&format!(" of {container}"), &report.host_name);
    }
    text
}

/// The files with the build's host name, of the root or else ` of` a container.
fn named(of: &str, paths: &[String]) -> String {
    if paths.is_empty() {
        return String::new();
    }
    format!(
        "\nFiles{of} that name the machine `slipway`, as which the image was built\n\n{}\n",
        paths.join("\n")
    )
}

/// A file that names a program that is not there, its package and the program.
pub(super) fn missed_by(missed: &Missed) -> String {
    let (path, program) = (&missed.path, &missed.program);
    match missed.package.as_str() {
        "" => format!("{path}: {program}"),
        package => format!("{path} ({package}): {program}"),
    }
}

/// The closing line of a build; none if nothing is removed.
#[must_use]
pub fn line(report: &Report, containers: &BTreeMap<String, Report>) -> Option<String> {
    let mut parts = Vec::new();
    let dropped = report.dropped.len();
    let missed = report
        .dropped
        .iter()
        .filter(|dropped| !dropped.missed_by.is_empty());
    if dropped > 0 {
        parts.push(format!(
            "{dropped} packages removed, {} of them named by files that stay",
            missed.count()
        ));
    }
    if !report.first_boot.is_empty() {
        parts.push(format!(
            "{} files made on first boot",
            report.first_boot.len()
        ));
    }
    let reports = std::iter::once(report).chain(containers.values());
    let named: usize = reports.map(|report| report.host_name.len()).sum();
    if named > 0 {
        parts.push(format!("{named} files with the build's host name"));
    }
    let lacking: usize = (containers.values())
        .map(|container| container.first_boot.len())
        .sum();
    if lacking > 0 {
        parts.push(format!("{lacking} files left out of containers"));
    }
    match parts.is_empty() {
        true => None,
        false => Some(format!("{FILE}: {}", parts.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::{Dropped, FirstBoot};

    #[test]
    fn all_that_is_not_there_is_named() {
        let none = BTreeMap::new();
        assert_eq!(
            (
                text(&Report::default(), &none),
                line(&Report::default(), &none)
            ),
            (String::new(), None)
        );
        let report = Report {
            dropped: vec![Dropped {
                package: "dpkg".into(),
                kept: vec!["/usr/sbin/start-stop-daemon".into()],
                missed_by: vec![Missed {
                    path: "/usr/sbin/update-shells".into(),
                    package: "debianutils".into(),
                    program: "/usr/bin/dpkg-realpath".into(),
                }],
            }],
            first_boot: vec![FirstBoot {
                path: "/etc/munge/munge.key".into(),
                unit: Some("slipway-munge-key.service".into()),
            }],
            suspects: Vec::new(),
            host_name: vec!["/etc/mailname".into()],
        };
        let text = text(&report, &none);
        for expected in [
            "\ndpkg\n  stays: /usr/sbin/start-stop-daemon\n",
            "  may be missed by /usr/sbin/update-shells (debianutils): /usr/bin/dpkg-realpath\n",
            "/etc/munge/munge.key by slipway-munge-key.service\n",
            "\n/etc/mailname\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert_eq!(
            line(&report, &none).unwrap(),
            "removed.txt: 1 packages removed, 1 of them named by files that stay; 1 files made on first boot; \
             1 files with the build's host name"
        );
    }

    #[test]
    fn what_a_container_lacks_is_listed_by_container() {
        let without = |path: &str| Report {
            first_boot: vec![FirstBoot {
                path: path.into(),
                unit: None,
            }],
            ..Report::default()
        };
        let containers = BTreeMap::from([
            (
                "image r.example/db:1".into(),
                without("/var/lib/mysql/ibdata1"),
            ),
            ("image r.example/tools:1".into(), Report::default()),
            (
                "image r.example/mail:1".into(),
                Report {
                    host_name: vec!["/etc/mailname".into()],
                    ..Report::default()
                },
            ),
            ("kubelet".into(), without("/etc/munge/munge.key")),
        ]);
        let text = text(&Report::default(), &containers);
        for expected in [
            "that the container image r.example/db:1 lacks: nothing makes them there at its start\n\n/var/lib/mysql/ibdata1\n",
            "that the kubelet's container lacks: nothing makes them there at its start\n\n/etc/munge/munge.key\n",
            "Files of the container image r.example/mail:1 that name the machine `slipway`, as which the image was built\n\n/etc/mailname\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("tools"), "{text}");
        assert_eq!(
            line(&Report::default(), &containers).unwrap(),
            "removed.txt: 1 files with the build's host name; 2 files left out of containers"
        );
    }
}
