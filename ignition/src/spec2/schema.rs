//! The fields of specification 2, with the minor version that introduced each.

use crate::schema::{Field, Shape, Struct, TEXTS, f, list, plain};

/// The whole config.
pub(super) static CONFIG: Struct = plain(&[
    f("ignition", Shape::Struct(&IGNITION), 0),
    f("networkd", Shape::Struct(&NETWORKD), 0),
    f("passwd", Shape::Struct(&PASSWD), 0),
    f("storage", Shape::Struct(&STORAGE), 0),
    f("systemd", Shape::Struct(&SYSTEMD), 0),
]);

static IGNITION: Struct = plain(&[
    f("config", Shape::Struct(&IGNITION_CONFIG), 0),
    f("proxy", Shape::Struct(&PROXY), 4),
    f("security", Shape::Struct(&SECURITY), 2),
    f("timeouts", Shape::Struct(&TIMEOUTS), 1),
    f("version", Shape::Text, 0),
]);
static IGNITION_CONFIG: Struct = plain(&[
    f("append", list(&REFERENCE), 0),
    f("replace", Shape::Struct(&REFERENCE), 0),
]);
static PROXY: Struct = plain(&[
    f("httpProxy", Shape::MaybeText, 4),
    f("httpsProxy", Shape::MaybeText, 4),
    f("noProxy", TEXTS, 4),
]);
static SECURITY: Struct = plain(&[f("tls", Shape::Struct(&TLS), 2)]);
static TLS: Struct = plain(&[f("certificateAuthorities", list(&REFERENCE), 2)]);
static TIMEOUTS: Struct = plain(&[
    f("httpResponseHeaders", Shape::MaybeNumber, 1),
    f("httpTotal", Shape::MaybeNumber, 1),
]);

/// A config or a certificate authority to fetch.
static REFERENCE: Struct = plain(&[
    f("httpHeaders", list(&HEADER), 4),
    f("source", Shape::MaybeText, 0),
    f("verification", Shape::Struct(&VERIFICATION), 0),
]);
static HEADER: Struct = plain(&[f("name", Shape::Text, 4), f("value", Shape::MaybeText, 4)]);
static VERIFICATION: Struct = plain(&[f("hash", Shape::MaybeText, 0)]);
static CONTENTS: Struct = plain(&[
    f("compression", Shape::MaybeText, 0),
    f("httpHeaders", list(&HEADER), 4),
    f("source", Shape::MaybeText, 0),
    f("verification", Shape::Struct(&VERIFICATION), 0),
]);

static PASSWD: Struct = plain(&[f("groups", list(&GROUP), 0), f("users", list(&USER), 0)]);
static GROUP: Struct = plain(&[
    f("gid", Shape::MaybeNumber, 0),
    f("name", Shape::Text, 0),
    f("passwordHash", Shape::MaybeText, 0),
    f("system", Shape::MaybeFlag, 0),
]);
static USER: Struct = plain(&[
    f("create", Shape::Struct(&USER_CREATE), 0),
    f("gecos", Shape::MaybeText, 1),
    f("groups", TEXTS, 1),
    f("homeDir", Shape::MaybeText, 1),
    f("name", Shape::Text, 0),
    f("noCreateHome", Shape::MaybeFlag, 1),
    f("noLogInit", Shape::MaybeFlag, 1),
    f("noUserGroup", Shape::MaybeFlag, 1),
    f("passwordHash", Shape::MaybeText, 0),
    f("primaryGroup", Shape::MaybeText, 1),
    f("shell", Shape::MaybeText, 1),
    f("sshAuthorizedKeys", TEXTS, 0),
    f("system", Shape::MaybeFlag, 1),
    f("uid", Shape::MaybeNumber, 1),
]);
static USER_CREATE: Struct = plain(ACCOUNT);
/// The fields of an account, which are in `create` in 2.0 and beside it since 2.1.
pub(super) const ACCOUNT: &[Field] = &[
    f("gecos", Shape::MaybeText, 0),
    f("groups", TEXTS, 0),
    f("homeDir", Shape::MaybeText, 0),
    f("noCreateHome", Shape::MaybeFlag, 0),
    f("noLogInit", Shape::MaybeFlag, 0),
    f("noUserGroup", Shape::MaybeFlag, 0),
    f("primaryGroup", Shape::MaybeText, 0),
    f("shell", Shape::MaybeText, 0),
    f("system", Shape::MaybeFlag, 0),
    f("uid", Shape::MaybeNumber, 0),
];

