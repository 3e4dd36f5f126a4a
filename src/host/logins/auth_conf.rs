//! Logins in the form of apt's `auth.conf`, which is that of `~/.netrc` with ports, paths and protocols.
//!
//! apt_auth.conf(5), <https://manpages.debian.org/trixie/apt/apt_auth.conf.5.en.html>

use fetch::Login;

/// The words of one `machine`.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// As `http`; none: https alone.
    protocol: Option<String>,
    /// Host, port if one is given, path if one is given.
    place: String,
    login: Login,
}

/// Reads all machines of a text; `from` is where it is written, for messages. Unknown words are ignored, as apt does.
pub(super) fn read(text: &str, from: &str) -> Vec<Machine> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut words = lines.flat_map(str::split_whitespace);
    let mut all: Vec<Machine> = Vec::new();
    let mut is_open = false;
    while let Some(word) = words.next() {
        match word {
            "machine" => {
                let Some(place) = words.next() else {
                    break;
                };
                all.push(machine(place, from));
                is_open = true;
            }
            // Of netrc: the login of every other server, which would send it anywhere.
            "default" => is_open = false,
            "login" | "password" => {
                let (Some(value), true) = (words.next(), is_open) else {
                    continue;
                };
                if let Some(last) = all.last_mut() {
                    match word {
                        "login" => value.clone_into(&mut last.login.user),
                        _ => value.clone_into(&mut last.login.password),
                    }
                }
            }
            _ => {}
        }
    }
    all
}

fn machine(place: &str, from: &str) -> Machine {
    let (protocol, place) = match place.split_once("://") {
        Some((protocol, place)) => (Some(protocol.to_ascii_lowercase()), place),
        None => (None, place),
    };
    let host = place.find('/').unwrap_or(place.len());
    let place = format!("{}{}", place[..host].to_ascii_lowercase(), &place[host..]);
    Machine {
        protocol,
        login: Login {
            user: String::new(),
            password: String::new(),
            is_identity: false,
            from: from.to_owned(),
        },
        place,
    }
}

/// Whether a machine is the server of a URL, and if it is but for the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    No,
    /// The URL is not https, and the machine does not say that its login may go over plain http.
    Plain,
    Yes,
}

impl Machine {
    pub(super) fn login(&self) -> &Login {
        &self.login
    }

    /// Compares it with a URL without user, password, query and fragment.
    pub(super) fn fits(&self, url: &str) -> Fit {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Fit::No;
        };
        let is_there = if self.place.contains('/') {
            rest.starts_with(&self.place)
        } else {
            let server = rest.split('/').next().unwrap_or_default();
            let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
            self.place == server || self.place == host
        };
        match (&self.protocol, is_there) {
            (_, false) => Fit::No,
            (Some(protocol), true) if protocol == scheme => Fit::Yes,
            (Some(_), true) => Fit::No,
            (None, true) if scheme == "https" => Fit::Yes,
            (None, true) => Fit::Plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_compared_as_apt_does() {
        let url = "https://example.org/debian/dists/trixie/InRelease";
        for (place, fit) in [
            // The manual page's own examples.
            ("example.org", Fit::Yes),
            ("example.org/deb", Fit::Yes),
            ("example.org/debian", Fit::Yes),
            ("example.org/debian/", Fit::Yes),
            ("example.org:443", Fit::No),
            ("example.org/deb/", Fit::No),
            ("example.org/ubuntu", Fit::No),
            ("example.orga", Fit::No),
            ("Example.ORG/debian", Fit::Yes),
            ("https://example.org", Fit::Yes),
            ("http://example.org", Fit::No),
            ("xample.org", Fit::No),
        ] {
            assert_eq!(machine(place, "").fits(url), fit, "{place}");
        }
        let url = "http://example.org:8080/debian";
        for (place, fit) in [
            ("example.org", Fit::Plain),
            ("http://example.org", Fit::Yes),
            ("http://example.org:8080", Fit::Yes),
            ("http://example.org:80", Fit::No),
            ("https://example.org", Fit::No),
        ] {
            assert_eq!(machine(place, "").fits(url), fit, "{place}");
        }
        // What only begins as the host does.
        assert_eq!(
            machine("example.org", "").fits("https://example.org.evil.example/x"),
            Fit::No
        );
        assert_eq!(
            machine("example.org", "").fits("https://evil.example/example.org"),
            Fit::No
        );
    }

    #[test]
    fn words_may_stand_on_any_line() {
        let text = "# machine comment.example login c password c\n\
                    machine a.example\n\tlogin joe account x\n password #p\n\
                    machine b.example login ann password q machine c.example password only\n\
                    default login any password where\nmachine";
        let all = read(text, "/f");
        let shown: Vec<(&str, &str, &str)> = all
            .iter()
            .map(|one| {
                let Login { user, password, .. } = one.login();
                (one.place.as_str(), user.as_str(), password.as_str())
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("a.example", "joe", "#p"),
                ("b.example", "ann", "q"),
                ("c.example", "", "only")
            ]
        );
        assert!(all.iter().all(|one| one.login().from == "/f"));
    }
}
