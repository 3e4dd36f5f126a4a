//! Log: kmsg with levels, and the active consoles.
