//! Metadata services: requests over one connection; absence and failure are separate results.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use fetch::{Failure, Message, Method, Options, Patience, Want, blocking, hosts};
use serde::de::DeserializeOwned;

use crate::machine::{Machine, Received};
use crate::problem::Problem;
use crate::userdata::LIMIT;

/// The size limit of a response other than the user data, in bytes.
const SMALL: u64 = 4 << 20;

/// A connection to a metadata service.
pub(crate) struct Service<'a> {
    client: blocking::Client,
    base: &'a str,
    headers: Vec<(String, String)>,
    patience: Patience,
    pub(crate) say: &'a (dyn Fn(&str) + Sync),
    received: Received<'a>,
}

/// The options of a request beyond a plain GET.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    /// Headers of this request only.
    pub(crate) headers: &'a [(&'a str, &'a str)],
    /// The size limit of the response in bytes; none: that of a small response.
    pub(crate) limit: Option<u64>,
    /// Statuses after which the request is repeated, beside those that `fetch` repeats.
    pub(crate) repeat: &'a [u16],
    /// The time limit, in place of the machine's.
    pub(crate) total: Option<Duration>,
    /// The source ports of the request, one of which is bound; none: any.
    pub(crate) source_ports: Option<RangeInclusive<u16>>,
}

/// The usual base address of metadata services: an IP address, since names may not resolve this early (RFC 3927,
/// link-local).
const LINK_LOCAL: &str = "http://169.254.169.254";

/// A client for metadata services: never by a proxy, and without certificates, since all speak plain HTTP.
pub(crate) fn options(machine: &Machine<'_>) -> Options {
    Options {
        ca_bundle: Some(Vec::new()),
        direct: true,
        links: machine.links.clone(),
        hosts: vec![hosts::openstack(&indices(machine.sys))],
        ..Options::default()
    }
}

/// The indices of the machine's links.
fn indices(sys: &Path) -> Vec<u32> {
    let links = std::fs::read_dir(sys.join("class/net"))
        .into_iter()
        .flatten();
    let index = |link: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(link.ok()?.path().join("ifindex")).ok()?;
        // The first is the loopback.
        text.trim().parse().ok().filter(|index| *index > 1)
    };
    let mut out: Vec<u32> = links.filter_map(index).collect();
    out.sort_unstable();
    out
}

impl<'a> Service<'a> {
    /// The service at the usual address, once the network is up. Every request has these headers.
    pub(crate) fn new(machine: &Machine<'a>, headers: &[(&str, &str)]) -> Result<Self, Problem> {
        Self::at(machine, LINK_LOCAL, headers)
    }

    /// As [`Service::new`], at another address: the base of the service's URLs, without a slash at the end.
    pub(crate) fn at(
        machine: &Machine<'a>,
        base: &'a str,
        headers: &[(&str, &str)],
    ) -> Result<Self, Problem> {
        machine.bring_up()?;
        let client = blocking::Client::new(&options(machine));
        Ok(Self {
            client: client.map_err(|error| Problem::remote(format!("{error:#}")))?,
            base: machine.service.unwrap_or(base),
            headers: owned(headers),
            patience: machine.patience,
            say: machine.say,
            received: machine.received,
        })
    }

    /// Sends a request; the error is the download's own failure.
    pub(crate) fn ask(&self, path: &str, ask: &Ask<'_>) -> Result<Vec<u8>, Failure> {
        let url = format!("{}{path}", self.base);
        let mut headers = self.headers.clone();
        headers.extend(owned(ask.headers));
        let want = Want {
            method: ask.method,
            headers,
            repeat: ask.repeat,
            source_ports: ask.source_ports.clone(),
            patience: Patience {
                total: ask.total.or(self.patience.total),
                ..self.patience
            },
            ..Want::new(&url, ask.limit.unwrap_or(SMALL))
        };
        let address = ignition::source::shown(&url);
        let received = |bytes| (self.received)(&address, bytes);
        self.client.bytes(&want, self.say, &received)
    }

    /// Posts an XML document to `path`, for `total` at most; `repeat` as in [`Ask`].
    pub(crate) fn post_xml(
        &self,
        path: &str,
        text: &str,
        repeat: &[u16],
        total: Duration,
    ) -> Result<(), Failure> {
        let url = format!("{}{path}", self.base);
        let headers: Vec<(&str, &str)> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let message = Message {
            url: &url,
            content_type: "text/xml; charset=utf-8",
            headers: &headers,
            text,
            repeat,
        };
        self.client.post(&message, total)
    }

