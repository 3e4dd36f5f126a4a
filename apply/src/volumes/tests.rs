use super::cryptsetup::allows_discards;
use super::*;
use linux::filesystem::Found;
use linux::probe;

fn model(text: &str) -> Luks {
    let text =
        format!(r#"{{"ignition": {{"version": "3.6.0"}}, "storage": {{"luks": [{text}]}}}}"#);
    let (config, _) = ignition::Config::parse(text.as_bytes(), "t").unwrap();
    let storage = config.model().unwrap().storage.unwrap();
    storage.luks.unwrap().remove(0)
}

fn tried(text: &str, key: Option<&[u8]>) -> Result<VolumeSpec, String> {
    let text = format!(r#"{{"name": "data", "device": "/dev/x", {text}}}"#);
    let keys = VolumeKeys {
        file: key.map(<[u8]>::to_vec),
        advertisements: Vec::new(),
    };
    VolumeSpec::of("l", &model(&text), &keys)
}

fn spec(text: &str, key: Option<&[u8]>) -> VolumeSpec {
    tried(text, key).unwrap()
}

fn volume(kind: Kind) -> Found {
    Found {
        kind,
        label: "vault".into(),
        uuid: "abab".into(),
    }
}

const KEY: Option<&[u8]> = Some(b"SECRET");

#[test]
fn only_a_volume_that_the_key_file_may_open_is_used_again() {
    let luks: &[&str] = &[probe::LUKS];
    let there = [volume(Kind::Luks2)];
    let plain = r#""discard": true"#;
    for (text, key, names, found, expected) in [
        (plain, KEY, &[][..], &[][..], Some(VolumeAction::Make)),
        (plain, KEY, luks, &there, Some(VolumeAction::Open)),
        (
            r#""label": "vault", "uuid": "ABAB""#,
            KEY,
            luks,
            &there,
            Some(VolumeAction::Open),
        ),
        (r#""label": "other""#, KEY, luks, &there, None),
        (r#""label": "VAULT""#, KEY, luks, &there, None),
        (r#""uuid": "cdcd""#, KEY, luks, &there, None),
        (plain, None, luks, &there, None),
        (r#""clevis": {"tpm2": true}"#, KEY, luks, &there, None),
        (plain, KEY, luks, &[volume(Kind::Luks1)], None),
        (plain, KEY, &[probe::EXT], &[volume(Kind::Ext4)], None),
        (
            r#""wipeVolume": true"#,
            KEY,
            &[probe::EXT],
            &[volume(Kind::Ext4)],
            Some(VolumeAction::Remake),
        ),
    ] {
        let held = Held {
            names: names.to_vec(),
            found: found.to_vec(),
            unknown: None,
        };
        let decided = spec(text, key).decide(&held, "virtio-x");
        match expected {
            Some(expected) => assert_eq!(decided, Ok(expected), "{text}"),
            None => {
                let error = decided.unwrap_err();
                assert!(
                    error.contains("expected") && error.contains("found"),
                    "{error}"
                );
                assert!(!error.contains("SECRET"));
            }
        }
    }
    let unknown = Held {
        unknown: Some(9),
        ..Held::default()
    };
    let error = spec(plain, KEY).decide(&unknown, "virtio-x").unwrap_err();
    for word in ["/dev/x (virtio-x)", "no known kind", "wipeVolume: true"] {
        assert!(error.contains(word), "{error}");
    }
    let wiped = spec(r#""wipeVolume": true"#, KEY);
    assert_eq!(wiped.decide(&unknown, "virtio-x"), Ok(VolumeAction::Remake));
}

#[test]
fn commands_are_those_of_ignition_and_hold_no_key() {
    let all = spec(
        r#""label": "vault", "uuid": "abab", "options": ["--cipher=x"], "openOptions": ["--perf-no_read_workqueue"], "discard": true"#,
        KEY,
    );
    assert_eq!(
        all.format("/dev/x", "/k").join(" "),
        "luksFormat --type luks2 --key-file /k --label vault --uuid abab --cipher=x /dev/x"
    );
    assert_eq!(
        all.flags(),
        [
            "--persistent",
            "--allow-discards",
            "--perf-no_read_workqueue"
        ]
    );
    assert!(!format!("{all:?}").contains("SECRET") && !format!("{all:?}").contains("83, 69"));
}

#[test]
fn a_drawn_key_is_derived_quickly_unless_the_config_says_how() {
    let tpm = r#""clevis": {"tpm2": true}"#;
    let quick = |spec: VolumeSpec| {
        let line = spec.format("/dev/x", "/k").join(" ");
        line.contains("--pbkdf pbkdf2 --pbkdf-force-iterations 1000")
    };
    assert!(quick(spec(tpm, None)));
    assert!(!quick(spec(tpm, KEY)));
    let said = format!(r#"{tpm}, "options": ["--pbkdf=argon2id"]"#);
    assert!(!quick(spec(&said, None)));
}

#[test]
fn the_tpm_alone_needs_no_clevis() {
    assert!(!spec(r#""discard": true"#, KEY).needs_tpm());
    let tpm = spec(r#""clevis": {"tpm2": true}"#, None);
    assert!(tpm.needs_tpm() && tpm.can_reopen() && !tpm.needs_clevis());
    assert!(!tpm.tools().contains(&Tool::Clevis));
    assert!(tpm.tools().contains(&Tool::TssEsys));
    assert!(!spec(r#""discard": true"#, None).can_reopen());
    for (text, name) in [
        (
            r#""clevis": {"tang": [{"url": "http://tang.example", "thumbprint": "x"}]}"#,
            "clevis.tang.0",
        ),
        (
            r#""clevis": {"custom": {"pin": "../sss", "config": "{}"}}"#,
            "clevis.custom.pin",
        ),
        (
            r#""clevis": {"tpm2": true, "threshold": 2}"#,
            "clevis.threshold",
        ),
        (r#""cex": {"enabled": true}"#, "cex"),
    ] {
        let error = tried(text, None).unwrap_err();
        assert!(error.starts_with(&format!("{name}: ")), "{error}");
    }
}

/// A key beside a binding is in no file that a later boot, or a thief of the disks, may read.
#[test]
fn a_key_beside_a_binding_is_stored_nowhere() {
    let key = b"SECRET";
    let by = |text: &str| spec(text, KEY).unlock(key);
    assert_eq!(by(r#""discard": true"#), Unlock::Key(key.to_vec()));
    assert_eq!(by(r#""clevis": {"tpm2": true}"#), Unlock::Tpm);
    let custom = r#""clevis": {"custom": {"pin": "sss", "config": "{}", "needsNetwork": true}}"#;
    assert_eq!(by(custom), Unlock::Clevis { network: true });
    assert!(spec(custom, KEY).needs_clevis());
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("etc")).unwrap();
    let volume = |name: &str, text: &str| Opened {
        name: name.to_owned(),
        uuid: "abab".to_owned(),
        by: by(text),
    };
    let bound = [
        volume("sealed", r#""clevis": {"tpm2": true}"#),
        volume("far", custom),
    ];
    let tree = crate::provision::tests::tree(folder.path());
    crypttab::apply(&tree, &bound).unwrap();
    tree.finish().unwrap();
    let etc = folder.path().join("etc");
    assert!(!etc.join("luks").exists());
    assert_eq!(
        std::fs::read_to_string(etc.join("crypttab")).unwrap(),
        "sealed UUID=abab none luks,tpm2-device=auto,headless=true,x-initrd.attach\n\
         far UUID=abab none luks,_netdev,x-initrd.attach\n"
    );
}

#[test]
fn flags_are_read_from_a_header() {
    let with = r#"{"config": {"json_size": "12288", "flags": ["allow-discards"]}}"#;
    assert!(allows_discards(with).unwrap());
    assert!(!allows_discards(r#"{"config": {}}"#).unwrap());
    assert!(allows_discards("no header").is_err());
}

/// A server whose advertisement is in the config, one whose advertisement was fetched, and the TPM: any two open the
/// volume.
#[test]
fn several_pins_are_shares_of_one() {
    let server =
        |more: &str| format!(r#"{{"url": "http://tang.example", "thumbprint": "x"{more}}}"#);
    let own = server(r#", "advertisement": "{\"payload\": \"own\"}""#);
    let other = server("").replace("http://tang", "http://other");
    let text = format!(
        r#"{{"name": "data", "device": "/dev/x", "clevis":
            {{"tang": [{own}, {other}], "tpm2": true, "threshold": 2}}}}"#
    );
    let of = |advertisements: &[Option<&str>]| {
        let bytes = |text: &Option<&str>| text.map(|text| text.as_bytes().to_vec());
        let keys = VolumeKeys {
            file: None,
            advertisements: advertisements.iter().map(bytes).collect(),
        };
        VolumeSpec::of("l", &model(&text), &keys)
    };
    let asked = r#"{"payload": "asked", "signatures": []}"#;
    let spec = of(&[None, Some(asked)]).unwrap();
    assert!(spec.needs_clevis() && spec.needs_tpm());
    // A server that was not contacted may be unreachable.
    assert!(!spec.can_reopen());
    for tool in [
        Tool::ClevisAgent,
        Tool::ClevisSss,
        Tool::ClevisTang,
        Tool::ClevisTpm2,
    ] {
        assert!(spec.tools().contains(&tool), "{tool:?}");
    }
    assert!(!spec.tools().contains(&Tool::Cryptenroll));
    let pin = spec.clevis.unwrap();
    assert!(pin.needs_network());
    let told: serde_json::Value = serde_json::from_str(&pin.config).unwrap();
    assert_eq!(
        told,
        serde_json::json!({ "t": 2, "pins": { "tpm2": {}, "tang": [
            { "url": "http://tang.example", "thp": "x", "adv": { "payload": "own" } },
            { "url": "http://other.example", "thp": "x", "adv": { "payload": "asked", "signatures": [] } },
        ]}})
    );
    let error = of(&[None, Some("<html>")]).unwrap_err();
    assert!(
        error.starts_with("clevis.tang.1: its advertisement"),
        "{error}"
    );
}

#[test]
fn a_pin_of_the_configs_own_is_told_what_the_config_says() {
    let text = r#""clevis": {"custom": {"pin": "tpm2", "config": "{\"pcr_ids\": \"7\"}", "needsNetwork": false}}"#;
    let spec = spec(text, None);
    assert!(spec.needs_clevis() && spec.needs_tpm() && spec.can_reopen());
    let pin = spec.clevis.unwrap();
    assert_eq!(pin.config, r#"{"pcr_ids": "7"}"#);
    assert!(!pin.needs_network());
}
