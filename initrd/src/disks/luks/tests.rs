use super::work::lets_discards_through;
use super::*;
use crate::block::probe;

fn model(text: &str) -> Luks {
    let text =
        format!(r#"{{"ignition": {{"version": "3.6.0"}}, "storage": {{"luks": [{text}]}}}}"#);
    let (config, _) = ignition::Config::parse(text.as_bytes(), "t").unwrap();
    let storage = config.model().unwrap().storage.unwrap();
    storage.luks.unwrap().remove(0)
}

fn tried(text: &str, key: Option<&[u8]>) -> Result<Wanted, String> {
    let text = format!(r#"{{"name": "data", "device": "/dev/x", {text}}}"#);
    Wanted::of("l", &model(&text), key)
}

fn wanted(text: &str, key: Option<&[u8]>) -> Wanted {
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
        (plain, KEY, &[][..], &[][..], Some(Verdict::Make)),
        (plain, KEY, luks, &there, Some(Verdict::Open)),
        (
            r#""label": "vault", "uuid": "ABAB""#,
            KEY,
            luks,
            &there,
            Some(Verdict::Open),
        ),
        (r#""label": "other""#, KEY, luks, &there, None),
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
            Some(Verdict::Remake),
        ),
    ] {
        let decided = wanted(text, key).decide(names, found);
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
}

#[test]
fn commands_are_those_of_ignition_and_hold_no_key() {
    let all = wanted(
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
    let quick = |wanted: Wanted| {
        let line = wanted.format("/dev/x", "/k").join(" ");
        line.contains("--pbkdf pbkdf2 --pbkdf-force-iterations 1000")
    };
    assert!(quick(wanted(tpm, None)));
    assert!(!quick(wanted(tpm, KEY)));
    let said = format!(r#"{tpm}, "options": ["--pbkdf=argon2id"]"#);
    assert!(!quick(wanted(&said, None)));
}

#[test]
fn the_tpm_opens_what_the_config_binds_to_it_and_other_pins_are_refused_by_name() {
    assert!(!wanted(r#""discard": true"#, KEY).tpm);
    let tpm = wanted(r#""clevis": {"tpm2": true}"#, None);
    assert!(tpm.tpm && tpm.opens_again());
    assert!(tpm.tools().contains(&Tool::TssEsys));
    assert!(!wanted(r#""discard": true"#, None).opens_again());
    for (text, name) in [
        (
            r#""clevis": {"tang": [{"url": "http://tang.example", "thumbprint": "x"}]}"#,
            "clevis.tang",
        ),
        (
            r#""clevis": {"custom": {"pin": "sss", "config": "{}"}}"#,
            "clevis.custom",
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

#[test]
fn flags_are_read_from_a_header() {
    let with = r#"{"config": {"json_size": "12288", "flags": ["allow-discards"]}}"#;
    assert!(lets_discards_through(with).unwrap());
    assert!(!lets_discards_through(r#"{"config": {}}"#).unwrap());
    assert!(lets_discards_through("no header").is_err());
}
