//! Control planes whose etcd volume lost its data: what they say, and how they get a place again.

use cluster::object::balancer::Server;

use super::*;

/// The node's etcd volume is replaced by an empty one.
fn lose_data(world: &World) {
    fs::remove_dir_all(world.in_initrd(ETCD).join("member")).unwrap();
}

#[test]
fn a_member_that_lost_its_data_is_named_and_has_no_static_pod() {
    let cluster = Cluster::new(0);
    cluster.members.lock().unwrap().push(json!({
        "ID": "255", "name": "node2", "peerURLs": ["https://10.0.0.8:2380"],
    }));
    let folder = tempfile::tempdir().unwrap();
    let world = node(folder.path(), &cluster.object(""));
    for file in shared_keys::FILES {
        let path = format!("{PKI}/{file}");
        put(&world.in_initrd(&path), &cluster.plane.file(&path));
    }
    let error = format!("{:#}", prepared(&world).unwrap_err());
    assert!(error.contains("slipway-node etcd remove ff,"), "{error}");
    assert!(
        lines(&cluster.etcd)
            .iter()
            .all(|line| line.ends_with("/list"))
    );
    assert!(!world.in_initrd("/etc/kubernetes/manifests").exists());
}

/// A further control plane that votes.
fn voting(cluster: &Cluster, root: &Path) -> (World, object::Bootstrap) {
    let world = node(root, &cluster.fetching());
    prepared(&world).unwrap();
    has_data(&world);
    cluster.members.lock().unwrap()[1]["name"] = "node2".into();
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    let mut journal = Journal::read(&world).unwrap().unwrap();
    promote(&world, &bootstrap, &mut journal, LIMITS).unwrap();
    lines(&cluster.etcd);
    (world, bootstrap)
}

#[test]
fn a_further_one_whose_volume_was_replaced_says_so_until_its_member_is_out_and_is_added_anew() {
    let cluster = Cluster::new(0);
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = voting(&cluster, folder.path());
    lose_data(&world);
    let mut journal = Journal::read(&world).unwrap().unwrap();
    for error in [
        prepared(&world).unwrap_err(),
        promote(&world, &bootstrap, &mut journal, LIMITS).unwrap_err(),
    ] {
        let error = format!("{error:#}");
        assert!(
            error.contains("etcd's data are not on this node's volume")
                || error.contains("slipway-node etcd remove 9,"),
            "{error}"
        );
    }
    cluster.members.lock().unwrap().pop();
    prepared(&world).unwrap();
    let asked = lines(&cluster.etcd);
    assert_eq!(
        asked.iter().filter(|line| line.ends_with("/add")).count(),
        1,
        "{asked:?}"
    );
    // The API server of before would answer nothing beside a learner.
    assert_eq!(manifests(&world), ["etcd.yaml"]);
    let mut journal = Journal::read(&world).unwrap().unwrap();
    assert!(!journal.member.as_ref().unwrap().promoted);
    cluster.members.lock().unwrap()[1]["name"] = "node2".into();
    has_data(&world);
    promote(&world, &bootstrap, &mut journal, LIMITS).unwrap();
    assert_eq!(manifests(&world), ["etcd.yaml", "kube-apiserver.yaml"]);
}

/// A first control plane of the cluster's keys whose etcd has data, and whose bring-up is done; `endpoint` is that of its object.
fn first(cluster: &Cluster, root: &Path, endpoint: &str) -> (World, object::Bootstrap) {
    let object = format!(
        "name = \"blue\"\nendpoint = \"{endpoint}\"\n[node]\nname = \"node2\"\naddress = \"10.0.0.8\"\n"
    );
    let world = node(root, &object);
    for file in shared_keys::FILES {
        let path = format!("{PKI}/{file}");
        put(&world.in_initrd(&path), &cluster.plane.file(&path));
    }
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    started(&world, &bootstrap).unwrap();
    has_data(&world);
    let mut journal = Journal::read(&world).unwrap().unwrap();
    journal.marked = true;
    journal
        .applied
        .insert("/path".to_owned(), "hash".to_owned());
    journal.write(&world).unwrap();
    (world, bootstrap)
}

