//! The contract's forms, byte for byte: a change here is a new contract version or a mistake.
//!
//! `SLIPWAY_BLESS=1 cargo test -p image` writes the files anew, from the values in this file.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use image::cmdline::Cmdline;
use image::guid::Guid;
use image::layout::{self, Architecture, Sizes};
use image::manifest::{CONTRACT, ImageId, Kubernetes, Manifest};
use image::network::Network;
use image::node::{EtcdAdopt, EtcdFormat, EtcdSettings, NodeSettings, Role};
use image::platform::PlatformId;
use image::verity::{RootHash, Superblock};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/contract-{CONTRACT}"))
}

fn hold(name: &str, made: &str) {
    let path = folder().join(name);
    if std::env::var_os("SLIPWAY_BLESS").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(made, kept, "{name} of contract version {CONTRACT} changed");
}

fn manifest() -> Manifest {
    Manifest {
        contract: CONTRACT,
        image: ImageId {
            name: "demo".into(),
            version: "1.2.3".into(),
        },
        architecture: Architecture::X86_64,
        kernel: "6.12.0-cloud-amd64".into(),
        epoch: 1_790_000_000,
        sizes: Sizes::default(),
        kubernetes: Some(Kubernetes {
            version: "v1.36.3".into(),
            kubelet_sha256: "ab".repeat(32),
            images: BTreeMap::new(),
        }),
        platforms: vec![PlatformId::of("aws"), PlatformId::of("qemu")],
        node: NodeSettings {
            role: Role::ControlPlane,
            etcd: Some(EtcdSettings {
                serial: Some("etcd".into()),
                id: None,
                label: None,
                partlabel: None,
                format: EtcdFormat::IfBlank,
                cluster: Some("demo".into()),
                member: None,
                adopt: None,
                minimum_size: 1 << 30,
            }),
        },
    }
}

#[test]
fn manifest_is_unchanged_and_reads_back() {
    let text = manifest().to_text();
    hold("manifest.json", &text);
    assert_eq!(Manifest::parse(&text).unwrap(), manifest());
}

#[test]
fn the_images_of_a_control_plane_are_read_back() {
    let mut with_images = manifest();
    let kubernetes = with_images.kubernetes.as_mut().unwrap();
    let etcd = "slipway.local/etcd:3.5.16-0".to_owned();
    kubernetes.images.insert("etcd".to_owned(), etcd);
    let text = with_images.to_text();
    assert_eq!(Manifest::parse(&text), Ok(with_images));
}

#[test]
fn a_manifest_of_another_contract_is_refused_by_name() {
    let text = manifest()
        .to_text()
        .replace(&format!("\"contract\": {CONTRACT}"), "\"contract\": 999");
    let error = Manifest::parse(&text).unwrap_err();
    assert!(error.contains("contract version 999"), "{error}");
}

#[test]
fn an_unknown_field_of_the_manifest_is_refused() {
    let text = manifest().to_text().replacen('{', "{\"surprise\": 1,", 1);
    assert!(Manifest::parse(&text).unwrap_err().contains("surprise"));
}

#[test]
fn cmdline_is_unchanged() {
    let cmdline = Cmdline {
        roothash: Some(RootHash([0x5a; 32])),
        root_url: Some("http://192.0.2.1/root".into()),
        config_url: Some("http://192.0.2.1/config.ign".into()),
        config_device: Some("config".into()),
        config_path: Some("/config.ign".into()),
        platform: Some(PlatformId::of("metal")),
        report_url: Some("http://192.0.2.1/report".into()),
        // No builder writes it.
        reset: None,
        network: Network::default(),
        etcd_adopt: Some(EtcdAdopt::Blank),
        debug: true,
        // systemd's word.
        watchdog: None,
    };
    let text = cmdline.to_words().join(" ") + "\n";
    hold("cmdline.txt", &text);
    assert_eq!(Cmdline::parse(&text).unwrap(), cmdline);
}

#[test]
fn layout_is_unchanged() {
    let mut text = String::new();
    for (label, guid) in [
        (layout::LABEL_ESP, layout::TYPE_ESP),
        (layout::LABEL_ROOT_A, Architecture::X86_64.root_type()),
        (layout::LABEL_VERITY_A, Architecture::X86_64.verity_type()),
        (layout::LABEL_ROOT_B, Architecture::X86_64.root_type()),
        (layout::LABEL_VERITY_B, Architecture::X86_64.verity_type()),
        ("root-a (arm64)", Architecture::Arm64.root_type()),
        ("verity-a (arm64)", Architecture::Arm64.verity_type()),
        (layout::LABEL_STATE, layout::TYPE_LINUX),
        (layout::LABEL_VAR, layout::TYPE_VAR),
        (layout::LABEL_ETCD, layout::TYPE_LINUX),
    ] {
        writeln!(text, "{label:<18}{guid}").unwrap();
    }
    let sizes = serde_json::to_string(&Sizes::default()).unwrap();
    writeln!(text, "{sizes}").unwrap();
    hold("layout.txt", &text);
}

#[test]
fn verity_superblock_is_unchanged() {
    let superblock = Superblock {
        uuid: Guid([0x11; 16]),
        data_blocks: 52_224,
        salt: vec![0x22; 32],
    };
    let mut text = String::new();
    for line in superblock.to_bytes().chunks(32) {
        line.iter()
            .for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
    }
    let root = RootHash([0x33; 32]);
    writeln!(
        text,
        "{}",
        superblock.table("254:0", "254:1", &root, &["panic_on_corruption"])
    )
    .unwrap();
    hold("verity.txt", &text);
}
