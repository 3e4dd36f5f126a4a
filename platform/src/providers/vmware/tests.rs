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

#[test]
fn every_encoding_is_taken_off() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(CONFIG.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
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
        "<é=é/>",
    ] {
        assert!(properties(broken).is_empty(), "{broken}");
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
