//! The report as text for people.

use std::fmt::{self, Display, Formatter};

use crate::host::progress;
use crate::inspect::{KernelReport, Report};
use crate::publish::sbom::Component;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.kind)?;
        if let Some(disk) = &self.disk {
            let (guid, sector) = (&disk.guid, disk.sector_size);
            writeln!(f, "\ndisk {guid}, sectors of {sector} bytes")?;
            writeln!(
                f,
                "  {:>2}  {:<10} {:>10} {:>10}  {:<36}  type",
                "#", "label", "start", "size", "guid"
            )?;
            for partition in &disk.partitions {
                writeln!(
                    f,
                    "  {:>2}  {:<10} {:>10} {:>10}  {}  {}",
                    partition.number,
                    partition.label,
                    progress::bytes(partition.offset),
                    progress::bytes(partition.size),
                    partition.guid,
                    partition.kind
                )?;
            }
        }
        if let Some(root) = &self.root {
            let fits = if root.tree_fits {
                "the hash tree's top fits"
            } else {
                "THE HASH TREE'S TOP DOES NOT FIT"
            };
            writeln!(f, "\nroot {}", root.hash)?;
            writeln!(f, "  {}, {fits}", progress::bytes(root.size))?;
        }
        for kernel in &self.kernels {
            kernel.fmt(f)?;
        }
        if let Some(packages) = &self.packages {
            let removed = packages.iter().filter(|package| package.is_removed());
            let removed = match removed.count() {
                0 => String::new(),
                count => format!(", {count} of them removed"),
            };
            let whole = packages
                .iter()
                .filter(|package| package.part_of().next().is_none());
            writeln!(f, "\npackages: {}{removed}", whole.clone().count())?;
            for package in whole {
                let removed = if package.is_removed() {
                    " (removed)"
                } else {
                    ""
                };
                writeln!(f, "  {} {}{removed}", package.name, package.version)?;
                if let Some(description) = &package.description {
                    writeln!(f, "    {description}")?;
                }
                let parts = packages.iter().flat_map(Component::part_of);
                let parts = parts.filter(|of| *of == package.name).count();
                if parts > 0 {
                    writeln!(f, "    made of {parts} libraries, which --json lists")?;
                }
                for module in package.modules() {
                    writeln!(f, "    module {module}, compiled by DKMS")?;
                }
                if package.is_removed() {
                    for missed in package.missed_by() {
                        writeln!(f, "    may be missed by {missed}")?;
                    }
                }
            }
        }
        if !self.notes.is_empty() {
            writeln!(f, "\nnotes")?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

impl Display for KernelReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let size = |count: usize| progress::bytes(u64::try_from(count).unwrap_or(u64::MAX));
        writeln!(f, "\nkernel {}", self.path)?;
        writeln!(f, "  name     {}", self.name)?;
        writeln!(f, "  release  {}", self.release)?;
        writeln!(f, "  cmdline  {}", self.cmdline)?;
        writeln!(
            f,
            "  size     {}, of that initramfs {} with {} modules",
            size(self.size),
            size(self.initrd),
            self.modules.len()
        )?;
        let Some(manifest) = &self.manifest else {
            return writeln!(f, "  manifest none in the initramfs");
        };
        writeln!(
            f,
            "  image    {} {}, contract {}",
            manifest.image.name, manifest.image.version, manifest.contract
        )?;
        writeln!(
            f,
            "  config   {}",
            if self.base_config {
                "baked in"
            } else {
                "none baked in"
            }
        )?;
        match &manifest.kubernetes {
            Some(kubernetes) => writeln!(
                f,
                "  kubelet  {} sha256 {}",
                kubernetes.version, kubernetes.kubelet_sha256
            ),
            None => writeln!(f, "  kubelet  none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A component as a document has it.
    fn component(value: serde_json::Value) -> Component {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn removed_packages_are_listed_with_those_who_may_miss_them() {
        let here = serde_json::json!({
            "bom-ref": "a", "type": "library", "name": "libc6", "version": "2.41-12"
        });
        let gone = serde_json::json!({
            "bom-ref": "b", "type": "library", "name": "perl-base", "version": "5.40.1-6", "scope": "excluded",
            "properties": [
                {"name": "slipway:removed", "value": "root"},
                {"name": "slipway:missed-by", "value": "/usr/sbin/postconf: /usr/bin/perl"},
                {"name": "slipway:missed-by", "value": "/usr/bin/c_rehash: /usr/bin/perl"},
            ]
        });
        let report = Report {
            kind: "raw disk",
            packages: Some(vec![component(here.clone()), component(gone)]),
            ..Report::default()
        };
        let text = report.to_string();
        let listed = "\npackages: 2, 1 of them removed\n\
                      \x20 libc6 2.41-12\n\
                      \x20 perl-base 5.40.1-6 (removed)\n\
                      \x20   may be missed by /usr/sbin/postconf: /usr/bin/perl\n\
                      \x20   may be missed by /usr/bin/c_rehash: /usr/bin/perl\n";
        assert!(text.contains(listed), "{text}");
        let report = Report {
            packages: Some(vec![component(here)]),
            ..report
        };
        let text = report.to_string();
        assert!(text.contains("\npackages: 1\n  libc6 2.41-12\n"), "{text}");
        assert!(!text.contains("removed"), "{text}");
    }
}
