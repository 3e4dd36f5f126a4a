//! Artifacts: the same disk in the forms that clouds, hypervisors and PXE want.
