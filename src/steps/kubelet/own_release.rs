//! crictl with its configuration, containerd in place of the package's, and the CNI plugins where it looks for them.

use anyhow::{Context, Result};

use crate::code;
use crate::host::cache::Key;
use crate::host::session::Session;
use crate::layer::{Entry, Layer};
use crate::lock::kubelet::Programs;
use crate::recipe::{CONTAINERD, CniPlugins, Recipe};

/// Where Debian's package has its plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// The plugins that every version of Debian's package has.
const OF_DEBIAN: [&str; 16] = [
    "bandwidth",
    "bridge",
    "dhcp",
    "firewall",
    "host-device",
    "host-local",
    "ipvlan",
    "loopback",
    "macvlan",
    "portmap",
    "ptp",
    "sbr",
    "static",
    "tuning",
    "vlan",
    "vrf",
];
/// Links to the plugins: `/opt` is on `/var`, where pods may add others.
const LINKS: &str = "/usr/lib/tmpfiles.d/slipway-cni.conf";
/// Where crictl reads its configuration.
const CRICTL: &str = "/etc/crictl.yaml";
/// Without it crictl tries the sockets of all runtimes that it knows, with a warning each time.
const RUNTIME: &str = "runtime-endpoint: unix:///run/containerd/containerd.sock\n\
                       image-endpoint: unix:///run/containerd/containerd.sock\n";

/// The layer of what the recipe wants of these.
pub(super) fn layer(session: &Session, recipe: &Recipe, programs: &Programs) -> Result<Layer> {
    let mut entries = Vec::new();
    for (name, packed) in &programs.own {
        let step = session.progress.step(&format!("unpack {name}"));
        let key = Key::of("own release", code::CONTAINERS)
            .text("program", &packed.program.sha256)
            .text("inside", packed.inside.as_deref().unwrap_or_default())
            .finish();
        let made = session
            .cache
            .step("own-release", &key, |folder| packed.unpack(folder))
            .with_context(|| format!("unpacking {name} {}", packed.program.version))?;
        let mut files = packed.programs(name, &made.path)?;
        step.done(made.hit, None);
        let folder = match name.as_str() {
            "crictl" | CONTAINERD => "/usr/bin",
            _ => PLUGINS,
        };
        for file in &mut files {
            file.path.insert_str(0, folder);
        }
        match name.as_str() {
            "crictl" => entries.push(Entry::file(CRICTL, 0o644, RUNTIME)),
            CONTAINERD => {}
            _ => {
                let names = files.iter().map(|file| &file.path[PLUGINS.len() + 1..]);
                entries.push(Entry::file(LINKS, 0o644, links(names)));
                entries.push(Entry::directory(PLUGINS, 0o755));
            }
        }
        entries.extend(files);
    }
    if recipe.cni_plugins() == Some(CniPlugins::Debian) {
        entries.push(Entry::file(LINKS, 0o644, links(OF_DEBIAN)));
    }
    Layer::new(&session.cache, entries)
}

/// The lines of tmpfiles.d (tmpfiles.d(5)) that link to plugins.
fn links<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = "d /var/opt/cni/bin 0755\n".to_owned();
    for name in names {
        text += &format!("L /var/opt/cni/bin/{name} - - - - {PLUGINS}/{name}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_plugin_is_linked_to_where_containerd_looks() {
        assert_eq!(
            links(["bridge", "host-local"]),
            "d /var/opt/cni/bin 0755\n\
             L /var/opt/cni/bin/bridge - - - - /usr/lib/cni/bridge\n\
             L /var/opt/cni/bin/host-local - - - - /usr/lib/cni/host-local\n"
        );
    }
}
