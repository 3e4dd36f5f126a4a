//! The boot line: one function of named steps, from the kernel to the handoff.
