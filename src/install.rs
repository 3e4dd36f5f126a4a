//! Install: turns Debian packages into a tree: the root of a node or of a container, or the tools of a build.

// Floor: a package, and what is kept of it
pub(crate) mod deb;
mod options;
pub(crate) mod report;

// Floor: a package's control files, and what follows from those of all
mod package;

// Floor: dpkg's record of them, and its rules
mod claims;
mod database;
mod dkms;
mod order;
mod overrides;

// Floor: packages in a tree
mod target;
mod unpack;

// Floor: what stays is looked through for what it runs
mod reach;

// Floor: the machine that scripts run on
mod surroundings;

// Floor: certificate authorities
mod certificates;

// Floor: what is done to the tree
mod dropped;
mod first_boot;
mod generated;
mod shortcuts;

// Floor: and in which order
mod clean;
mod configure;
mod layout;
mod pack;

// Floor: an installation
mod waves;

// Floor: a root file system
mod rootfs;

// Floor: its accounts
pub mod accounts;

// Floor: two of them beside each other
mod again;

// Floor: tools
pub mod tools;

pub use again::{Generated, generated};
pub(crate) use certificates::CA_LIST;
pub use deb::paths as deb_paths;
pub use dkms::users as dkms_users;
pub use options::{Options, Purpose};
pub use report::{Dropped, FirstBoot, Made, Missed, Report};
pub use rootfs::{Rootfs, install, unpack_only};
pub use waves::install_only;
