//! The demo: build, boot, a live view, a verdict.
