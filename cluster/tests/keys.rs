//! Private keys of every algorithm and in every form: made, read back, signed with, and read by another library.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use cluster::certs::{self, KeyKind};
use cluster::config::{self, Config};
use cluster::host::Host;
use cluster::kubeconfigs;
use cluster::pki::{Error, Progress, Renewal, Wanted, complete};
use ring::signature::KeyPair as _;
use x509_parser::oid_registry::OID_PKCS1_SHA256WITHRSA;
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// 25 November 2026, 12:00 UTC.
const NOW: u64 = 1_795_608_000;
const PKI: &str = "/etc/kubernetes/pki";

/// Files by their paths, as a disk has them.
type Disk = BTreeMap<String, String>;

fn config(algorithm: &str) -> Config {
    let text = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: 10.0.0.5}}
nodeRegistration: {{name: node1}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.35.4
certificateValidityPeriod: 100h
encryptionAlgorithm: {algorithm}
"
    );
    config::read(&text, "1.35.4", &Host::debian("host")).unwrap()
}

fn completed(
    config: &Config,
    disk: &Disk,
    progress: Progress,
    renewal: Renewal,
) -> Result<Disk, Error> {
    let wanted = Wanted {
        folder: PKI,
        accounts: KeyKind::of_config(config),
        certificates: &certs::certificates(config),
        kubeconfigs: &kubeconfigs::kubeconfigs(config),
        renewal,
        since: None,
    };
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    let files = complete(wanted, now, progress, &|path| disk.get(path).cloned())?;
    let files = files.into_iter().map(|file| (file.path, file.text));
    Ok(files.collect())
}

fn pem(text: &str) -> Pem {
    parse_x509_pem(text.as_bytes()).unwrap().1
}

/// The bits of the RSA key in a certificate or in `PUBLIC KEY`, and whether it is that of a private key in PKCS#1.
fn bits(public: &[u8], private: &str) -> usize {
    let key = pem(private);
    assert_eq!(key.label, "RSA PRIVATE KEY");
    let pair = ring::rsa::KeyPair::from_der(&key.contents).unwrap();
    assert_eq!(pair.public_key().as_ref(), public);
    pair.public().modulus_len() * 8
}

#[test]
fn with_rsa_every_key_and_certificate_is_rsa_and_kubeadms_form() {
    let config = config("RSA-2048");
    let disk = completed(&config, &Disk::new(), Progress::Fresh, Renewal::Ended).unwrap();
    let text = |path: &str| &disk[&format!("{PKI}/{path}")];
    let checked = |certificate: &str, key: &str, authority: &str| {
        let (certificate, authority) = (pem(certificate), pem(authority));
        let found = certificate.parse_x509().unwrap();
        let authority = authority.parse_x509().unwrap();
        assert_eq!(found.signature_algorithm.algorithm, OID_PKCS1_SHA256WITHRSA);
        found
            .verify_signature(Some(authority.public_key()))
            .unwrap();
        let public = found.public_key();
        assert!(matches!(public.parsed(), Ok(PublicKey::RSA(key)) if key.exponent == [1, 0, 1]));
        assert_eq!(bits(&public.subject_public_key.data, key), 2048);
    };
    let specified = certs::certificates(&config);
    assert_eq!(specified.len(), 10);
    for certs::CertificateFile { file, certificate } in &specified {
        let authority = text(&format!("{}.crt", certificate.issuer.file()));
        checked(
            text(&format!("{file}.crt")),
            text(&format!("{file}.key")),
            authority,
        );
    }
    for kubeconfig in kubeconfigs::kubeconfigs(&config) {
        let text_of = &disk[&format!("/etc/kubernetes/{}", kubeconfig.file)];
        let given = kubeconfigs::read(text_of).unwrap();
        let (certificate, key) = (given.certificate.unwrap(), given.key.unwrap());
        checked(&certificate, &key, text("ca.crt"));
    }
    let accounts = pem(text("sa.pub"));
    assert_eq!(accounts.label, "PUBLIC KEY");
    let (_, public) = SubjectPublicKeyInfo::from_der(&accounts.contents).unwrap();
    assert_eq!(bits(&public.subject_public_key.data, text("sa.key")), 2048);
    // What is there is kept, and a leaf whose key was replaced before its certificate is not.
    for progress in [Progress::Begun, Progress::Done] {
        let again = completed(&config, &disk, progress, Renewal::Ended);
        assert_eq!(again, Ok(Disk::new()));
    }
    let mut cut = disk.clone();
    let other = text("etcd/peer.key").clone();
    cut.insert(format!("{PKI}/apiserver.key"), other);
    let made = completed(&config, &cut, Progress::Done, Renewal::Ended).unwrap();
    let pair = ["crt", "key"].map(|end| format!("{PKI}/apiserver.{end}"));
    assert!(made.keys().eq(pair.iter()), "{:?}", made.keys());
    // The public half of the accounts' key is made of the private one.
    cut = disk.clone();
    let public = cut.remove(&format!("{PKI}/sa.pub")).unwrap();
    let made = completed(&config, &cut, Progress::Done, Renewal::Ended).unwrap();
    assert_eq!(made, Disk::from([(format!("{PKI}/sa.pub"), public)]));
}

