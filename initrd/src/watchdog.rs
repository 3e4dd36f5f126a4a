//! Watchdog: armed early, fed while the init waits, handed to systemd.
