//! `[[overlay.archives]]` and `[[overlay.images]]`: what is right, and each mistake at its place.

use super::{SMALL, written};
use crate::recipe::{ArchiveFile, Recipe, TreeFrom};

const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn with(text: &str) -> Result<Recipe, String> {
    let text = format!("{SMALL}\n{text}\n");
    written(&[("a.toml", text.as_str()), ("a.tar", "")])
}

#[test]
fn trees_are_archives_and_then_images() {
    let text = format!(
        "[[overlay.images]]\noci = 'r.example/a:v1@sha256:{SUM}'\nto = '/usr/lib/a'\n\
         [[overlay.archives]]\nfile = 'a.tar'\nto = '/opt/a'\nstrip = 1\nkeep-owners = true\n\
         [[overlay.archives]]\nurl = 'https://a.example/b.tar'\nsha256 = '{SUM}'\nto = '/'\n"
    );
    let recipe = with(&text).unwrap();
    let [host, server, image] = recipe.trees.as_slice() else {
        panic!("{:?}", recipe.trees)
    };
    assert!(matches!(
        &host.from,
        TreeFrom::Archive { file: ArchiveFile::Host(path), strip: 1 } if path.ends_with("a.tar")
    ));
    assert!(host.keep_owners && host.to == "/opt/a" && server.to == "/");
    let urls: Vec<&str> = recipe.downloads().map(|(of, _)| of.url.as_str()).collect();
    assert_eq!(urls, ["https://a.example/b.tar"]);
    assert!(matches!(&image.from, TreeFrom::Image { path, .. } if path == "/"));
    assert!(image.origin.ends_with("a.toml:5:1"), "{}", image.origin);
}

#[test]
fn each_mistake_is_shown_at_its_place() {
    let archive = "[[overlay.archives]]\n";
    let image = "[[overlay.images]]\n";
    let file = "file = 'a.tar'\n";
    let url = "url = 'https://a.example/b.tar'\n";
    let to = "to = '/usr/lib/a'\n";
    for (text, place, words) in [
        (format!("{archive}{file}"), "a.toml:5:1", "`to` is missing"),
        (
            format!("{archive}{to}"),
            "a.toml:5:1",
            "an archive has 0 of its sources",
        ),
        (
            format!("{archive}{to}{file}{url}"),
            "a.toml:5:1",
            "an archive has 2 of its sources",
        ),
        (
            format!("{archive}{to}{url}"),
            "a.toml:7:7",
            "without its `sha256`",
        ),
        (
            format!("{archive}{to}{file}sha256 = '{}'", SUM.replace('e', "f")),
            "a.toml:8:10",
            "has the SHA-256 e3b0",
        ),
        (
            format!("{archive}{to}file = 'b.tar'"),
            "a.toml:7:8",
            "No such file",
        ),
        (
            format!("{archive}{file}to = 'opt'"),
            "a.toml:7:6",
            "is not the plain path of a folder",
        ),
        (
            format!("{archive}{file}to = '/run/a'"),
            "a.toml:7:6",
            "would never be seen",
        ),
        (
            format!("{archive}{file}{to}strip = 99"),
            "a.toml:8:9",
            "cannot be 99",
        ),
        (
            format!("{archive}{file}{to}owner = 'x'"),
            "a.toml:8:1",
            "unknown key `owner`",
        ),
        (
            format!("{image}{to}"),
            "a.toml:5:1",
            "without its reference",
        ),
        (
            format!("{image}{to}oci = 'r.example/a:v1'"),
            "a.toml:7:7",
            "it has no digest",
        ),
        (
            format!("{image}{to}oci = 'r.example/a:v1@sha256:{SUM}'\npath = '../x'"),
            "a.toml:8:8",
            "is not the plain path of a folder",
        ),
    ] {
        let report = with(&text).unwrap_err();
        assert!(report.contains(place), "{text}\n{report}");
        assert!(report.contains(words), "{text}\n{report}");
        assert!(!report.contains(" mistakes"), "{text}\n{report}");
    }
}