#[test]
fn the_longer_rsa_keys_have_their_length() {
    for (algorithm, expected) in [("RSA-3072", 3072), ("RSA-4096", 4096)] {
        let config = config(algorithm);
        let authority: Vec<_> = certs::authorities(&config).into_iter().take(1).collect();
        let wanted = Wanted {
            folder: PKI,
            accounts: KeyKind::Ecdsa(256),
            certificates: &authority,
            kubeconfigs: &[],
            renewal: Renewal::Ended,
            since: None,
        };
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let files = cluster::pki::make(wanted, now).unwrap();
        let certificate = pem(&files[1].text);
        let certificate = certificate.parse_x509().unwrap();
        certificate.verify_signature(None).unwrap();
        let public = &certificate.public_key().subject_public_key.data;
        assert_eq!(bits(public, &files[0].text), expected);
    }
}

/// The authority's files of `tests/keys`.
fn authority(name: &str) -> (String, String) {
    let text = |end: &str| {
        let path = format!("{}/tests/keys/{name}.{end}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    (text("crt"), text("key"))
}

#[test]
fn authorities_in_the_forms_of_other_programs_are_kept_and_sign() {
    // A cluster's certificates may change their algorithm below the same authority.
    for (name, algorithm) in [
        ("rsa-2048", "ECDSA-P256"),
        ("ec-p256", "ECDSA-P384"),
        ("ec-p384", "RSA-2048"),
    ] {
        let config = config(algorithm);
        let (certificate, key) = authority(name);
        let mut disk = Disk::new();
        disk.insert(format!("{PKI}/ca.crt"), certificate.clone());
        disk.insert(format!("{PKI}/ca.key"), key.clone());
        disk.insert(format!("{PKI}/sa.key"), key.clone());
        let made = completed(&config, &disk, Progress::Fresh, Renewal::Ended).unwrap();
        for kept in ["ca.crt", "ca.key", "sa.key"] {
            assert!(
                !made.contains_key(&format!("{PKI}/{kept}")),
                "{name}: {kept}"
            );
        }
        let authority = pem(&certificate);
        let authority = authority.parse_x509().unwrap();
        let accounts = pem(&made[&format!("{PKI}/sa.pub")]);
        assert_eq!(accounts.contents, authority.public_key().raw, "{name}");
        let leaf = pem(&made[&format!("{PKI}/apiserver.crt")]);
        let leaf = leaf.parse_x509().unwrap();
        leaf.verify_signature(Some(authority.public_key())).unwrap();
        let rsa = matches!(leaf.public_key().parsed(), Ok(PublicKey::RSA(_)));
        assert_eq!(rsa, algorithm == "RSA-2048");
        disk.extend(made);
        assert_eq!(
            completed(&config, &disk, Progress::Done, Renewal::Ended),
            Ok(Disk::new())
        );
        let renewed = completed(&config, &disk, Progress::Done, Renewal::All).unwrap();
        assert_eq!(renewed.len(), 2 * 7 + 5);
    }
}

#[test]
fn a_key_that_is_cut_or_of_another_authority_is_refused_by_name() {
    let config = config("ECDSA-P256");
    let (certificate, key) = authority("rsa-2048");
    let (_, other) = authority("ec-p384");
    let line = key.lines().nth(3).unwrap();
    for (wrong, reason) in [
        (other, "is not the key of the certificate beside it"),
        (
            key.replace(&format!("{line}\n"), ""),
            "is not a private key of ECDSA P-256 or P-384, of Ed25519, or of RSA with 2048 to 4096 bits",
        ),
        (
            key.replace("RSA PRIVATE", "EC PRIVATE"),
            "is not a private key of ECDSA P-256",
        ),
    ] {
        let mut disk = Disk::new();
        disk.insert(format!("{PKI}/ca.crt"), certificate.clone());
        disk.insert(format!("{PKI}/ca.key"), wrong);
        let refused = completed(&config, &disk, Progress::Fresh, Renewal::Ended);
        let error = refused.unwrap_err().to_string();
        let expected = format!("{PKI}/ca.key {reason}");
        assert!(error.starts_with(&expected), "{error}");
    }
}
