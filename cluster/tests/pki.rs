//! Makes real keys and certificates, and reads them with another library.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use cluster::certs::{Authority, Certificate, KeyKind, Usage};
use cluster::config::{self, Config};
use cluster::discovery::{Pin, Refusal, pinned};
use cluster::host::Host;
use cluster::identity::{self, Fault};
use cluster::pki::life::Life;
use cluster::pki::{Error, KeyFile, Progress, Renewal, Wanted, complete, make};
use cluster::yaml;
use cluster::{certs, kubeconfigs};
use rcgen::PublicKeyData as _;
use sha2::Digest as _;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::{Pem, parse_x509_pem};

/// 22 November 2026, 20:00 UTC.
const NOW: u64 = 1_795_377_600;

fn config(cluster: &str, init: &str) -> Config {
    let config = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: 'fd00::5'}}
nodeRegistration: {{name: node1}}
{init}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.35.4
apiServer: {{certSANs: ['*.example.test', 10.0.0.9]}}
certificateValidityPeriod: 100h
{cluster}
"
    );
    config::read(&config, "1.35.4", &Host::debian("host")).unwrap()
}

fn made(config: &Config) -> Result<BTreeMap<String, KeyFile>, Error> {
    let certificates = certs::certificates(config);
    let kubeconfigs = kubeconfigs::kubeconfigs(config);
    let kind = KeyKind::of_config(config);
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    let wanted = Wanted {
        folder: &config.cluster.certificates_dir,
        accounts: kind,
        certificates: &certificates,
        kubeconfigs: &kubeconfigs,
        renewal: Renewal::Ended,
        since: None,
    };
    let files = make(wanted, now)?;
    Ok(files
        .into_iter()
        .map(|file| (file.path.clone(), file))
        .collect())
}

fn pem(text: &str) -> Pem {
    parse_x509_pem(text.as_bytes()).unwrap().1
}

fn names(certificate: &X509Certificate) -> BTreeSet<String> {
    let extension = certificate.subject_alternative_name().unwrap();
    let names = extension.map(|extension| extension.value.general_names.clone());
    let shown = |name: &GeneralName| match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(v4) => IpAddr::from(v4).to_string(),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(*bytes).unwrap()).to_string(),
        },
        other => panic!("{other:?}"),
    };
    names.unwrap_or_default().iter().map(shown).collect()
}

/// Compares a certificate with its specification, its issuer's key and its own key.
fn check(pem: &Pem, issuer: &Pem, key: &str, wanted: &Certificate) {
    let (certificate, issuer) = (pem.parse_x509().unwrap(), issuer.parse_x509().unwrap());
    let organisation = wanted
        .organisation
        .as_ref()
        .map(|name| format!("O={name}, "));
    let subject = format!("{}CN={}", organisation.unwrap_or_default(), wanted.name);
    assert_eq!(certificate.subject().to_string(), subject);
    assert_eq!(
        certificate.issuer().to_string(),
        format!("CN={}", wanted.issuer.name())
    );
    certificate
        .verify_signature(Some(issuer.public_key()))
        .unwrap();
    assert_eq!(names(&certificate), wanted.names);
    let authority = wanted.usage == Usage::Authority;
    let constraints = certificate.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && constraints.value.ca == authority);
    let usage = certificate.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.digital_signature() && usage.value.key_encipherment());
    assert_eq!(usage.value.key_cert_sign(), authority);
    let extended = certificate.extended_key_usage().unwrap();
    let extended =
        extended.map(|extension| (extension.value.server_auth, extension.value.client_auth));
    let expected = match wanted.usage {
        Usage::Authority => None,
        Usage::Client => Some((false, true)),
        Usage::Server => Some((true, false)),
        Usage::Peer => Some((true, true)),
    };
    assert_eq!(extended, expected);
    let now = i64::try_from(NOW).unwrap();
    assert_eq!(certificate.validity().not_before.timestamp(), now - 300);
    assert_eq!(
        certificate.validity().not_after.timestamp(),
        now + wanted.validity.seconds()
    );
    let own = rcgen::KeyPair::from_pem(key).unwrap();
    assert_eq!(
        certificate.public_key().subject_public_key.data,
        own.public_key_raw()
    );
}

