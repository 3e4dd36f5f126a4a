//! VMware: its variables, and a machine that is not VMware's.

use std::io::Write;

use super::*;
use crate::testing::{Bench, CONFIG};

fn from(variables: &[(&str, &[u8])]) -> Result<Found, Problem> {
    from_variables(&mut |name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        Ok(found.map(|(_, value)| value.to_vec()))
    })
}

fn base64(data: &[u8]) -> Vec<u8> {
    ignition::encoding::encode_base64(data).into_bytes()
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(data).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn every_encoding_is_taken_off() {
    let gzip = gzip(CONFIG.as_bytes());
    for (data, encoding) in [
        (CONFIG.as_bytes().to_vec(), ""),
        (base64(CONFIG.as_bytes()), "base64"),
        (gzip.clone(), "gzip"),
        (base64(&gzip), "gzip+base64"),
        (base64(&gzip), "gz+b64"),
    ] {
        let found = from(&[(DATA, &data), (ENCODING, encoding.as_bytes())]).unwrap();
        assert_eq!(found.config.unwrap().text, CONFIG.as_bytes(), "{encoding}");
    }
    let problem = from(&[(DATA, b"x"), (ENCODING, b"rot13")]).unwrap_err();
    assert!(
        problem.what.contains("rot13") && !problem.remote,
        "{problem}"
    );
    assert_eq!(from(&[]).unwrap().config, None);
}

#[test]
fn the_ovf_environment_has_what_no_variable_has() {
    let escaped = CONFIG.replace('"', "&quot;");
    let xml = format!(
        "<?xml version=\"1.0\"?>\n<!-- <Property oe:key=\"{DATA}\" oe:value=\"no\"/> -->\n\
         <Environment xmlns:oe=\"x\"><PropertySection>\n\
         <Property oe:key=\"{DATA}\" oe:value=\"{escaped}\"/>\n\
         <Property oe:value='web&#45;1&#x2e;example' oe:key='guestinfo.hostname' />\n\
         <Property oe:key=\"empty\"/></PropertySection></Environment>"
    );
    let found = from(&[(OVF, xml.as_bytes())]).unwrap();
    assert_eq!(found.config.unwrap().text, CONFIG.as_bytes());
    assert_eq!(found.metadata.hostname.as_deref(), Some("web-1.example"));
    let found = from(&[(OVF, xml.as_bytes()), (DATA, b"{}")]).unwrap();
    assert_eq!(found.config.unwrap().text, b"{}");
    for broken in [
        "<",
        "<Property",
        "<Property oe:key",
        "<Property oe:key=\"a",
        "<a b=c>é",
    ] {
        assert!(properties(broken).is_err(), "{broken}");
    }
}

#[test]
fn the_config_is_deleted_wherever_it_is() {
    let others = "<Property oe:key=\"guestinfo.hostname\" oe:value=\"web-1\"/>\n";
    let xml = format!(
        "<Environment><!-- <Property oe:key=\"{DATA}\"/> -->\n{others}\
         <Property oe:key=\"{DATA}\" oe:value=\"a&gt;SECRET\"/><Property oe:value='b64' oe:key='{ENCODING}'></Property>\
         </Environment>\n"
    );
    let deleted = |variables: &[(&str, &[u8])]| {
        deletions(&mut |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            Ok(found.map(|(_, value)| value.to_vec()))
        })
        .unwrap()
    };
    let rest =
        format!("<Environment><!-- <Property oe:key=\"{DATA}\"/> -->\n{others}</Environment>\n");
    assert_eq!(
        deleted(&[(DATA, b"{}"), (ENCODING, b""), (OVF, xml.as_bytes())]),
        [(DATA, Vec::new()), (OVF, rest.clone().into_bytes())]
    );
    // What has no config is not written.
    assert_eq!(deleted(&[(OVF, rest.as_bytes())]), []);
    assert_eq!(deleted(&[]), []);
    for odd in ["<", "<Property", "a<!--", "<Property oe:key=\"a\"", "<é"] {
        assert!(without(odd, &[DATA]).is_err(), "{odd}");
    }
    // Other elements inside, one of them of the same kind.
    let inside = format!(
        "<Property oe:key=\"{DATA}\" oe:value=\"x\"><Label a='>'>one</Label ><!-- </Property> --><Empty/>\
         <![CDATA[</Property>]]><Property>two</Property>three</Property>"
    );
    for text in [inside.clone(), inside.replace("Property", "oe:Property")] {
        let whole = format!("<Environment>\n{others}{text}{others}</Environment>\n");
        let rest = format!("<Environment>\n{others}{others}</Environment>\n");
        assert_eq!(without(&whole, &[DATA]).unwrap(), rest);
    }
    assert_eq!(without("", &[DATA]).unwrap(), "");
}

