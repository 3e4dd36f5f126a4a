//! Numbers of bytes as people read them.

/// Bytes, KiB or MiB.
pub fn text(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn amounts_have_the_unit_that_fits() {
        for (bytes, expected) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1_048_575, "1023 KiB"),
            (5 << 20, "5 MiB"),
            (5 << 30, "5120 MiB"),
        ] {
            assert_eq!(super::text(bytes), expected);
        }
    }
}
