//! A further control plane whose start is cut off among the keys that it has fetched.

use super::*;

/// Without the journal another object at the next start would take the keys that are there for its own.
#[test]
fn fetched_keys_are_remembered_before_the_first_is_written_and_are_fetched_again_after_a_cut() {
    for file in ["ca.key", "sa.key", "etcd/ca.key"] {
        let cluster = Cluster::new(0);
        let folder = tempfile::tempdir().unwrap();
        let world = node(folder.path(), &cluster.fetching());
        // Nothing is written from this file on: a folder stands there.
        let cut = world.in_initrd(&format!("{PKI}/{file}"));
        fs::create_dir_all(&cut).unwrap();
        let error = format!("{:#}", prepared(&world).unwrap_err());
        assert!(error.contains(file), "{error}");
        let journal = Journal::read(&world).unwrap().unwrap();
        assert_eq!(
            (journal.cluster.as_str(), journal.authority),
            ("blue", None)
        );
        let object = "name = \"red\"\n[node]\nname = \"node2\"\naddress = \"10.0.0.8\"\n";
        put(&world.in_initrd(image::paths::CLUSTER), object);
        let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
        let error = control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap_err();
        let expected = "this node belongs to the cluster \"blue\"";
        assert!(format!("{error:#}").contains(expected), "{error:#}");

        put(&world.in_initrd(image::paths::CLUSTER), &cluster.fetching());
        fs::remove_dir(&cut).unwrap();
        prepared(&world).unwrap_or_else(|error| panic!("{file}: {error:#}"));
        for file in shared_keys::FILES {
            let path = format!("{PKI}/{file}");
            let found = fs::read_to_string(world.in_initrd(&path)).unwrap();
            assert_eq!(found, cluster.plane.file(&path), "{file}");
        }
        assert!(Journal::read(&world).unwrap().unwrap().authority.is_some());
        assert_eq!(manifests(&world), ["etcd.yaml"]);
    }
}