#[test]
fn certificates_are_what_is_specified() {
    for algorithm in ["ECDSA-P256", "ECDSA-P384"] {
        let config = config(&format!("encryptionAlgorithm: {algorithm}"), "");
        let files = made(&config).unwrap();
        let text = |name: &str| &files[&format!("/etc/kubernetes/pki/{name}")].text;
        let specified = certs::certificates(&config);
        assert_eq!(specified.len(), 10);
        for certs::CertificateFile { file, certificate } in &specified {
            let issuer = pem(text(&format!("{}.crt", certificate.issuer.file())));
            let key = text(&format!("{file}.key"));
            check(
                &pem(text(&format!("{file}.crt"))),
                &issuer,
                key,
                certificate,
            );
            assert!(files[&format!("/etc/kubernetes/pki/{file}.key")].secret);
        }
        let accounts = rcgen::KeyPair::from_pem(text("sa.key")).unwrap();
        assert_eq!(accounts.public_key_pem(), *text("sa.pub"));
    }
}

#[test]
fn kubeconfigs_hold_certificates_of_the_authority() {
    use base64::Engine as _;
    let config = config("encryptionAlgorithm: ECDSA-P256\nclusterName: demo", "");
    let files = made(&config).unwrap();
    let authority = &files["/etc/kubernetes/pki/ca.crt"].text;
    for kubeconfig in kubeconfigs::kubeconfigs(&config) {
        let file = &files[&format!("/etc/kubernetes/{}", kubeconfig.file)];
        assert!(file.secret && !format!("{file:?}").contains("data"));
        let node = yaml::document(&file.text, 0, &mut cluster::report::Report::default()).unwrap();
        let first = |list: &str, item: &str| match &node.get(list).unwrap().content {
            yaml::Content::List(items) => items[0].get(item).unwrap().clone(),
            other => panic!("{other:?}"),
        };
        let decoded = |node: &yaml::Node, key: &str| {
            let text = node.get(key).unwrap().text().unwrap();
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(text)
                .unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let (cluster, user) = (first("clusters", "cluster"), first("users", "user"));
        assert_eq!(
            cluster.get("server").unwrap().text().unwrap(),
            kubeconfig.server
        );
        assert_eq!(decoded(&cluster, "certificate-authority-data"), *authority);
        let certificate = pem(&decoded(&user, "client-certificate-data"));
        let key = decoded(&user, "client-key-data");
        check(&certificate, &pem(authority), &key, &kubeconfig.certificate);
        assert_eq!(
            node.get("current-context").unwrap().text().unwrap(),
            kubeconfig.context()
        );
    }
}

#[test]
fn keys_are_never_the_same() {
    let config = config("encryptionAlgorithm: ECDSA-P256", "");
    let (one, two) = (made(&config).unwrap(), made(&config).unwrap());
    let keys = one
        .values()
        .chain(two.values())
        .filter(|file| file.path.ends_with(".key"));
    let keys: Vec<&str> = keys.map(|file| file.text.as_str()).collect();
    let different: BTreeSet<&str> = keys.iter().copied().collect();
    assert_eq!((keys.len(), different.len()), (22, 22));
}

#[test]
fn an_authority_that_is_skipped_is_refused() {
    let skipped = config(
        "encryptionAlgorithm: ECDSA-P256",
        "skipPhases: [certs/front-proxy-ca]",
    );
    assert_eq!(
        made(&skipped).unwrap_err(),
        Error::NoAuthority(Authority::FrontProxy)
    );
}

/// Files by their paths, as a disk has them.
type Disk = BTreeMap<String, String>;

fn completed(config: &Config, disk: &Disk, progress: Progress, now: u64) -> Result<Disk, Error> {
    renewed(config, disk, progress, now, Renewal::Ended)
}

fn renewed(
    config: &Config,
    disk: &Disk,
    progress: Progress,
    now: u64,
    renewal: Renewal,
) -> Result<Disk, Error> {
    let wanted = Wanted {
        folder: &config.cluster.certificates_dir,
        accounts: KeyKind::Ecdsa(256),
        certificates: &certs::certificates(config),
        kubeconfigs: &kubeconfigs::kubeconfigs(config),
        renewal,
        since: None,
    };
    let now = UNIX_EPOCH + Duration::from_secs(now);
    let files = complete(wanted, now, progress, &|path| disk.get(path).cloned())?;
    Ok(files
        .into_iter()
        .map(|file| (file.path, file.text))
        .collect())
}

fn whole() -> (Config, Disk) {
    let config = config("encryptionAlgorithm: ECDSA-P256", "");
    let disk = completed(&config, &Disk::new(), Progress::Fresh, NOW).unwrap();
    (config, disk)
}

#[test]
fn what_is_there_and_valid_is_kept() {
    let (config, disk) = whole();
    for progress in [Progress::Fresh, Progress::Begun, Progress::Done] {
        assert_eq!(completed(&config, &disk, progress, NOW), Ok(Disk::new()));
    }
}

/// A machine whose clock is two years ahead makes its cluster, and the clock is set back: all is valid, and nothing is made anew. What the
/// wrong clock alone would have dated is found.
#[test]
fn what_a_clock_ahead_has_made_is_valid_when_it_is_set_back() {
    let config = config("encryptionAlgorithm: ECDSA-P256", "");
    let ahead = NOW + 2 * 365 * 24 * 3600;
    for since in [Some(NOW - 3600), None] {
        let wanted = Wanted {
            folder: &config.cluster.certificates_dir,
            accounts: KeyKind::Ecdsa(256),
            certificates: &certs::certificates(&config),
            kubeconfigs: &kubeconfigs::kubeconfigs(&config),
            renewal: Renewal::Ended,
            since: since.map(|since| UNIX_EPOCH + Duration::from_secs(since)),
        };
        let files = make(wanted, UNIX_EPOCH + Duration::from_secs(ahead)).unwrap();
        let disk: Disk = files
            .into_iter()
            .map(|file| (file.path, file.text))
            .collect();
        let now = i64::try_from(NOW).unwrap();
        let authority = Life::of_pem(&disk["/etc/kubernetes/pki/ca.crt"]).unwrap();
        assert_eq!(authority.is_valid(now), since.is_some());
        let soon = |now| renewed(&config, &disk, Progress::Done, now, Renewal::Soon).unwrap();
        assert!(soon(ahead).is_empty());
        // Seven pairs and five kubeconfigs.
        let expected = if since.is_some() { 0 } else { 2 * 7 + 5 };
        assert_eq!(soon(NOW).len(), expected);
        // A third of a hundred hours is left.
        assert_eq!(soon(ahead + 67 * 3600).len(), 2 * 7 + 5);
    }
}

/// Later, and by force: leaves are made anew, by the same authorities, and no authority is.
#[test]
fn certificates_are_renewed_before_they_end_and_authorities_are_not() {
    // The configuration's certificates live for a hundred hours.
    let (config, disk) = whole();
    let at = |hours: u64, renewal| {
        renewed(&config, &disk, Progress::Done, NOW + hours * 3600, renewal).unwrap()
    };
    assert!(at(66, Renewal::Soon).is_empty());
    assert!(at(99, Renewal::Ended).is_empty());
    let soon = at(67, Renewal::Soon);
    assert!(soon.keys().eq(at(0, Renewal::All).keys()));
    // Seven pairs and five kubeconfigs.
    assert_eq!(soon.len(), 2 * 7 + 5, "{:?}", soon.keys());
    let authorities = ["/ca.", "/front-proxy-ca.", "/sa."];
    let of_authority = |path: &String| authorities.iter().any(|name| path.contains(name));
    assert!(!soon.keys().any(of_authority));
    let mut after = disk;
    after.extend(soon);
    let later = NOW + 67 * 3600;
    let again = renewed(&config, &after, Progress::Done, later, Renewal::Soon).unwrap();
    assert!(again.is_empty(), "{:?}", again.keys());
}

#[test]
fn a_bootstrap_that_is_cut_after_any_file_is_completed() {
    let (config, disk) = whole();
    let wanted = Wanted {
        folder: &config.cluster.certificates_dir,
        accounts: KeyKind::Ecdsa(256),
        certificates: &certs::certificates(&config),
        kubeconfigs: &kubeconfigs::kubeconfigs(&config),
        renewal: Renewal::Ended,
        since: None,
    };
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    let order = make(wanted, now).unwrap();
    for cut in 0..order.len() {
        let mut there: Disk = order[..cut]
            .iter()
            .map(|file| (file.path.clone(), file.text.clone()))
            .collect();
        let before = there.clone();
        let made = completed(&config, &there, Progress::Begun, NOW).unwrap();
        // A key without its certificate is the only file that is made anew.
        let anew: Vec<_> = made
            .keys()
            .filter(|path| before.contains_key(*path))
            .collect();
        assert!(
            anew.len() <= 1 && anew.iter().all(|path| path.ends_with(".key")),
            "{cut}: {anew:?}"
        );
        there.extend(made);
        assert!(there.keys().eq(disk.keys()), "{cut}");
        assert_eq!(
            completed(&config, &there, Progress::Done, NOW),
            Ok(Disk::new()),
            "{cut}"
        );
    }
}

#[test]
fn half_an_authority_is_refused_by_name() {
    let (config, disk) = whole();
    for (gone, there) in [("ca.key", "ca.crt"), ("etcd/ca.crt", "etcd/ca.key")] {
        let mut half = disk.clone();
        half.remove(&format!("/etc/kubernetes/pki/{gone}")).unwrap();
        for progress in [Progress::Fresh, Progress::Done] {
            let error = completed(&config, &half, progress, NOW)
                .unwrap_err()
                .to_string();
            let expected = format!("/etc/kubernetes/pki/{there} is half of an authority");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
    let mut without = disk.clone();
    without.retain(|path, _| !path.contains("/pki/ca."));
    let error = completed(&config, &without, Progress::Done, NOW).unwrap_err();
    assert_eq!(
        error,
        Error::Missing("/etc/kubernetes/pki/ca.key".to_owned())
    );
}

#[test]
fn a_leaf_is_made_anew_when_it_is_gone_expired_or_lacks_a_name() {
    let (config, disk) = whole();
    let pair = |name: &str| ["crt", "key"].map(|end| format!("/etc/kubernetes/pki/{name}.{end}"));
    let mut less = disk.clone();
    less.remove(&pair("apiserver")[0]).unwrap();
    let made = completed(&config, &less, Progress::Done, NOW).unwrap();
    assert!(made.keys().eq(pair("apiserver").iter()));
    let mut renamed = config.clone();
    renamed
        .cluster
        .api_server
        .cert_sans
        .push("new.example.test".to_owned());
    let made = completed(&renamed, &disk, Progress::Done, NOW).unwrap();
    assert!(made.keys().eq(pair("apiserver").iter()));
    // 101 hours later all leaves are expired, and the authorities are not.
    let made = completed(&config, &disk, Progress::Done, NOW + 101 * 3600).unwrap();
    assert_eq!(made.len(), 7 * 2 + 5);
    assert!(
        !made
            .keys()
            .any(|path| path.contains("ca.") || path.contains("sa."))
    );
}

#[test]
fn files_of_another_cluster_are_refused_before_the_bootstrap() {
    let (config, disk) = whole();
    let (_, other) = whole();
    for file in ["pki/etcd/peer.crt", "admin.conf"] {
        let path = format!("/etc/kubernetes/{file}");
        let mut mixed = disk.clone();
        mixed.insert(path.clone(), other[&path].clone());
        let error = completed(&config, &mixed, Progress::Fresh, NOW)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("{path} belongs to another cluster")),
            "{error}"
        );
    }
}

/// The pins and the identity of a cluster's own keys.
#[test]
fn an_authority_is_known_by_its_public_key_and_a_node_by_its_certificate() {
    let files = made(&config("encryptionAlgorithm: ECDSA-P256", "")).unwrap();
    let text = |name: &str| files[&format!("/etc/kubernetes/{name}")].text.clone();
    let key = rcgen::KeyPair::from_pem(&text("pki/ca.key")).unwrap();
    let hash = sha2::Sha256::digest(key.subject_public_key_info());
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let pin = Pin::parse(&format!("sha256:{digits}")).unwrap();
    let (authority, other) = (text("pki/ca.crt"), text("pki/front-proxy-ca.crt"));
    // Of a bundle those are kept that are pinned.
    let bundle = format!("{other}{authority}");
    let kept = pinned(&bundle, &[pin]).unwrap();
    assert_eq!(pem(&kept).contents, pem(&authority).contents);
    assert_eq!(kept.matches("BEGIN").count(), 1);
    let refusal = pinned(&other, &[pin]).unwrap_err();
    assert!(
        matches!(&refusal, Refusal::NotPinned { expected, .. } if *expected == [pin]),
        "{refusal}"
    );
    let given = kubeconfigs::read(&text("kubelet.conf")).unwrap();
    // The kubelet's file has the key too, which may stand first.
    let file = given.key.unwrap() + &given.certificate.unwrap();
    let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(NOW + seconds);
    let check = |authority: &str, node: &str, seconds: u64| {
        identity::check(&file, authority, node, at(seconds))
    };
    assert_eq!(check(&bundle, "node1", 0), Ok(()));
    let hours = 3600 * 100;
    assert_eq!(check(&authority, "node1", hours - 1), Ok(()));
    assert_eq!(check(&authority, "node1", hours), Err(Fault::Expired));
    assert_eq!(check(&other, "node1", 0), Err(Fault::Foreign));
    let another = Fault::Another("system:node:node1".to_owned());
    assert_eq!(check(&authority, "node2", 0), Err(another));
    let none = identity::check("", &authority, "node1", at(0));
    assert_eq!(none, Err(Fault::Absent));
}
