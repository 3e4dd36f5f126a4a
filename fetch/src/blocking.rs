//! Downloads for code without an async runtime: a client with a current-thread runtime inside.

use std::path::Path;
use std::time::Duration;

use crate::client::{self, Options};
use crate::download;
use crate::failure::Failure;
use crate::oci::Descriptor;
use crate::post::{self, Message};
use crate::repository::Repository;
use crate::want::Want;

/// A client that blocks its caller. Connections stay open between its downloads. Use one client for each thread.
#[derive(Debug)]
pub struct Client {
    client: client::Client,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// See [`crate::Client::new`].
    ///
    /// # Errors
    /// As there, and if the runtime cannot be made.
    pub fn new(options: &Options) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            client: client::Client::new(options)?,
            runtime,
        })
    }

    /// Runs work with the client, such as an upload.
    pub fn run<T>(&self, work: impl AsyncFnOnce(&client::Client) -> T) -> T {
        self.runtime.block_on(work(&self.client))
    }

    /// See [`crate::bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn bytes(
        &self,
        want: &Want<'_>,
        on_wait: &(dyn Fn(&str) + Sync),
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<u8>, Failure> {
        self.runtime
            .block_on(download::bytes(&self.client, want, on_wait, on_bytes))
    }

    /// See [`crate::file`].
    ///
    /// # Errors
    /// As there.
    pub fn file(
        &self,
        want: &Want<'_>,
        dest: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Failure> {
        self.runtime
            .block_on(download::file(&self.client, want, dest, on_bytes))
    }

    /// See [`crate::Repository::document`].
    ///
    /// # Errors
    /// As there.
    pub fn document(&self, from: &mut Repository, version: &str) -> Result<Vec<u8>, Failure> {
        self.runtime.block_on(from.document(&self.client, version))
    }

    /// See [`crate::Repository::blob`].
    ///
    /// # Errors
    /// As there.
    pub fn blob(
        &self,
        from: &mut Repository,
        blob: &Descriptor,
        dest: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Failure> {
        self.runtime
            .block_on(from.blob(&self.client, blob, dest, on_bytes))
    }

    /// See [`crate::post()`].
    ///
    /// # Errors
    /// As there.
    pub fn post(&self, message: &Message<'_>, total: Duration) -> Result<(), Failure> {
        self.runtime
            .block_on(post::post(&self.client, message, total))
    }

    /// See [`crate::verified_elsewhere`].
    ///
    /// # Errors
    /// As there.
    pub fn verified_elsewhere(
        &self,
        want: &Want<'_>,
        file: std::fs::File,
        on_wait: &(dyn Fn(&str) + Sync),
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Failure> {
        self.runtime.block_on(download::verified_elsewhere(
            &self.client,
            want,
            file,
            on_wait,
            on_bytes,
        ))
    }
}
