//! User data: compression and MIME decoded, the same for every provider.
//!
//! 1. gzip and zstd are unpacked, recognised by their first bytes; one inside the other too.
//! 2. In a MIME multipart (what cloud-init takes) one part is the config: the part whose type names Ignition or Butane
//!    (`application/vnd.coreos.ignition+json`, `text/x-butane`, …); if there is none, the part that reads like one: a JSON
//!    object with the key `ignition`, or YAML with a `variant` on top. Two such parts are refused, since either may be
//!    meant; the other parts are for cloud-init and are ignored with a note.
//! 3. Text for cloud-init (`#cloud-config`, `#!` and the like) is refused by name, unless the vendor always gives one.
//! 4. Nothing, or only white space, is no config.
//!
//! Providers whose vendor encodes user data in base64 decode it before all of this.

use std::fmt;
use std::io::Read;

use crate::mime::{self, Part};
use crate::problem::Problem;

/// The size limit of unpacked user data, in bytes.
pub const LIMIT: u64 = 64 << 20;

/// A machine's config, unpacked.
#[derive(Clone, PartialEq, Eq)]
pub struct UserConfig {
    /// Ignition's JSON or Butane's YAML.
    pub text: Vec<u8>,
    /// Its name in messages.
    pub name: String,
}

/// The text may hold secrets: only its size is shown.
impl fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserConfig({}, {} bytes)", self.name, self.text.len())
    }
}

/// How user data for cloud-init is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// Refused: the user meant a config, so the boot must not go on without it.
    Refuse,
    /// Skipped: the vendor always provides user data for cloud-init.
    Skip,
}

/// Decoded user data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    /// The config, and notes of the parts that were ignored.
    Config(Vec<u8>, Vec<String>),
    /// Something else, by name.
    Foreign(&'static str),
}

/// The limit of nested compressions.
const LAYERS: usize = 3;

/// Decodes the user data of a provider: the config if there is one, and notes.
pub(crate) fn only(
    data: Option<Vec<u8>>,
    name: &str,
    foreign: Foreign,
    remote: bool,
) -> Result<(Option<UserConfig>, Vec<String>), Problem> {
    let problem = |what: String| Problem { what, remote };
    match read(data.unwrap_or_default(), name).map_err(problem)? {
        Content::Nothing => Ok((None, Vec::new())),
        Content::Config(text, notes) => {
            let name = name.to_owned();
            Ok((Some(UserConfig { text, name }), notes))
        }
        Content::Foreign(what) if foreign == Foreign::Skip => {
            Ok((None, vec![format!("ignoring {name}: {what}")]))
        }
        Content::Foreign(what) => Err(problem(format!(
            "{name}: {what}; expected an Ignition or Butane config"
        ))),
    }
}

/// Decodes user data.
///
/// # Errors
/// The mistake in its form. The message never holds its content, which may be secret.
pub(crate) fn read(data: Vec<u8>, name: &str) -> Result<Content, String> {
    let data = unpacked(data, LIMIT).map_err(|why| format!("{name}: {why}"))?;
    if data.trim_ascii().is_empty() {
        return Ok(Content::Nothing);
    }
    if let Some(parts) = mime::parts(&data).map_err(|why| format!("{name}: {why}"))? {
        return choose(parts).map_err(|why| format!("{name}: {why}"));
    }
    Ok(match foreign(&data) {
        Some(what) => Content::Foreign(what),
        None => Content::Config(data, Vec::new()),
    })
}

/// Unpacks gzip and zstd.
fn unpacked(mut data: Vec<u8>, limit: u64) -> Result<Vec<u8>, String> {
    for _ in 0..LAYERS {
        data = match data.as_slice() {
            [0x1f, 0x8b, ..] => {
                ignition::contents::gunzip(&data, limit).map_err(|why| why.to_string())?
            }
            [0x28, 0xb5, 0x2f, 0xfd, ..] => unzstd(&data, limit)?,
            _ => return Ok(data),
        };
    }
    Err("it is packed more than three times".to_owned())
}

