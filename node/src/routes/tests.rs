use std::sync::mpsc::{Receiver, channel};

use serde_json::json;

use super::*;
use crate::samples::{CLOSED, Request, server};

fn node(name: &str, addresses: &[&str], subnets: &[&str]) -> Value {
    let internal = |address: &&str| json!({"type": "InternalIP", "address": address});
    let mut addresses: Vec<_> = addresses.iter().map(internal).collect();
    addresses.insert(0, json!({"type": "Hostname", "address": name}));
    json!({
        "metadata": {"name": name},
        "spec": {"podCIDRs": subnets},
        "status": {"addresses": addresses},
    })
}

fn shown(others: &Others) -> Vec<String> {
    others.values().flatten().map(ToString::to_string).collect()
}

#[test]
fn the_pods_of_each_other_node_are_behind_its_address_of_their_version() {
    let mut others = Others::new();
    for (name, addresses, subnets) in [
        ("own", &["10.0.0.1"][..], &["10.244.0.0/24"][..]),
        (
            "both",
            &["10.0.0.2", "fd00::2"],
            &["10.244.1.0/24", "fd01::/64"],
        ),
        ("new", &["10.0.0.3"], &[]),
        ("four", &["10.0.0.4"], &["fd02::/64"]),
    ] {
        take(&mut others, "own", &node(name, addresses, subnets), true);
    }
    assert_eq!(
        shown(&others),
        ["10.244.1.0/24 by 10.0.0.2", "fd01::/64 by fd00::2"]
    );
}

#[test]
fn a_node_counts_when_it_has_a_subnet_until_it_is_gone_and_else_changes_nothing() {
    let mut others = Others::new();
    let mut new = |addresses: &[&str], subnets: &[&str], is_there| {
        let node = node("w1", addresses, subnets);
        let is_changed = take(&mut others, "own", &node, is_there);
        (is_changed, shown(&others).join(", "))
    };
    let subnet = ["10.244.1.0/24"];
    let nothing = String::new();
    assert_eq!(new(&["10.0.0.2"], &[], true), (false, nothing.clone()));
    let first = "10.244.1.0/24 by 10.0.0.2".to_owned();
    assert_eq!(new(&["10.0.0.2"], &subnet, true), (true, first.clone()));
    assert_eq!(new(&["10.0.0.2"], &subnet, true), (false, first));
    let moved = "10.244.1.0/24 by 10.0.0.3".to_owned();
    assert_eq!(new(&["10.0.0.3"], &subnet, true), (true, moved));
    assert_eq!(new(&["10.0.0.3"], &subnet, false), (true, nothing.clone()));
    assert_eq!(new(&["10.0.0.3"], &subnet, false), (false, nothing));
}

/// What a control plane says of the nodes: two pages of a list, then what happens to them.
fn said(request: &Request) -> (u16, String) {
    let event = |kind: &str, node: &Value| json!({"type": kind, "object": node}).to_string() + "\n";
    let first = node("w1", &["10.0.0.2"], &["10.244.1.0/24"]);
    let own = node("node1", &["10.0.0.1"], &["10.244.0.0/24"]);
    let new = node("w2", &["10.0.0.3"], &[]);
    let complete = node("w2", &["10.0.0.3"], &["10.244.2.0/24"]);
    let answer = match request.line.split_once('?').unwrap() {
        ("GET /api/v1/nodes", "limit=100") => {
            json!({"metadata": {"continue": "next", "resourceVersion": "7"}, "items": [own]})
                .to_string()
        }
        ("GET /api/v1/nodes", "limit=100&continue=next") => {
            json!({"metadata": {"resourceVersion": "7"}, "items": [first]}).to_string()
        }
        (
            "GET /api/v1/nodes",
            "allowWatchBookmarks=true&watch=true&resourceVersion=7&timeoutSeconds=50",
        ) => [
            event("ADDED", &new),
            event("MODIFIED", &own),
            event("MODIFIED", &complete),
            event("BOOKMARK", &json!({"metadata": {"resourceVersion": "9"}})),
            event("DELETED", &first),
        ]
        .concat(),
        _ => return (500, request.line.clone()),
    };
    (200, answer)
}

