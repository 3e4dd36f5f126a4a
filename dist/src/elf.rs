//! Whether a program is static: it runs on any Linux, whatever its C library is.

use anyhow::{Context as _, Result, ensure};
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader as _};

/// Refuses a program that asks for an interpreter or for shared libraries.
pub(crate) fn is_static(program: &[u8]) -> Result<()> {
    let file: ElfFile64<'_> = ElfFile64::parse(program).context("it is not an ELF program")?;
    for segment in file.elf_program_headers() {
        let kind = segment.p_type(file.endian());
        ensure!(kind != elf::PT_INTERP, "it asks for an interpreter");
        if kind != elf::PT_DYNAMIC {
            continue;
        }
        // A static program that is position-independent has a dynamic segment, without libraries.
        let entries = segment.dynamic(file.endian(), program)?;
        let needs = entries.into_iter().flatten().any(|entry| {
            use object::read::elf::Dyn as _;
            entry.d_tag(file.endian()) == elf::DT_NEEDED
        });
        ensure!(!needs, "it asks for shared libraries");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_host_is_not_static() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = is_static(&own).unwrap_err().to_string();
        assert!(error.contains("interpreter"), "{error}");
        assert!(is_static(b"#!/bin/sh\n").is_err());
    }
}
