//! The command line: its arguments, and a function for each command.

// Floor: arguments and how results are printed
pub(crate) mod arguments;

// Floor: signals, traces
pub(crate) mod signals;
pub(crate) mod traces;

// Floor: pages made of the arguments
pub(crate) mod manual;

// Floor: commands
pub(crate) mod commands;

// Floor: commands about clusters
pub(crate) mod cluster;

// Floor: commands about releases of Kubernetes
pub(crate) mod release;

// Floor: commands about farms
pub(crate) mod farm;
