//! The file; and bare metal, which ignores it.

use crate::testing::{Bench, CONFIG, text};

#[test]
fn a_file_and_bare_metal() {
    let bench = Bench::new();
    assert_eq!(bench.obtain("file").unwrap().config, None);
    bench.write("config.ign", CONFIG);
    assert_eq!(text(&bench.obtain("file").unwrap()), CONFIG);
    assert_eq!(bench.obtain("metal").unwrap().config, None);
}
