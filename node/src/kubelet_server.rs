//! The API server of a worker's kubelet: the balancer of this node, or the endpoint of the cluster object.
//!
//! The kubeconfigs of this node alone lead to the balancer. Those of administrators and the objects in the cluster keep the
//! endpoint, as kubeadm has them.

use std::fs;

use anyhow::{Context, Result};
use cluster::kubeconfigs::{read, redirected};
use cluster::object::Object;
use cluster::object::balancer::{LISTEN, SERVER_NAME};
use image::kubelet::{BOOTSTRAP_KUBECONFIG, KUBECONFIG};
use linux::world::World;

use crate::control_plane::write;

/// Redirects the kubelet's kubeconfigs, those that are there, as the object says. The kubelet reads them at its start; it writes its
/// own one after its first certificate, without the name by which the API server is verified, so that this is repeated before each
/// start.
///
/// # Errors
/// Names the file.
pub(crate) fn redirect(world: &World, object: &Object) -> Result<()> {
    for path in [KUBECONFIG, BOOTSTRAP_KUBECONFIG] {
        let file = world.in_initrd(path);
        if !file.exists() {
            continue;
        }
        let text = fs::read_to_string(&file).with_context(|| format!("reading {path}"))?;
        let text = match object.balancer.enabled {
            true => redirected(&text, &object.balancer.url(), Some(SERVER_NAME)),
            // Whatever else an administrator made of it stays.
            false if is_balancers(&text) => {
                redirected(&text, &object.config.control_plane_url(), None)
            }
            false => None,
        };
        if let Some(text) = text {
            write(world, path, &text, 0o600)?;
        }
    }
    Ok(())
}

fn is_balancers(text: &str) -> bool {
    let local = format!("https://{LISTEN}:");
    read(text).is_some_and(|given| given.server.starts_with(&local))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cluster::kubeconfigs::{Given, bootstrap};

    use super::*;
    use crate::object;
    use crate::samples::{put, worker};

    const OBJECT: &str = "name = \"blue\"\nendpoint = \"api.example.test\"\n[node]\naddress = \"10.0.0.8\"\n[join]\n\
        token = \"abcdef.0123456789abcdef\"\nca-hashes = [\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"]\n";

    /// As the kubelet writes it after its first certificate (Kubernetes 1.36).
    const KUBELETS: &str = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: QQ==\n    server: https://127.0.0.1:7443\n  \
        name: default-cluster\ncontexts:\n- context:\n    cluster: default-cluster\n    namespace: default\n    user: default-auth\n  \
        name: default-context\ncurrent-context: default-context\nkind: Config\nusers:\n- name: default-auth\n  user:\n    \
        client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem\n";

    fn given(world: &World, path: &str) -> Given {
        read(&fs::read_to_string(world.in_initrd(path)).unwrap()).unwrap()
    }

    fn redirected_as(world: &World, rest: &str) -> [(String, Option<String>); 2] {
        put(
            &world.in_initrd(image::paths::CLUSTER),
            &format!("{OBJECT}{rest}"),
        );
        let bootstrap = object::read(world, Duration::ZERO).unwrap().unwrap();
        redirect(world, &bootstrap.object).unwrap();
        [KUBECONFIG, BOOTSTRAP_KUBECONFIG].map(|path| {
            let given = given(world, path);
            (given.server, given.server_name)
        })
    }

    #[test]
    fn a_workers_kubeconfigs_lead_to_the_balancer_unless_the_object_turns_it_off() {
        let folder = tempfile::tempdir().unwrap();
        let world = worker(folder.path(), OBJECT);
        let kubelets = world.in_initrd(KUBECONFIG);
        put(&kubelets, KUBELETS);
        let token = bootstrap("blue", "https://api.example.test:6443", "A", "a.b");
        put(&world.in_initrd(BOOTSTRAP_KUBECONFIG), &token);
        let name = Some(SERVER_NAME.to_owned());
        let balancer = ("https://127.0.0.1:7443".to_owned(), name.clone());
        assert_eq!(redirected_as(&world, ""), [balancer.clone(), balancer]);
        // The rest is as it was.
        let mut expected = read(KUBELETS).unwrap();
        expected.server_name.clone_from(&name);
        assert_eq!(given(&world, KUBECONFIG), expected);
        let text = fs::read_to_string(&kubelets).unwrap();
        assert!(text.contains("current-context: default-context"), "{text}");
        let other = ("https://127.0.0.1:7500".to_owned(), name);
        let moved = redirected_as(&world, "[balancer]\nport = 7500\n");
        assert_eq!(moved, [other.clone(), other]);
        let endpoint = ("https://api.example.test:6443".to_owned(), None);
        let off = redirected_as(&world, "[balancer]\nenabled = false\n");
        assert_eq!(off, [endpoint.clone(), endpoint.clone()]);
        // An administrator's own choice stays.
        let own = KUBELETS.replace("127.0.0.1:7443", "10.0.0.9:6443");
        put(&kubelets, &own);
        redirected_as(&world, "[balancer]\nenabled = false\n");
        assert_eq!(fs::read_to_string(&kubelets).unwrap(), own);
    }
}
