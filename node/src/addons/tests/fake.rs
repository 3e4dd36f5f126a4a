//! An API server that keeps what is applied, serves a kind some requests after its definition, and can be away.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::samples::{CLOSED, Request, server};
use api::Api;

/// Kinds of groups and versions: kind, plural, whether it has namespaces.
type Kinds = Vec<(String, String, bool)>;

#[derive(Debug)]
pub(super) struct State {
    pub(super) objects: BTreeMap<String, Value>,
    kinds: BTreeMap<String, Kinds>,
    log: Vec<String>,
    version: u64,
    /// How often a group of a definition is asked for before it is served.
    pub(super) unserved: usize,
    /// How often a workload is read before it is ready.
    pub(super) unready: usize,
    /// The requests that get no answer.
    pub(super) away: Option<Range<usize>>,
    /// A path whose writes are refused, with this status.
    pub(super) refused: Option<(String, u16)>,
    requests: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Fake(Arc<Mutex<State>>);

impl Default for Fake {
    fn default() -> Self {
        let kind =
            |kind: &str, plural: &str, namespaced| (kind.to_owned(), plural.to_owned(), namespaced);
        let core = vec![
            kind("ConfigMap", "configmaps", true),
            kind("Namespace", "namespaces", false),
            kind("ServiceAccount", "serviceaccounts", true),
        ];
        let apps = vec![
            kind("Scale", "deployments/scale", true),
            kind("Deployment", "deployments", true),
        ];
        let definitions = vec![kind(
            "CustomResourceDefinition",
            "customresourcedefinitions",
            false,
        )];
        let kinds = [
            ("/api/v1", core),
            ("/apis/apps/v1", apps),
            ("/apis/batch/v1", vec![kind("Job", "jobs", true)]),
            ("/apis/apiextensions.k8s.io/v1", definitions),
        ];
        Self(Arc::new(Mutex::new(State {
            objects: BTreeMap::new(),
            kinds: kinds.map(|(path, kinds)| (path.to_owned(), kinds)).into(),
            log: Vec::new(),
            version: 0,
            unserved: 0,
            unready: 0,
            away: None,
            refused: None,
            requests: 0,
        })))
    }
}

impl Fake {
    /// Serves on loopback; the client of it.
    pub(super) fn serve(&self) -> Api {
        let state = Arc::clone(&self.0);
        let (url, requests) = server(move |request| state.lock().unwrap().answer(request));
        // The server ends with its receiver.
        std::mem::forget(requests);
        Api::plain(&url).unwrap()
    }

    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    /// The requests that begin so, without that and without the query.
    pub(super) fn log(&self, begin: &str) -> Vec<String> {
        let state = self.0.lock().unwrap();
        let found = state.log.iter().filter_map(|line| line.strip_prefix(begin));
        found
            .map(|line| line.split('?').next().unwrap_or_default().to_owned())
            .collect()
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap().log.clear();
    }

    /// An object; null if there is none.
    pub(super) fn object(&self, path: &str) -> Value {
        self.0
            .lock()
            .unwrap()
            .objects
            .get(path)
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.0.lock().unwrap().objects.keys().cloned().collect()
    }
}

impl State {
    fn answer(&mut self, request: &Request) -> (u16, String) {
        let number = self.requests;
        self.requests += 1;
        if self
            .away
            .as_ref()
            .is_some_and(|away| away.contains(&number))
        {
            return (CLOSED, String::new());
        }
        self.log.push(request.line.clone());
        let (method, path) = request.line.split_once(' ').unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        if let Some((refused, status)) = &self.refused
            && refused == path
            && method != "GET"
        {
            return (*status, json!({"message": "no"}).to_string());
        }
        let answer = match method {
            "GET" => self.get(path, query),
            "PATCH" => self.patch(path, &request.kind, body),
            "POST" => self.post(path, body),
            "PUT" => self.put(path, body),
            _ => self.delete(path, &body),
        };
        match answer {
            Ok(value) => (200, value.to_string()),
            Err(status) => (status, json!({"message": "refused"}).to_string()),
        }
    }

