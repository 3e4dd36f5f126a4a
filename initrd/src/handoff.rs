//! Handoff: nothing of the initrd stays behind; systemd starts.