/// The preparation of a first control plane.
fn started(world: &World, bootstrap: &object::Bootstrap) -> Result<()> {
    control_plane::prepare(world, bootstrap, |journal| {
        etcd_place::find(world, &bootstrap.object, journal, LIMITS)
    })
}

#[test]
fn a_first_one_without_its_data_starts_nothing_until_it_has_a_place_or_is_told_to_begin_anew() {
    let cluster = Cluster::new(0);
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = first(&cluster, folder.path(), "10.0.0.8:6443");
    let object = &bootstrap.object;
    lose_data(&world);
    let error = format!("{:#}", started(&world, &bootstrap).unwrap_err());
    assert!(
        error.contains("this node knows no other control plane")
            && error.contains("slipway-node etcd begin-anew"),
        "{error}"
    );
    // One that serves another cluster, or nothing, is no way out.
    let nobody = Server::parse("127.0.0.1:1").unwrap();
    assert!(etcd_place::rejoin(&world, object, &nobody).is_err());
    assert!(started(&world, &bootstrap).is_err());

    let url = cluster.plane.listener().local_addr().unwrap();
    let server = Server::parse(&url.to_string()).unwrap();
    assert_eq!(etcd_place::rejoin(&world, object, &server).unwrap(), url);
    // Now a cluster that goes on is known.
    let error = etcd_place::begin_anew(&world, object).unwrap_err();
    assert!(format!("{error:#}").contains("serves this cluster; nothing is changed"));
    started(&world, &bootstrap).unwrap();
    assert_eq!(manifests(&world), ["etcd.yaml"]);
    let etcd = fs::read_to_string(world.in_initrd("/etc/kubernetes/manifests/etcd.yaml")).unwrap();
    assert!(etcd.contains("--initial-cluster-state=existing"), "{etcd}");
    has_data(&world);
    cluster.members.lock().unwrap()[1]["name"] = "node2".into();
    let mut journal = Journal::read(&world).unwrap().unwrap();
    promote(&world, &bootstrap, &mut journal, LIMITS).unwrap();
    assert_eq!(manifests(&world), ["etcd.yaml", "kube-apiserver.yaml"]);

    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = first(&cluster, folder.path(), "10.0.0.8:6443");
    lose_data(&world);
    etcd_place::begin_anew(&world, &bootstrap.object).unwrap();
    let authority = Journal::read(&world).unwrap().unwrap().authority;
    started(&world, &bootstrap).unwrap();
    assert_eq!(manifests(&world), ["etcd.yaml", "kube-apiserver.yaml"]);
    let journal = Journal::read(&world).unwrap().unwrap();
    assert!(authority.is_some() && journal.authority == authority);
    assert!(!journal.marked && journal.applied.is_empty() && journal.member.is_none());
}

#[test]
fn a_control_plane_whose_data_are_there_neither_rejoins_nor_begins_anew() {
    let cluster = Cluster::new(0);
    let folder = tempfile::tempdir().unwrap();
    let url = cluster.plane.listener().local_addr().unwrap().to_string();
    let (world, bootstrap) = first(&cluster, folder.path(), &url);
    let before = files(folder.path());
    let server = Server::parse(&url).unwrap();
    for error in [
        etcd_place::rejoin(&world, &bootstrap.object, &server).unwrap_err(),
        etcd_place::begin_anew(&world, &bootstrap.object).unwrap_err(),
    ] {
        assert!(error.to_string().contains("nothing is changed"), "{error}");
    }
    unchanged(&before, folder.path());
    started(&world, &bootstrap).unwrap();
    assert!(lines(&cluster.asked).is_empty() && lines(&cluster.etcd).is_empty());
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = voting(&cluster, folder.path());
    lose_data(&world);
    let error = etcd_place::begin_anew(&world, &bootstrap.object).unwrap_err();
    assert!(error.to_string().contains("begins none"), "{error}");
}
