//! The file, and bare metal, which has none.

use image::platform::Platform;

use crate::testing::{Bench, CONFIG, text};

#[test]
fn a_file_and_bare_metal() {
    let bench = Bench::new();
    assert_eq!(bench.obtain(Platform::File).unwrap().config, None);
    bench.write("config.ign", CONFIG);
    assert_eq!(text(&bench.obtain(Platform::File).unwrap()), CONFIG);
    assert_eq!(bench.obtain(Platform::Metal).unwrap().config, None);
}
