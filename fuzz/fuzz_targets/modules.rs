//! The index of kernel modules: any index gives an order that ends, and aliases match without looking back for ever.
#![no_main]

use image::modules::ModuleIndex;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let Ok(index) = serde_json::from_slice::<ModuleIndex>(text) else {
        return;
    };
    for module in &index.modules {
        std::hint::black_box(index.order(module));
        index.serving(&module.name).count();
    }
});
