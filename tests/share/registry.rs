//! Debian's docker-registry on loopback.

use std::fs;

use anyhow::Result;
use slipway::install::tools::Tools;

use crate::server::Server;

/// Path of its data inside the sandbox.
const PLACE: &str = "/registry";

pub(crate) fn start(tools: &Tools) -> Result<Server> {
    Server::start(tempfile::tempdir()?, |host, place| {
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {PLACE}/data\nhttp:\n  addr: {host}\n"
        );
        fs::write(place.join("config.yml"), config)?;
        Ok(tools
            .sandbox()
            .network(true)
            .bind(place, PLACE)
            .command("/usr/bin/docker-registry")
            .args(["serve", &format!("{PLACE}/config.yml")]))
    })
}
