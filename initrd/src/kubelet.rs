//! The kubelet container: bundle, lint, unit and gate.
