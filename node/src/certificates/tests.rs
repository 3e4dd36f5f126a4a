//! Renewal on a finished control plane.

use std::path::Path;

use super::*;
use crate::journal::Journal;
use crate::samples::{files, machine, put};

const OBJECT: &str = "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n";

/// A control plane that is finished.
fn finished(root: &Path) -> (World, Bootstrap) {
    let world = machine(root, OBJECT);
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
    let journal = Journal::read(&world).unwrap().unwrap();
    control_plane::served(&world, &bootstrap, &journal).unwrap();
    (world, bootstrap)
}

fn text(world: &World, path: &str) -> String {
    fs::read_to_string(world.in_initrd(path)).unwrap()
}

#[test]
fn what_reads_its_kubeconfig_once_is_started_anew_with_a_renewed_one() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = finished(folder.path());
    let manifest = |name: &str| text(&world, &format!("/etc/kubernetes/manifests/{name}.yaml"));
    let names = [
        "kube-controller-manager",
        "kube-scheduler",
        "kube-apiserver",
        "etcd",
    ];
    let before = names.map(manifest);
    let authority = text(&world, "/etc/kubernetes/pki/ca.crt");
    let all = files(folder.path());
    assert_eq!(
        renewed(&world, &bootstrap, Renewal::Soon, false).unwrap(),
        "no certificate ends soon\n"
    );
    let said = renewed(&world, &bootstrap, Renewal::All, true).unwrap();
    assert!(
        said.contains("/etc/kubernetes/pki/apiserver.crt would be made anew"),
        "{said}"
    );
    assert!(files(folder.path()) == all, "something was written");
    let said = renewed(&world, &bootstrap, Renewal::All, false).unwrap();
    assert!(
        said.contains("/etc/kubernetes/scheduler.conf is made anew"),
        "{said}"
    );
    let after = names.map(manifest);
    let changed: Vec<bool> = before
        .iter()
        .zip(&after)
        .map(|(one, other)| one != other)
        .collect();
    assert_eq!(changed, [true, true, false, false]);
    assert_eq!(text(&world, "/etc/kubernetes/pki/ca.crt"), authority);
    // The next boot has nothing to do.
    let all = files(folder.path());
    control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
    assert!(files(folder.path()) == all, "something was written");
}

#[test]
fn a_machine_with_another_address_keeps_its_certificates_until_the_kubelet_starts() {
    let folder = tempfile::tempdir().unwrap();
    let (world, mut bootstrap) = finished(folder.path());
    assert_eq!(control_plane::moved(&world, &bootstrap.object), None);
    let before = files(folder.path());
    for address in ["10.0.0.9", "fd00::9"] {
        let endpoint = &mut bootstrap.object.config.init.local_api_endpoint;
        endpoint.advertise_address = address.to_owned();
        let error = renewed(&world, &bootstrap, Renewal::All, false).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("10.0.0.7:6443") && error.contains(address),
            "{error}"
        );
        assert!(files(folder.path()) == before, "something was written");
    }
}

#[test]
fn a_first_kubeconfig_that_was_taken_away_stays_away() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = finished(folder.path());
    let first = world.in_initrd("/etc/kubernetes/super-admin.conf");
    let renew = || renewed(&world, &bootstrap, Renewal::All, false).unwrap();
    assert!(renew().contains("super-admin.conf is made anew"));
    fs::remove_file(&first).unwrap();
    assert!(!renew().contains("super-admin.conf"));
    control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap();
    assert!(!first.exists());
}

#[test]
fn a_renamed_control_plane_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (world, mut bootstrap) = finished(folder.path());
    let name = bootstrap.object.config.init.node_registration.name.clone();
    bootstrap.object.config.init.node_registration.name = "other".to_owned();
    let before = files(folder.path());
    for error in [
        control_plane::prepare(&world, &bootstrap, |_| Ok(())).unwrap_err(),
        renewed(&world, &bootstrap, Renewal::All, false).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(
            error.contains(&format!("this node is {name:?}")) && error.contains("\"other\""),
            "{error}"
        );
        assert!(files(folder.path()) == before, "something was written");
    }
}

#[test]
fn keys_are_written_by_one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = finished(folder.path());
    let lock = fs::File::open(world.in_run(image::paths::RUN_NODE_LOCK)).unwrap();
    lock.lock().unwrap();
    std::thread::scope(|scope| {
        let renewing = scope.spawn(|| renewed(&world, &bootstrap, Renewal::All, false).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!renewing.is_finished());
        lock.unlock().unwrap();
        assert!(renewing.join().unwrap().contains("is made anew"));
    });
}

#[test]
fn renewed_certificates_have_the_objects_algorithm_below_the_same_authority() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _) = finished(folder.path());
    let authority = text(&world, "/etc/kubernetes/pki/ca.key");
    let rsa = format!("{OBJECT}[certificates]\nalgorithm = \"RSA-2048\"\n");
    put(&world.in_initrd(image::paths::CLUSTER), &rsa);
    let bootstrap = object::read(&world, Duration::ZERO).unwrap().unwrap();
    // Another algorithm is no reason for a new key.
    let all = files(folder.path());
    let said = renewed(&world, &bootstrap, Renewal::Soon, false).unwrap();
    assert_eq!(said, "no certificate ends soon\n");
    assert!(files(folder.path()).keys().eq(all.keys()));
    renewed(&world, &bootstrap, Renewal::All, false).unwrap();
    let key = text(&world, "/etc/kubernetes/pki/etcd/server.key");
    assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----"));
    let admin = kubeconfigs::read(&text(&world, "/etc/kubernetes/admin.conf")).unwrap();
    assert!(admin.key.unwrap().contains("RSA PRIVATE KEY"));
    assert_eq!(text(&world, "/etc/kubernetes/pki/ca.key"), authority);
    assert!(check(&world, false).unwrap().1);
}

