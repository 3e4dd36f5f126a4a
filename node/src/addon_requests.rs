//! Requests for the objects of addons: the API server says where a kind is served, and what may succeed later is tried again.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster::manifests::NAMESPACE;
use cluster::manifests::record::{MAPS, RECORD, Record, Reference, map_name};
use image::paths::RUN_ADDONS;
use linux::world::World;
use serde_json::Value;

use crate::waiting::{Limits, wait_with};
use api::{Api, is_temporary, status};

/// How long one request is tried again, which the API server refuses or does not answer.
const LIMITS: Limits = Limits {
    patience: Duration::from_secs(120),
    every: Duration::from_secs(1),
};

/// The API server does not serve a kind.
#[derive(Debug)]
struct NoKind {
    version: String,
    kind: String,
}

impl fmt::Display for NoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, kind } = self;
        write!(f, "the API server has no kind {kind} in {version}")
    }
}

impl std::error::Error for NoKind {}

/// A kind as the API server serves it.
#[derive(Debug)]
struct Kind {
    kind: String,
    plural: String,
    namespaced: bool,
}

/// The API server, for addons.
#[derive(Debug)]
pub(crate) struct Server<'a> {
    world: &'a World,
    api: &'a Api,
    /// The kinds of the groups and versions that were asked for.
    kinds: BTreeMap<String, Vec<Kind>>,
}

impl<'a> Server<'a> {
    pub(crate) fn new(world: &'a World, api: &'a Api) -> Self {
        Self {
            world,
            api,
            kinds: BTreeMap::new(),
        }
    }

    /// Tries until it succeeds, or fails for good.
    fn patiently<T>(&self, what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        wait_with(self.world, RUN_ADDONS, LIMITS, what, || match attempt() {
            Err(error) if !is_temporary(&error) => Ok(Err(error)),
            result => result.map(Ok),
        })?
    }

    /// An object; none if there is none.
    ///
    /// # Errors
    /// If the server refuses, or does not answer for two minutes; the same of the others.
    pub(crate) fn get(&self, path: &str) -> Result<Option<Value>> {
        self.patiently(path, || self.api.get(path))
    }

    /// The same, asked once: where the caller waits itself.
    pub(crate) fn get_once(&self, path: &str) -> Result<Option<Value>> {
        self.api.get(path)
    }

    /// What the API server calls an object. Its kind may be served a little later: its definition was applied just before.
    pub(crate) fn place(&mut self, object: &Value) -> Result<Reference> {
        let what = shown(object);
        let (world, mut found) = (self.world, None);
        let waited = wait_with(world, RUN_ADDONS, LIMITS, &what, || {
            match self.known(object)? {
                Some(reference) => found = Some(reference),
                None => return Err(no_kind(object)),
            }
            Ok(())
        });
        waited?;
        found.ok_or_else(|| no_kind(object))
    }

