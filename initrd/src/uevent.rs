//! Uevents: waiting for devices without udev.
