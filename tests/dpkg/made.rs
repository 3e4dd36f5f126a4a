//! Packages that this test makes: what Debian's own rarely do to each other, in both orders.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::Result;
use slipway::debian::pinned::{Deb, LockedPackage};
use slipway::install::tools::Tools;

/// Path of the packages inside.
const MADE: &str = "/slipway-made";

/// A package: its name, further fields, files (a target for a link, after `-> `), and control files.
struct Made {
    name: &'static str,
    fields: &'static str,
    files: &'static [(&'static str, &'static str)],
    control: &'static [(&'static str, &'static str)],
}

/// Packages that replace files of an earlier and of a later one, divert, override owners, and wait for triggers.
const PEACEFUL: &[Made] = &[
    Made {
        name: "made-a",
        fields: "Replaces: made-b (<= 1)\n",
        files: &[
            ("usr/share/made/ab", "a\n"),
            ("etc/made/ab", "a\n"),
            ("etc/made/once", "a\n"),
        ],
        control: &[("conffiles", "/etc/made/ab\n")],
    },
    Made {
        name: "made-b",
        fields: "",
        files: &[
            ("usr/share/made/ab", "b\n"),
            ("usr/share/made/b", "b\n"),
            ("etc/made/ab", "b\n"),
            ("etc/made/b", "b\n"),
        ],
        control: &[("conffiles", "/etc/made/ab\n/etc/made/b\n")],
    },
    Made {
        name: "made-c",
        fields: "",
        files: &[
            ("usr/share/made/cd", "c\n"),
            ("usr/share/made/c", "c\n"),
            ("etc/made/cd", "c\n"),
            ("etc/made/c", "c\n"),
        ],
        control: &[
            ("conffiles", "/etc/made/cd\n/etc/made/c\n"),
            ("triggers", "interest /usr/share/made\n"),
            (
                "postinst",
                "#!/bin/sh\nset -e\n[ \"$1\" != triggered ] || echo \"$2\" > /usr/share/made-c-triggered\n",
            ),
        ],
    },
    Made {
        name: "made-d",
        fields: "Replaces: made-c\n",
        files: &[
            ("usr/share/made/cd", "d\n"),
            ("etc/made/cd", "d\n"),
            ("usr/share/made/link", "-> cd"),
        ],
        control: &[("conffiles", "/etc/made/cd\n")],
    },
    // The diverted path of a package before it, and of one after it; a link and a configuration file.
    Made {
        name: "made-e",
        fields: "Pre-Depends: made-c\n",
        files: &[
            ("usr/share/made/c", "e\n"),
            ("usr/share/made/link", "-> c"),
            ("usr/share/made/f", "e\n"),
            ("etc/made/f", "e\n"),
            ("usr/share/made/owned", "e\n"),
        ],
        control: &[(
            "preinst",
            "#!/bin/sh\nset -e\nfor path in /usr/share/made/c /usr/share/made/link /usr/share/made/f /etc/made/f; do\n\
             dpkg-divert --package made-e --divert $path.moved --rename $path\ndone\n\
             dpkg-statoverride --add man daemon 2750 /usr/share/made/owned\n\
             dpkg-statoverride --add man daemon 2750 /usr/share/made/owned-later\n",
        )],
    },
    Made {
        name: "made-f",
        fields: "Pre-Depends: made-e\nReplaces: made-b, made-c\n",
        files: &[
            ("usr/share/made/f", "f\n"),
            ("etc/made/f", "f\n"),
            ("etc/made/by-b", "f\n"),
            ("etc/made/b", "f\n"),
            ("etc/made/c", "f\n"),
            ("usr/share/made/owned-later", "f\n"),
        ],
        control: &[
            (
                "conffiles",
                "/etc/made/f\n/etc/made/by-b\n/etc/made/b\n/etc/made/c\n",
            ),
            // A configuration file that is there before its package: dpkg keeps it.
            (
                "preinst",
                "#!/bin/sh\nset -e\necho found > /etc/made/by-b\n",
            ),
        ],
    },
];

/// Packages of which dpkg refuses the second.
const AT_ODDS: &[Made] = &[
    Made {
        name: "odd-a",
        fields: "Replaces: odd-b (<< 1), odd-virtual\n",
        files: &[("usr/share/odd", "the same\n")],
        control: &[],
    },
    Made {
        name: "odd-b",
        fields: "Provides: odd-virtual\n",
        files: &[("usr/share/odd", "the same\n")],
        control: &[],
    },
];

/// The packages that get along.
pub(crate) fn peaceful(tools: &Tools, folder: &Path) -> Result<Vec<Deb>> {
    PEACEFUL
        .iter()
        .map(|made| build(tools, folder, made))
        .collect()
}

/// The packages that dpkg does not install together.
pub(crate) fn at_odds(tools: &Tools, folder: &Path) -> Result<Vec<Deb>> {
    AT_ODDS
        .iter()
        .map(|made| build(tools, folder, made))
        .collect()
}

fn build(tools: &Tools, folder: &Path, made: &Made) -> Result<Deb> {
    let name = made.name;
    let root = folder.join(name);
    let control = format!(
        "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\n{}Description: test\n",
        made.fields
    );
    fs::create_dir_all(root.join("DEBIAN"))?;
    fs::write(root.join("DEBIAN/control"), control)?;
    for (file, content) in made.control {
        let path = root.join("DEBIAN").join(file);
        fs::write(&path, content)?;
        let script = content.starts_with("#!");
        fs::set_permissions(
            &path,
            Permissions::from_mode(if script { 0o755 } else { 0o644 }),
        )?;
    }
    for (file, content) in made.files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap())?;
        match content.strip_prefix("-> ") {
            Some(target) => symlink(target, &path)?,
            None => fs::write(&path, content)?,
        }
    }
    let inside = format!("{MADE}/{name}");
    tools
        .sandbox()
        .bind(folder, MADE)
        .command("dpkg-deb")
        .args(["--root-owner-group", "--build", &inside])
        .run()?;
    let path = folder.join(format!("{name}.deb"));
    Ok(Deb {
        package: LockedPackage {
            name: name.to_owned(),
            version: "1".to_owned(),
            architecture: "all".to_owned(),
            archive: "debian".to_owned(),
            path: String::new(),
            size: fs::metadata(&path)?.len(),
            sha256: String::new(),
            source: None,
        },
        path,
    })
}
