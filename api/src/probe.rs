//! Whether one API server is ready, asked at its address and verified by the name that all of them have.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use reqwest::StatusCode;

use crate::{Trust, chain, client, message, tls_without_certificate};

/// The health check that also counts etcd and the server's own start and end
/// (<https://kubernetes.io/docs/reference/using-api/health-checks/>).
const READY: &str = "readyz";
/// More than the longest answer of the check that is understood.
const LARGEST: usize = 64 << 10;

/// A check of one API server, for the caller's own runtime. Its connection is kept between two checks: a handshake for each would
/// cost every API server one every few seconds for each node.
#[derive(Clone, Debug)]
pub struct Probe {
    client: reqwest::Client,
    url: String,
}

impl Probe {
    /// A check of the server at this address, whose certificate is for this name and of one of these authorities (PEM); an answer may
    /// take so long.
    ///
    /// # Errors
    /// If the authorities do not parse.
    pub fn new(
        address: SocketAddr,
        name: &str,
        authority: &str,
        timeout: Duration,
    ) -> Result<Self> {
        let tls = tls_without_certificate(Trust::Authority(authority))?;
        let client = client(tls, timeout, Some((name, address)))?;
        let url = format!("https://{name}:{}/{READY}", address.port());
        Ok(Self { client, url })
    }

    /// Whether the server is ready. One that lets nobody ask without an identity (`--anonymous-auth=false`) is: it answers, by the
    /// cluster's certificate.
    ///
    /// # Errors
    /// Why it is not: [`Unready`] if the server itself answers so, else why there is no answer.
    pub async fn ready(&self) -> Result<()> {
        let answer = async {
            let mut response = self.client.get(&self.url).send().await?;
            let mut body = Vec::new();
            // To the end, so that the connection can be used again.
            while body.len() <= LARGEST
                && let Some(piece) = response.chunk().await?
            {
                body.extend_from_slice(&piece);
            }
            Ok::<_, reqwest::Error>((response.status(), body))
        };
        let (status, body) = answer
            .await
            .map_err(|error| match error.is_timeout() {
                true => anyhow!("no answer in time"),
                false => anyhow!(chain(&error)),
            })
            .context(READY)?;
        match status {
            StatusCode::OK | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(()),
            status => Err(Unready(format!("{READY}: {status}: {}", message(&body))).into()),
        }
    }
}

/// The answer of an API server that is not ready.
#[derive(Debug)]
pub struct Unready(String);

impl std::fmt::Display for Unready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unready {}
