//! Properties of every config, tried on random ones: merging, normalising, translating, and reading arbitrary bytes.

#![allow(clippy::unwrap_used, reason = "a test")]

use ignition::butane::Options;
use ignition::config::from_butane;
use ignition::contents::gzip;
use ignition::read::{json, yaml};
use ignition::{Config, unit};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use serde_json::{Value, json};

/// One of few words, so that keys collide.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("c")].prop_map(str::to_owned)
}

fn resource() -> impl Strategy<Value = Value> {
    (word(), option::of(any::<bool>()), option::of(word())).prop_map(|(word, packed, header)| {
        let mut out = json!({ "source": format!("https://{word}.example/") });
        if let Some(packed) = packed {
            out["compression"] = if packed { "gzip" } else { "" }.into();
        }
        if let Some(header) = header {
            out["httpHeaders"] = json!([{ "name": header, "value": word }]);
        }
        out
    })
}

/// Each key once, as in a valid config.
fn unique(items: Vec<Value>, key: &str) -> Value {
    let mut seen = Vec::new();
    let fresh = |item: &Value| {
        let fresh = !seen.contains(&item[key]);
        seen.push(item[key].clone());
        fresh
    };
    items.into_iter().filter(fresh).collect()
}

fn file() -> impl Strategy<Value = Value> {
    let parts = (
        word(),
        option::of(0..512_u32),
        option::of(resource()),
        vec(resource(), 0..2),
    );
    parts.prop_map(|(name, mode, contents, append)| {
        let mut out = json!({ "path": format!("/f/{name}"), "append": append });
        if let Some(mode) = mode {
            out["mode"] = mode.into();
        }
        if let Some(contents) = contents {
            out["contents"] = contents;
        }
        out
    })
}

fn named(list: &'static str, fields: &'static [&'static str]) -> impl Strategy<Value = Value> {
    vec((word(), vec(option::of(word()), fields.len())), 0..3).prop_map(move |items| {
        let items = items.into_iter().map(|(name, values)| {
            let mut out = json!({ "name": if list == "units" { name + ".service" } else { name } });
            for (field, value) in fields.iter().zip(values) {
                if let Some(value) = value {
                    out[*field] = if *field == "contents" {
                        format!("[{value}]\n")
                    } else {
                        value
                    }
                    .into();
                }
            }
            out
        });
        unique(items.collect(), "name")
    })
}

fn config() -> impl Strategy<Value = Value> {
    let parts = (
        vec(file(), 0..4),
        named("units", &["contents"]),
        named("users", &["shell", "gecos", "passwordHash"]),
        vec(word(), 0..3),
        option::of(0..100_u32),
    );
    parts.prop_map(|(files, units, users, arguments, timeout)| {
        let arguments = arguments
            .into_iter()
            .map(|word| json!({ "word": word }))
            .collect();
        let Value::Array(arguments) = unique(arguments, "word") else {
            unreachable!()
        };
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| argument["word"].clone())
            .collect();
        let mut ignition = json!({ "version": "3.7.0-experimental" });
        if let Some(timeout) = timeout {
            ignition["timeouts"] = json!({ "httpTotal": timeout });
        }
        json!({
            "ignition": ignition,
            "storage": { "files": unique(files, "path") },
            "systemd": { "units": units },
            "passwd": { "users": users },
            "kernelArguments": { "shouldExist": arguments },
        })
    })
}

fn read(value: &Value) -> Config {
    Config::parse(value.to_string().as_bytes(), "p").unwrap().0
}

/// A Butane config with as much sugar as possible.
fn butane() -> impl Strategy<Value = String> {
    let version = prop_oneof![
        Just("fcos\nversion: 1.1.0"),
        Just("fcos\nversion: 1.4.0"),
        Just("fcos\nversion: 1.8.0-experimental"),
        Just("flatcar\nversion: 1.1.0"),
        Just("slipway\nversion: 1.0.0"),
    ];
    let file = ("(\\PC|\n|\t){0,80}", option::of(0..512_u32), any::<bool>());
    let parts = (
        version,
        vec(file, 0..4),
        vec((word(), any::<bool>()), 0..3),
        vec("\\PC{1,20}", 0..3),
    );
    parts.prop_map(|(version, files, mounts, keys)| {
        let mut out = format!("variant: {version}\nstorage:\n  files:\n");
        for (i, (text, mode, twice)) in files.into_iter().enumerate() {
            let mode = mode.map_or(String::new(), |mode| format!("      mode: 0{mode:o}\n"));
            let text = serde_json::to_string(&text.repeat(if twice { 9 } else { 1 })).unwrap();
            out += &format!("    - path: /f{i}\n{mode}      contents:\n        inline: {text}\n");
        }
        out += "  filesystems:\n";
        for (i, (name, swap)) in mounts.into_iter().enumerate() {
            let format = if swap { "swap" } else { "ext4" };
            out += &format!(
                "    - {{device: /dev/{i}{name}, path: /var/{i}, format: {format}, with_mount_unit: true}}\n"
            );
        }
        out += "passwd:\n  users:\n    - name: u\n      ssh_authorized_keys:\n";
        for (i, key) in keys.into_iter().enumerate() {
            out += &format!("        - {}\n", serde_json::to_string(&format!("{i}{key}")).unwrap());
        }
        out
    })
}