fn unzstd(data: &[u8], limit: u64) -> Result<Vec<u8>, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("the data is not complete zstd: {error}");
    let mut out = Vec::new();
    let mut rest = data;
    while !rest.is_empty() {
        let mut decoder =
            ruzstd::decoding::StreamingDecoder::new(&mut rest).map_err(|error| wrong(&error))?;
        let left = limit - u64::try_from(out.len()).unwrap_or(limit);
        decoder
            .by_ref()
            .take(left + 1)
            .read_to_end(&mut out)
            .map_err(|error| wrong(&error))?;
        if u64::try_from(out.len()).is_ok_and(|len| len > limit) {
            return Err(format!("the unpacked data is longer than {limit} bytes"));
        }
    }
    Ok(out)
}

/// The kind of a text for cloud-init, by its first line
/// (<https://cloudinit.readthedocs.io/en/latest/explanation/format.html>).
fn foreign(data: &[u8]) -> Option<&'static str> {
    let first = data.split(|byte| *byte == b'\n').next()?.trim_ascii();
    [
        ("#cloud-config", "it is a cloud-config"),
        ("#cloud-boothook", "it is a boothook of cloud-init"),
        ("#include", "it is a list of includes of cloud-init"),
        ("#part-handler", "it is a part handler of cloud-init"),
        ("## template: jinja", "it is a template of cloud-init"),
        ("#!", "it is a script"),
    ]
    .into_iter()
    .find_map(|(begin, what)| first.starts_with(begin.as_bytes()).then_some(what))
}

/// Chooses the one part that is a config.
fn choose(parts: Vec<Part>) -> Result<Content, String> {
    let mut named = Vec::new();
    let mut alike = Vec::new();
    let mut others = Vec::new();
    for part in parts {
        let text = unpacked(part.body, LIMIT)?;
        let kind = part.kind;
        match () {
            () if text.trim_ascii().is_empty() => {}
            () if kind.contains("ignition") || kind.contains("butane") => named.push(text),
            () if reads_like_config(&text) => alike.push(text),
            () => others.push(format!("ignoring the MIME part of type {kind}")),
        }
    }
    if named.is_empty() {
        named = alike;
    } else {
        others.extend(alike.iter().map(|_| {
            "ignoring a MIME part that reads like a config: the type of another names one"
                .to_owned()
        }));
    }
    match (named.pop(), named.is_empty()) {
        (Some(text), true) => Ok(Content::Config(text, others)),
        (Some(_), false) => {
            let count = named.len() + 1;
            Err(format!(
                "{count} of its MIME parts are configs; expected one"
            ))
        }
        (None, _) if others.is_empty() => Ok(Content::Nothing),
        (None, _) => Ok(Content::Foreign("it is a MIME message without a config")),
    }
}

