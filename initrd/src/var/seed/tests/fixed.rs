//! What was made immutable on the node (`chattr +i`), as programs that guard themselves do.

use linux::host::{is_root, skipped};
use linux::ioctl;

use super::*;

/// A file or folder that is immutable until this ends.
struct Fixed(fs::File);

impl Fixed {
    /// None, as [`skipped()`] says, where the file system has no such flag.
    fn new(place: &Path) -> Option<Self> {
        let open = fs::File::open(place).unwrap();
        if let Err(error) = ioctl::set_immutable(&open, true) {
            skipped(&format!("{}: {error:#}", place.display()));
            return None;
        }
        Some(Self(open))
    }
}

impl Drop for Fixed {
    fn drop(&mut self) {
        ioctl::set_immutable(&self.0, false).unwrap();
    }
}

#[test]
fn an_immutable_program_is_the_nodes_own_until_it_is_not() {
    if !is_root() {
        return;
    }
    let mut image = Image::new();
    version(&mut image, "1");
    image.seeds("a");
    let Some(fixed) = Fixed::new(&image.at(AGENT)) else {
        return;
    };
    version(&mut image, "2");
    let done = image.seeds("b");
    assert_eq!((done.own, done.gone), (vec![AGENT.to_owned()], 0));
    assert_eq!(image.text(AGENT).as_deref(), Some("1"));
    assert_eq!(image.text(TOOL).as_deref(), Some("2"));
    // A root without it takes it along no more than one with another version.
    image.later();
    assert_eq!(image.seeds("c").gone, 2);
    assert_eq!(image.text(AGENT).as_deref(), Some("1"));
    drop(fixed);
    version(&mut image, "3");
    assert_eq!(image.seeds("d").own, [""; 0]);
    assert_eq!(image.text(AGENT).as_deref(), Some("3"));
}

#[test]
fn nothing_comes_to_or_goes_from_an_immutable_folder() {
    if !is_root() {
        return;
    }
    let mut image = Image::new();
    version(&mut image, "1");
    image.seeds("a");
    let Some(fixed) = Fixed::new(&image.at("/var/opt/agent")) else {
        return;
    };
    version(&mut image, "2");
    image.has("C", "/var/opt/agent/added", 0o755, "2");
    let done = image.seeds("b");
    let added = "/var/opt/agent/added";
    assert_eq!(done.own, [added, LINK, AGENT].map(str::to_owned));
    assert_eq!(image.text(AGENT).as_deref(), Some("1"));
    assert_eq!(image.text("/var/opt/agent/added"), None);
    assert_eq!(image.text(TOOL).as_deref(), Some("2"));
    // Neither does another kind of entry come in its place.
    image.later();
    image.has("L", "/var/opt/agent", 0, "/usr/lib/agent");
    assert_eq!(image.seeds("c").own, ["/var/opt/agent"]);
    assert_eq!(image.text(AGENT).as_deref(), Some("1"));
    drop(fixed);
    version(&mut image, "3");
    image.has("C", "/var/opt/agent/added", 0o755, "3");
    assert_eq!(image.seeds("d").own, [""; 0]);
    assert_eq!(image.text(AGENT).as_deref(), Some("3"));
    assert_eq!(image.text("/var/opt/agent/added").as_deref(), Some("3"));
}