proptest! {
    /// Ignition's merge of valid configs is associative.
    #[test]
    fn merging_is_associative(a in config(), b in config(), c in config()) {
        let (a, b, c) = (read(&a), read(&b), read(&c));
        proptest::prop_assert_eq!(a.over(&b).over(&c).to_json(), a.over(&b.over(&c)).to_json());
    }

    /// Merging with the empty config changes nothing.
    #[test]
    fn the_empty_config_changes_nothing(a in config()) {
        let a = read(&a);
        proptest::prop_assert_eq!(a.over(&Config::empty()).to_json(), a.to_json());
        proptest::prop_assert_eq!(Config::empty().over(&a).to_json(), a.to_json());
        proptest::prop_assert_eq!(a.over(&a).over(&a).to_json()["systemd"].clone(), a.to_json()["systemd"].clone());
    }

    /// Normalising a normalised config changes nothing.
    #[test]
    fn normalising_is_idempotent(a in config()) {
        let once = read(&a).to_json();
        proptest::prop_assert_eq!(read(&once).to_json(), once);
    }

    /// Butane becomes a valid Ignition config with the same meaning; without packing too.
    #[test]
    fn translations_are_valid(text in butane()) {
        let packing = Options { pack: Some(gzip), ..Options::BARE };
        let (output, _) = from_butane(text.as_bytes(), "p", packing)
            .unwrap_or_else(|report| panic!("{report}\n{text}"));
        let again = Config::parse(output.to_string().as_bytes(), "again");
        let again = again.unwrap_or_else(|report| panic!("{report}\n{output}")).0;
        let direct = Config::parse_with(text.as_bytes(), "p", packing).unwrap().0;
        proptest::prop_assert_eq!(again.to_json(), direct.to_json());
        let contents = |config: &Config| -> Vec<Vec<u8>> {
            let model = config.model().unwrap();
            let files = model.storage.and_then(|storage| storage.files).unwrap_or_default();
            files.into_iter().map(|file| {
                let contents = file.contents.unwrap();
                let data = ignition::data_url::decode(&contents.source.unwrap()).unwrap();
                let packed = contents.compression.as_deref() == Some("gzip");
                ignition::contents::open(data, packed, None, 1 << 20).unwrap()
            }).collect()
        };
        let bare = Config::parse(text.as_bytes(), "p").unwrap().0;
        proptest::prop_assert_eq!(contents(&bare), contents(&direct));
    }

    /// No input makes a reader panic.
    #[test]
    fn any_bytes_are_answered(bytes in vec(any::<u8>(), 0..300)) {
        let _answers = (
            Config::parse(&bytes, "p").is_ok(),
            json::parse(&bytes, "p").is_ok(),
            yaml::parse(&bytes, "p").is_ok(),
            unit::parse(&String::from_utf8_lossy(&bytes)).is_ok(),
        );
    }

    /// Nor does a damaged config.
    #[test]
    fn damaged_configs_are_answered(
        text in butane(),
        cuts in vec((0.0_f64..1.0, 0_usize..30, "[-:{}\\[\\]&*!|>'\"\n\t #<0a]{0,5}"), 1..5),
    ) {
        let mut text: Vec<char> = text.chars().collect();
        for (place, length, insert) in cuts {
            let length = length.min(text.len());
            let most = text.len() - length;
            let start = (0..=most).find(|at| *at as f64 >= place * most as f64).unwrap();
            text.splice(start..start + length, insert.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(report) = Config::parse(text.as_bytes(), "p") {
            proptest::prop_assert!(report.is_fatal());
            proptest::prop_assert!(report.entries.iter().all(|entry| entry.at.is_some()), "{}", report);
        }
    }
}
