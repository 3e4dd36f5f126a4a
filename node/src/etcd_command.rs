//! `etcd`: the members of the cluster's etcd, and taking one out that is lost, asked of this node's own member.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use cluster::etcd_members::{LIST, Member, REMOVE, answering, members, of_member};
use cluster::object::Object;
use cluster::object::balancer::Server;
use cluster::static_pods::{etcd_client_url, etcd_peer_url};
use linux::world::World;
use serde_json::{Value, json};

use crate::{etcd_member, etcd_place, object};
use api::Api;

/// The command's name.
pub(crate) const COMMAND: &str = "etcd";
/// Its line in the usage.
pub(crate) const DESCRIPTION: &str = "[--json | remove ID | rejoin ADDRESS | begin-anew]: the members of the cluster's etcd, on a control plane; a new place for a \
     node whose etcd lost its data; a new cluster in place of one that is lost";

/// Runs the command with its options; none for others.
pub(crate) fn command(program: &str, options: &[&str]) -> Option<ExitCode> {
    let world = World::real();
    let printed = match options {
        [] => own(&world).and_then(|(client, _)| list(&client, false)),
        ["--json"] => own(&world).and_then(|(client, _)| list(&client, true)),
        ["remove", id] => own(&world).and_then(|(client, peer)| remove(&client, &peer, id)),
        ["rejoin", server] => rejoin(&world, server),
        ["begin-anew"] => begin_anew(&world),
        _ => return None,
    };
    let written = printed.and_then(|text| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).context("writing the answer")
    });
    Some(match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {COMMAND}: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// The object of this control plane.
fn control_plane(world: &World) -> Result<Object> {
    let bootstrap = object::read(world, Duration::ZERO)?.context("this node has no cluster")?;
    ensure!(bootstrap.object.join.is_none(), "this node is a worker");
    Ok(bootstrap.object)
}

/// Makes a node whose etcd lost its data a member again, by another control plane.
fn rejoin(world: &World, server: &str) -> Result<String> {
    let server = Server::parse(server).map_err(Error::msg)?;
    let address = etcd_place::rejoin(world, &control_plane(world)?, &server)?;
    Ok(format!(
        "{address} serves the cluster; the kubelet's next start asks there for a place among the members of etcd\n"
    ))
}

/// Begins the cluster anew, without the data that are lost.
fn begin_anew(world: &World) -> Result<String> {
    let object = control_plane(world)?;
    etcd_place::begin_anew(world, &object)?;
    Ok(format!(
        "the kubelet's next start begins the cluster {:?} anew, with its keys and without its objects\n",
        object.name()
    ))
}

/// The client of this node's member, and where other members reach it.
fn own(world: &World) -> Result<(Api, String)> {
    let object = &control_plane(world)?;
    let client = etcd_member::client(world, &object.config, &etcd_client_url(&object.config))?;
    Ok((client, etcd_peer_url(&object.config)))
}

fn list(client: &Api, as_json: bool) -> Result<String> {
    let all = members(&client.post(LIST, &json!({}))?);
    if as_json {
        let all: Vec<Value> = all.iter().map(described).collect();
        return Ok(format!("{}\n", Value::from(all)));
    }
    Ok(all.iter().map(line).collect())
}

fn described(member: &Member) -> Value {
    json!({
        "id": format!("{:x}", member.id),
        "name": member.name,
        "peers": member.peers,
        "state": state(member),
    })
}

fn state(member: &Member) -> &'static str {
    match (member.name.is_empty(), member.learner) {
        (true, _) => "not started",
        (false, true) => "learner",
        (false, false) => "votes",
    }
}

fn line(member: &Member) -> String {
    format!(
        "{:016x}  {:<11}  {:<20}  {}\n",
        member.id,
        state(member),
        member.name,
        member.peers.join(", ")
    )
}

/// Takes a member out. etcd itself refuses what would leave too few members that have started.
fn remove(client: &Api, own: &str, id: &str) -> Result<String> {
    let Ok(number) = u64::from_str_radix(id, 16) else {
        bail!(
            "{id:?} is not a member's id; expected hexadecimal digits, as `{COMMAND}` lists them"
        );
    };
    let answer = client.post(LIST, &json!({}))?;
    let all = members(&answer);
    let Some(member) = all.iter().find(|member| member.id == number) else {
        let lines: String = all.iter().map(line).collect();
        bail!("etcd has no member {id}; it has\n{lines}");
    };
    // By its own word too: its address may be another one than when it was added.
    ensure!(
        !member.peers.iter().any(|peer| peer == own) && answering(&answer) != Some(number),
        "{id} is this node's own member; take it out from another control plane"
    );
    client.post(REMOVE, &of_member(number))?;
    Ok(format!("{} is out\n", line(member).trim_end()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::samples::{Answer, ControlPlane, serve_by_tls};

    /// The peer URL of the node that asks.
    const OWN: &str = "https://10.0.0.7:2380";

    #[test]
    fn only_a_member_that_is_there_and_not_this_nodes_is_taken_out() {
        let plane = ControlPlane::new();
        let file = |name: &str| plane.file(&format!("/etc/kubernetes/pki/{name}"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let pair = (file("etcd/server.crt"), file("etcd/server.key"));
        let members = json!({"header": {"member_id": "8"}, "members": [
            {"ID": "7", "name": "cp1", "peerURLs": [OWN]},
            {"ID": "255", "name": "cp2", "peerURLs": ["https://10.0.0.8:2380"]},
            {"ID": "3", "peerURLs": ["https://10.0.0.9:2380"], "isLearner": true},
            {"ID": "8", "name": "cp1", "peerURLs": ["https://10.0.0.6:2380"]},
        ]});
        let asked = serve_by_tls(
            listener,
            move || pair.clone(),
            move |_| Answer::Full(200, members.to_string()),
        );
        let client = Api::with_certificate(
            &url,
            &file("etcd/ca.crt"),
            &file("apiserver-etcd-client.crt"),
            &file("apiserver-etcd-client.key"),
        );
        let client = client.unwrap();
        let listed = list(&client, false).unwrap();
        for line in [
            "00000000000000ff  votes        cp2",
            "0000000000000003  not started  ",
        ] {
            assert!(listed.contains(line), "{listed}");
        }
        let listed: Value = serde_json::from_str(&list(&client, true).unwrap()).unwrap();
        assert_eq!(listed[0]["id"], "7");
        for (id, words) in [
            ("zz", "not a member's id"),
            ("9", "etcd has no member 9; it has\n0000000000000007"),
            ("7", "this node's own member"),
            // It was added at another address.
            ("8", "this node's own member"),
        ] {
            let error = format!("{:#}", remove(&client, OWN, id).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        assert!(
            asked
                .try_iter()
                .all(|request| request.line.ends_with("/list"))
        );
        assert!(remove(&client, OWN, "ff").unwrap().ends_with("is out\n"));
        let last = asked.try_iter().last().unwrap();
        assert!(last.line.ends_with("/remove"), "{}", last.line);
        assert_eq!(last.body, "{\"ID\":\"255\"}");
    }
}
