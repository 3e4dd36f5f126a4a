//! Sizes, as "512 MiB" or in bytes.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Check;
use crate::recipe::mistakes::{Mistake, Place, nearest};

/// Units of sizes, powers of 1024 as in systemd.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

/// A value that may be written with or without quotes.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TextOrNumber {
    Text(String),
    Number(u64),
}

impl JsonSchema for TextOrNumber {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TextOrNumber".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "integer"] })
    }
}

/// The size at a path, if a valid one is given.
pub(super) fn size(check: &mut Check<'_>, path: &str, given: Option<&TextOrNumber>) -> Option<u64> {
    match given? {
        TextOrNumber::Number(bytes) => Some(*bytes),
        TextOrNumber::Text(text) => match parse(text, &check.place(path)) {
            Ok(bytes) => Some(bytes),
            Err(mistake) => {
                check.add(*mistake);
                None
            }
        },
    }
}

fn parse(text: &str, place: &Place) -> Result<u64, Box<Mistake>> {
    const EXPECTED: &str = "expected a whole number and a unit: B, KiB, MiB, GiB or TiB";
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..digits], trimmed[digits..].trim_start());
    let Ok(number) = number.parse::<u64>() else {
        return Err(Box::new(Mistake::at(
            place,
            format!("{text:?} is not a size"),
            EXPECTED,
        )));
    };
    if unit.is_empty() {
        return Ok(number);
    }
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let mistake = Mistake::at(place, format!("{unit:?} is not a unit of size"), EXPECTED);
        let names = UNITS.iter().map(|(name, _)| *name);
        return Err(Box::new(
            match nearest(unit, names.filter(|name| name.len() > 1)) {
                Some(near) => mistake.help(format!("did you mean \"{number} {near}\"?")),
                None => mistake,
            },
        ));
    };
    number
        .checked_mul(*factor)
        .ok_or_else(|| Mistake::at(place, format!("{text:?} is beyond all disks"), EXPECTED).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let place = Place::top(0);
        for (text, bytes) in [
            ("512 MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("2G", 2 << 30),
            ("4096", 4096),
        ] {
            assert_eq!(parse(text, &place).unwrap(), bytes, "{text}");
        }
        for bad in [
            "512 MB",
            "MiB",
            "1.5 GiB",
            "-1 MiB",
            "99999999999 TiB",
            "5 parsecs",
        ] {
            assert!(parse(bad, &place).is_err(), "{bad}");
        }
    }
}
