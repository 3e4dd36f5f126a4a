//! Kubernetes' own conformance tests, offline: their programs from the modules of the release, their images from Debian
//! packages, the tested nodes in namespaces of this host, and a runner that writes a page.

// Floor: what is tested, and with what
pub mod report;
pub mod selection;
pub mod suite;
pub mod userland;

// Floor: images of the tests, the tested nodes, the page
pub mod images;
pub mod nodes;
pub mod page;

// Floor: the run
pub mod run;

// Floor: all of it
pub mod prepared;
