//! Butane configs: what comes out is a valid Ignition config that says the same.
#![no_main]

use ignition::Config;
use ignition::butane::Options;
use ignition::config::from_butane;
use ignition::contents::gzip;
use ignition::local_files::{EntryKind, Files, TreeEntry};

struct Local;

impl Files for Local {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."));
        match path.len() % 3 {
            0 => Err("none".to_owned()),
            _ => Ok(path.as_bytes().to_vec()),
        }
    }

    fn tree(&self, path: &str) -> Result<Vec<TreeEntry>, String> {
        let found = |path: &str, kind| TreeEntry { path: path.to_owned(), kind };
        Ok(vec![
            found("", EntryKind::Directory),
            found("a", EntryKind::File(self.read(path)?, true)),
            found("b", EntryKind::Link("a".to_owned())),
        ])
    }
}

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let options = Options { files: &Local, pack: Some(gzip) };
    let Ok((json, _)) = from_butane(text, "fuzz", options) else {
        return;
    };
    let (config, _) = Config::parse(json.to_string().as_bytes(), "out").expect("the output is valid");
    let (direct, _) = Config::parse_with(text, "fuzz", options).expect("it was valid");
    assert_eq!(config.to_json(), direct.to_json());
});
