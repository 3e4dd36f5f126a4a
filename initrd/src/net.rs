//! Network in the initrd: only when a source needs it.
