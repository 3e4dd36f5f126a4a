//! Unit files.
#![no_main]

use ignition::unit::{Install, parse};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(settings) = parse(text) {
        Install::default().read(&settings);
    }
});
