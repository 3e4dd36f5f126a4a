//! Host: access to the building host: namespaces, the cache, the terminal, signals and the user's files.

// Floor: what needs nothing of ours
pub mod answers;
pub mod atomic_file;
pub mod cache;
pub mod full_disk;
pub mod interrupt;
pub mod local_files;
pub mod meminfo;
pub mod progress;
pub mod sandbox;
pub mod tree;

// Floor: what of it a build needs
pub mod preflight;

// Floor: logins of servers
pub mod logins;

// Floor: one run of the program
pub mod session;
