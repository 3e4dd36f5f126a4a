//! What of a cluster of ours is not as kubeadm has it, each with its reason.

/// A difference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    /// Where the fields' paths begin.
    pub(super) path: &'static str,
    /// Why they differ.
    pub(super) _reason: &'static str,
}

impl Declared {
    /// Whether a field is one of these.
    pub(super) fn fits(&self, field: &str) -> bool {
        let rest = field.strip_prefix(self.path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    }
}

const fn row(path: &'static str, reason: &'static str) -> Declared {
    Declared {
        path,
        _reason: reason,
    }
}

pub(super) const DECLARED: &[Declared] = &[row("ClusterRole slipway", "of Slipway")];
