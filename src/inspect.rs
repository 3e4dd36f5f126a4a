//! Inspect: what a built image holds, read from its bytes.
