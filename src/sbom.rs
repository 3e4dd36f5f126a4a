//! SBOM: CycloneDX 1.6 of the locked packages.
