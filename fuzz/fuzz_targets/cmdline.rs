//! Kernel command lines: what was read is read again from the words that it is written as.
#![no_main]

use image::cmdline::Cmdline;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(cmdline) = Cmdline::parse(text) {
        let words = cmdline.to_words().join(" ");
        assert_eq!(Cmdline::parse(&words).as_ref(), Ok(&cmdline), "{words}");
    }
});