    fn get(&mut self, path: &str, query: &str) -> Result<Value, u16> {
        if let Some(label) = query.strip_prefix("labelSelector=") {
            let label = label.replace("%2F", "/");
            let has = |object: &&Value| !object["metadata"]["labels"][&label].is_null();
            let items: Vec<&Value> = self.objects.values().filter(has).collect();
            return Ok(json!({"items": items}));
        }
        if let Some(kinds) = self.kinds.get(path) {
            if path == "/apis/example.com/v1" && self.unserved > 0 {
                self.unserved -= 1;
                return Err(404);
            }
            let resource = |(kind, plural, namespaced): &(String, String, bool)| json!({"kind": kind, "name": plural, "namespaced": namespaced});
            let resources: Vec<Value> = kinds.iter().map(resource).collect();
            return Ok(json!({"resources": resources}));
        }
        let mut object = self.objects.get(path).cloned().ok_or(404_u16)?;
        if object["kind"] == "Deployment" {
            let ready = self.unready == 0;
            self.unready = self.unready.saturating_sub(1);
            let pods = u64::from(ready);
            object["status"] = json!({"observedGeneration": 1, "updatedReplicas": pods, "availableReplicas": pods});
        }
        if object["kind"] == "CustomResourceDefinition" {
            object["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        }
        if object["kind"] == "Job" {
            object["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        }
        Ok(object)
    }

    fn patch(&mut self, path: &str, kind: &str, mut body: Value) -> Result<Value, u16> {
        if kind != "application/apply-patch+yaml" {
            return Err(415);
        }
        let namespace = path
            .split_once("/namespaces/")
            .and_then(|(_, rest)| rest.split_once('/'));
        if let Some((namespace, _)) = namespace {
            let known = ["default", "kube-system"].contains(&namespace);
            if !known
                && !self
                    .objects
                    .contains_key(&format!("/api/v1/namespaces/{namespace}"))
            {
                return Err(404);
            }
            body["metadata"]["namespace"] = namespace.into();
        }
        if body["kind"] == "CustomResourceDefinition" {
            let names = &body["spec"]["names"];
            let text = |key: &str| names[key].as_str().unwrap_or_default().to_owned();
            let kinds = vec![(text("kind"), text("plural"), true)];
            self.kinds.insert("/apis/example.com/v1".to_owned(), kinds);
        } else if path.starts_with("/apis/example.com/")
            && !self.kinds.contains_key("/apis/example.com/v1")
        {
            return Err(404);
        }
        self.keep(path, body)
    }

    fn post(&mut self, collection: &str, body: Value) -> Result<Value, u16> {
        let name = body["metadata"]["name"].as_str().ok_or(422_u16)?.to_owned();
        let path = format!("{collection}/{name}");
        match self.objects.contains_key(&path) {
            true => Err(409),
            false => self.keep(&path, body),
        }
    }

    fn put(&mut self, path: &str, body: Value) -> Result<Value, u16> {
        let known = self.objects.get(path).ok_or(404_u16)?;
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        match version(known) == version(&body) {
            true => self.keep(path, body),
            false => Err(409),
        }
    }

    fn delete(&mut self, path: &str, options: &Value) -> Result<Value, u16> {
        let known = self.objects.get(path).ok_or(404_u16)?;
        if known["metadata"]["uid"] != options["preconditions"]["uid"] {
            return Err(409);
        }
        self.objects.remove(path);
        Ok(json!({}))
    }

    fn keep(&mut self, path: &str, mut object: Value) -> Result<Value, u16> {
        self.version += 1;
        let known = self
            .objects
            .get(path)
            .map(|known| known["metadata"]["uid"].clone());
        let uid = known.unwrap_or_else(|| format!("uid-{}", self.version).into());
        object["metadata"]["uid"] = uid;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path.to_owned(), object.clone());
        Ok(object)
    }
}
