//! X.509 certificates in PEM, and the hash of a subject by which OpenSSL finds one in a folder.

use anyhow::{Context, Result, bail, ensure};
use sha1::{Digest as _, Sha1};
use x509_parser::prelude::{FromDer as _, Pem, X509Certificate, X509Name};

/// The label of a certificate's part.
const LABEL: &str = "CERTIFICATE";
/// Begins a part, and text in PEM at all.
const BEGIN: &str = "-----BEGIN ";
/// Tags of DER (X.690): the strings that OpenSSL compares without regard to case and spaces, sets and sequences.
const UTF8: u32 = 12;
const PRINTABLE: u32 = 19;
const T61: u32 = 20;
const IA5: u32 = 22;
const VISIBLE: u32 = 26;
const UNIVERSAL: u32 = 28;
const BMP: u32 = 30;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its part in PEM, with lines of 64 characters and nothing before it.
    pub pem: String,
    /// Its subject, for people.
    pub subject: String,
    /// The hash of the subject, as `openssl x509 -subject_hash` prints it.
    pub hash: String,
    /// When it ends, seconds since 1970.
    pub ends: i64,
    /// When it ends, for people.
    pub end: String,
    /// Whether it says that it is of an authority, or is signed by itself.
    pub is_authority: bool,
}

/// All certificates of a text in PEM; what stands between the parts is left out.
///
/// # Errors
/// If it has no certificate, one is damaged, or another part, as a private key.
pub fn read(text: &[u8]) -> Result<Vec<Certificate>> {
    let readable = std::str::from_utf8(text).is_ok_and(|text| text.contains(BEGIN));
    ensure!(readable, "it is not a text in PEM");
    let mut found = Vec::new();
    for pem in Pem::iter_from_buffer(text) {
        let about = || format!("certificate {}", found.len() + 1);
        let pem = pem.map_err(anyhow::Error::from).with_context(about)?;
        if pem.label.contains("PRIVATE KEY") {
            bail!("it has a private key, which no image may have");
        }
        ensure!(pem.label == LABEL, "it has a part {:?}", pem.label);
        let certificate = certificate(&pem.contents).with_context(about)?;
        found.push(certificate);
    }
    ensure!(!found.is_empty(), "it has no certificate");
    Ok(found)
}

fn certificate(der: &[u8]) -> Result<Certificate> {
    let (rest, parsed) = X509Certificate::from_der(der).context("it is not X.509")?;
    ensure!(rest.is_empty(), "more follows it in the same part");
    let subject = parsed.subject();
    let validity = parsed.validity();
    Ok(Certificate {
        pem: to_pem(der),
        subject: subject.to_string(),
        hash: subject_hash(subject)?,
        ends: validity.not_after.timestamp(),
        end: validity.not_after.to_string(),
        is_authority: parsed.is_ca() || parsed.subject().as_raw() == parsed.issuer().as_raw(),
    })
}

fn to_pem(der: &[u8]) -> String {
    let encoded = data_encoding::BASE64.encode(der);
    let mut out = format!("{BEGIN}{LABEL}-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        out += line;
        out.push('\n');
        rest = more;
    }
    out + &format!("-----END {LABEL}-----\n")
}

/// The first four bytes of the SHA-1 of the name in OpenSSL's canonical form, as a number of the little end first
/// (`X509_NAME_hash_ex` and `x509_name_canon` in OpenSSL's `crypto/x509`).
fn subject_hash(name: &X509Name<'_>) -> Result<String> {
    let mut canonical = Vec::new();
    for part in name.iter_rdn() {
        let mut values: Vec<Vec<u8>> = Vec::new();
        for value in part.iter() {
            let any = value.attr_value();
            let oid = value.attr_type().as_bytes();
            let encoded = match folded(any.tag().0, any.data) {
                Some(text) => encode(u8::try_from(UTF8)?, text.as_bytes())?,
                None => encode(any.header.tag().0.try_into()?, any.data)?,
            };
            let pair = [encode(0x06, oid)?, encoded].concat();
            values.push(encode(SEQUENCE, &pair)?);
        }
        // The members of a set are in the order of their bytes.
        values.sort();
        canonical.extend(encode(SET, &values.concat())?);
    }
    let digest = Sha1::digest(&canonical);
    let first = [digest[0], digest[1], digest[2], digest[3]];
    Ok(format!("{:08x}", u32::from_le_bytes(first)))
}

