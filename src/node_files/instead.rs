//! What a recipe uses in place of a file at a path of Slipway's.

use image::kubelet::{CONFIG, ETCD_POD, STATIC_PODS};
use image::paths::{ADDONS, SLIPWAY, VAR_LINKS};

use super::{CONTAINERD, CONTAINERD_DROP_INS, CONTAINERD_REGISTRIES, OS_RELEASE, PRESET, UNITS};
use crate::layer::reserved::{Harm, Refused};

/// Why an entry of the recipe is refused.
pub(crate) fn refusal(refused: &Refused) -> String {
    let (path, reserved) = (&refused.path, &refused.reserved);
    let why = match reserved.ends_with("/init") {
        true => "the boot ends with its execution",
        false => "Slipway writes it",
    };
    match refused.harm {
        Harm::Replace if path == reserved => format!("{path} is reserved: {why}"),
        Harm::Replace => format!("{path} is {reserved}, which is reserved: {why}"),
        Harm::ReplaceFolder => {
            format!("{path} is a folder with {reserved}, which is reserved: {why}")
        }
        Harm::Add => format!("{path} is in {reserved}, which has files of Slipway alone"),
        Harm::Hide => format!("{path} would hide {reserved}, which is reserved: {why}"),
    }
}

/// What takes the place of a recipe's file at a reserved path.
pub(crate) fn instead(reserved: &str) -> String {
    let (folder, name) = reserved.rsplit_once('/').unwrap_or_default();
    let drop_in = folder
        .ends_with(".d")
        .then(|| folder.strip_prefix("/usr/lib"));
    match reserved {
        CONTAINERD => format!(
            "containerd reads {CONTAINERD_DROP_INS}/NAME.toml too, and of registries {CONTAINERD_REGISTRIES}/HOST/hosts.toml"
        ),
        CONFIG => "fields of the kubelet are in the cluster object; the config of a node without a cluster may replace this file".to_owned(),
        OS_RELEASE => "`image.name` and `image.version` are in it; /etc/os-release, if it is a file, is read in its place".to_owned(),
        PRESET => "`units.enable` and `units.disable` are written to it".to_owned(),
        SLIPWAY => format!("manifests of addons go to {ADDONS}/NAME"),
        _ if folder == STATIC_PODS && name == ETCD_POD => {
            "without \"etcd\" in `containers.images` there is none; the config may replace it".to_owned()
        }
        _ if folder == UNITS => format!(
            "a drop-in, /etc/systemd/system/{name}.d/NAME.conf, changes the unit, and `units.mask` keeps it from starting"
        ),
        _ if folder.starts_with(UNITS) && folder.ends_with(".wants") => {
            format!("\"{name}\" in `units.mask` keeps the unit from starting")
        }
        _ if VAR_LINKS.iter().any(|(link, _)| *link == reserved) => {
            "what is below is on the partition of /var; a config writes there".to_owned()
        }
        _ => match drop_in.flatten() {
            Some(folder) => format!("a later name has the last word: /etc{folder}/60-NAME.conf"),
            None => "leave it out; nothing takes its place".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Contents, Features, entries};
    use super::*;
    use crate::layer::Kind;

    /// The other ways exist: nothing that they name is reserved itself.
    #[test]
    fn each_file_has_what_takes_its_place() {
        let features = Features {
            kubernetes: true,
            etcd: true,
            iscsi: true,
        };
        let mut without = Vec::new();
        for entry in entries(features, Contents::default()) {
            if matches!(entry.kind, Kind::Directory | Kind::Remove) {
                continue;
            }
            if instead(&entry.path).starts_with("leave it out") {
                without.push(entry.path);
            }
        }
        let expected = [
            "/usr/bin/slipway-node",
            "/usr/lib/slipway/slipway-node",
            "/usr/lib/systemd/system-generators/systemd-gpt-auto-generator",
            "/usr/lib/systemd/system-shutdown/slipway-reset",
        ];
        without.sort();
        assert_eq!(without, expected);
        for (reserved, other) in [
            (
                "/usr/lib/sysctl.d/50-slipway.conf",
                "/etc/sysctl.d/60-NAME.conf",
            ),
            (
                "/usr/lib/systemd/system/containerd.service.d/50-slipway.conf",
                "/etc/systemd/system/containerd.service.d/60-NAME.conf",
            ),
            (
                "/usr/lib/systemd/system/slipway-certs.timer",
                "/etc/systemd/system/slipway-certs.timer.d/NAME.conf",
            ),
            (
                "/usr/lib/systemd/system/timers.target.wants/slipway-certs.timer",
                "\"slipway-certs.timer\" in `units.mask`",
            ),
        ] {
            let text = instead(reserved);
            assert!(text.contains(other), "{text}");
        }
    }
}