    /// The response at `path`; none if it is absent.
    pub(crate) fn get(&self, path: &str) -> Result<Option<Vec<u8>>, Problem> {
        present(self.ask(path, &Ask::default()))
    }

    /// The user data at `path`.
    pub(crate) fn user_data(&self, path: &str) -> Result<Option<Vec<u8>>, Problem> {
        present(self.ask(
            path,
            &Ask {
                limit: Some(LIMIT),
                ..Ask::default()
            },
        ))
    }

    /// A text at `path`; none if it is absent or empty.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>, Problem> {
        Ok(self.get(path)?.and_then(|bytes| text(&bytes)))
    }

    /// The response at `path` of a service that answers `updating` while it is updated, for `update_time` at most: only
    /// after that time does such a response mean absence.
    pub(crate) fn settled(
        &self,
        path: &str,
        updating: &[u16],
        update_time: Duration,
    ) -> Result<Option<Vec<u8>>, Problem> {
        let plain = Ask {
            limit: Some(LIMIT),
            ..Ask::default()
        };
        let first = self.ask(path, &plain);
        if !first.as_ref().is_err_and(Failure::is_gone) {
            return present(first);
        }
        let repeating = Ask {
            repeat: updating,
            total: Some(update_time),
            ..plain.clone()
        };
        match self.ask(path, &repeating) {
            // At the end of that time the failure may have been another one: then the usual patience applies.
            Err(Failure::Unreachable { .. }) => present(self.ask(path, &plain)),
            answer => present(answer),
        }
    }

    /// JSON at `path`. A text that does not parse is logged and counts as absent.
    pub(crate) fn json<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Problem> {
        let Some(bytes) = self.get(path)? else {
            return Ok(None);
        };
        Ok(json(&bytes, &format!("{}{path}", self.base), self.say))
    }
}

fn owned(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    headers.iter().map(owned).collect()
}

/// A response; absence (404, 410) becomes none.
pub(crate) fn present(answer: Result<Vec<u8>, Failure>) -> Result<Option<Vec<u8>>, Problem> {
    match answer {
        Ok(bytes) => Ok(Some(bytes)),
        Err(failure) if failure.is_gone() => Ok(None),
        Err(failure) => Err(Problem::remote(failure.to_string())),
    }
}

/// A trimmed text; none if it is empty.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// JSON of a vendor: a text that does not parse is logged and counts as absent, since a machine without its metadata
/// still boots. The message has the position, never the content.
pub(crate) fn json<T: DeserializeOwned>(
    bytes: &[u8],
    name: &str,
    say: &(dyn Fn(&str) + Sync),
) -> Option<T> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Some(value),
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            say(&format!(
                "ignoring {name}: not JSON of the expected form at {line}:{column}"
            ));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;
    use crate::testing::server::{Request, ok, serve};

    #[test]
    fn links_are_known_by_their_indices() {
        let sys = tempfile::tempdir().unwrap();
        for (link, index) in [
            ("lo", "1\n"),
            ("eth1", "12\n"),
            ("eth0", "2\n"),
            ("odd", "x\n"),
        ] {
            let folder = sys.path().join("class/net").join(link);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("ifindex"), index).unwrap();
        }
        assert_eq!(indices(sys.path()), [2, 12]);
        assert!(indices(&sys.path().join("none")).is_empty());
    }

    #[test]
    fn a_service_may_have_its_own_address_and_want_certain_ports() {
        let server = serve(Vec::new(), |request: &Request| ok(request.port.to_string()));
        let bench = Bench::new();
        bench.run(|machine| {
            let machine = Machine {
                service: None,
                ..*machine
            };
            let service = Service::at(&machine, &server.base, &[]).unwrap();
            let ports = 23_000..=23_999;
            let ask = Ask {
                source_ports: Some(ports.clone()),
                ..Ask::default()
            };
            let port = text(&service.ask("/", &ask).unwrap()).unwrap();
            assert!(ports.contains(&port.parse().unwrap()), "{port}");
        });
    }
}