#[test]
fn the_routes_follow_the_nodes_as_they_come_and_go() {
    let (url, _requests) = server(said);
    let api = Api::plain(&url).unwrap();
    let (sender, sets) = channel();
    let mut known = Known::default();
    known
        .follow(&api, "node1", WATCH, &mut |others| {
            sender.send(shown(others)).unwrap();
            Ok(())
        })
        .unwrap();
    drop(sender);
    let (first, second) = ("10.244.1.0/24 by 10.0.0.2", "10.244.2.0/24 by 10.0.0.3");
    let sets: Vec<_> = sets.iter().collect();
    assert_eq!(sets, [vec![first], vec![first, second], vec![second]]);
}

#[test]
fn what_the_control_plane_does_not_know_or_allow_is_an_error_and_the_routes_are_those_of_the_list()
{
    let gone = r#"{"type": "ERROR", "object": {"kind": "Status", "message": "too old resource version: 7", "code": 410}}"#;
    for (status, answer, expected) in [
        (
            200,
            gone.to_owned() + "\n",
            (Some(410), "too old resource version: 7"),
        ),
        (
            403,
            r#"{"message": "nodes is forbidden"}"#.to_owned(),
            (Some(403), "nodes is forbidden"),
        ),
        (200, "<html>\n".to_owned(), (None, "reading an event")),
        (
            200,
            "{\"type\": \"NEW\"}\n".to_owned(),
            (None, "an event of the type"),
        ),
    ] {
        let (url, _requests) = server(move |request| match request.line.contains("watch=true") {
            true => (status, answer.clone()),
            false => said(request),
        });
        let mut sets = Vec::new();
        let api = Api::plain(&url).unwrap();
        let error = Known::default().follow(&api, "node1", WATCH, &mut |others| {
            sets.push(shown(others));
            Ok(())
        });
        let error = error.unwrap_err();
        assert_eq!(
            api::status(&error).map(|status| status.as_u16()),
            expected.0
        );
        assert!(format!("{error:#}").contains(expected.1), "{error:#}");
        assert_eq!(sets, [["10.244.1.0/24 by 10.0.0.2"]]);
    }
}

#[test]
fn an_event_that_is_cut_off_changes_nothing() {
    let (url, _requests) = server(|request| match request.line.contains("watch=true") {
        true => (
            200,
            r#"{"type": "DELETED", "object": {"metadata": {"name": "w1"}"#.to_owned(),
        ),
        false => said(request),
    });
    let mut sets = Vec::new();
    let (api, mut known) = (Api::plain(&url).unwrap(), Known::default());
    known
        .follow(&api, "node1", WATCH, &mut |others| {
            sets.push(shown(others));
            Ok(())
        })
        .unwrap();
    assert_eq!(sets.len(), 1);
}

#[test]
fn a_route_that_cannot_be_set_ends_the_watch() {
    let (url, _requests) = server(said);
    let mut count = 0;
    let (api, mut known) = (Api::plain(&url).unwrap(), Known::default());
    let error = known.follow(&api, "node1", WATCH, &mut |_| {
        count += 1;
        anyhow::ensure!(count < 2, "the kernel refuses");
        Ok(())
    });
    assert_eq!(error.unwrap_err().to_string(), "the kernel refuses");
    assert_eq!(count, 2);
}

/// The queries of the requests since the last call.
fn queries(requests: &Receiver<Request>) -> Vec<String> {
    let lines = requests.try_iter().map(|request| request.line);
    lines
        .map(|line| line.split_once('?').unwrap().1.to_owned())
        .collect()
}

