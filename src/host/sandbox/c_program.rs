//! Static programs that tests compile: only such a one runs in an empty root.

use std::path::Path;

/// Compiles a program in C to this path.
pub(crate) fn compile(source: &str, to: &Path) {
    let text = to.with_extension("c");
    std::fs::write(&text, source).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    #[allow(
        clippy::disallowed_methods,
        reason = "the C compiler, which every build here needs"
    )]
    let status = std::process::Command::new(compiler)
        .args(["-static", "-O1", "-o"])
        .args([to, &text])
        .status()
        .unwrap();
    assert!(status.success());
}