/// JSON with `ignition` among its keys, or YAML with a `variant` at the beginning of a line: user data is often not typed,
/// and parsing every part as YAML would take cloud-init's parts for broken configs.
fn reads_like_config(text: &[u8]) -> bool {
    if text.trim_ascii_start().starts_with(b"{") {
        let object: Option<serde_json::Map<String, serde_json::Value>> =
            serde_json::from_slice(text).ok();
        return object.is_some_and(|object| {
            object
                .keys()
                .any(|key| key.eq_ignore_ascii_case("ignition") || key == "variant")
        });
    }
    text.split(|byte| *byte == b'\n')
        .any(|line| line.starts_with(b"variant:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const CONFIG: &str = r#"{"ignition": {"version": "3.5.0"}}"#;
    const BUTANE: &str = "# mine\nvariant: fcos\nversion: 1.6.0\n";

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(data).unwrap();
        out.finish().unwrap()
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(data, 3).unwrap()
    }

    fn config(text: &str) -> Content {
        Content::Config(text.as_bytes().to_vec(), Vec::new())
    }

    fn read_text(text: &str) -> Result<Content, String> {
        read(text.as_bytes().to_vec(), "x")
    }

    #[test]
    fn packings_are_taken_off() {
        let plain = CONFIG.as_bytes();
        let twice = [zstd(&plain[..10]), zstd(&plain[10..])].concat();
        for packed in [
            plain.to_vec(),
            gzip(plain),
            zstd(plain),
            zstd(&gzip(plain)),
            twice,
        ] {
            assert_eq!(read(packed, "x").unwrap(), config(CONFIG));
        }
        for broken in [
            gzip(plain)[..12].to_vec(),
            zstd(plain)[..12].to_vec(),
            [zstd(plain), b"more".to_vec()].concat(),
            gzip(&gzip(&gzip(&gzip(plain)))),
        ] {
            assert!(read(broken.clone(), "x").is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_bomb_is_refused_before_it_fills_the_memory() {
        let zeros = vec![0; 100_001];
        for packed in [gzip(&zeros), zstd(&zeros)] {
            assert!(packed.len() < 1000);
            let error = unpacked(packed.clone(), 100_000).unwrap_err();
            assert!(error.contains("longer than"), "{error}");
            assert_eq!(unpacked(packed, 100_001).unwrap(), zeros);
        }
    }

    #[test]
    fn empty_is_no_config_and_cloud_init_is_named() {
        for text in ["", " \n\n"] {
            assert_eq!(read_text(text).unwrap(), Content::Nothing);
        }
        for (text, word) in [
            ("#cloud-config\nusers: []\n", "cloud-config"),
            ("#!/bin/sh\nSECRET=1", "script"),
            ("## template: jinja\n#cloud-config", "template"),
        ] {
            let data = || Some(text.as_bytes().to_vec());
            let problem = only(data(), "x", Foreign::Refuse, true).unwrap_err();
            assert!(problem.what.contains(word) && problem.remote, "{problem}");
            assert!(!problem.what.contains("SECRET"), "{problem}");
            let (none, notes) = only(data(), "x", Foreign::Skip, true).unwrap();
            assert_eq!(none, None);
            assert!(notes[0].contains(word), "{notes:?}");
        }
        assert_eq!(read_text(BUTANE).unwrap(), config(BUTANE));
    }

    fn multipart(parts: &[(&str, &str)]) -> String {
        let mut out = "MIME-Version: 1.0\r\nContent-Type: multipart/mixed;\r\n boundary=\"===b\"\r\n\r\npreamble\r\n"
            .to_owned();
        for (kind, body) in parts {
            out += &format!("--===b\r\nContent-Type: {kind}; charset=utf-8\r\n\r\n{body}\r\n");
        }
        out + "--===b--\r\nepilogue"
    }

    #[test]
    fn the_part_that_is_a_config_is_chosen() {
        let cloud = ("text/cloud-config", "#cloud-config\na: 1");
        for (parts, chosen, passed) in [
            (vec![cloud, ("text/plain", CONFIG)], CONFIG, 1),
            (
                vec![("text/plain", BUTANE), ("text/x-shellscript", "#!/bin/sh")],
                BUTANE,
                1,
            ),
            // The type of a part takes precedence over its content.
            (
                vec![
                    ("text/plain", BUTANE),
                    ("application/vnd.coreos.ignition+json", CONFIG),
                ],
                CONFIG,
                1,
            ),
            (vec![("application/json", CONFIG)], CONFIG, 0),
        ] {
            let Content::Config(text, notes) = read_text(&multipart(&parts)).unwrap() else {
                panic!("{parts:?}")
            };
            // The line break before a boundary belongs to the boundary.
            assert_eq!(String::from_utf8(text).unwrap(), chosen);
            assert_eq!(notes.len(), passed, "{notes:?}");
        }
        let two = multipart(&[("text/plain", CONFIG), ("text/plain", BUTANE)]);
        let error = read_text(&two).unwrap_err();
        assert!(error.contains("2 of its MIME parts"), "{error}");
        let none = read_text(&multipart(&[cloud])).unwrap();
        assert!(matches!(none, Content::Foreign(_)), "{none:?}");
    }
}
