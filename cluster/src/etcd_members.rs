//! The members of a cluster's etcd, as its JSON gateway lists them, and what a node that joins them has to do
//! (<https://etcd.io/docs/v3.6/op-guide/runtime-configuration/>).

use std::fmt;

use serde_json::{Value, json};

/// The paths of etcd's JSON gateway, each for a POST.
pub const LIST: &str = "/v3/cluster/member/list";
/// Adds a member.
pub const ADD: &str = "/v3/cluster/member/add";
/// Makes a learner a member that votes.
pub const PROMOTE: &str = "/v3/cluster/member/promote";

/// Takes a member out.
pub const REMOVE: &str = "/v3/cluster/member/remove";

/// Says where other members reach a member from now on.
pub const UPDATE: &str = "/v3/cluster/member/update";

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id, 64 bits.
    pub id: u64,
    /// Its name; empty until it has started for the first time.
    pub name: String,
    /// Where other members reach it.
    pub peers: Vec<String>,
    /// Whether it does not vote yet.
    pub learner: bool,
}

/// What a node has to do to be a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask to be added as a learner.
    Add,
    /// It is a member already, by an attempt that was cut off or before this boot.
    Resume(Member),
    /// It is this member, which has not started yet, at an address that the node had before: say where it is now.
    Move(Member),
}

/// Why a node cannot be a member as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its data are gone: the member of this id is at its address, and has started.
    DataLost(u64),
    /// It has the data of a member that the cluster has removed.
    Removed,
    /// It has a member's data, and the member of its name is at other addresses.
    Elsewhere(String, Vec<String>),
    /// A member of the same name is at another address.
    NameTaken(String, Vec<String>),
    /// Another member has been added and not started yet.
    AnotherStarts(Vec<String>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataLost(id) => write!(
                f,
                "etcd has a member at this node's address, and its data are not on this node's volume; \
                 remove that member (slipway-node etcd remove {id:x}, on another control plane) so that the node is added anew, or give it its volume back"
            ),
            Self::Removed => f.write_str(
                "this node has the data of an etcd member, and the cluster's etcd has none at its address: it was removed; \
                 give the node an empty etcd volume",
            ),
            Self::Elsewhere(name, peers) => write!(
                f,
                "this node has the data of an etcd member, and the member {name:?} is at {}: an address that this node had before, or \
                 another machine's of the same name",
                peers.join(", ")
            ),
            Self::NameTaken(name, peers) => write!(
                f,
                "etcd has a member {name:?} at {}; expected another name for this node, or that the other one is removed",
                peers.join(", ")
            ),
            Self::AnotherStarts(peers) => write!(
                f,
                "etcd's member at {} has been added and has not started yet; it goes first",
                peers.join(", ")
            ),
        }
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Whether it passes by itself: a member that runs says where it is once its API server is well.
    #[must_use]
    pub fn passes(&self) -> bool {
        matches!(self, Self::AnotherStarts(_) | Self::Elsewhere(..))
    }
}

/// The members of an answer to [`LIST`] or [`ADD`]. The gateway writes 64-bit numbers as text, and leaves out what is empty
/// or false.
#[must_use]
pub fn members(answer: &Value) -> Vec<Member> {
    let items = answer["members"].as_array().into_iter().flatten();
    items.filter_map(member).collect()
}

fn member(value: &Value) -> Option<Member> {
    let peers = value["peerURLs"].as_array().into_iter().flatten();
    Some(Member {
        id: value["ID"].as_str()?.parse().ok()?,
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        peers: peers.filter_map(Value::as_str).map(str::to_owned).collect(),
        learner: value["isLearner"].as_bool().unwrap_or_default(),
    })
}

/// The id of the member that gave an answer, by its header; none if it does not say it.
#[must_use]
pub fn answering(answer: &Value) -> Option<u64> {
    answer["header"]["member_id"].as_str()?.parse().ok()
}

/// What a node with this name and peer URL has to do; `has_data` says whether its volume has a member's data, and `known` is the id of the
/// member that it was added as, by an attempt that was noted.
///
/// # Errors
/// Why it cannot be a member.
pub fn step(
    members: &[Member],
    name: &str,
    peer: &str,
    has_data: bool,
    known: Option<u64>,
) -> Result<Step, Refusal> {
    let own = members
        .iter()
        .find(|member| member.peers.iter().any(|url| url == peer));
    if let Some(own) = own {
        return match own.name.is_empty() || has_data {
            true => Ok(Step::Resume(own.clone())),
            false => Err(Refusal::DataLost(own.id)),
        };
    }
    let unstarted = || members.iter().filter(|member| member.name.is_empty());
    if let Some(own) = unstarted().find(|member| known == Some(member.id)) {
        return Ok(Step::Move(own.clone()));
    }
    let named = members.iter().find(|member| member.name == name);
    if has_data {
        return Err(match named {
            Some(other) => Refusal::Elsewhere(name.to_owned(), other.peers.clone()),
            None => Refusal::Removed,
        });
    }
    if let Some(other) = named {
        return Err(Refusal::NameTaken(name.to_owned(), other.peers.clone()));
    }
    match unstarted().next() {
        Some(other) => Err(Refusal::AnotherStarts(other.peers.clone())),
        None => Ok(Step::Add),
    }
}

