//! Bare metal.

use crate::testing::Bench;

#[test]
fn bare_metal_has_no_config_of_its_own() {
    let bench = Bench::new();
    bench.write("config.ign", crate::testing::CONFIG);
    let found = bench.obtain("metal").unwrap();
    assert_eq!(found.config, None);
    assert_eq!(found.metadata, crate::metadata::Metadata::default());
}
