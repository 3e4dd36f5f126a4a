//! `election`: asks the only member of etcd to elect itself at once.
//!
//! A member waits 10 to 19 ticks of 100 ms for a leader before it begins an election. Of those a new member skips nine and a restarted
//! one of etcd 3.5 none, so that a node whose control plane is alone waits up to two seconds for nobody. `MsgTimeoutNow` is the message by
//! which a leader hands over: the member that gets it begins the same election, with the same checks, as at the end of its ticks. The
//! timeouts stay as they are, for the members that come later. Best effort: without it the ticks pass.

use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::Api;
use cluster::static_pods::etcd_peer_url;
use linux::world::World;
use prost::Message;
use serde_json::Value;

use crate::etcd_member;
use crate::object::{self, Bootstrap};

/// How long etcd may take to its first answer to members. It may be started by the kubelet, of an image that is pulled.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often it is asked until then.
const EVERY: Duration = Duration::from_millis(10);
/// The pauses before the messages, milliseconds: one is ignored as long as the member applies what its log says of members, and by a
/// leader. With the last one the ticks of a new member are over.
const PAUSES: [u64; 8] = [0, 10, 20, 40, 80, 160, 320, 640];
/// How long a request may take.
const REQUEST: Duration = Duration::from_secs(2);
/// The members that a member knows, on the port of members (`server/etcdserver/api/etcdhttp/peer.go`).
const MEMBERS: &str = "/members";
/// Where members send each other messages of Raft (`server/etcdserver/api/rafthttp/http.go`).
const RAFT: &str = "/raft";
/// The cluster's id, in each answer and each message.
const CLUSTER_ID: &str = "X-Etcd-Cluster-ID";
/// The release of the sender, and the oldest one that it speaks to: the protocol is that of etcd 3.0 and later.
const RELEASES: [(&str, &str); 2] = [
    ("X-Server-Version", "3.5.0"),
    ("X-Min-Cluster-Version", "3.0.0"),
];
/// `MsgTimeoutNow` of `MessageType` (`raftpb/raft.proto`).
const TIMEOUT_NOW: i32 = 14;

/// Waits for this node's member of etcd, and asks it if it is alone.
///
/// # Errors
/// If the cluster object has a mistake, or etcd did not answer in time.
pub(crate) fn run(world: &World) -> Result<()> {
    let Some(bootstrap) = object::read(world, object::PATIENCE)? else {
        return Ok(());
    };
    let object = &bootstrap.object;
    // The others of a further control plane hold elections.
    if object.join.is_some()
        || object.further.is_some()
        || object.config.cluster.etcd.local.is_none()
    {
        return Ok(());
    }
    let (client, cluster, member) = match alone(world, &bootstrap)? {
        Some(found) => found,
        None => return Ok(()),
    };
    let [release, oldest] = RELEASES;
    let headers = [release, oldest, (CLUSTER_ID, cluster.as_str())];
    for pause in PAUSES {
        sleep(Duration::from_millis(pause));
        client.post_bytes(RAFT, &headers, timeout_now(member))?;
    }
    tracing::info!("etcd has no other member than {member:x}: it was asked to elect itself");
    Ok(())
}

/// The client of this node's member, the cluster's id and the member's, once it answers, if it is the only one.
fn alone(world: &World, bootstrap: &Bootstrap) -> Result<Option<(Api, String, u64)>> {
    let config = &bootstrap.object.config;
    let url = etcd_peer_url(config);
    let address = url.trim_start_matches("https://");
    let until = Instant::now() + PATIENCE;
    loop {
        // A connection first: on a first boot the certificates are not there yet.
        let answer = TcpStream::connect(address)
            .with_context(|| format!("connecting to {address}"))
            .and_then(|_| {
                let client = etcd_member::client(world, config, &url)?.within(REQUEST);
                let (members, cluster) = client.get_with_header(MEMBERS, CLUSTER_ID)?;
                Ok((client, members, cluster))
            });
        match answer {
            Ok((client, members, cluster)) => {
                let cluster =
                    cluster.with_context(|| format!("{url}{MEMBERS} has no {CLUSTER_ID}"))?;
                if let Some(only) = only(&members) {
                    return Ok(only.map(|member| (client, cluster, member)));
                }
            }
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => {}
        }
        ensure!(
            Instant::now() < until,
            "{url}{MEMBERS} has no member after {} s",
            PATIENCE.as_secs()
        );
        sleep(EVERY);
    }
}

/// Whether a member votes that knows no other one: its id. None as long as the member has not applied its log.
fn only(members: &Value) -> Option<Option<u64>> {
    match members.as_array().map(Vec::as_slice) {
        Some([]) | None => None,
        Some([member]) if member["isLearner"] != true => Some(member["id"].as_u64()),
        Some(_) => Some(None),
    }
}

/// The fields of Raft's `Message` that are used here (`raftpb/raft.proto`). Without a term, as from the member itself, it counts
/// whatever the term is.
#[derive(Clone, PartialEq, Eq, Message)]
struct RaftMessage {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(uint64, tag = "2")]
    to: u64,
    #[prost(uint64, tag = "3")]
    from: u64,
}

fn timeout_now(member: u64) -> Vec<u8> {
    let message = RaftMessage {
        kind: TIMEOUT_NOW,
        to: member,
        from: member,
    };
    message.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use linux::world::Clock;
    use serde_json::json;

    use super::*;
    use crate::samples::{ControlPlane, worker};

    #[test]
    fn one_member_that_votes_is_asked_and_no_other() {
        let member = json!({"id": 2_678_306_853_684_959_094_u64, "name": "a"});
        let learner = json!({"id": 1, "isLearner": true});
        for (members, expected) in [
            (json!([]), None),
            (json!({}), None),
            (json!([learner]), Some(None)),
            (json!([member, learner]), Some(None)),
            (json!([member]), Some(Some(2_678_306_853_684_959_094))),
        ] {
            assert_eq!(only(&members), expected, "{members}");
        }
    }

    /// By the encoding's own example of 300.
    #[test]
    fn a_message_has_its_kind_and_the_member_twice() {
        assert_eq!(timeout_now(1), [8, 14, 16, 1, 24, 1]);
        assert_eq!(timeout_now(300), [8, 14, 16, 0xac, 2, 24, 0xac, 2]);
    }

    #[test]
    fn nodes_whose_etcd_is_not_alone_ask_nothing() {
        let folder = tempfile::tempdir().unwrap();
        run(&World::below(folder.path(), Clock::Real)).unwrap();
        let plane = ControlPlane::new();
        run(&worker(folder.path(), &plane.worker())).unwrap();
    }
}
