//! The fields of the language as one table: names, types, the version that introduced each, and the keys by which list
//! entries are matched.

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A string; when absent it is the empty one (Go: a plain string).
    Text,
    /// A string that may be absent (Go: a pointer).
    MaybeText,
    /// An integer; when absent it is zero.
    Number,
    /// An integer that may be absent.
    MaybeNumber,
    /// A boolean that may be absent.
    MaybeFlag,
    /// An object.
    Struct(&'static Struct),
    /// A list of objects or strings, and how those of two configs merge.
    List(Item, Join),
}

/// The type of a list's entries.
#[derive(Clone, Copy, Debug)]
pub enum Item {
    /// Strings.
    Text,
    /// Objects.
    Struct(&'static Struct),
}

/// How two lists merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Entries with the same key merge, at the parent's position; duplicates in one list are an error.
    ByKey,
    /// The child's entries follow the parent's; duplicates are allowed.
    Append,
}

/// The key of an entry of a list of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// No key: no list has such objects, or its entries are never matched.
    None,
    /// The string in this field.
    Field(&'static str),
    /// A partition's number, or its label where it has no number.
    NumberOrLabel,
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its spelling.
    pub name: &'static str,
    /// Its shape.
    pub shape: Shape,
    /// The minor version of specification 3 that introduced it.
    pub since: u8,
}

/// One object.
#[derive(Clone, Copy, Debug)]
pub struct Struct {
    /// Its fields.
    pub fields: &'static [Field],
    /// The key of an entry of a list of these.
    pub key: Key,
    /// Lists that share one key space, as files, directories and links do.
    pub shared: &'static [&'static str],
    /// Butane's additional fields. They are absent once a config is translated.
    pub sugar: &'static [Field],
}

