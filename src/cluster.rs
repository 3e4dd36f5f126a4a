//! A Kubernetes cluster as its administrator's workstation sees it: the cluster object's file, its secrets beside it, what
//! each node gets of both, and the same cluster in machines on this host.

// Floor: the object's file, the machines' folder
pub mod object;
pub mod state;

// Floor: its secrets
pub mod secrets;

// Floor: questions for a new one, what a node and an administrator get
pub mod administrator;
pub mod node;
pub mod wizard;

// Floor: a running cluster anywhere, machines on this host
pub mod machines;
pub mod token;
pub mod validate;

// Floor: starting them
pub mod launch;

// Floor: the running cluster
pub mod up;