static STORAGE: Struct = plain(&[
    f("directories", list(&DIRECTORY), 1),
    f("disks", list(&DISK), 0),
    f("files", list(&FILE), 0),
    f("filesystems", list(&FILESYSTEM), 0),
    f("links", list(&LINK), 1),
    f("raid", list(&RAID), 0),
]);
static OWNER: Struct = plain(&[
    f("id", Shape::MaybeNumber, 0),
    f("name", Shape::MaybeText, 1),
]);
static DIRECTORY: Struct = plain(&[
    f("filesystem", Shape::Text, 1),
    f("group", Shape::Struct(&OWNER), 1),
    f("mode", Shape::MaybeNumber, 1),
    f("overwrite", Shape::MaybeFlag, 2),
    f("path", Shape::Text, 1),
    f("user", Shape::Struct(&OWNER), 1),
]);
static FILE: Struct = plain(&[
    f("append", Shape::MaybeFlag, 2),
    f("contents", Shape::Struct(&CONTENTS), 0),
    f("filesystem", Shape::Text, 0),
    f("group", Shape::Struct(&OWNER), 0),
    f("mode", Shape::MaybeNumber, 0),
    f("overwrite", Shape::MaybeFlag, 2),
    f("path", Shape::Text, 0),
    f("user", Shape::Struct(&OWNER), 0),
]);
static LINK: Struct = plain(&[
    f("filesystem", Shape::Text, 1),
    f("group", Shape::Struct(&OWNER), 1),
    f("hard", Shape::MaybeFlag, 1),
    f("overwrite", Shape::MaybeFlag, 2),
    f("path", Shape::Text, 1),
    f("target", Shape::MaybeText, 1),
    f("user", Shape::Struct(&OWNER), 1),
]);
static DISK: Struct = plain(&[
    f("device", Shape::Text, 0),
    f("partitions", list(&PARTITION), 0),
    f("wipeTable", Shape::MaybeFlag, 0),
]);
static PARTITION: Struct = plain(&[
    f("guid", Shape::MaybeText, 1),
    f("label", Shape::MaybeText, 0),
    f("number", Shape::Number, 0),
    f("shouldExist", Shape::MaybeFlag, 3),
    f("size", Shape::MaybeNumber, 0),
    f("sizeMiB", Shape::MaybeNumber, 3),
    f("start", Shape::MaybeNumber, 0),
    f("startMiB", Shape::MaybeNumber, 3),
    f("typeGuid", Shape::MaybeText, 0),
    f("wipePartitionEntry", Shape::MaybeFlag, 3),
]);
static FILESYSTEM: Struct = plain(&[
    f("mount", Shape::Struct(&MOUNT), 0),
    f("name", Shape::Text, 0),
    f("path", Shape::MaybeText, 0),
]);
static MOUNT: Struct = plain(&[
    f("create", Shape::Struct(&CREATE), 0),
    f("device", Shape::Text, 0),
    f("format", Shape::MaybeText, 0),
    f("label", Shape::MaybeText, 1),
    f("options", TEXTS, 1),
    f("uuid", Shape::MaybeText, 1),
    f("wipeFilesystem", Shape::MaybeFlag, 1),
]);
static CREATE: Struct = plain(&[f("force", Shape::MaybeFlag, 0), f("options", TEXTS, 0)]);
static RAID: Struct = plain(&[
    f("devices", TEXTS, 0),
    f("level", Shape::MaybeText, 0),
    f("name", Shape::Text, 0),
    f("options", TEXTS, 2),
    f("spares", Shape::MaybeNumber, 0),
]);

static SYSTEMD: Struct = plain(&[f("units", list(&UNIT), 0)]);
static UNIT: Struct = plain(&[
    f("contents", Shape::MaybeText, 0),
    f("dropins", list(&DROPIN), 0),
    f("enable", Shape::MaybeFlag, 0),
    f("enabled", Shape::MaybeFlag, 1),
    f("mask", Shape::MaybeFlag, 0),
    f("name", Shape::Text, 0),
]);
static DROPIN: Struct = plain(&[
    f("contents", Shape::MaybeText, 0),
    f("name", Shape::Text, 0),
]);
static NETWORKD: Struct = plain(&[f("units", list(&NETWORKD_UNIT), 0)]);
static NETWORKD_UNIT: Struct = plain(&[
    f("contents", Shape::MaybeText, 0),
    f("dropins", list(&DROPIN), 2),
    f("name", Shape::Text, 0),
]);
