//! Kubernetes' own conformance tests, offline: their programs from the modules of the release, their images from Debian
//! packages, the tested nodes in namespaces of this host, and a runner that writes a page.

// Floor: what is tested, and installed packages
pub mod packages;
pub mod report;
pub mod selection;
pub mod suite;

// Floor: with what it is tested
pub mod registry;
pub mod userland;

// Floor: what images consist of
pub mod contents;

// Floor: images of the tests, the page
pub mod images;
pub mod page;

// Floor: the tested nodes
pub mod nodes;

// Floor: the run
pub mod run;

// Floor: all of it
pub mod prepared;
