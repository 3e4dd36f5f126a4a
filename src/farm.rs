//! Farm: Jobs of Kubernetes that build many recipes side by side, with a remote cache between them. Printed, not applied: what runs in
//! a cluster is for its owner to see first.

mod environment;
mod input;
mod job;
mod objects;

pub use environment::{check_cache, environment};
pub use input::{Input, InputFile};
pub use job::Settings;
pub use objects::{list, render};
