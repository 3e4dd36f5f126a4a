//! Ignition configs: a valid one stays the same when it is written and read again, alone and over itself.
#![no_main]

use ignition::Config;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let Ok((config, _)) = Config::parse(text, "fuzz") else {
        return;
    };
    let json = config.to_json();
    let (again, _) = Config::parse(json.to_string().as_bytes(), "again").expect("valid once more");
    assert_eq!(again.to_json(), json);
    config.model().expect("it has its types");
    std::hint::black_box(config.over(&Config::empty()));
});