#[test]
fn only_a_config_that_was_applied_is_deleted() {
    let bench = Bench::new();
    bench.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
    let failed = bench.run(|machine| delete(machine, Outcome::Failed("x")));
    assert_eq!(failed.unwrap(), None);
    let problem = bench
        .run(|machine| delete(machine, Outcome::Ready))
        .unwrap_err();
    assert!(problem.what.contains("QEMU"), "{problem}");
}

#[test]
fn words_for_the_network_make_the_network() {
    let words =
        b"ip=192.0.2.5::192.0.2.1:255.255.255.0:web-1:ens192:none nameserver=198.51.100.53\n";
    let found = from(&[(NETWORK, words)]).unwrap();
    assert_eq!(found.notes, [""; 0]);
    let described = found.metadata.network.unwrap();
    let plan = described.plan();
    assert_eq!(plan.interfaces.len(), 1);
    assert_eq!(plan.resolvers[0].to_string(), "198.51.100.53");
    // A later boot reads what is kept.
    let kept = Described::read_kept(described.text.clone(), "n").unwrap();
    assert_eq!(kept, Some(described));
    for nothing in [&b"quiet"[..], b" "] {
        assert_eq!(from(&[(NETWORK, nothing)]).unwrap().metadata.network, None);
    }
    let found = from(&[(NETWORK, b"ip=1.2.3.4.5::::::x")]).unwrap();
    assert_eq!(found.metadata.network, None);
    assert!(found.notes[0].starts_with(NETWORK), "{:?}", found.notes);
}

/// As Cluster API's provider for vSphere writes it.
const GUEST_METADATA: &str = "\
instance-id: \"worker-7\"
local-hostname: \"worker-7\"
wait-on-network:
  ipv4: false
network:
  version: 2
  ethernets:
    id0:
      match:
        macaddress: \"00:50:56:00:00:0a\"
      set-name: \"eth0\"
      wakeonlan: true
      dhcp4: false
      dhcp6: false
      addresses:
      - \"192.0.2.9/24\"
      routes:
      - to: \"0.0.0.0/0\"
        via: \"192.0.2.1\"
      nameservers:
        addresses:
        - \"198.51.100.53\"
        search:
        - \"nodes.example\"
";

#[test]
fn cloud_inits_metadata_has_the_host_name_and_a_fixed_network() {
    use guest_metadata::{ENCODING, METADATA};
    let plain = GUEST_METADATA.as_bytes();
    for (data, encoding) in [
        (plain.to_vec(), ""),
        (base64(plain), "base64"),
        (base64(plain), "b64"),
        (base64(&gzip(plain)), "gzip+base64"),
        (base64(&gzip(plain)), "gz+b64"),
    ] {
        let found = from(&[(METADATA, &data), (ENCODING, encoding.as_bytes())]).unwrap();
        assert_eq!(found.notes, [""; 0], "{encoding}");
        assert_eq!(found.config, None);
        let metadata = found.metadata;
        assert_eq!(metadata.hostname.as_deref(), Some("worker-7"));
        assert_eq!(metadata.instance_id.as_deref(), Some("worker-7"));
        assert_eq!(metadata.local_ipv4, ["192.0.2.9"]);
        let plan = metadata.network.unwrap().plan();
        assert_eq!(
            plan.interfaces[0].addresses,
            [("192.0.2.9".parse().unwrap(), 24)]
        );
        assert_eq!(plan.aliases[0].1.to_string(), "00:50:56:00:00:0a");
        assert_eq!(plan.routes[0].gateway.to_string(), "192.0.2.1");
        assert_eq!(plan.resolvers[0].to_string(), "198.51.100.53");
    }
}