/// The versions of the watches are those of the last event or bookmark of the one before.
#[test]
fn the_nodes_are_listed_once_and_each_watch_goes_on_where_the_one_before_ended() {
    let event = |kind: &str, version: &str, mut node: Value| {
        node["metadata"]["resourceVersion"] = version.into();
        json!({"type": kind, "object": node}).to_string() + "\n"
    };
    let (url, requests) = server(move |request| {
        let new = node("w2", &["10.0.0.3"], &["10.244.2.0/24"]);
        let watched = |version: &str| {
            let query = format!("watch=true&resourceVersion={version}&");
            request.line.contains(&query)
        };
        if watched("7") {
            let bookmark = event("BOOKMARK", "9", json!({"kind": "Node"}));
            (200, event("ADDED", "8", new) + &bookmark)
        } else if watched("9") {
            (200, event("DELETED", "12", new))
        } else if watched("12") {
            (200, String::new())
        } else {
            said(request)
        }
    });
    let (api, mut known) = (Api::plain(&url).unwrap(), Known::default());
    let mut sets = Vec::new();
    for _ in 0..3 {
        known
            .follow(&api, "node1", WATCH, &mut |others| {
                sets.push(shown(others).len());
                Ok(())
            })
            .unwrap();
    }
    let lists = ["limit=100", "limit=100&continue=next"].map(str::to_owned);
    let watches = [7, 9, 12].map(|version| {
        format!("allowWatchBookmarks=true&watch=true&resourceVersion={version}&timeoutSeconds=50")
    });
    assert_eq!(queries(&requests), [&lists[..], &watches].concat());
    // Once before each watch, whatever the kernel has by then, and when a node comes or goes.
    assert_eq!(sets, [1, 2, 2, 1, 1]);
}

/// What an API server that was restarted, or has other data by now, costs.
#[test]
fn only_a_version_that_is_gone_or_in_doubt_is_read_anew() {
    let error = |code: u16| {
        let status = json!({"kind": "Status", "message": "no", "code": code});
        json!({"type": "ERROR", "object": status}).to_string() + "\n"
    };
    for (status, answer, lists) in [
        (410, String::new(), true),
        (200, error(410), true),
        (200, error(503), true),
        (403, String::new(), true),
        (500, String::new(), true),
        (200, "<html>\n".to_owned(), true),
        (CLOSED, String::new(), false),
        (401, String::new(), false),
        (429, String::new(), false),
        (503, String::new(), false),
    ] {
        let about = format!("{status} {answer}");
        let (url, requests) = server(move |request| match request.line.contains("watch=true") {
            true => (status, answer.clone()),
            false => said(request),
        });
        let (api, mut known) = (Api::plain(&url).unwrap(), Known::default());
        let mut follow = || known.follow(&api, "node1", WATCH, &mut |_| Ok(()));
        follow().unwrap_err();
        assert_eq!(queries(&requests).len(), 3, "{about}");
        follow().unwrap_err();
        let expected = if lists { 3 } else { 1 };
        assert_eq!(queries(&requests).len(), expected, "{about}");
    }
}

/// With a version beyond those of the API server's data no event would ever come.
#[test]
fn a_version_that_the_api_server_says_nothing_after_is_in_doubt() {
    for (time, keeps) in [(WATCH, true), (Duration::ZERO, false)] {
        let (url, _requests) = server(|request| match request.line.contains("watch=true") {
            true => (200, String::new()),
            false => said(request),
        });
        let (api, mut known) = (Api::plain(&url).unwrap(), Known::default());
        known.follow(&api, "node1", time, &mut |_| Ok(())).unwrap();
        assert_eq!(known.version.is_some(), keeps, "{time:?}");
    }
}

#[test]
fn nodes_do_not_ask_again_at_the_same_moment() {
    let (url, _requests) = server(|_| (403, String::new()));
    let mut known = Known::default();
    let forbidden = known
        .follow(&Api::plain(&url).unwrap(), "node1", WATCH, &mut |_| Ok(()))
        .unwrap_err();
    let other = Error::msg("no answer");
    let mut among = |nodes: usize, version: Option<&str>, error: &Error| {
        let other = |number| (format!("w{number}"), Vec::new());
        known.others = (0..nodes).map(other).collect();
        known.version = version.map(str::to_owned);
        let pauses: BTreeSet<Duration> = (0..100).map(|_| known.pause(error)).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
        (*pauses.first().unwrap(), *pauses.last().unwrap())
    };
    let seconds = Duration::from_secs;
    let (first, last) = among(1000, Some("7"), &other);
    assert!(first >= seconds(5) && last <= seconds(10), "{last:?}");
    // A thousand lists are spread as those of before were, which each node asked for every 50 s.
    let (first, last) = among(1000, None, &other);
    assert!(first >= seconds(5) && last > seconds(30), "{last:?}");
    assert!(last <= seconds(60), "{last:?}");
    let (first, last) = among(2, None, &forbidden);
    assert!(first >= seconds(30) && last <= seconds(61), "{last:?}");
}
