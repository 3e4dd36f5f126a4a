//! Amounts (`64Ki`, `1.5G`, `2e3`), in the one form in which Kubernetes writes each of them.

/// Decimal suffixes with their powers of ten.
const TENS: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
/// Binary suffixes: each is 1024 times the one before.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// The most decimal places of an amount; what is below is rounded up.
const PLACES: i32 = 9;
/// The largest amount with a binary suffix.
const LARGEST: i128 = i64::MAX as i128;

/// What follows the digits of an amount.
#[derive(Clone, Copy)]
enum Suffix {
    /// A power of ten by its letter.
    Ten(i32),
    /// A power of ten by its number.
    Exponent(i32),
    /// A power of 1024.
    Binary(usize),
}

impl Suffix {
    fn parse(text: &str) -> Option<Self> {
        if let Some((_, power)) = TENS.iter().find(|(known, _)| *known == text) {
            return Some(Self::Ten(*power));
        }
        if let Some(power) = BINARY.iter().position(|known| *known == text) {
            return Some(Self::Binary(power));
        }
        let power: i32 = text.strip_prefix(['e', 'E'])?.parse().ok()?;
        (-99..100).contains(&power).then_some(Self::Exponent(power))
    }
}

/// The amount as Kubernetes writes it: with the largest suffix that leaves a whole number (`1Gi` for `1024Mi`, `500m` for `0.5`).
/// Nothing if the text is no amount.
#[must_use]
pub(crate) fn canonical(text: &str) -> Option<String> {
    let text = text.trim();
    let (sign, number) = match text.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (digits, suffix) = number.split_at(end.unwrap_or(number.len()));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if digits.len() == digits.matches('.').count() || fraction.contains('.') {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    let digits = format!("{whole}{fraction}");
    let count: i128 = match digits.trim_start_matches('0') {
        "" => 0,
        digits => digits.parse().ok()?,
    };
    let suffix = Suffix::parse(suffix)?;
    if count == 0 {
        return Some("0".to_owned());
    }
    let places = i32::try_from(fraction.len()).ok()?;
    // What is in this form by the first look stays as it is written, with a plus sign and zeros before it.
    let fits = |power: i32| {
        let power = power - places;
        power % 3 == 0 && power >= -PLACES && !whole.is_empty() && !digits.ends_with("000")
    };
    let (kept, written) = match suffix {
        Suffix::Ten(power) => (fits(power), decimal(count, power - places, true)?),
        Suffix::Exponent(power) => (fits(power), decimal(count, power - places, false)?),
        Suffix::Binary(power) => {
            let count = count.saturating_mul(1 << (10 * power));
            let odd = places == 0 && (count >> (10 * power)) % 8 != 0 && count <= LARGEST;
            (odd, binary(count, places)?)
        }
    };
    Some(if kept {
        text.to_owned()
    } else {
        format!("{sign}{written}")
    })
}

/// A count with so many decimal places, by binary suffixes; by decimal ones if it is not whole, or small.
fn binary(mut count: i128, mut places: i32) -> Option<String> {
    if places > PLACES {
        count = rounded_up(count, places - PLACES)?;
        places = PLACES;
    }
    while places > 0 && count % 10 == 0 {
        count /= 10;
        places -= 1;
    }
    if places > 0 || count < 1024 {
        return decimal(count, -places, true);
    }
    count = count.min(LARGEST);
    let mut suffix = 0;
    while count % 1024 == 0 {
        count /= 1024;
        suffix += 1;
    }
    Some(format!("{count}{}", BINARY.get(suffix)?))
}

/// A count with a power of ten, by decimal suffixes, else by exponents.
fn decimal(mut count: i128, mut power: i32, suffixes: bool) -> Option<String> {
    if power < -PLACES {
        count = rounded_up(count, -PLACES - power)?;
        power = -PLACES;
    }
    while count % 10 == 0 {
        count /= 10;
        power += 1;
    }
    while power % 3 != 0 {
        count = count.checked_mul(10)?;
        power -= 1;
    }
    if suffixes {
        let (suffix, _) = TENS.iter().find(|(_, known)| *known == power)?;
        return Some(format!("{count}{suffix}"));
    }
    Some(match power {
        0 => count.to_string(),
        power => format!("{count}e{power}"),
    })
}

/// A positive count without its last places.
fn rounded_up(count: i128, places: i32) -> Option<i128> {
    let divisor = 10_i128.checked_pow(u32::try_from(places).ok()?)?;
    Some(count / divisor + i128::from(count % divisor != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What kubeadm 1.36.3 made of each.
    #[test]
    fn amounts_have_one_form() {
        for (text, expected) in [
            ("1024Mi", "1Gi"),
            ("1100Mi", "1100Mi"),
            ("1536Mi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("1.25Gi", "1280Mi"),
            ("0.1Mi", "104857600m"),
            ("1000m", "1"),
            ("1.5", "1500m"),
            ("1.500", "1.500"),
            ("0.100", "100m"),
            ("2000", "2k"),
            ("2147483648", "2147483648"),
            ("1024", "1024"),
            ("+5Gi", "+5Gi"),
            ("-1024Mi", "-1Gi"),
            ("0.0000000001", "1n"),
            ("12E6", "12E6"),
            ("1.2e3", "1200"),
            ("1000000Ki", "1000000Ki"),
            ("9Ei", "9223372036854775807"),
            ("0Mi", "0"),
            (".5", "500m"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", ".", "Mi", "1.2.3", "1mi", "1 Gi", "1e", "x", "1Kib"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
