//! The static pods of this node: how many its manifests name, and whether they run.

use std::fs;

use anyhow::{Result, ensure};
use image::kubelet::{RUNTIME_SOCKET, STATIC_PODS};
use linux::world::World;

use crate::cri::{
    CONTAINER_RUNNING, Cri, ListContainersRequest, ListContainersResponse, ListPodSandboxRequest,
    ListPodSandboxResponse, SANDBOX_READY,
};

/// The annotation of pods that says where the kubelet has them from, and its word for a manifest.
const SOURCE: (&str, &str) = ("kubernetes.io/config.source", "file");

/// How many static pods this node has: the kubelet passes over names that begin with a dot.
pub(crate) fn manifests(world: &World) -> usize {
    let files = fs::read_dir(world.in_initrd(STATIC_PODS));
    let names = files
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .filter(|name| !name.to_string_lossy().starts_with('.'))
        .count()
}

/// The containers of the static pods that run, by id: at least one of each pod.
///
/// # Errors
/// If fewer pods run than there are manifests, or containerd does not answer.
pub(crate) fn running(world: &World) -> Result<Vec<String>> {
    let mut pods = ListPodSandboxResponse::default();
    let mut containers = ListContainersResponse::default();
    let (pods_found, containers_found) = (&mut pods, &mut containers);
    Cri::with(&world.in_initrd(RUNTIME_SOCKET), |cri| async move {
        let all = ListPodSandboxRequest::default();
        *pods_found = cri.call("ListPodSandbox", &all).await?;
        let all = ListContainersRequest::default();
        *containers_found = cri.call("ListContainers", &all).await?;
        Ok(())
    })?;
    containers
        .containers
        .retain(|container| container.state == CONTAINER_RUNNING);
    let (mut ids, mut count) = (Vec::new(), 0);
    for pod in pods.items {
        let source = pod.annotations.get(SOURCE.0);
        if pod.state != SANDBOX_READY || source.is_none_or(|source| source != SOURCE.1) {
            continue;
        }
        let before = ids.len();
        let of_pod = containers.containers.iter();
        let of_pod = of_pod.filter(|container| container.pod_sandbox_id == pod.id);
        ids.extend(of_pod.map(|container| container.id.clone()));
        count += usize::from(ids.len() > before);
    }
    let wanted = manifests(world);
    ensure!(
        count >= wanted,
        "{count} static pods run, and {STATIC_PODS} has {wanted} manifests"
    );
    ids.sort();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::{BufMut as _, Bytes, BytesMut};
    use http::{HeaderMap, Response};
    use linux::world::Clock;
    use prost::Message;
    use tokio::net::UnixListener;

    use super::*;
    use crate::cri::{Container, PodSandbox};
    use crate::samples::put;

    /// A pod: its name, where it is from, the states of its sandbox and of its container.
    type Pod = (&'static str, &'static str, i32, i32);

    const EXITED: i32 = 2;
    const NOT_READY: i32 = 1;

    fn sandboxes(pods: &[Pod]) -> Vec<u8> {
        let items = pods.iter().map(|(name, source, state, _)| PodSandbox {
            id: format!("sandbox-{name}"),
            metadata: None,
            state: *state,
            annotations: [(SOURCE.0.to_owned(), (*source).to_owned())].into(),
        });
        let items = items.collect();
        ListPodSandboxResponse { items }.encode_to_vec()
    }

    fn containers(pods: &[Pod]) -> Vec<u8> {
        let containers = pods.iter().map(|(name, _, _, state)| Container {
            id: format!("container-{name}"),
            pod_sandbox_id: format!("sandbox-{name}"),
            metadata: None,
            state: *state,
        });
        let containers = containers.collect();
        ListContainersResponse { containers }.encode_to_vec()
    }

    /// containerd with these pods, for one connection.
    fn containerd(socket: &Path, pods: &'static [Pod]) -> std::thread::JoinHandle<()> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(socket).unwrap()
        };
        let serve = async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(answer(pods, request, respond));
            }
        };
        std::thread::spawn(move || runtime.block_on(serve))
    }

    async fn answer(
        pods: &'static [Pod],
        request: http::Request<h2::RecvStream>,
        mut respond: h2::server::SendResponse<Bytes>,
    ) {
        let path = request.uri().path().to_owned();
        let message = match path.rsplit('/').next() {
            Some("ListPodSandbox") => sandboxes(pods),
            Some("ListContainers") => containers(pods),
            other => panic!("{other:?}"),
        };
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).unwrap());
        body.extend_from_slice(&message);
        let mut out = respond.send_response(Response::new(()), false).unwrap();
        out.send_data(body.freeze(), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        out.send_trailers(trailers).unwrap();
    }

    #[test]
    fn a_pod_of_each_manifest_has_to_run() {
        const READY: i32 = SANDBOX_READY;
        for (pods, expected) in [
            (
                &[
                    ("a1", "file", READY, CONTAINER_RUNNING),
                    ("b2", "file", READY, CONTAINER_RUNNING),
                    ("c3", "api", READY, CONTAINER_RUNNING),
                ] as &'static [Pod],
                Ok(["container-a1", "container-b2"]),
            ),
            (
                &[
                    ("a1", "file", READY, CONTAINER_RUNNING),
                    ("c3", "api", READY, CONTAINER_RUNNING),
                ],
                Err("1 static pods run"),
            ),
            (
                &[
                    ("a1", "file", READY, CONTAINER_RUNNING),
                    ("b2", "file", READY, EXITED),
                ],
                Err("1 static pods run"),
            ),
            (
                &[
                    ("a1", "file", NOT_READY, CONTAINER_RUNNING),
                    ("b2", "file", READY, EXITED),
                ],
                Err("0 static pods run, and /etc/kubernetes/manifests has 2 manifests"),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let world = World::below(folder.path(), Clock::Real);
            for name in ["etcd.yaml", "more.yaml", ".half"] {
                put(&world.in_initrd(STATIC_PODS).join(name), "");
            }
            let socket = world.in_initrd(RUNTIME_SOCKET);
            fs::create_dir_all(socket.parent().unwrap()).unwrap();
            let served = containerd(&socket, pods);
            match (running(&world), expected) {
                (Ok(ids), Ok(expected)) => assert!(ids.iter().eq(expected), "{ids:?}"),
                (Err(error), Err(expected)) => {
                    let error = format!("{error:#}");
                    assert!(error.contains(expected), "{error}");
                }
                (found, expected) => panic!("{pods:?}: {found:?}, expected {expected:?}"),
            }
            served.join().unwrap();
        }
    }
}
