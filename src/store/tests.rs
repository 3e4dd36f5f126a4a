//! Addresses of stores. What stores do is tested through folders by the remote cache, and through real servers in `tests/share`.

use super::*;

#[test]
fn addresses_are_read_and_wrong_ones_named() {
    let options = fetch::Options::default();
    let open = |url: &str| Store::open(url, &options, Haste::Patient);
    for (url, writable, local) in [
        ("oci://r.example:5000/team/cache", true, false),
        ("s3://bucket/prefix/", true, false),
        ("file:///srv/cache", true, true),
        ("https://mirror.example/cache", false, false),
    ] {
        let store = open(url).unwrap();
        assert_eq!((store.is_writable(), store.is_local()), (writable, local));
    }
    for url in [
        "/srv/cache",
        "file://relative",
        "ftp://x/y",
        "oci://r.example",
        "oci://r.example/a:tag",
        "s3://",
        "",
    ] {
        let error = format!("{:#}", open(url).unwrap_err());
        assert!(error.contains("expected"), "{url}: {error}");
    }
    let error = open("ftp://me:secret@x/y").unwrap_err();
    assert!(!format!("{error:#}").contains("secret"), "{error:#}");
}
