//! iSCSI: the daemon runs on the host, the kubelet's container calls its program there.

/// The package whose presence on the host gives the container its [`PROGRAM`].
pub const PACKAGE: &str = "open-iscsi";
/// The client of the daemon. In the container it is a wrapper that enters the host's namespaces: two daemons, or a client and a
/// daemon that see other networks, lose sessions.
pub const PROGRAM: &str = "/usr/sbin/iscsiadm";
/// The name of this node towards targets. No image has it: two nodes with one name would take each other's volumes.
pub const INITIATOR: &str = "/etc/iscsi/initiatorname.iscsi";
/// The unit that makes the name where there is none.
pub const NAME_UNIT: &str = "slipway-iscsi-name.service";