/// A string in lower case, without outer spaces, each run of inner ones as one; none if OpenSSL compares its bytes.
fn folded(tag: u32, data: &[u8]) -> Option<String> {
    let text: String = match tag {
        UTF8 | PRINTABLE | IA5 | VISIBLE => std::str::from_utf8(data).ok()?.to_owned(),
        T61 => data.iter().map(|byte| char::from(*byte)).collect(),
        BMP => data
            .chunks(2)
            .map(|pair| char::from_u32(u32::from(u16::from_be_bytes(pair.try_into().ok()?))))
            .collect::<Option<_>>()?,
        UNIVERSAL => data
            .chunks(4)
            .map(|four| char::from_u32(u32::from_be_bytes(four.try_into().ok()?)))
            .collect::<Option<_>>()?,
        _ => return None,
    };
    let is_space = |c: char| c.is_ascii_whitespace() || c == '\x0b';
    let words = text.split(is_space).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_ascii_lowercase).collect();
    Some(words.join(" "))
}

/// A value in DER.
fn encode(tag: u8, content: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![tag];
    let length = content.len();
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let bytes = u32::try_from(length)?.to_be_bytes();
            let bytes: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
            out.push(0x80 | u8::try_from(bytes.len())?);
            out.extend(bytes);
        }
    }
    out.extend(content);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: &str = include_str!("certificate/odd.pem");
    const LEAF: &str = include_str!("certificate/leaf.pem");

    #[test]
    fn certificates_have_the_hash_that_openssl_gives_them() {
        let both = format!("{ODD}text between\n{LEAF}").replace('\n', "\r\n");
        let found = read(both.as_bytes()).unwrap();
        let [odd, leaf] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(
            (odd.hash.as_str(), leaf.hash.as_str()),
            ("bc162e3a", "9ee112dc")
        );
        assert!(odd.is_authority && !leaf.is_authority);
        assert!(odd.subject.contains("Corp ROOT"), "{}", odd.subject);
        assert!(odd.end.contains("2126") && odd.ends > 4_900_000_000);
        assert!(ODD.ends_with(&odd.pem), "{}", odd.pem);
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        let key = ODD.replace("CERTIFICATE", "PRIVATE KEY");
        let request = ODD.replace("CERTIFICATE", "CERTIFICATE REQUEST");
        for (text, words) in [
            (String::new(), "not a text in PEM"),
            ("\u{30}\u{82}".to_owned(), "not a text in PEM"),
            (key, "private key"),
            (
                format!("{ODD}{LEAF}").replace("MIIBtT", "MIIBtS"),
                "certificate 2",
            ),
            (request, "CERTIFICATE REQUEST"),
            (ODD.replace("-----END", "----END"), "certificate 1"),
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn names_are_folded_as_openssl_does() {
        for (tag, data, text) in [
            (PRINTABLE, &b" A  b\tC "[..], "a b c"),
            (T61, b"\xc4A", "\u{c4}a"),
            (BMP, b"\0A\0 \0 \x01\x00", "a \u{100}"),
            (UNIVERSAL, b"\0\0\0Z", "z"),
        ] {
            assert_eq!(folded(tag, data).as_deref(), Some(text));
        }
        assert_eq!(folded(2, b"A"), None);
        let long = encode(SEQUENCE, &[0; 300]).unwrap();
        assert_eq!(&long[..4], [SEQUENCE, 0x82, 1, 44]);
    }
}
