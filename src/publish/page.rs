//! Page: `report.html`, what an image is and how its build went, in one file that wants nothing else: what fills it, the
//! partitions, the build's steps, packages with a search, those that are removed, files, and a boot's timeline if there is a record
//! of one.
//!
//! The page carries its own data as JSON, so that a boot can be added later, and other programs can read it.

mod dropped;
mod steps;
mod treemap;

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use image::layout::{LABEL_ROOT_A, LABEL_VERITY_A};
use serde::{Deserialize, Serialize};

use super::image::Image;
use super::sbom::{self, Component};
use super::sums::PAGE;
use crate::artifact;
use crate::format::gpt::Table;
use crate::host::progress::{StepRecord, bytes as size};
use crate::layer::usage::Usage;

/// What the page's data begins and ends with in its text.
const DATA: (&str, &str) = (
    "<script type=\"application/json\" id=\"data\">",
    "</script>",
);
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The data of a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    /// Name and version of the image.
    pub title: String,
    /// Single facts: (name, value).
    pub facts: Vec<(String, String)>,
    /// What fills the root.
    pub usage: Usage,
    /// The disk's partitions, in their order.
    pub partitions: Vec<Part>,
    /// The build's steps.
    pub steps: Vec<StepRecord>,
    /// Packages, programs and container images.
    pub components: Vec<Row>,
    /// Packages that are not in the image; none in a page of an earlier version.
    #[serde(default)]
    pub removed: Vec<Removed>,
    /// The files of the output folder.
    pub files: Vec<FileRow>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its label.
    pub label: String,
    /// Bytes.
    pub size: u64,
    /// Bytes that the build wrote into it.
    pub used: u64,
}

/// A component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `library`, `application` or `container`, as CycloneDX has them.
    pub kind: String,
    /// Where it is: root, kernel, kubelet, etcd.
    pub sets: String,
}

/// A package of the lock whose files are not in the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Removed {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What is in the image all the same: those of its files that stay, or what was made of it. Empty if there is nothing.
    pub stays: String,
    /// The files that name a program of it, each with the program.
    pub missed_by: Vec<String>,
}

/// A file of the output folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRow {
    /// Path below the folder.
    pub path: String,
    /// Bytes, holes included.
    pub size: u64,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

impl Page {
    /// The data of an image whose files are in `folder`.
    ///
    /// # Errors
    /// If the disk's partition table or the SBOM cannot be read.
    pub(super) fn of(
        image: &Image,
        folder: &Path,
        steps: Vec<StepRecord>,
        files: Vec<FileRow>,
    ) -> Result<Self> {
        let manifest = &image.identity.manifest;
        let mut facts = vec![
            ("Architecture", manifest.architecture.debian().to_owned()),
            ("Kernel", manifest.kernel.clone()),
        ];
        if let Some(kubernetes) = &manifest.kubernetes {
            facts.push(("Kubernetes", kubernetes.version.clone()));
        }
        let platforms = manifest.platforms.iter().map(ToString::to_string);
        let platforms: Vec<String> = platforms.collect();
        facts.push(("Platforms", platforms.join(", ")));
        facts.push(("Root hash", image.root.hash.to_string()));
        facts.push(("Command line", image.bootable.cmdline.clone()));
        let components = sbom::components(&image.sbom)?;
        Ok(Self {
            title: image.folder(),
            facts: facts
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            usage: image.root.usage.clone(),
            partitions: partitions(image, &folder.join(artifact::DISK))?,
            steps,
            components: rows(&components),
            removed: dropped::of(&image.removed.dropped, &components),
            files,
        })
    }

    /// The data that a page carries.
    ///
    /// # Errors
    /// If the text is not such a page.
    pub fn read(html: &str) -> Result<Self> {
        let (_, rest) = html
            .split_once(DATA.0)
            .with_context(|| format!("expected the page {PAGE} of a build"))?;
        let (data, _) = rest
            .split_once(DATA.1)
            .context("the page ends in its data")?;
        serde_json::from_str(data).context("reading the page's data")
    }