    /// The same; none if its kind is not served now.
    pub(crate) fn known(&mut self, object: &Value) -> Result<Option<Reference>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        if !self.serves(&version, &kind) {
            // Not kept if the kind is not among them: its definition may come.
            let kinds = self.ask(&version)?;
            self.kinds.insert(version.clone(), kinds);
        }
        let kinds = self.kinds.get(&version).into_iter().flatten();
        let Some(found) = kinds.into_iter().find(|served| served.kind == kind) else {
            return Ok(None);
        };
        let namespace = match &object["metadata"]["namespace"] {
            _ if !found.namespaced => String::new(),
            Value::String(namespace) => format!("/namespaces/{namespace}"),
            _ => format!("/namespaces/{NAMESPACE}"),
        };
        let (plural, name) = (&found.plural, text(&object["metadata"]["name"]));
        Ok(Some(Reference {
            path: format!("{}{namespace}/{plural}/{name}", root(&version)),
            api_version: version,
            kind,
        }))
    }

    fn serves(&self, version: &str, kind: &str) -> bool {
        let kinds = self.kinds.get(version).into_iter().flatten();
        kinds.into_iter().any(|served| served.kind == kind)
    }

    /// The kinds of a group and version (`APIResourceList`); none if it is not served.
    fn ask(&self, version: &str) -> Result<Vec<Kind>> {
        let Some(list) = self.get(&root(version))? else {
            return Ok(Vec::new());
        };
        let resources = list["resources"].as_array().cloned().unwrap_or_default();
        let kind = |resource: &Value| {
            let plural = resource["name"].as_str()?;
            // `deployments/scale` has the kind of another group.
            (!plural.contains('/')).then_some(())?;
            Some(Kind {
                kind: resource["kind"].as_str()?.to_owned(),
                plural: plural.to_owned(),
                namespaced: resource["namespaced"] == true,
            })
        };
        Ok(resources.iter().filter_map(kind).collect())
    }

    /// Applies an object.
    pub(crate) fn apply(&self, reference: &Reference, object: &Value) -> Result<()> {
        self.patiently(&shown(object), || self.api.apply(&reference.path, object))
    }

    /// Deletes an object that was read before.
    pub(crate) fn delete(&self, path: &str, object: &Value) -> Result<()> {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        self.patiently(&format!("the deletion of {path}"), || {
            self.api.delete(path, uid)
        })
    }

    /// All records of addons, by name.
    pub(crate) fn records(&self) -> Result<BTreeMap<String, Record>> {
        let path = format!("{MAPS}?labelSelector={}", RECORD.replace('/', "%2F"));
        let list = self.get(&path)?.unwrap_or_default();
        let maps = list["items"].as_array().into_iter().flatten();
        maps.map(|map| {
            let record = Record::read(map).map_err(anyhow::Error::msg)?;
            Ok((record.addon.clone(), record))
        })
        .collect()
    }

    /// Writes a record, unless another node has written it since it was read.
    pub(crate) fn write(&self, record: &mut Record) -> Result<()> {
        let map = record.map();
        let path = format!("{MAPS}/{}", map_name(&record.addon));
        let what = format!("the record of addon {}", record.addon);
        let written = wait_with(self.world, RUN_ADDONS, LIMITS, &what, || {
            let written = match record.resource_version {
                Some(_) => self.api.put(&path, &map),
                None => self.api.post(MAPS, &map),
            };
            match written {
                Err(error) if is_lost(&error) || !is_temporary(&error) => Ok(Err(error)),
                result => result.map(Ok),
            }
        })?;
        let written = written.context("writing the record of what is applied")?;
        let version = written["metadata"]["resourceVersion"].as_str();
        record.resource_version = version.map(str::to_owned);
        Ok(())
    }

    /// Removes the record of an addon that is gone.
    pub(crate) fn remove(&self, record: &Record) -> Result<()> {
        let path = format!("{MAPS}/{}", map_name(&record.addon));
        match self.get(&path)? {
            Some(map) => self.delete(&path, &map),
            None => Ok(()),
        }
    }
}

/// Whether another node wrote the object meanwhile, or deleted it: the same request never succeeds.
fn is_lost(error: &anyhow::Error) -> bool {
    status(error).is_some_and(|status| matches!(status.as_u16(), 404 | 409))
}

/// Whether the API server did not answer: nothing else is worth trying now.
pub(crate) fn is_down(error: &anyhow::Error) -> bool {
    status(error).is_none() && error.downcast_ref::<NoKind>().is_none()
}

/// Whether the API server refuses for good.
pub(crate) fn is_refused(error: &anyhow::Error) -> bool {
    !is_temporary(error)
}

/// An object as messages name it.
pub(crate) fn shown(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    match &object["metadata"]["namespace"] {
        Value::String(namespace) => format!("{kind} {namespace}/{name}"),
        _ => format!("{kind} {name}"),
    }
}

fn no_kind(object: &Value) -> anyhow::Error {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    anyhow::Error::new(NoKind {
        version: text(&object["apiVersion"]),
        kind: text(&object["kind"]),
    })
}

/// Where a group and version is served.
fn root(version: &str) -> String {
    match version.contains('/') {
        true => format!("/apis/{version}"),
        false => format!("/api/{version}"),
    }
}
