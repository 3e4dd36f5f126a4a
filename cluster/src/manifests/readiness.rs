//! Whether an object of the cluster does what it was applied for, by its status.

use serde_json::Value;

/// Why an object is not ready; none if it is, or if its kind has no readiness.
///
/// Workloads are ready once all their pods are of the current specification and available, as `kubectl rollout status` sees it;
/// jobs once they are complete; definitions of kinds once they are served, and aggregated APIs once they answer.
#[must_use]
pub fn unready(object: &Value) -> Option<String> {
    let group = object["apiVersion"].as_str().unwrap_or_default();
    let group = group.split_once('/').map_or("", |(group, _)| group);
    match (group, object["kind"].as_str().unwrap_or_default()) {
        ("apps", "Deployment") => deployment(object),
        ("apps", "DaemonSet") => daemon_set(object),
        ("apps", "StatefulSet") => stateful_set(object),
        ("batch", "Job") => job(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(object),
        ("apiregistration.k8s.io", "APIService") => condition(object, "Available"),
        _ => None,
    }
}

/// Whether the cluster itself removes the object some time after it has done what it was applied for: a job with a time to live.
#[must_use]
pub fn vanishes(object: &Value) -> bool {
    let group = object["apiVersion"].as_str().unwrap_or_default();
    group.starts_with("batch/")
        && object["kind"] == "Job"
        && !object["spec"]["ttlSecondsAfterFinished"].is_null()
}

fn deployment(object: &Value) -> Option<String> {
    let wanted = object["spec"]["replicas"].as_u64().unwrap_or(1);
    let over = found(object, "Progressing")
        .filter(|condition| condition["reason"] == "ProgressDeadlineExceeded")
        .map(text);
    unseen(object)
        .or_else(|| fewer(object, "updatedReplicas", wanted, "of the current version"))
        .or_else(|| fewer(object, "availableReplicas", wanted, "available"))
        .map(|reason| match over {
            Some(over) => format!("{reason}; {over}"),
            None => reason,
        })
}

fn daemon_set(object: &Value) -> Option<String> {
    let wanted = object["status"]["desiredNumberScheduled"].as_u64();
    let wanted = wanted.unwrap_or_default();
    let rolls = object["spec"]["updateStrategy"]["type"] != "OnDelete";
    let current = || {
        let name = "updatedNumberScheduled";
        rolls.then(|| fewer(object, name, wanted, "of the current version"))?
    };
    unseen(object)
        .or_else(current)
        .or_else(|| fewer(object, "numberAvailable", wanted, "available"))
}

fn stateful_set(object: &Value) -> Option<String> {
    let wanted = object["spec"]["replicas"].as_u64().unwrap_or(1);
    let rolls = object["spec"]["updateStrategy"]["type"] != "OnDelete";
    // Pods below the partition keep their version.
    let partition = object["spec"]["updateStrategy"]["rollingUpdate"]["partition"].as_u64();
    let updated = wanted.saturating_sub(partition.unwrap_or(0));
    let current = || {
        let name = "updatedReplicas";
        rolls.then(|| fewer(object, name, updated, "of the current version"))?
    };
    unseen(object)
        .or_else(current)
        .or_else(|| fewer(object, "availableReplicas", wanted, "available"))
}

fn job(object: &Value) -> Option<String> {
    match found(object, "Failed") {
        Some(failed) if failed["status"] == "True" => Some(format!("it failed: {}", text(failed))),
        _ => condition(object, "Complete"),
    }
}

fn definition(object: &Value) -> Option<String> {
    match found(object, "NamesAccepted") {
        Some(names) if names["status"] == "False" => Some(text(names)),
        _ => condition(object, "Established"),
    }
}

/// Why a condition is not true.
fn condition(object: &Value, kind: &str) -> Option<String> {
    match found(object, kind) {
        Some(condition) if condition["status"] == "True" => None,
        Some(condition) => Some(format!("it is not {kind}: {}", text(condition))),
        None => Some(format!("it is not {kind} yet")),
    }
}

fn found<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// Reason and message of a condition.
fn text(condition: &Value) -> String {
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    let both = [text("reason"), text("message")];
    let both: Vec<&str> = both.into_iter().filter(|text| !text.is_empty()).collect();
    both.join(": ")
}

/// Whether the controller has not seen the last change.
fn unseen(object: &Value) -> Option<String> {
    let seen = object["status"]["observedGeneration"].as_u64();
    let generation = object["metadata"]["generation"].as_u64().unwrap_or(1);
    (seen.unwrap_or(0) < generation).then(|| "its controller has not seen it yet".to_owned())
}

fn fewer(object: &Value, field: &str, wanted: u64, state: &str) -> Option<String> {
    let number = object["status"][field].as_u64().unwrap_or(0);
    (number < wanted).then(|| format!("{number} of {wanted} pods are {state}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An object of generation 2 with this status.
    fn object(version: &str, kind: &str, spec: &str, status: &str) -> Value {
        let spec: Value = serde_json::from_str(spec).unwrap();
        let status: Value = serde_json::from_str(status).unwrap();
        json!({"apiVersion": version, "kind": kind, "metadata": {"generation": 2}, "spec": spec, "status": status})
    }

    const UNSEEN: Option<&str> = Some("its controller has not seen it yet");
    const OLD: Option<&str> = Some("1 of 2 pods are of the current version");
    const FEW: Option<&str> = Some("1 of 2 pods are available");
    const ON_DELETE: &str = r#"{"replicas": 2, "updateStrategy": {"type": "OnDelete"}}"#;
    const PARTITION: &str =
        r#"{"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}}"#;

    #[test]
    fn a_workload_is_ready_once_its_pods_are_current_and_available() {
        let two = r#"{"replicas": 2}"#;
        for (kind, spec, seen, updated, available, expected) in [
            ("Deployment", two, 1, 2, 2, UNSEEN),
            ("Deployment", two, 0, 2, 2, UNSEEN),
            ("Deployment", two, 2, 1, 2, OLD),
            ("Deployment", two, 2, 2, 1, FEW),
            ("Deployment", two, 2, 2, 2, None),
            ("Deployment", "{}", 2, 1, 1, None),
            ("StatefulSet", two, 2, 1, 2, OLD),
            ("StatefulSet", two, 2, 2, 1, FEW),
            ("StatefulSet", PARTITION, 2, 1, 2, None),
            ("StatefulSet", ON_DELETE, 2, 0, 2, None),
            ("DaemonSet", "{}", 1, 2, 2, UNSEEN),
            ("DaemonSet", "{}", 2, 1, 2, OLD),
            ("DaemonSet", "{}", 2, 2, 1, FEW),
            ("DaemonSet", ON_DELETE, 2, 0, 2, None),
            ("DaemonSet", "{}", 2, 2, 2, None),
        ] {
            let status = json!({
                "observedGeneration": seen,
                "desiredNumberScheduled": 2,
                "updatedReplicas": updated,
                "updatedNumberScheduled": updated,
                "availableReplicas": available,
                "numberAvailable": available,
            });
            let object = object("apps/v1", kind, spec, &status.to_string());
            assert_eq!(unready(&object).as_deref(), expected, "{object}");
        }
        let over = r#"{"observedGeneration": 2, "conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "m"}]}"#;
        let reason = unready(&object("apps/v1", "Deployment", "{}", over)).unwrap();
        assert_eq!(
            reason,
            "0 of 1 pods are of the current version; ProgressDeadlineExceeded: m"
        );
        // No node is to have one.
        let none = object("apps/v1", "DaemonSet", "{}", r#"{"observedGeneration": 2}"#);
        assert_eq!(unready(&none), None);
    }

    #[test]
    fn other_kinds_are_ready_by_their_conditions() {
        let (job, crd) = (
            ("batch/v1", "Job"),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        );
        let api = ("apiregistration.k8s.io/v1", "APIService");
        for ((version, kind), name, status, expected) in [
            (job, "Running", "True", Some("it is not Complete yet")),
            (job, "Failed", "True", Some("it failed: r: m")),
            (job, "Complete", "True", None),
            (crd, "Other", "True", Some("it is not Established yet")),
            (crd, "NamesAccepted", "False", Some("r: m")),
            (crd, "Established", "True", None),
            (api, "Available", "False", Some("it is not Available: r: m")),
            (api, "Available", "True", None),
            (("v1", "Service"), "Ready", "False", None),
            (("example.com/v1", "Deployment"), "Available", "False", None),
        ] {
            let status = json!({"conditions": [{"type": name, "status": status, "reason": "r", "message": "m"}]});
            let object = object(version, kind, "{}", &status.to_string());
            assert_eq!(unready(&object).as_deref(), expected, "{object}");
        }
    }
}
