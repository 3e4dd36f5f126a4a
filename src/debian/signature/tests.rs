//! Signatures of Debian and of a vendor, and what is wrong with others.

use super::*;

/// Debian's file of 20 November 2026. Its signatures prove its origin, so it has no generator.
const IN_RELEASE: &str = include_str!("../testdata/trixie-updates.InRelease");
const MADE: u64 = 1_795_227_900;

#[test]
fn the_pinned_fingerprints_are_those_of_the_certificates() {
    let keyring = Keyring::debian().unwrap();
    assert_eq!(keyring.certificates.len(), PINNED.len());
    for ((owner, certificate), pinned) in keyring.certificates.iter().zip(PINNED) {
        assert_eq!(owner, pinned.owner);
        let named = certificate
            .details
            .users
            .iter()
            .any(|user| String::from_utf8_lossy(user.id.id()).starts_with(pinned.owner));
        assert!(named, "{owner}");
    }
}

#[test]
fn a_certificate_with_another_fingerprint_is_refused() {
    let wrong = (
        "somebody",
        "04b54c3cdca79751b16bc6b5225629df75b188be",
        PINNED[0].certificate,
    );
    let error = Keyring::pinned([wrong]).unwrap_err().to_string();
    assert!(
        error.contains("expected 04b54c3cdca79751b16bc6b5225629df75b188be"),
        "{error}"
    );
}

#[test]
fn what_debian_signed_is_believed() {
    let text = Keyring::debian()
        .unwrap()
        .signed_text(IN_RELEASE, MADE)
        .unwrap();
    assert!(text.starts_with("Origin: Debian\n"), "{text}");
    assert!(!text.contains("-----"), "{text}");
}

#[test]
fn each_key_alone_suffices_and_none_does_not() {
    for (index, counts) in [(0, true), (1, false), (3, true)] {
        let pinned = &PINNED[index];
        let keyring =
            Keyring::pinned([(pinned.owner, pinned.fingerprint, pinned.certificate)]).unwrap();
        let outcome = keyring.signed_text(IN_RELEASE, MADE);
        assert_eq!(outcome.is_ok(), counts, "{}: {outcome:?}", pinned.owner);
    }
    let nobody = Keyring::pinned([]).unwrap();
    let error = nobody
        .signed_text(IN_RELEASE, MADE)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("not one of Debian's that this program knows"),
        "{error}"
    );
}

/// By `testdata/vendor.sh`: what GnuPG makes of the two kinds of keys that vendors have, in both forms of archives.
#[test]
fn keys_of_vendors_sign_in_both_forms() {
    const LIST: &[u8] = include_bytes!("../testdata/vendor.Release");
    let rsa: [&[u8]; 4] = [
        include_bytes!("../testdata/vendor-rsa4096.asc"),
        include_bytes!("../testdata/vendor-rsa4096.pgp"),
        include_bytes!("../testdata/vendor-rsa4096.InRelease"),
        include_bytes!("../testdata/vendor-rsa4096.Release.gpg"),
    ];
    let ed25519: [&[u8]; 4] = [
        include_bytes!("../testdata/vendor-ed25519.asc"),
        include_bytes!("../testdata/vendor-ed25519.pgp"),
        include_bytes!("../testdata/vendor-ed25519.InRelease"),
        include_bytes!("../testdata/vendor-ed25519.Release.gpg"),
    ];
    let keyring = |keys: &[&[u8]]| {
        let files = keys.iter().map(|key| ("vendor.asc".to_owned(), *key));
        Keyring::of_files("the vendor's", files).unwrap()
    };
    let both = [rsa[0], ed25519[0]].concat();
    for (signed, other) in [(&rsa, &ed25519), (&ed25519, &rsa)] {
        let [armoured, binary, in_release, signature] = *signed;
        let message = std::str::from_utf8(in_release).unwrap();
        for keys in [&[armoured][..], &[binary], &[other[0], binary], &[&both]] {
            let keyring = keyring(keys);
            let text = keyring.signed_text(message, MADE).unwrap();
            assert_eq!(text.trim_end().as_bytes(), LIST.trim_ascii_end());
            keyring.signed_apart(LIST, signature, MADE).unwrap();
            let changed = [LIST, b"x"].concat();
            keyring.signed_apart(&changed, signature, MADE).unwrap_err();
        }
        let wrong = keyring(&[other[0]]);
        let error = wrong.signed_text(message, MADE).unwrap_err().to_string();
        assert!(error.contains("is not one of the vendor's"), "{error}");
        let error = wrong.signed_apart(LIST, signature, MADE).unwrap_err();
        assert!(
            error.to_string().contains("is not one of the vendor's"),
            "{error}"
        );
    }
}

#[test]
fn what_is_no_certificate_is_refused() {
    for (content, words) in [
        (&b""[..], "no OpenPGP certificate"),
        (b"<html>404</html>", ""),
        (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nnonsense\n", ""),
        (
            b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n",
            "it is a private key",
        ),
        (include_bytes!("../testdata/vendor-rsa4096.Release.gpg"), ""),
    ] {
        let read = Keyring::of_files("", [("a.asc".to_owned(), content)]);
        let error = format!("{:#}", read.unwrap_err());
        assert!(error.starts_with("reading a.asc"), "{error}");
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_change_anywhere_in_the_text_is_found() {
    let keyring = Keyring::debian().unwrap();
    let changes = [
        ("Suite: stable-updates", "Suite: stable-updatez"),
        ("Origin: Debian\n", "Origin: Debian\nOrigin: Me\n"),
        ("Date: ", "Date:  "),
    ];
    for (from, to) in changes {
        let changed = IN_RELEASE.replacen(from, to, 1);
        assert_ne!(changed, IN_RELEASE);
        let error = keyring.signed_text(&changed, MADE).unwrap_err().to_string();
        assert!(error.contains("no signature counts"), "{from}: {error}");
    }
}

#[test]
fn what_is_not_signed_is_not_read() {
    let keyring = Keyring::debian().unwrap();
    let unsigned = "Origin: Debian\nSuite: stable\n";
    for message in [
        unsigned.to_owned(),
        String::new(),
        format!("{unsigned}{IN_RELEASE}"),
        format!("{IN_RELEASE}{unsigned}"),
        format!("{IN_RELEASE}{IN_RELEASE}"),
        IN_RELEASE
            .split("-----BEGIN PGP SIGNATURE-----")
            .next()
            .unwrap()
            .to_owned(),
    ] {
        assert!(
            keyring.signed_text(&message, MADE).is_err(),
            "{}",
            &message[..message.len().min(60)]
        );
    }
}

#[test]
fn expired_keys_and_signatures_of_the_future_do_not_count() {
    let keyring = Keyring::debian().unwrap();
    // Both automatic keys end by 2035.
    let error = keyring
        .signed_text(IN_RELEASE, 2_100_000_000)
        .unwrap_err()
        .to_string();
    assert!(error.contains("expired at 20"), "{error}");
    let error = keyring
        .signed_text(IN_RELEASE, MADE - 3 * CLOCK_TOLERANCE)
        .unwrap_err()
        .to_string();
    assert!(error.contains("clock"), "{error}");
}
