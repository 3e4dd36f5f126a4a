//! Doctor: what this host can do, each lack with its remedy.
