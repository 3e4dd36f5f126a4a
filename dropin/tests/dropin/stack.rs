//! Arrays and encrypted volumes, as far as they can be tested without device mapper.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[test]
fn arrays_and_volumes_that_cannot_be_made_are_refused_before_anything_is_kept() {
    for (storage, why) in [
        (
            r#""luks": [{"name": "v", "device": "/dev/v", "cex": {"enabled": true}}]"#,
            "$.storage.luks.0: cex",
        ),
        (
            r#""raid": [{"name": "r", "level": "raid10", "devices": ["/dev/v"]}]"#,
            "$.storage.raid.0: ",
        ),
    ] {
        let text = format!(r#"{{"ignition": {{"version": "3.5.0"}}, "storage": {{{storage}}}}}"#);
        let place = Place::new(&text);
        for stage in ["fetch-offline", "fetch"] {
            let said = place.fails(stage, 1);
            assert!(said.contains(why), "{said}");
        }
        assert!(!place.path("ignition.json").exists());
        assert!(!place.path("neednet").exists());
    }
}

#[test]
fn a_key_file_needs_the_network_and_is_fetched_by_the_stage_that_uses_it() {
    let (base, log) = serve(|path| match path {
        "/key" => ok("SECRET"),
        _ => "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned(),
    });
    let luks = |key: &str, more: &str| {
        config(&format!(
            r#", "storage": {{"luks": [{{"name": "v", "device": "/srv/no-device", "keyFile":
                {{"source": "{base}/{key}", "httpHeaders": [{{"name": "X-Auth", "value": "t0ken"}}]{more}}}}}]}}"#
        ))
    };
    let place = Place::new(&luks("key", ""));
    place.succeeds("fetch-offline");
    assert!(place.path("neednet").exists());
    place.succeeds("fetch");
    assert!(log.lock().unwrap().is_empty());
    // The key is fetched before the device name is resolved.
    let said = place.fails("disks", 1);
    assert!(
        said.contains("$.storage.luks.0.device: /srv/no-device is not a device name"),
        "{said}"
    );
    assert!(!said.contains("SECRET"), "{said}");
    assert_eq!(header(&log.lock().unwrap()[0], "x-auth"), Some("t0ken"));
    // The stage that writes files fetches no keys.
    place.succeeds("files");
    assert_eq!(log.lock().unwrap().len(), 1);
    let hash = format!(
        r#", "verification": {{"hash": "sha256-{}"}}"#,
        "0".repeat(64)
    );
    for (key, more, why) in [
        ("none", "", "keyFile.source"),
        ("key", hash.as_str(), "hash"),
    ] {
        let place = Place::new(&luks(key, more));
        place.succeeds("fetch");
        let said = place.fails("disks", 1);
        let at = "$.storage.luks.0.keyFile";
        assert!(said.contains(at) && said.contains(why), "{said}");
        assert!(!said.contains("SECRET"), "{said}");
    }
}

#[test]
fn keys_and_crypttab_of_volumes_that_the_disks_stage_opened_are_written_with_the_files() {
    let place = Place::new(&config(
        r#", "storage": {"files": [{"path": "/etc/crypttab", "mode": 420, "contents": {"source": "data:,%23%20mine%0A"}}]}"#,
    ));
    place.write(
        "state",
        r#"{"userConfig": false, "folders": [], "volumes": [
            {"name": "data", "uuid": "abab", "by": {"key": [83, 69, 67, 82, 69, 84]}},
            {"name": "sealed", "uuid": "cdcd", "by": "tpm"},
            {"name": "far", "uuid": "efef", "by": {"clevis": {"network": true}}}]}"#,
    );
    place.succeeds("fetch");
    assert!(place.read("state").contains("\"abab\""));
    let said = place.succeeds("files");
    assert!(!said.contains("SECRET"), "{said}");
    assert_eq!(
        place.read("root/etc/crypttab"),
        "# mine\ndata UUID=abab /etc/luks/data luks,x-initrd.attach\n\
         sealed UUID=cdcd none luks,tpm2-device=auto,headless=true,x-initrd.attach\n\
         far UUID=efef none luks,_netdev,x-initrd.attach\n"
    );
    assert_eq!(place.read("root/etc/luks/data"), "SECRET");
    let keys = fs::read_dir(place.path("root/etc/luks")).unwrap();
    assert_eq!(keys.count(), 1);
    for name in ["root/etc/luks/data", "root/etc/crypttab", "state"] {
        let mode = fs::metadata(place.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // The provisioned system can read the state file: no key stays in it.
    let state = place.read("state");
    assert!(state.contains("\"volumes\":[]"), "{state}");
}
