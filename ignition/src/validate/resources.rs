//! Rules for resources: sources, hashes, headers, the proxy.

use super::{Rules, Spot};
use crate::contents::Hash;
use crate::source;

impl Rules {
    pub(super) fn ignition(&mut self, root: &Spot<'_>) {
        let Some(ignition) = root.child("ignition") else {
            return;
        };
        if let Some(config) = ignition.child("config") {
            for merge in config.items("merge") {
                self.reference(&merge);
                // A pointer in 3.0, which may be nil there.
                if self.minor >= 1 {
                    self.source_needed(&merge);
                }
            }
            if let Some(replace) = config.child("replace") {
                self.reference(&replace);
            }
        }
        if let Some(tls) = ignition.child("security").and_then(|s| s.child("tls")) {
            for authority in tls.items("certificateAuthorities") {
                self.reference(&authority);
                self.source_needed(&authority);
            }
        }
        if let Some(proxy) = ignition.child("proxy") {
            self.proxy(&proxy);
        }
    }

    /// Merged configs and certificate authorities need a source; since 3.1 the finding about an invalid one is reported
    /// for the entry as well.
    fn source_needed(&mut self, spot: &Spot<'_>) {
        let at = if self.minor >= 1 { "" } else { "source" };
        match spot.text("source").filter(|text| !text.is_empty()) {
            None => self.error(spot, at, "source is required"),
            Some(text) => {
                if let Err(wrong) = source::check(text, self.minor)
                    && self.minor >= 1
                {
                    self.error(spot, "", wrong);
                }
            }
        }
    }

    /// Another config, or certificate authorities: 3.0 says nothing about a hash without a source.
    fn reference(&mut self, spot: &Spot<'_>) {
        self.fetched(spot, self.minor >= 1);
    }

    pub(super) fn resource(&mut self, spot: &Spot<'_>) {
        self.fetched(spot, true);
    }

    fn fetched(&mut self, spot: &Spot<'_>, needs_source: bool) {
        match spot.text("compression") {
            None | Some("" | "gzip") => {}
            Some(_) => self.error(
                spot,
                "compression",
                "invalid compression method; there is gzip",
            ),
        }
        let url = spot.text("source");
        if let Some(hash) = spot.child("verification").and_then(|v| v.node.text("hash")) {
            if let Err(wrong) = Hash::check(hash, self.minor) {
                self.error(spot, "verification.hash", wrong);
            }
            if needs_source && url.is_none() {
                self.error(spot, "verification.hash", "a hash needs a source");
            }
        }
        if let Some(url) = url.filter(|url| !url.is_empty())
            && let Err(wrong) = source::check(url, self.minor)
        {
            self.error(spot, "source", wrong);
        }
        self.headers(spot, url);
    }

    fn headers(&mut self, spot: &Spot<'_>, url: Option<&str>) {
        let headers = spot.items("httpHeaders");
        if headers.is_empty() {
            return;
        }
        let scheme = source::split(url.unwrap_or_default()).map(|url| url.scheme);
        if !matches!(scheme.as_deref(), Ok("http" | "https")) {
            self.error(
                spot,
                "httpHeaders",
                "only http and https sources have headers",
            );
        }
        for header in headers {
            if header.text("name").unwrap_or_default().is_empty() {
                self.error(&header, "name", "the header's name is empty");
            }
            if header.text("value") == Some("") {
                self.error(&header, "value", "the header's value is empty");
            }
        }
    }

    fn proxy(&mut self, spot: &Spot<'_>) {
        for name in ["httpProxy", "httpsProxy"] {
            let Some(text) = spot.text(name) else {
                continue;
            };
            match source::split(text).map(|url| url.scheme) {
                Ok(scheme) if scheme == "https" => {}
                Ok(scheme) if scheme == "http" && name == "httpProxy" => {}
                Ok(scheme) if scheme == "http" => {
                    self.warn(
                        spot,
                        name,
                        "requests for https go through a proxy by plain http",
                    );
                }
                Ok(_) => self.error(spot, name, "a proxy's URL begins with http or https"),
                Err(wrong) => self.error(spot, name, wrong),
            }
        }
    }
}