    /// The page. `boot` is the SVG picture of a boot's timeline.
    ///
    /// # Errors
    /// If the data cannot be written as JSON.
    pub fn html(&self, boot: Option<&str>) -> Result<String> {
        let title = escape(&self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        out += &self.facts();
        let total = size(self.usage.bytes);
        section(
            &mut out,
            "What fills the root",
            &format!("{total} of files before compression; a folder's area is its share."),
            &treemap::html(&self.usage),
        );
        section(&mut out, "Disk", "", &self.disk());
        if let Some(boot) = boot {
            section(
                &mut out,
                "Boot",
                "",
                &format!("<div class=\"wide\">{boot}</div>\n"),
            );
        }
        section(&mut out, "Build", "", &steps::html(&self.steps));
        section(&mut out, "Packages", "", &self.packages());
        if !self.removed.is_empty() {
            let table = dropped::html(&self.removed);
            section(&mut out, "Removed", dropped::ABOUT, &table);
        }
        section(&mut out, "Files", "", &self.table_of_files());
        // A `<` would let a name end the script element.
        let data = serde_json::to_string(self)?.replace('<', "\\u003c");
        writeln!(
            out,
            "{}{data}{}\n<script>\n{SCRIPT}</script>\n</body>\n</html>",
            DATA.0, DATA.1
        )?;
        Ok(out)
    }

    fn facts(&self) -> String {
        let rows: String = self
            .facts
            .iter()
            .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value)))
            .collect();
        format!("<dl>\n{rows}</dl>\n")
    }

    fn disk(&self) -> String {
        let mut out = "<table>\n<thead><tr><th>Partition</th><th class=\"n\">Size</th><th class=\"n\">Written</th><th class=\"bar\"></th></tr></thead>\n<tbody>\n".to_owned();
        for part in &self.partitions {
            let share = percent(part.used, part.size);
            out += &format!(
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"bar\"><div class=\"meter\" title=\"{share:.0} %\"><div style=\"width:{share:.1}%\"></div></div></td></tr>\n",
                escape(&part.label),
                size(part.size),
                size(part.used),
            );
        }
        out + "</tbody>\n</table>\n"
    }

    fn packages(&self) -> String {
        let mut out = format!(
            "<p class=\"search\" hidden><label>Search <input type=\"search\" id=\"search\" placeholder=\"name, version or place\"></label> <output id=\"found\"></output></p>\n\
             <p class=\"count\">{} of them.</p>\n<table id=\"packages\">\n<thead><tr><th>Name</th><th>Version</th><th>Place</th></tr></thead>\n<tbody>\n",
            self.components.len()
        );
        for row in &self.components {
            let place = match row.sets.as_str() {
                "" => &row.kind,
                sets => sets,
            };
            out += &format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                escape(&row.name),
                escape(&row.version),
                escape(place)
            );
        }
        out + "</tbody>\n</table>\n"
    }

    fn table_of_files(&self) -> String {
        let mut out = "<table>\n<thead><tr><th>File</th><th class=\"n\">Size</th><th>SHA-256</th></tr></thead>\n<tbody>\n".to_owned();
        for file in &self.files {
            out += &format!(
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"hash\">{}</td></tr>\n",
                escape(&file.path),
                size(file.size),
                escape(&file.sha256)
            );
        }
        out + "</tbody>\n</table>\n"
    }
}

impl Row {
    fn of(component: &Component) -> Self {
        let sets: Vec<&str> = component.sets().chain(component.part_of()).collect();
        Self {
            name: component.name.clone(),
            version: component.version.clone(),
            kind: component.kind.clone(),
            sets: sets.join(", "),
        }
    }
}

/// The components that are in the image.
fn rows(components: &[Component]) -> Vec<Row> {
    let there = components.iter();
    let there = there.filter(|component| !component.is_removed());
    there.map(Row::of).collect()
}

/// The partitions of the image's disk, with what is written into them.
fn partitions(image: &Image, disk: &Path) -> Result<Vec<Part>> {
    let about = || format!("reading the partitions of {}", disk.display());
    let length = |path: &Path| -> Result<u64> { Ok(std::fs::metadata(path)?.len()) };
    let mut file = File::open(disk).with_context(about)?;
    let table = Table::read(&mut file).with_context(about)?;
    let mut parts = Vec::new();
    for partition in table.partitions {
        let used = match partition.label.as_str() {
            LABEL_ROOT_A => length(&image.root.erofs)?,
            LABEL_VERITY_A => length(&image.root.verity)?,
            _ => length(&image.bootable.uki)?,
        };
        parts.push(Part {
            label: partition.label,
            size: partition.size,
            used,
        });
    }
    Ok(parts)
}

fn section(out: &mut String, heading: &str, about: &str, content: &str) {
    *out += &format!("<section>\n<h2>{heading}</h2>\n");
    if !about.is_empty() {
        *out += &format!("<p>{about}</p>\n");
    }
    *out += content;
    *out += "</section>\n";
}