#[test]
fn metadata_may_hold_keys_and_a_network_that_is_encoded_once_more() {
    let network = GUEST_METADATA.split_once("\nnetwork:\n  ").unwrap().1;
    let network = network.replace("\n  ", "\n");
    let network = String::from_utf8(base64(&gzip(network.as_bytes()))).unwrap();
    let document = format!(
        r#"{{"local-hostname": "w", "network": "{network}", "network.encoding": "gzip+base64",
            "public-keys-data": "{0} one\n{0} two\n"}}"#,
        crate::testing::KEY
    );
    let found = from(&[(guest_metadata::METADATA, document.as_bytes())]).unwrap();
    assert_eq!(found.notes, [""; 0]);
    assert_eq!(found.metadata.local_ipv4, ["192.0.2.9"]);
    let keys: Vec<&str> = found
        .metadata
        .ssh_keys
        .iter()
        .map(|key| key.key.as_str())
        .collect();
    assert_eq!(keys.len(), 2);
    assert!(keys[1].ends_with(" two"), "{keys:?}");
}

#[test]
fn what_is_said_for_this_system_comes_before_cloud_inits_metadata() {
    let all: [(&str, &[u8]); 4] = [
        (guest_metadata::METADATA, GUEST_METADATA.as_bytes()),
        (HOSTNAME, b"web-1"),
        (NETWORK, b"ip=dhcp"),
        (DATA, CONFIG.as_bytes()),
    ];
    let found = from(&all).unwrap();
    assert_eq!(found.metadata.hostname.as_deref(), Some("web-1"));
    assert_eq!(found.metadata.network.unwrap().text, b"ip=dhcp");
    assert!(found.config.is_some());
    // Words that say nothing leave it as it is.
    let found = from(&[all[0], (NETWORK, b"quiet")]).unwrap();
    assert!(found.metadata.network.unwrap().text.starts_with(b"{"));
}

#[test]
fn broken_metadata_is_noted_and_keeps_nothing_from_the_config() {
    use guest_metadata::{ENCODING, METADATA};
    let bridge = GUEST_METADATA.replace("ethernets", "bridges");
    for (data, encoding, word) in [
        (
            GUEST_METADATA,
            "rot13",
            "guestinfo.metadata.encoding: \"rot13\"",
        ),
        (GUEST_METADATA, "base64", "guestinfo.metadata: "),
        ("a: [", "", "not YAML"),
        (
            "network: c2",
            "",
            "ignoring the network of guestinfo.metadata",
        ),
        (&bridge, "", "bridges"),
    ] {
        let variables = [
            (METADATA, data.as_bytes()),
            (ENCODING, encoding.as_bytes()),
            (DATA, CONFIG.as_bytes()),
        ];
        let found = from(&variables).unwrap();
        assert!(found.config.is_some());
        assert_eq!(found.metadata.network, None);
        assert!(
            found.notes.iter().any(|note| note.contains(word)),
            "{:?}",
            found.notes
        );
    }
}

#[test]
fn vmware_is_refused_elsewhere() {
    let bench = Bench::new();
    bench.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
    let problem = bench.obtain("vmware").unwrap_err();
    assert!(
        problem.what.contains("QEMU") && !problem.remote,
        "{problem}"
    );
    // Wrong firmware fields do not kill the program: the processor is checked next.
    bench.write("sys/class/dmi/id/sys_vendor", "VMware, Inc.\n");
    let problem = bench.obtain("vmware").unwrap_err();
    assert!(problem.what.contains("guestinfo"), "{problem}");
}
