use super::{is_domain, is_path};

#[test]
fn repositories_are_those_of_images() {
    for domain in [
        "registry.k8s.io",
        "mirror.example.test:5000",
        "[fd00::1]:5000",
        "HOST",
    ] {
        assert!(is_domain(domain), "{domain}");
    }
    for domain in ["a b", "a:b", "-a", ""] {
        assert!(!is_domain(domain), "{domain}");
    }
    for path in ["a", "a-b", "a--b", "a__b", "a.b", "k8s"] {
        assert!(is_path(path), "{path}");
    }
    for path in ["", "A", "a..b", "a___b", "-a", "a-", "a._b"] {
        assert!(!is_path(path), "{path}");
    }
}
