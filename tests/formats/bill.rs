//! The SBOM against CycloneDX's own library.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use slipway::lock;
use slipway::publish::sbom::{Component, Distribution, own};

use super::{Bench, OS_RELEASE};

/// Validates a document by CycloneDX's strict schema, then reads it; prints the number of its components.
const VALIDATE: &str = "import json, sys\n\
from cyclonedx.model.bom import Bom\n\
from cyclonedx.schema import SchemaVersion\n\
from cyclonedx.validation.json import JsonStrictValidator\n\
text = open(sys.argv[1]).read()\n\
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)\n\
if error: sys.exit(str(error.data)[:2000])\n\
bom = Bom.from_json(json.loads(text))\n\
bom.validate()\n\
print(len(bom.components), sum(len(d.dependencies) for d in bom.dependencies))\n";

/// Every package of the demo's lock, a program, an image of others, our programs with their crates, and the distribution.
pub(super) fn components(folder: &Path) -> Result<Vec<Component>> {
    let lock = lock::read(&folder.join("recipes/demo.lock"))?;
    let distribution = Distribution::of(OS_RELEASE, "trixie");
    let sets = lock.sets.iter();
    let packages = sets.flat_map(|(set, packages)| {
        let packages = packages.iter();
        packages.map(|package| Component::package(package, set, &distribution))
    });
    let digest = "ab".repeat(32);
    let program = Component::program("kubelet", "v1.36.3", "pkg:generic/kubelet@v1.36.3", &digest);
    let image = Component::image("r.example:5000/group/app:v1", &format!("sha256:{digest}"));
    let all = packages.chain([program, image, distribution.component()]);
    Ok(all.chain(own()).collect())
}

impl Bench {
    /// The library refuses a document that breaks the schema, and one that names a component which it does not have.
    pub(super) fn bill(&self) -> Result<()> {
        let listed = slipway::publish::sbom::components(&self.sbom)?;
        ensure!(listed.len() > 300, "{} components", listed.len());
        let said = self.validate(&self.sbom)?;
        let expected = format!("{} ", listed.len());
        ensure!(said.starts_with(&expected), "{said}, expected {expected}");
        for (from, to) in [
            ("\"SHA-256\"", "\"SHA-257\""),
            ("\"operating-system\"", "\"system\""),
            ("\"dependsOn\"", "\"needs\""),
        ] {
            ensure!(self.sbom.contains(from), "{from}");
            let broken = self.sbom.replacen(from, to, 1);
            let error = self.validate(&broken).err();
            error.with_context(|| format!("{to} was accepted"))?;
        }
        Ok(())
    }

    fn validate(&self, sbom: &str) -> Result<String> {
        fs::write(self.place.path().join("sbom.json"), sbom)?;
        fs::write(self.place.path().join("validate.py"), VALIDATE)?;
        self.shell("python3 validate.py sbom.json")
    }
}
