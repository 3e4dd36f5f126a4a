//! CI's specs of Kubernetes' conformance tests, on nodes of the image in namespaces of this host.

mod fifty;

use std::process::ExitCode;

use namespace_tests::runner::{self, Test};

/// That of the other tests of nodes, which CI has built: the fifty need no registry.
const RECIPE: &str = "namespace-tests/node.toml";

macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {
        &[$(Test { name: concat!(stringify!($module), "::", stringify!($name)), prove: $module::$name }),*]
    };
}

// A line each, which the test of docs/promises.md reads.
#[rustfmt::skip]
const TESTS: &[Test] = tests![
    fifty::conformance_specs_of_all_kinds_pass,
];

fn main() -> ExitCode {
    runner::main(|_| RECIPE, TESTS, &[])
}
