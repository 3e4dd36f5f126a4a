//! An archive for tests, signed by a key of the test: laid out as a vendor serves it, or as Debian does.

use std::collections::HashMap;
use std::fmt::Write as _;

use data_encoding::HEXLOWER;
use pgp::composed::{
    ArmorOptions, CleartextSignedMessage, DetachedSignature, KeyType, SecretKeyParamsBuilder,
    SignedSecretKey, SubpacketConfig,
};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{SignatureConfig, SignatureType, Subpacket, SubpacketData};
use pgp::types::{KeyDetails as _, Password, Timestamp};
use sha2::Digest as _;

/// Paths with their leading slash, and contents.
pub(crate) type Served = HashMap<String, Vec<u8>>;

/// When keys and signatures are made, in seconds since 1970: 20 November 2026, 02:11:10 UTC, as lists say of themselves. What
/// reads them may have another clock, also an earlier one than this machine's.
pub(crate) const MADE: u32 = 1_795_140_670;

/// A key that signs archives.
pub(crate) struct Signer(SignedSecretKey);

impl Signer {
    pub(crate) fn new() -> Self {
        let key = SecretKeyParamsBuilder::default()
            .key_type(KeyType::Ed25519Legacy)
            .can_certify(true)
            .can_sign(true)
            .created_at(Timestamp::from_secs(MADE))
            .primary_user_id("Test archive".to_owned())
            .build()
            .unwrap();
        Self(key.generate(rand::rngs::OsRng).unwrap())
    }

    /// Its certificate, armoured.
    pub(crate) fn certificate(&self) -> String {
        let certificate = self.0.to_public_key();
        certificate
            .to_armored_string(ArmorOptions::default())
            .unwrap()
    }

    /// A keyring of it alone.
    pub(crate) fn keyring(&self) -> super::signature::Keyring {
        let certificate = self.certificate();
        let file = ("test.asc".to_owned(), certificate.as_bytes());
        super::signature::Keyring::of_files("the test's", [file]).unwrap()
    }

    /// A text with its signature.
    pub(crate) fn clearsigned(&self, text: &str) -> Vec<u8> {
        let key = &self.0.primary_key;
        let mut config =
            SignatureConfig::from_key(rand::rngs::OsRng, key, SignatureType::Text).unwrap();
        config.hashed_subpackets = self.subpackets();
        let signed = CleartextSignedMessage::new(text, config, key, &Password::empty());
        let signed = signed
            .unwrap()
            .to_armored_string(ArmorOptions::default())
            .unwrap();
        signed.into_bytes()
    }

    /// A signature apart from its text.
    pub(crate) fn signature(&self, text: &str) -> Vec<u8> {
        let signature = DetachedSignature::sign_binary_data_with_subpackets(
            rand::rngs::OsRng,
            &self.0.primary_key,
            &Password::empty(),
            HashAlgorithm::Sha256,
            text.as_bytes(),
            SubpacketConfig::UserDefined {
                hashed: self.subpackets(),
                unhashed: Vec::new(),
            },
        );
        signature
            .unwrap()
            .to_armored_bytes(ArmorOptions::default())
            .unwrap()
    }

    /// What a signature says of itself: its time and its key.
    fn subpackets(&self) -> Vec<Subpacket> {
        [
            SubpacketData::SignatureCreationTime(Timestamp::from_secs(MADE)),
            SubpacketData::IssuerFingerprint(self.0.primary_key.fingerprint()),
        ]
        .map(|data| Subpacket::regular(data).unwrap())
        .into()
    }
}

/// A package: its paragraph in an index without what is said of the file, and the file.
pub(crate) struct Item {
    pub(crate) control: String,
    pub(crate) file: Vec<u8>,
}

impl Item {
    /// A package of these fields, `name version; Field: value; …`, with a file that dpkg could not install.
    pub(crate) fn new(line: &str) -> Self {
        let mut parts = line.split("; ");
        let (name, version) = parts.next().unwrap().split_once(' ').unwrap();
        let mut control = format!("Package: {name}\nVersion: {version}\n");
        if !line.contains("Architecture: ") {
            control += "Architecture: amd64\n";
        }
        parts.for_each(|field| writeln!(control, "{field}").unwrap());
        Self {
            file: format!("the file of {name} {version}").into_bytes(),
            control,
        }
    }

    fn name(&self) -> &str {
        self.control
            .lines()
            .next()
            .unwrap()
            .split_once(": ")
            .unwrap()
            .1
    }

    pub(crate) fn path(&self) -> String {
        let digest = sha256(&self.file);
        format!("pool/{}_{}.deb", self.name(), &digest[..8])
    }
}

/// A suite with one component.
pub(crate) struct Suite<'s> {
    /// Path below the host, without a slash at its end: `/debian`, or empty.
    pub(crate) base: &'s str,
    /// Its name, or a folder with a slash at its end for a flat one.
    pub(crate) name: &'s str,
    pub(crate) component: &'s str,
    /// Further fields of its list, each with a line feed.
    pub(crate) fields: &'s str,
    /// Whether its list and its signature are files apart.
    pub(crate) apart: bool,
}

impl Suite<'_> {
    /// All files of the suite.
    pub(crate) fn serve(&self, signer: &Signer, items: &[Item]) -> Served {
        let flat = self.name.ends_with('/');
        let folder = match (flat, self.name) {
            (true, "./") => self.base.to_owned(),
            (true, name) => format!("{}/{}", self.base, name.trim_end_matches('/')),
            (false, name) => format!("{}/dists/{name}", self.base),
        };
        let index_path = match flat {
            true => "Packages".to_owned(),
            false => format!("{}/binary-amd64/Packages", self.component),
        };
        let mut files = Served::new();
        let mut index = String::new();
        for item in items {
            let path = item.path();
            write!(
                index,
                "{}Filename: {path}\nSize: {}\nSHA256: {}\n\n",
                item.control,
                item.file.len(),
                sha256(&item.file)
            )
            .unwrap();
            files.insert(format!("{}/{path}", self.base), item.file.clone());
        }
        let date = match self.fields.contains("Date: ") {
            true => "",
            false => "Date: Fri, 20 Nov 2026 02:11:10 UTC\n",
        };
        let name = match flat {
            true => String::new(),
            false => format!("Codename: {}\n", self.name),
        };
        let list = format!(
            "Origin: Test\n{name}{date}{}SHA256:\n {} {} {index_path}\n",
            self.fields,
            sha256(index.as_bytes()),
            index.len()
        );
        files.insert(format!("{folder}/{index_path}"), index.into_bytes());
        if self.apart {
            let signature = signer.signature(&list);
            files.insert(format!("{folder}/Release.gpg"), signature);
            files.insert(format!("{folder}/Release"), list.into_bytes());
        } else {
            files.insert(format!("{folder}/InRelease"), signer.clearsigned(&list));
        }
        files
    }
}

pub(crate) fn sha256(content: &[u8]) -> String {
    HEXLOWER.encode(&sha2::Sha256::digest(content))
}
