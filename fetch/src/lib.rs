//! The one verified download: retries, size limit, hash, temporary file, sync, rename.
//!
//! Used by both the tool and PID 1, so it stays small: it does not interpret configs or archives.

// Floor: values
mod digest;
pub mod docker_hub;
pub mod hosts;
mod links;
mod masked;
mod partition;
mod pause;
mod percent;
mod sigv4;
mod trust;

// Floor: failures, and addresses that are refused
mod failure;
mod guard;

// Floor: logins
mod login;

// Floor: requests and documents
pub mod oci;
mod registry;
mod want;

// Floor: proxies, and one exchange
mod exchange;
mod proxy;

// Floor: connections of single requests
mod exact_path;
mod source_port;

// Floor: one answer
mod ending;
mod http;
mod s3_error;
mod sink;

// Floor: one request
mod request;

// Floor: identities
mod identity;

// Floor: tokens
mod bearer;

// Floor: the client
mod client;

// Floor: sources
mod http_source;
mod tftp;

// Floor: services
mod artifact;
mod blob;
mod gs;
mod s3;

// Floor: schemes
mod schemes;

// Floor: downloads
mod download;
mod post;

// Floor: uploads
mod upload;

// Floor: identity tokens
#[cfg(feature = "logins")]
mod oauth;

// Floor: repositories, and folders of buckets
mod bucket;
mod repository;

// Floor: what is stored in repositories and buckets
mod multipart;
mod push;

// Floor: without a runtime
pub mod blocking;

pub use bucket::{Bucket, Parts, Stop};
pub use client::{Client, OFFLINE, Options};
pub use digest::Digest;
pub use download::{bytes, file, pieces, verified_elsewhere};
pub use failure::{Failure, clock_note, shown};
pub use identity::{Endpoints, Identity};
pub use links::{Links, Way};
pub use login::{Login, Logins};
pub use masked::{has_login, masked};
pub use post::{Message, post};
pub use proxy::Proxy;
pub use repository::Repository;
pub use sigv4::Credentials;
pub use sink::Sink;
pub use upload::Content;
pub use want::{LONGEST_WAIT, Method, Pace, Patience, Room, Want};
