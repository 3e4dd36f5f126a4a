//! Slipway as a library: the parts that the program `slipway` and the tests drive.
//!
//! The modules are in groups, lowest first; a module uses only modules of the groups above its line.

// Floor: the code of the steps
pub mod code;

// Floor: file formats
pub mod format;

// Floor: what the host offers
pub mod host;

// Floor: file trees, output formats
pub mod artifact;
pub mod layer;

// Floor: Slipway's files in the root
pub mod node_files;

// Floor: archives and registries
pub mod debian;
pub mod oci;

// Floor: files that machines share
pub mod store;

// Floor: steps that machines share
pub mod share;

// Floor: the recipe
pub mod recipe;

// Floor: releases of Kubernetes
pub mod release;

// Floor: installed packages
pub mod install;

// Floor: pinned inputs
pub mod lock;

// Floor: build steps
pub mod steps;

// Floor: the output folder
pub mod publish;

// Floor: uses of an image
pub mod inspect;
pub mod vm;

// Floor: two images beside each other
pub mod compare;

// Floor: clusters of nodes
pub mod cluster;

// Floor: builds in a cluster
pub mod farm;

// Floor: the line
pub mod doctor;
pub mod pipeline;

// Statics: a constant of 6 MB is in the metadata and in each part of the compilation that names it.

/// `slipway-init`, built by the build script and embedded in this program, like the two others.
pub static INIT_PROGRAM: &[u8] = include_bytes!(env!("SLIPWAY_INITRD_PROGRAM"));

/// `slipway-node`, which units of the node run after the handoff.
pub static NODE_PROGRAM: &[u8] = include_bytes!(env!("SLIPWAY_NODE_PROGRAM"));

/// `ignition`, for initrds of other systems.
pub static IGNITION_PROGRAM: &[u8] = include_bytes!(env!("SLIPWAY_DROPIN_PROGRAM"));

#[cfg(test)]
mod another_day;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A folder in a message of a panic would make another image of the same sources elsewhere.
    #[test]
    fn embedded_programs_name_no_folder_of_the_machine_that_compiled_them() {
        // With what stands below it: sources in `/src` are no find.
        let sources = [
            "apply", "cluster", "fetch", "image", "initrd", "linux", "net", "node",
        ]
        .map(|name| format!("{}/{name}/src/", env!("CARGO_MANIFEST_DIR")));
        let compiled = Path::new(env!("SLIPWAY_INITRD_PROGRAM")).parent().unwrap();
        let home = std::env::var("CARGO_HOME");
        let home = home.or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
        let home = format!("{}/registry", home.unwrap());
        let others = [compiled.to_str().unwrap().to_owned(), home];
        for folder in sources.into_iter().chain(others) {
            let finder = memchr::memmem::Finder::new(&folder);
            for program in [INIT_PROGRAM, NODE_PROGRAM, IGNITION_PROGRAM] {
                let found = finder.find(program).map(|at| {
                    let around = &program[at.saturating_sub(80)..program.len().min(at + 200)];
                    String::from_utf8_lossy(around)
                });
                assert_eq!(found, None, "{folder}");
            }
        }
    }
}
