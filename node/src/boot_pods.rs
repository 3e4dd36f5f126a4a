//! Containers of this node's pods in the boot's timeline: when their processes started and their pods were Ready.

use std::collections::BTreeMap;
use std::fs;
use std::time::SystemTime;

use cluster::duration::time;
use image::timeline::{PODS, Span};
use linux::block::entries;
use linux::world::World;
use nix::unistd::{SysconfVar, sysconf};
use serde_json::Value;

/// The annotation of the API server's copy of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The field of `/proc/PID/stat` with the start, counted from the state behind the name in parentheses (proc_pid_stat(5)).
const START: usize = 19;
/// µs of a second.
const SECOND: i64 = 1_000_000;

/// When the first process of each container started, by the container's id, µs since boot.
pub(crate) type Starts = BTreeMap<String, i64>;

/// Reads the processes.
pub(crate) fn starts(world: &World) -> Starts {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let mut starts = Starts::new();
    for process in entries(&world.proc) {
        let folder = world.proc.join(&process);
        // A process may end while it is looked at.
        let (Ok(groups), Ok(stat)) = (
            fs::read_to_string(folder.join("cgroup")),
            fs::read_to_string(folder.join("stat")),
        ) else {
            continue;
        };
        if let (Some(id), Some(start)) = (container(&groups), start(&stat, ticks)) {
            let first = starts.entry(id.to_owned()).or_insert(start);
            *first = start.min(*first);
        }
    }
    starts
}

/// The id of the container that a process is in, by its control group below the kubelet's: in `cri-containerd-ID.scope` where
/// systemd keeps the groups, else in `ID`. crun makes another group in it.
fn container(groups: &str) -> Option<&str> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let id = path.split('/').rev().find_map(|name| {
        let name = name.strip_suffix(".scope").unwrap_or(name);
        let name = name.strip_prefix("cri-containerd-").unwrap_or(name);
        let is_id = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then_some(name)
    });
    id.filter(|_| path.contains("kubepods"))
}

fn start(stat: &str, ticks: i64) -> Option<i64> {
    // The name may have spaces and parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let start: i64 = rest.split_whitespace().nth(START)?.parse().ok()?;
    Some(start * (SECOND / ticks.max(1)))
}

/// Whether the node's static pods, so many, are all Ready: those that start behind the API server are not in the list at first.
pub(crate) fn settled(pods: &Value, count: usize) -> bool {
    let is_static = |pod: &&Value| !pod["metadata"]["annotations"][MIRROR].is_null();
    let all: Vec<&Value> = items(pods).filter(is_static).collect();
    all.len() >= count && all.iter().all(|pod| ready(pod).is_some())
}

/// A span for each container: from its process's start until its pod was Ready. `booted` is when the boot's clock was zero, by
/// the wall clock.
pub(crate) fn spans(pods: &Value, starts: &Starts, booted: SystemTime) -> Vec<Span> {
    let micros = |text: &str| {
        let since = time(text)?.duration_since(booted).ok()?;
        i64::try_from(since.as_micros()).ok()
    };
    let of_pod = |pod: &Value| {
        let end = ready(pod).and_then(&micros);
        let containers = pod["status"]["containerStatuses"].as_array().cloned();
        let of_container = |container: Value| {
            let id = container["containerID"].as_str().unwrap_or_default();
            let id = id.rsplit('/').next().unwrap_or(id);
            let said = container["state"]["running"]["startedAt"].as_str();
            let start = starts.get(id).copied().or_else(|| micros(said?))?;
            Some(Span {
                source: PODS.to_owned(),
                name: container["name"].as_str()?.replace('.', " "),
                start,
                // The API's times are whole seconds, rounded down.
                end: end.map(|end| end.max(start)),
                note: note(&container),
            })
        };
        let containers = containers.into_iter().flatten();
        containers.filter_map(of_container).collect::<Vec<_>>()
    };
    items(pods).flat_map(of_pod).collect()
}

