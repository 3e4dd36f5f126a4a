# Short names for the tasks. The README's two commands work without this file.

# Everything: tools, image, boot, a live view of the boot, a verdict.
demo:
    cargo run --release -- demo

# Every test, the ones in QEMU included.
test:
    cargo test --workspace --release

# What CI runs.
ci:
    .ci/run

# Formats and lints.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings

# Boots the demo N times in a row and reports each failure with its console.
soak N="50":
    cargo run --release -p qemu-tests --bin soak -- {{N}}

# The numbers of docs/benchmarks.md, ours and the peers' side by side: `just bench builds`, `boots`, `sizes`, or all.
bench *WHAT:
    cargo run --release -p qemu-tests --bin bench -- {{WHAT}}