#[test]
fn a_renewal_that_is_cut_between_a_key_and_its_certificate_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = finished(folder.path());
    let certificate = "/etc/kubernetes/pki/apiserver.crt";
    let old = text(&world, certificate);
    renewed(&world, &bootstrap, Renewal::All, false).unwrap();
    fs::write(world.in_initrd(certificate), old).unwrap();
    let said = renewed(&world, &bootstrap, Renewal::Soon, false).unwrap();
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(
        said.contains("apiserver.key") && said.contains("apiserver.crt"),
        "{said}"
    );
}

#[test]
fn the_end_of_each_certificate_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = finished(folder.path());
    let found = |days: u64| {
        let now = SystemTime::now() + Duration::from_secs((days * 24 + 12) * 3600);
        rows(&world, &bootstrap, now).unwrap()
    };
    let rows = found(0);
    // Three authorities, seven certificates, five kubeconfigs.
    assert_eq!(rows.len(), 15);
    let of = |rows: &[Row], end: &str| {
        let row = rows.iter().find(|row| row.file.ends_with(end)).unwrap();
        (row.days, row.state)
    };
    assert_eq!(of(&rows, "/apiserver.crt"), (Some(364), "valid"));
    assert_eq!(
        of(&rows, "/etcd/ca.crt").1,
        "an authority: never renewed by itself"
    );
    assert_eq!(
        of(&found(300), "/admin.conf"),
        (Some(64), "renewed within a day")
    );
    assert_eq!(of(&found(366), "/etcd/peer.crt"), (Some(-2), "ended"));
    fs::remove_file(world.in_initrd("/etc/kubernetes/pki/apiserver.crt")).unwrap();
    assert_eq!(of(&found(0), "/apiserver.crt"), (None, "missing"));
    let (shown, well) = check(&world, false).unwrap();
    assert!(
        !well && shown.contains("/etc/kubernetes/pki/etcd/server.crt"),
        "{shown}"
    );
}

/// What this node makes is valid since the image's time, whatever its clock said.
#[test]
fn certificates_begin_with_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _) = finished(folder.path());
    let epoch = crate::this_boot::manifest(&world).unwrap().epoch;
    for file in ["ca.crt", "apiserver.crt", "etcd/peer.crt"] {
        let life = Life::of_pem(&text(&world, &format!("/etc/kubernetes/pki/{file}"))).unwrap();
        assert_eq!(u64::try_from(life.begins), Ok(epoch), "{file}");
    }
}

/// The clock is set on beyond the end of the kubelet's certificate, or back before its beginning.
#[test]
fn a_kubelets_certificate_of_another_time_is_withdrawn_if_it_can_ask_for_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _) = finished(folder.path());
    let now = seconds(SystemTime::now()).unwrap();
    let kubelets = KUBELET.map(|path| world.in_initrd(path));
    assert!(!withdraw_kubelets(&world, now).unwrap());
    let life = Life::of_pem(&text(&world, "/etc/kubernetes/pki/ca.crt")).unwrap();
    // Ends before those that the authority signs.
    let short =
        "name = \"blue\"\n[node]\naddress = \"10.0.0.7\"\n[certificates]\nvalidity = \"24h\"\n";
    let other = tempfile::tempdir().unwrap();
    let brief = machine(other.path(), short);
    let of_brief = object::read(&brief, Duration::ZERO).unwrap().unwrap();
    control_plane::prepare(&brief, &of_brief, |_| Ok(())).unwrap();
    let certificate = text(&brief, "/etc/kubernetes/pki/apiserver-kubelet-client.crt");
    let two_days = now + 2 * DAY;
    for kubelet in &kubelets {
        put(kubelet, &certificate);
    }
    assert!(!withdraw_kubelets(&world, now).unwrap());
    assert!(withdraw_kubelets(&world, two_days).unwrap());
    assert!(kubelets.iter().all(|file| !file.exists()));
    assert!(!withdraw_kubelets(&world, two_days).unwrap());
    // Nothing to ask with: not valid itself, or another program's, which names files.
    put(&kubelets[0], &certificate);
    assert!(!withdraw_kubelets(&world, life.begins - 1).unwrap());
    let kubeconfig = text(&world, KUBECONFIG);
    let embedded = kubeconfig
        .lines()
        .find(|line| line.contains("client-certificate-data"))
        .unwrap();
    let named = kubeconfig.replace(
        embedded,
        "    client-certificate: /var/lib/kubelet/pki/a.pem",
    );
    put(&world.in_initrd(KUBECONFIG), &named);
    assert!(!withdraw_kubelets(&world, two_days).unwrap());
    assert!(kubelets[0].exists());
}

/// What the timer starts while the first boot goes on changes nothing.
#[test]
fn a_control_plane_that_is_not_finished_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let world = machine(folder.path(), OBJECT);
    run(&world).unwrap();
    assert!(!world.in_initrd("/etc/kubernetes/pki").exists());
}

#[test]
fn without_the_authoritys_key_nothing_is_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let (world, bootstrap) = finished(folder.path());
    fs::remove_file(world.in_initrd("/etc/kubernetes/pki/ca.key")).unwrap();
    let said = renewed(&world, &bootstrap, Renewal::All, false).unwrap();
    assert!(said.contains("ca.key is not on this node"), "{said}");
}