fn note(container: &Value) -> Option<String> {
    match container["restartCount"].as_u64() {
        None | Some(0) => None,
        Some(1) => Some("restarted once".to_owned()),
        Some(count) => Some(format!("restarted {count} times")),
    }
}

fn items(pods: &Value) -> impl Iterator<Item = &Value> {
    pods["items"].as_array().into_iter().flatten()
}

/// When a pod was Ready; none if it is not.
fn ready(pod: &Value) -> Option<&str> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let ready = conditions
        .iter()
        .find(|condition| condition["type"] == "Ready" && condition["status"] == "True")?;
    ready["lastTransitionTime"].as_str()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linux::world::Clock;
    use serde_json::json;

    use super::*;
    use crate::samples::put;

    const ID: &str = "9f0c1e5a7b3d2c4e6f8a0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d1e";

    fn process(world: &World, id: u32, group: &str, ticks: u64) {
        let folder = world.proc.join(id.to_string());
        put(&folder.join("cgroup"), &format!("0::{group}\n"));
        let fields = format!("S 1 1 1 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 9 0 {ticks} 1 2");
        put(&folder.join("stat"), &format!("{id} (a) (b c) {fields}\n"));
    }

    #[test]
    fn a_container_starts_with_its_first_process() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let scope = format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope");
        process(&world, 10, &scope, 4200);
        process(&world, 11, &format!("{scope}/container"), 4100);
        process(&world, 12, "/system.slice/containerd.service", 100);
        process(
            &world,
            13,
            &format!("/kubepods/burstable/pod2/{}", ID.replace('9', "8")),
            7,
        );
        put(&world.proc.join("14/cgroup"), "0::/kubepods/x\n");
        let starts = starts(&world);
        let ticks = sysconf(SysconfVar::CLK_TCK).unwrap().unwrap();
        assert_eq!(starts.len(), 2);
        assert_eq!(starts[ID], 4100 * SECOND / ticks);
    }

    fn pod(name: &str, ready: &str, restarts: u32) -> Value {
        json!({
            "metadata": { "annotations": { MIRROR: "hash" } },
            "status": {
                "conditions": [
                    { "type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z" },
                    { "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:50Z" },
                ],
                "containerStatuses": [{
                    "name": name,
                    "containerID": format!("containerd://{ID}"),
                    "restartCount": restarts,
                    "state": { "running": { "startedAt": "2026-01-01T00:00:42Z" } },
                }],
            },
        })
    }

    #[test]
    fn a_span_is_from_the_process_to_ready() {
        let booted = time("2026-01-01T00:00:00Z").unwrap() + Duration::from_millis(500);
        let pods = json!({ "items": [pod("etcd", "True", 0), pod("a.b", "False", 2)] });
        assert!(!settled(&pods, 1));
        let found = spans(&pods, &Starts::from([(ID.to_owned(), 41_230_000)]), booted);
        assert_eq!(
            (found[0].start, found[0].end),
            (41_230_000, Some(49_500_000))
        );
        assert_eq!(found[0].note, None);
        assert_eq!(found[1].name, "a b");
        assert_eq!(found[1].end, None);
        assert_eq!(found[1].note.as_deref(), Some("restarted 2 times"));
        // Without its process the API's word stands.
        let said = spans(&pods, &Starts::new(), booted);
        assert_eq!(said[0].start, 41_500_000);
        // A Ready that is rounded down to before the start.
        let late = spans(&pods, &Starts::from([(ID.to_owned(), 49_900_000)]), booted);
        assert_eq!(late[0].end, Some(49_900_000));
        let one = json!({ "items": [pod("etcd", "True", 0)] });
        assert!(settled(&one, 1));
        // The scheduler is not there yet.
        assert!(!settled(&one, 2));
        assert!(settled(&json!({ "items": [] }), 0));
    }
}
