# Short names for the tasks. The README's two commands work without this file.

# Everything: tools, image, boot, a live view of the boot, a verdict.
demo:
    cargo run --release -- demo

# Every test, the ones in QEMU included.
test:
    cargo xtask test

# The promises that CI leaves out: several boots or long waits each.
promises-long:
    cargo test -p qemu-tests --release --test promises -- --ignored

# The tests of nodes in namespaces that CI leaves out, three side by side, as root. `just clusters-long NAME` runs one.
clusters-long *OPTIONS:
    cargo test -p namespace-tests --release -- --ignored {{OPTIONS}}

# A build's page in a headless browser of Debian's, which is 100 MB of packages.
page:
    cargo test --test page -- --ignored

# The larger sets of packages against real dpkg, and the recipes here: minutes each. `just dpkg-long ceph` runs one.
dpkg-long *SETS:
    cargo test --release --test dpkg -- --ignored {{SETS}}

# Installations of large packages that CI leaves out: PostgreSQL, Postfix, PHP.
generated-long:
    cargo test --release --test generated -- --ignored

# crictl and the CNI plugins from their Go modules: minutes of compiling.
own-programs:
    cargo test --release --test build -- --ignored compiled_from_their_modules

# A module that DKMS compiles in two builds of an image: a minute, and 140 MB of packages.
dkms-long:
    cargo test --release --test build -- --ignored kernels::dkms

# The SBOM as Trivy and Grype read it, which are compiled from their Go modules: minutes.
scanners:
    cargo test --release --test scanners -- --ignored

# Whole builds that share their results through a registry and buckets on loopback; versitygw, an S3 server, is compiled from its Go module: minutes.
share-long:
    cargo test --release --test share -- --ignored

# What CI runs.
ci:
    .ci/run

# Formats, lints, the rules of docs/architecture.md, and the commands that the documents name.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test --quiet -p house
    cargo test --quiet --bin slipway

# Boots nodes of the demo N times in a row, each on another machine with decoy disks; reports each failure with its seed.
soak N="100" *OPTIONS:
    cargo run --release -p bench --bin soak -- {{N}} {{OPTIONS}}

# The numbers of docs/benchmarks.md, ours and the peers' side by side: `just bench builds`, `boots`, `clusters`, `cluster-boots`, `sizes`, `ignition`, or all.
bench *WHAT:
    cargo run --release -p bench --bin bench -- {{WHAT}}

# Kubernetes' conformance tests: all specs, or those of a list, `just conformance --only conformance/fifty.txt`.
conformance *OPTIONS:
    cargo run --release -p conformance -- {{OPTIONS}}

# One static program with its manual pages and completions, as a tarball in target/dist: the same bytes for the same sources and compiler.
dist *OPTIONS:
    cargo run --release -p dist -- {{OPTIONS}}

# Two such tarballs from two folders are equal: half an hour.
dist-twice:
    cargo test --release -p dist -- --ignored

# The structure of the source, read from it: the table and the picture of docs/architecture.md, and what breaks its rules.
house:
    cargo run --quiet -p house -- --svg docs/house.svg --table docs/architecture.md

# Feeds TARGET (json_config, butane_config, yaml, unit, cmdline, modules) what libFuzzer thinks of, for SECONDS.
fuzz TARGET SECONDS="600":
    mkdir -p fuzz/found/{{TARGET}}
    cd fuzz && RUSTFLAGS="{{fuzz_flags}}" cargo build --release --bin {{TARGET}} --target {{arch()}}-unknown-linux-gnu
    fuzz/target/{{arch()}}-unknown-linux-gnu/release/{{TARGET}} -max_total_time={{SECONDS}} -timeout=10 -artifact_prefix=fuzz/found/ fuzz/found/{{TARGET}} fuzz/corpus/{{TARGET}}

# The same for the parsers that only a node has, by their tests.
fuzz-init SECONDS="600":
    SLIPWAY_FUZZ_SECONDS={{SECONDS}} cargo test --release -p linux -p net -- damage --nocapture

fuzz_flags := "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
