//! Device mapper by ioctl.
