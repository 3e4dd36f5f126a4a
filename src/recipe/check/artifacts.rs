//! `[[artifacts]]`: the formats of the disk beside the raw one.

use image::layout::SectorSize;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Check;
use crate::artifact;
use crate::recipe::mistakes::Mistake;
use crate::recipe::tree::Node;

/// One form of the disk.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawArtifact {
    /// Which form. Required.
    pub kind: Option<artifact::Kind>,
}

impl Check<'_> {
    pub(super) fn artifacts(&mut self, raw: &[RawArtifact]) -> Vec<artifact::Kind> {
        let items = self.find("artifacts").map_or(&[][..], Node::items);
        let mut kinds = Vec::new();
        for (raw, item) in raw.iter().zip(items) {
            match raw.kind {
                Some(kind) if kinds.contains(&kind) => self.add(Mistake::at(
                    &item.place,
                    format!("the artifact `{}` is asked for twice", kind.name()),
                    "expected each kind once",
                )),
                Some(kind) => kinds.push(kind),
                None if self.gone.iter().any(|gone| gone == "artifacts[].kind") => {}
                None => self.add(Mistake::at(
                    &item.place,
                    "an artifact without `kind`",
                    format!("expected kind = {}", artifact::names()),
                )),
            }
        }
        kinds
    }

    /// Refuses artifacts for machines whose disks have no such sectors: they would find no partition table.
    pub(super) fn sectors(&mut self, kinds: &[artifact::Kind], sector: SectorSize) {
        for kind in kinds.iter().filter(|kind| !kind.fits(sector)) {
            self.add(Mistake::at(
                &self.place("disk.sector-size"),
                format!(
                    "no disk for the artifact `{}` has logical sectors of {} bytes",
                    kind.name(),
                    sector.bytes()
                ),
                "expected 512, or a recipe of its own for this artifact",
            ));
        }
    }
}