/// Text as HTML, also within an attribute.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The share of `part` in `whole`, 0 to 100.
#[allow(clippy::cast_precision_loss, reason = "for a picture")]
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => (part as f64 * 100.0 / whole as f64).min(100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::progress::Outcome;
    use crate::publish::sbom::Property;

    fn page() -> Page {
        let leaf = |name: &str, bytes| Usage {
            name: name.into(),
            bytes,
            parts: Vec::new(),
        };
        Page {
            title: "node-1.0".into(),
            facts: vec![("Command line".into(), "a=<b> \"c\" & d".into())],
            usage: Usage {
                name: String::new(),
                bytes: 30 << 20,
                parts: vec![leaf("usr", 20 << 20), leaf("</script><em>", 10 << 20)],
            },
            partitions: vec![Part {
                label: "ESP".into(),
                size: 512 << 20,
                used: 16 << 20,
            }],
            steps: vec![StepRecord {
                name: "root".into(),
                start: 1.0,
                seconds: 2.0,
                bytes: Some(1 << 20),
                outcome: Outcome::Made,
            }],
            components: vec![Row {
                name: "libc6".into(),
                version: "2.41-12".into(),
                kind: "library".into(),
                sets: "kubelet, root".into(),
            }],
            removed: vec![Removed {
                name: "perl-base".into(),
                version: "5.40.1-6".into(),
                stays: String::new(),
                missed_by: vec!["/usr/bin/<em> (openssl): /usr/bin/perl".into()],
            }],
            files: vec![FileRow {
                path: "disk.raw".into(),
                size: 900 << 20,
                sha256: "ab".repeat(32),
            }],
        }
    }

    #[test]
    fn the_page_carries_its_data() {
        let html = page().html(None).unwrap();
        assert_eq!(Page::read(&html).unwrap(), page());
        // With a boot the data is the same, so that another boot can replace it.
        let with = page().html(Some("<svg></svg>")).unwrap();
        assert!(with.contains("<h2>Boot</h2>") && !html.contains("<h2>Boot</h2>"));
        assert_eq!(Page::read(&with).unwrap(), page());
    }

    #[test]
    fn no_name_is_taken_for_markup_and_nothing_is_fetched() {
        let html = page().html(None).unwrap();
        assert!(html.contains("a=&lt;b&gt; &quot;c&quot; &amp; d"), "{html}");
        assert_eq!(html.matches("</script>").count(), 2);
        assert!(!html.contains("<em>"));
        for fetched in ["http:", "https:", "src=", "url(", "@import", "<link"] {
            assert!(!html.contains(fetched), "{fetched}");
        }
    }

    #[test]
    fn a_package_stands_where_its_files_are_and_a_removed_one_does_not() {
        let property = |name: &str, value: &str| Property {
            name: name.into(),
            value: value.into(),
        };
        let component = |name: &str, removed_from: &[&str]| Component {
            name: name.into(),
            properties: ["kubelet", "root"]
                .map(|set| property("slipway:set", set))
                .into_iter()
                .chain(
                    removed_from
                        .iter()
                        .map(|set| property("slipway:removed", set)),
                )
                .collect(),
            ..Component::default()
        };
        let perl = Component {
            scope: Some("excluded".into()),
            ..component("perl-base", &["kubelet", "root"])
        };
        let components = [component("dpkg", &["root"]), component("libc6", &[]), perl];
        let rows = rows(&components);
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.sets.as_str()))
            .collect();
        assert_eq!(found, [("dpkg", "kubelet"), ("libc6", "kubelet, root")]);
    }

    #[test]
    fn what_is_removed_has_a_table_and_a_page_of_an_earlier_version_none() {
        let html = page().html(None).unwrap();
        let (packages, removed) = html.split_once("<h2>Removed</h2>").unwrap();
        assert!(!packages.contains("perl-base"), "{packages}");
        assert!(
            removed.contains("/usr/bin/&lt;em&gt; (openssl): /usr/bin/perl"),
            "{removed}"
        );
        let mut data = serde_json::to_value(page()).unwrap();
        data.as_object_mut().unwrap().remove("removed").unwrap();
        let earlier = format!("{}{data}{}", DATA.0, DATA.1).replace("</script><em>", "");
        let earlier = Page::read(&earlier).unwrap();
        assert!(!earlier.html(None).unwrap().contains("<h2>Removed</h2>"));
    }

    #[test]
    fn another_file_is_refused_by_name() {
        let error = Page::read("<html></html>").unwrap_err();
        assert!(error.to_string().contains(PAGE), "{error}");
    }
}
