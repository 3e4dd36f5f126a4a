//! Ethernet addresses.

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&digits.join(":"))
    }
}

impl std::str::FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not an Ethernet address; expected as 52:54:00:12:34:56");
        let bytes: Vec<u8> = text
            .split([':', '-'])
            .map(|part| match part.len() {
                // `from_str_radix` alone takes a sign before one digit.
                1 | 2 if part.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    u8::from_str_radix(part, 16).ok()
                }
                _ => None,
            })
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        Ok(Self(bytes.try_into().map_err(|_| wrong())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_both_spellings() {
        let mac: Mac = "52-54-0-12:34:5F".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:12:34:5f");
        for text in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "52:54:00:12:34:+6",
            "52:54:00:12:34:156",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