/// etcd's argument `initial-cluster` for a node of this name, which has not started yet.
#[must_use]
pub fn initial_cluster(members: &[Member], name: &str) -> String {
    let mut all: Vec<String> = members
        .iter()
        .flat_map(|member| {
            let name = if member.name.is_empty() {
                name
            } else {
                &member.name
            };
            member.peers.iter().map(move |url| format!("{name}={url}"))
        })
        .collect();
    all.sort();
    all.join(",")
}

/// The body of [`ADD`] for a learner.
#[must_use]
pub fn learner(peer: &str) -> Value {
    json!({"peerURLs": [peer], "isLearner": true})
}

/// The body of [`UPDATE`] for the member of this id, which others reach at this URL.
#[must_use]
pub fn at(id: u64, peer: &str) -> Value {
    json!({"ID": id.to_string(), "peerURLs": [peer]})
}

/// The body of [`PROMOTE`] and of [`REMOVE`].
#[must_use]
pub fn of_member(id: u64) -> Value {
    json!({"ID": id.to_string()})
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "https://10.0.0.8:2380";

    fn cluster(more: &Value) -> Vec<Member> {
        let mut all = vec![json!({
            "ID": "9372538179322589801",
            "name": "cp1",
            "peerURLs": ["https://10.0.0.7:2380"],
            "clientURLs": ["https://10.0.0.7:2379"],
        })];
        all.extend(more.as_array().cloned().unwrap_or_default());
        members(&json!({"header": {}, "members": all}))
    }

    #[test]
    fn a_node_is_added_once_and_goes_on_where_it_was_cut_off() {
        let alone = cluster(&json!([]));
        assert_eq!(alone[0].id, 9_372_538_179_322_589_801);
        assert_eq!(step(&alone, "cp2", PEER, false, None), Ok(Step::Add));
        for (name, has_data) in [("", false), ("", true), ("cp2", true)] {
            let all = cluster(
                &json!([{"ID": "17", "name": name, "peerURLs": [PEER], "isLearner": true}]),
            );
            assert_eq!(
                step(&all, "cp2", PEER, has_data, None),
                Ok(Step::Resume(all[1].clone()))
            );
            assert!(all[1].learner);
            assert_eq!(
                initial_cluster(&all, "cp2"),
                "cp1=https://10.0.0.7:2380,cp2=https://10.0.0.8:2380"
            );
        }
    }

    #[test]
    fn a_member_without_its_data_and_data_without_their_member_are_refused() {
        let all = cluster(&json!([{"ID": "255", "name": "cp2", "peerURLs": [PEER]}]));
        let refusal = step(&all, "cp2", PEER, false, Some(255)).unwrap_err();
        assert_eq!(refusal, Refusal::DataLost(255));
        assert!(refusal.to_string().contains("slipway-node etcd remove ff,"));
        let alone = cluster(&json!([]));
        let removed = step(&alone, "cp2", PEER, true, Some(255));
        assert_eq!(removed, Err(Refusal::Removed));
        let taken = step(&alone, "cp1", PEER, false, None).unwrap_err();
        assert!(taken.to_string().contains("10.0.0.7:2380"), "{taken}");
        assert!(!taken.passes());
        let other = json!([{"ID": "3", "peerURLs": ["https://10.0.0.9:2380"], "isLearner": true}]);
        let waits = step(&cluster(&other), "cp2", PEER, false, Some(4)).unwrap_err();
        assert!(waits.passes(), "{waits}");
    }

    /// As with a lease that ended while the node was off.
    #[test]
    fn a_node_with_another_address_is_the_member_that_it_was() {
        const BEFORE: &str = "https://10.0.0.9:2380";
        let unstarted = json!([{"ID": "3", "peerURLs": [BEFORE], "isLearner": true}]);
        let all = cluster(&unstarted);
        for has_data in [false, true] {
            let moved = Ok(Step::Move(all[1].clone()));
            assert_eq!(step(&all, "cp2", PEER, has_data, Some(3)), moved);
        }
        // One that runs is not told to give its data up: it says itself where it is.
        let runs = cluster(&json!([{"ID": "3", "name": "cp2", "peerURLs": [BEFORE]}]));
        let refusal = step(&runs, "cp2", PEER, true, Some(3)).unwrap_err();
        assert!(refusal.passes(), "{refusal}");
        let said = refusal.to_string();
        assert!(
            said.contains(BEFORE) && !said.contains("empty etcd volume"),
            "{said}"
        );
    }

    #[test]
    fn ids_are_written_as_the_gateway_reads_them() {
        assert_eq!(of_member(u64::MAX), json!({"ID": "18446744073709551615"}));
        assert_eq!(learner(PEER)["isLearner"], true);
        assert_eq!(at(255, PEER), json!({"ID": "255", "peerURLs": [PEER]}));
        let header = json!({"cluster_id": "1", "member_id": "18446744073709551615"});
        assert_eq!(answering(&json!({"header": header})), Some(u64::MAX));
        assert_eq!(answering(&json!({"members": []})), None);
    }
}
