//! Timeouts, chosen for software emulation on two loaded cores: several times the duration measured there.

use std::time::Duration;

/// From power-on to the handoff, by UEFI.
pub const HANDOFF: Duration = Duration::from_secs(240);
/// From power-on to a line of the init, by direct boot.
pub const INIT: Duration = Duration::from_secs(120);
/// From the handoff to the agent, which starts with the multi-user target.
pub const AGENT: Duration = Duration::from_secs(240);
/// From the agent to a Ready node of a cluster: on a first boot the API server makes its own roles one after the other.
pub const READY: Duration = Duration::from_secs(420);
/// From the agent to a READY kubelet and a healthy etcd.
pub const HEALTHY: Duration = Duration::from_secs(360);
/// One script in the guest.
pub const QUESTION: Duration = Duration::from_secs(90);
/// Five kills of the kubelet, each with the restart.
pub const KILLS: Duration = Duration::from_secs(240);
/// A clean power-off or restart of a running node.
pub const SHUTDOWN: Duration = Duration::from_secs(180);
/// A panic with its ten seconds, and the firmware's start after it.
pub const PANIC: Duration = Duration::from_secs(240);
/// Three of the init's waiting lines, which come every five seconds.
pub const WAITING_LINES: Duration = Duration::from_secs(60);
/// From one press of the power button to the next.
pub const BUTTON: Duration = Duration::from_secs(10);
/// A failed node's ten seconds, the minute each that its disks and the kernel's reboot have at most, and the next start.
pub const HUNG_REBOOT: Duration = Duration::from_secs(240);
/// The end of a running node's services and processes, of which systemd waits for some for 90 s at a time, the three minutes that the
/// kernel's reboot has at most, and the next start.
pub const HUNG_SHUTDOWN: Duration = Duration::from_secs(900);
/// Longer than the ten seconds before a failed node reboots.
pub const STAYS_UP: Duration = Duration::from_secs(20);
/// From READY to the renamed boot entry.
pub const BLESSING: Duration = Duration::from_secs(60);
