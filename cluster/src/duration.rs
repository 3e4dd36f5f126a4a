//! Durations as Go writes them: `1h30m0s`.

use std::fmt;
use std::time::SystemTime;

use time::OffsetDateTime;

/// Nanoseconds of one unit, with the unit's names.
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A duration in nanoseconds, of Go's range (292 years).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub i64);

impl Duration {
    /// A duration of whole hours.
    #[must_use]
    pub const fn hours(hours: i64) -> Self {
        Self(hours * 3_600_000_000_000)
    }

    /// Whole seconds, rounded down.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Reads a duration as Go's `time.ParseDuration`; nothing if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Some(Self(0));
        }
        if rest.is_empty() {
            return None;
        }
        let mut sum: i128 = 0;
        while !rest.is_empty() {
            let (part, after) = part(rest)?;
            sum = sum.checked_add(part)?;
            rest = after;
        }
        let sum = if negative { -sum } else { sum };
        i64::try_from(sum).ok().map(Self)
    }
}

/// The first number with its unit, in nanoseconds, and what follows it.
fn part(text: &str) -> Option<(i128, &str)> {
    let number = text.len()
        - text
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
            .len();
    let (number, rest) = text.split_at(number);
    let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.');
    let (unit, after) = rest.split_at(unit.unwrap_or(rest.len()));
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let scale = i128::from(*scale);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let mut sum = whole.checked_mul(scale)?;
    // Digits below a nanosecond are cut off, as by Go.
    let mut place = scale;
    for digit in fraction.bytes() {
        place /= 10;
        sum += i128::from(digit - b'0') * place;
    }
    Some((sum, after))
}

impl fmt::Display for Duration {
    /// As Go's `Duration.String`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match all {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{all}ns"),
            1_000..1_000_000 => write!(f, "{}µs", decimal(all, 1_000)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", decimal(all, 1_000_000)),
            _ => {
                let minutes = all / 60_000_000_000;
                let seconds = decimal(all % 60_000_000_000, 1_000_000_000);
                match (minutes / 60, minutes % 60) {
                    (0, 0) => write!(f, "{seconds}s"),
                    (0, minutes) => write!(f, "{minutes}m{seconds}s"),
                    (hours, minutes) => write!(f, "{hours}h{minutes}m{seconds}s"),
                }
            }
        }
    }
}

/// A number of units with what is left as a fraction, without zeros at its end.
fn decimal(all: u64, unit: u64) -> String {
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", all % unit);
    let fraction = fraction.trim_end_matches('0');
    match fraction {
        "" => (all / unit).to_string(),
        _ => format!("{}.{fraction}", all / unit),
    }
}

impl<'de> serde::Deserialize<'de> for Duration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a duration"))
    }
}

/// The time after a duration, RFC 3339 in UTC with seconds.
#[must_use]
pub fn time_after(now: SystemTime, duration: Duration) -> String {
    let time = OffsetDateTime::from(now) + time::Duration::nanoseconds(duration.0);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// A time as [`time_after`] and the API server write it; none if it is not in UTC with whole seconds.
#[must_use]
pub fn time(text: &str) -> Option<SystemTime> {
    let (date, rest) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, by: char| -> Option<[u16; 3]> {
        let parts: Option<Vec<u16>> = text.split(by).map(|part| part.parse().ok()).collect();
        parts?.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(rest, ':')?;
    let small = |number: u16| u8::try_from(number).ok();
    let month = time::Month::try_from(small(month)?).ok()?;
    let date = time::Date::from_calendar_date(i32::from(year), month, small(day)?).ok()?;
    let time = date.with_hms(small(hour)?, small(minute)?, small(second)?);
    Some(time.ok()?.assume_utc().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_by_go() {
        for (text, expected) in [
            ("24h", "24h0m0s"),
            ("0", "0s"),
            ("1.5h", "1h30m0s"),
            ("90s", "1m30s"),
            ("-1m", "-1m0s"),
            ("1h1m1.5s", "1h1m1.5s"),
            ("1500us", "1.5ms"),
            ("3ns", "3ns"),
            (".5s", "500ms"),
        ] {
            let read = Duration::parse(text).map(|duration| duration.to_string());
            assert_eq!(read.as_deref(), Some(expected), "{text}");
        }
        for text in ["", "1", "1d", "h", "1h ", ".s", "300000000h", "1.2.3s", "-"] {
            assert_eq!(Duration::parse(text), None, "{text:?}");
        }
    }
    #[test]
    fn times_are_read_as_they_are_written() {
        for text in ["2026-11-23T14:47:32Z", "2024-02-29T00:00:00Z"] {
            let read = time(text).unwrap();
            assert_eq!(time_after(read, Duration(0)), text);
        }
        for text in [
            "",
            "2026-11-23",
            "2026-11-23T14:47:32",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-23T24:00:00Z",
            "2026-11-23T14:47Z",
            "2026-11-23T14:47:32+01:00",
        ] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
