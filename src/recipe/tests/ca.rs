//! `[ca]`: authorities in files of one and of several, and each mistake at its place.

use super::{SMALL, written};
use crate::recipe::Recipe;

/// A certificate and its key in PEM. It ends in this year, and is of an authority if so.
pub(super) fn certificate(name: &str, ends: i32, of_authority: bool) -> (String, String) {
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(ends, 1, 1);
    params.is_ca = match of_authority {
        true => rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained),
        false => rcgen::IsCa::ExplicitNoCa,
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let signed = match of_authority {
        true => params.self_signed(&key),
        false => {
            let mut above = rcgen::CertificateParams::new(vec![]).unwrap();
            above.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let signer = rcgen::KeyPair::generate().unwrap();
            params.signed_by(&key, &rcgen::Issuer::new(above, signer))
        }
    };
    (signed.unwrap().pem(), key.serialize_pem())
}

fn with(list: &str, files: &[(&str, &str)]) -> Result<Recipe, String> {
    let text = format!("{SMALL}\n[ca]\ncertificates = {list}\n");
    let mut all = vec![("a.toml", text.as_str())];
    all.extend(files);
    written(&all)
}

#[test]
fn authorities_have_the_names_of_their_files() {
    let (one, _) = certificate("One", 2100, true);
    let (two, _) = certificate("Two", 2100, true);
    let (three, _) = certificate("Three", 2100, true);
    let both = format!("# Two\r\n{two}\n{three}");
    let files = [("tls/corp root.pem", one.as_str()), ("more.crt", &both)];
    let recipe = with("['tls/corp root.pem', 'more.crt']", &files).unwrap();
    let names: Vec<&str> = recipe
        .authorities
        .iter()
        .map(|authority| authority.name.as_str())
        .collect();
    assert_eq!(names, ["corp_root", "more-1", "more-2"]);
    let lines = |text: &str| text.replace('\r', "");
    assert_eq!(recipe.ca_bundle, lines(&format!("{one}{two}{three}")));
    assert_eq!(with("[]", &[]).unwrap().ca_bundle, "");
}

#[test]
fn each_mistake_is_shown_at_its_place() {
    let (good, key) = certificate("Good", 2100, true);
    let (old, _) = certificate("Old", 2020, true);
    let (leaf, _) = certificate("Leaf", 2100, false);
    let with_key = format!("{good}{key}");
    let files = [
        ("good.pem", good.as_str()),
        ("b/good.pem", old.as_str()),
        ("same.pem", good.as_str()),
        ("old.pem", old.as_str()),
        ("leaf.pem", leaf.as_str()),
        ("key.pem", with_key.as_str()),
        ("page.html", "<html>"),
    ];
    for (list, column, words) in [
        ("['none.pem']", 17, "No such file"),
        ("['page.html']", 17, "it is not a text in PEM"),
        ("['key.pem']", 17, "it has a private key"),
        ("['leaf.pem']", 17, "CN=Leaf is not of an authority"),
        ("['old.pem']", 17, "CN=Old expired on "),
        (
            "['good.pem', 'good.pem']",
            29,
            "is given twice in `ca.certificates`",
        ),
        ("['good.pem', 'same.pem']", 29, "CN=Good is given twice"),
        (
            "['good.pem', 'b/good.pem']",
            29,
            "two files of certificates are called good",
        ),
    ] {
        let report = with(list, &files).unwrap_err();
        assert!(
            report.contains(&format!("a.toml:6:{column}")),
            "{list}\n{report}"
        );
        assert!(report.contains(words), "{list}\n{report}");
        assert!(!report.contains("PRIVATE KEY"), "{report}");
    }
}

#[test]
fn no_authority_of_an_extended_recipe_is_left_out() {
    let (one, _) = certificate("One", 2100, true);
    let (two, _) = certificate("Two", 2100, true);
    let parent = format!("{SMALL}\nca.certificates = ['ca.pem']");
    let with = |of_other: &str| {
        written(&[
            ("c.toml", "extends = ['a/p.toml', 'b/p.toml']"),
            ("a/p.toml", &parent),
            ("b/p.toml", "ca.certificates = ['ca.pem']"),
            ("a/ca.pem", &one),
            ("b/ca.pem", of_other),
        ])
    };
    let report = with(&two).unwrap_err();
    let words = "two files of certificates are called ca";
    assert!(report.contains(words), "{report}");
    // Each may have its own copy.
    assert_eq!(with(&one).unwrap().authorities.len(), 1);
}