impl Struct {
    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// The spelling of an Ignition key or path in Butane: `sizeMiB` is `size_mib`.
#[must_use]
pub fn snake(camel: &str) -> String {
    let mut out = String::new();
    let mut rest = camel;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("MiB") {
            out.push_str("_mib");
            rest = after;
            continue;
        }
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// A field.
pub(crate) const fn f(name: &'static str, shape: Shape, since: u8) -> Field {
    Field { name, shape, since }
}

/// An object that is no entry of a keyed list.
pub(crate) const fn plain(fields: &'static [Field]) -> Struct {
    Struct {
        fields,
        key: Key::None,
        shared: &[],
        sugar: &[],
    }
}

const fn keyed(fields: &'static [Field], name: &'static str) -> Struct {
    Struct {
        fields,
        key: Key::Field(name),
        shared: &[],
        sugar: &[],
    }
}

/// A list of objects.
pub(crate) const fn list(item: &'static Struct) -> Shape {
    Shape::List(Item::Struct(item), Join::ByKey)
}

/// A list of strings.
pub(crate) const TEXTS: Shape = Shape::List(Item::Text, Join::ByKey);
const TEXTS_APPENDED: Shape = Shape::List(Item::Text, Join::Append);

/// The whole config.
pub static CONFIG: Struct = Struct {
    sugar: &[f("variant", Shape::Text, 0), f("version", Shape::Text, 0)],
    ..plain(&[
        f("ignition", Shape::Struct(&IGNITION), 0),
        f("kernelArguments", Shape::Struct(&KERNEL_ARGUMENTS), 3),
        f("passwd", Shape::Struct(&PASSWD), 0),
        f("storage", Shape::Struct(&STORAGE), 0),
        f("systemd", Shape::Struct(&SYSTEMD), 0),
    ])
};

static IGNITION: Struct = plain(&[
    f("config", Shape::Struct(&IGNITION_CONFIG), 0),
    f("proxy", Shape::Struct(&PROXY), 1),
    f("security", Shape::Struct(&SECURITY), 0),
    f("timeouts", Shape::Struct(&TIMEOUTS), 0),
    f("version", Shape::Text, 0),
]);
static IGNITION_CONFIG: Struct = plain(&[
    f("merge", list(&REFERENCE), 0),
    f("replace", Shape::Struct(&REFERENCE), 0),
]);
static PROXY: Struct = plain(&[
    f("httpProxy", Shape::MaybeText, 1),
    f("httpsProxy", Shape::MaybeText, 1),
    f("noProxy", TEXTS, 1),
]);
static SECURITY: Struct = plain(&[f("tls", Shape::Struct(&TLS), 0)]);
static TLS: Struct = plain(&[f("certificateAuthorities", list(&REFERENCE), 0)]);
static TIMEOUTS: Struct = plain(&[
    f("httpResponseHeaders", Shape::MaybeNumber, 0),
    f("httpTotal", Shape::MaybeNumber, 0),
]);

/// What a file is made of.
pub static RESOURCE: Struct = resource(&[
    f("compression", Shape::MaybeText, 0),
    f("httpHeaders", list(&HEADER), 1),
    f("source", Shape::MaybeText, 0),
    f("verification", Shape::Struct(&VERIFICATION), 0),
]);
/// Another config, or certificate authorities: nothing unpacks them in 3.0.
pub static REFERENCE: Struct = resource(&[
    f("compression", Shape::MaybeText, 1),
    f("httpHeaders", list(&HEADER), 1),
    f("source", Shape::MaybeText, 0),
    f("verification", Shape::Struct(&VERIFICATION), 0),
]);

/// A resource to fetch.
const fn resource(fields: &'static [Field]) -> Struct {
    Struct {
        sugar: RESOURCE_SUGAR,
        ..keyed(fields, "source")
    }
}
const RESOURCE_SUGAR: &[Field] = &[
    f("inline", Shape::MaybeText, 0),
    f("local", Shape::MaybeText, 1),
];
static HEADER: Struct = keyed(
    &[f("name", Shape::Text, 1), f("value", Shape::MaybeText, 1)],
    "name",
);
static VERIFICATION: Struct = plain(&[f("hash", Shape::MaybeText, 0)]);

static KERNEL_ARGUMENTS: Struct = Struct {
    shared: &["shouldExist", "shouldNotExist"],
    ..plain(&[f("shouldExist", TEXTS, 3), f("shouldNotExist", TEXTS, 3)])
};

static PASSWD: Struct = plain(&[f("groups", list(&GROUP), 0), f("users", list(&USER), 0)]);
/// A group.
pub(crate) static GROUP: Struct = keyed(
    &[
        f("gid", Shape::MaybeNumber, 0),
        f("name", Shape::Text, 0),
        f("passwordHash", Shape::MaybeText, 0),
        f("shouldExist", Shape::MaybeFlag, 2),
        f("system", Shape::MaybeFlag, 0),
    ],
    "name",
);
/// A user.
pub(crate) static USER: Struct = Struct {
    sugar: &[f("ssh_authorized_keys_local", TEXTS, 4)],
    ..keyed(
        &[
            f("gecos", Shape::MaybeText, 0),
            f("groups", TEXTS, 0),
            f("homeDir", Shape::MaybeText, 0),
            f("name", Shape::Text, 0),
            f("noCreateHome", Shape::MaybeFlag, 0),
            f("noLogInit", Shape::MaybeFlag, 0),
            f("noUserGroup", Shape::MaybeFlag, 0),
            f("passwordHash", Shape::MaybeText, 0),
            f("primaryGroup", Shape::MaybeText, 0),
            f("shell", Shape::MaybeText, 0),
            f("shouldExist", Shape::MaybeFlag, 2),
            f("sshAuthorizedKeys", TEXTS, 0),
            f("system", Shape::MaybeFlag, 0),
            f("uid", Shape::MaybeNumber, 0),
        ],
        "name",
    )
};

static STORAGE: Struct = Struct {
    shared: &["directories", "files", "links"],
    sugar: &[f("trees", list(&TREE), 1)],
    ..plain(&[
        f("directories", list(&DIRECTORY), 0),
        f("disks", list(&DISK), 0),
        f("files", list(&FILE), 0),
        f("filesystems", list(&FILESYSTEM), 0),
        f("links", list(&LINK), 0),
        f("luks", list(&LUKS), 2),
        f("raid", list(&RAID), 0),
    ])
};
static OWNER: Struct = plain(&[
    f("id", Shape::MaybeNumber, 0),
    f("name", Shape::MaybeText, 0),
]);
static DIRECTORY: Struct = keyed(
    &[
        f("group", Shape::Struct(&OWNER), 0),
        f("mode", Shape::MaybeNumber, 0),
        f("overwrite", Shape::MaybeFlag, 0),
        f("path", Shape::Text, 0),
        f("user", Shape::Struct(&OWNER), 0),
    ],
    "path",
);
static FILE: Struct = keyed(
    &[
        f(
            "append",
            Shape::List(Item::Struct(&RESOURCE), Join::Append),
            0,
        ),
        f("contents", Shape::Struct(&RESOURCE), 0),
        f("group", Shape::Struct(&OWNER), 0),
        f("mode", Shape::MaybeNumber, 0),
        f("overwrite", Shape::MaybeFlag, 0),
        f("path", Shape::Text, 0),
        f("user", Shape::Struct(&OWNER), 0),
    ],
    "path",
);
static LINK: Struct = keyed(
    &[
        f("group", Shape::Struct(&OWNER), 0),
        f("hard", Shape::MaybeFlag, 0),
        f("overwrite", Shape::MaybeFlag, 0),
        f("path", Shape::Text, 0),
        f("target", Shape::MaybeText, 0),
        f("user", Shape::Struct(&OWNER), 0),
    ],
    "path",
);
static DISK: Struct = keyed(
    &[
        f("device", Shape::Text, 0),
        f("partitions", list(&PARTITION), 0),
        f("wipeTable", Shape::MaybeFlag, 0),
    ],
    "device",
);
static PARTITION: Struct = Struct {
    key: Key::NumberOrLabel,
    ..plain(&[
        f("guid", Shape::MaybeText, 0),
        f("label", Shape::MaybeText, 0),
        f("number", Shape::Number, 0),
        f("resize", Shape::MaybeFlag, 2),
        f("shouldExist", Shape::MaybeFlag, 0),
        f("sizeMiB", Shape::MaybeNumber, 0),
        f("startMiB", Shape::MaybeNumber, 0),
        f("typeGuid", Shape::MaybeText, 0),
        f("wipePartitionEntry", Shape::MaybeFlag, 0),
    ])
};
static FILESYSTEM: Struct = Struct {
    sugar: &[f("with_mount_unit", Shape::MaybeFlag, 1)],
    ..keyed(
        &[
            f("device", Shape::Text, 0),
            f("format", Shape::MaybeText, 0),
            f("label", Shape::MaybeText, 0),
            f("mountOptions", TEXTS_APPENDED, 1),
            f("options", TEXTS_APPENDED, 0),
            f("path", Shape::MaybeText, 0),
            f("uuid", Shape::MaybeText, 0),
            f("wipeFilesystem", Shape::MaybeFlag, 0),
        ],
        "device",
    )
};
static RAID: Struct = keyed(
    &[
        f("devices", TEXTS, 0),
        f("level", Shape::MaybeText, 0),
        f("name", Shape::Text, 0),
        f("options", TEXTS_APPENDED, 0),
        f("spares", Shape::MaybeNumber, 0),
    ],
    "name",
);
static LUKS: Struct = keyed(
    &[
        f("cex", Shape::Struct(&CEX), 5),
        f("clevis", Shape::Struct(&CLEVIS), 2),
        f("device", Shape::MaybeText, 2),
        f("discard", Shape::MaybeFlag, 4),
        f("keyFile", Shape::Struct(&RESOURCE), 2),
        f("label", Shape::MaybeText, 2),
        f("name", Shape::Text, 2),
        f("openOptions", TEXTS, 4),
        f("options", TEXTS_APPENDED, 2),
        f("uuid", Shape::MaybeText, 2),
        f("wipeVolume", Shape::MaybeFlag, 2),
    ],
    "name",
);
static CEX: Struct = plain(&[f("enabled", Shape::MaybeFlag, 5)]);
static CLEVIS: Struct = plain(&[
    f("custom", Shape::Struct(&CUSTOM), 2),
    f("tang", list(&TANG), 2),
    f("threshold", Shape::MaybeNumber, 2),
    f("tpm2", Shape::MaybeFlag, 2),
]);
static CUSTOM: Struct = plain(&[
    f("config", Shape::MaybeText, 2),
    f("needsNetwork", Shape::MaybeFlag, 2),
    f("pin", Shape::MaybeText, 2),
]);
static TANG: Struct = keyed(
    &[
        f("advertisement", Shape::MaybeText, 4),
        f("thumbprint", Shape::MaybeText, 2),
        f("url", Shape::Text, 2),
    ],
    "url",
);

/// Units.
pub static SYSTEMD: Struct = Struct {
    sugar: &[f("quadlets", list(&QUADLET), 7)],
    ..plain(&[f("units", list(&UNIT), 0)])
};
/// A unit.
pub(crate) static UNIT: Struct = Struct {
    sugar: CONTENTS_LOCAL,
    ..keyed(
        &[
            f("contents", Shape::MaybeText, 0),
            f("dropins", list(&DROPIN), 0),
            f("enabled", Shape::MaybeFlag, 0),
            f("mask", Shape::MaybeFlag, 0),
            f("name", Shape::Text, 0),
        ],
        "name",
    )
};
/// A drop-in of a unit.
pub(crate) static DROPIN: Struct = Struct {
    sugar: CONTENTS_LOCAL,
    ..keyed(
        &[
            f("contents", Shape::MaybeText, 0),
            f("name", Shape::Text, 0),
        ],
        "name",
    )
};
const CONTENTS_LOCAL: &[Field] = &[f("contents_local", Shape::MaybeText, 4)];

/// Butane's folders of local files.
static TREE: Struct = plain(&[
    f("dir_mode", Shape::MaybeNumber, 6),
    f("file_mode", Shape::MaybeNumber, 6),
    f("group", Shape::Struct(&OWNER), 6),
    f("local", Shape::Text, 1),
    f("path", Shape::MaybeText, 1),
    f("user", Shape::Struct(&OWNER), 6),
]);
/// Butane's Podman Quadlets.
static QUADLET: Struct = plain(&[
    f("contents", Shape::MaybeText, 7),
    f("contents_local", Shape::MaybeText, 7),
    f("dropins", list(&DROPIN), 7),
    f("name", Shape::Text, 7),
    f("rootful", Shape::MaybeFlag, 7),
]);
