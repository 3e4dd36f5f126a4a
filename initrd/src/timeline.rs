//! Timeline: each step as a span, kept in `state` and shown after the boot.
