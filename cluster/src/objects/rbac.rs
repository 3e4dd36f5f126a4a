//! Roles and their bindings.

use serde_json::{Value, json};

use super::Object;

/// The API group of roles.
const GROUP: &str = "rbac.authorization.k8s.io";
/// The group with its version.
const VERSION: &str = "rbac.authorization.k8s.io/v1";

/// A group as a subject.
pub(crate) fn group(name: &str) -> Value {
    json!({"kind": "Group", "name": name})
}

/// A user as a subject.
pub(crate) fn user(name: &str) -> Value {
    json!({"kind": "User", "name": name})
}

/// A service account of the system as a subject.
pub(crate) fn service_account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "name": name, "namespace": "kube-system"})
}

/// A role that reads one map of texts, and its binding.
pub(crate) fn reader(namespace: &str, name: &str, map: &str, subjects: &[Value]) -> [Object; 2] {
    reader_of("configmaps", namespace, name, map, subjects)
}

/// A role that reads one object of this resource of the core group, and its binding.
pub(crate) fn reader_of(
    resource: &str,
    namespace: &str,
    name: &str,
    object: &str,
    subjects: &[Value],
) -> [Object; 2] {
    let rule = json!({
        "apiGroups": [""],
        "resourceNames": [object],
        "resources": [resource],
        "verbs": ["get"],
    });
    bound(namespace, name, &rule, subjects)
}

/// A role of a namespace with this rule, and its binding.
pub(super) fn bound(namespace: &str, name: &str, rule: &Value, subjects: &[Value]) -> [Object; 2] {
    let metadata = json!({"name": name, "namespace": namespace});
    let role = json!({
        "apiVersion": VERSION,
        "kind": "Role",
        "metadata": metadata,
        "rules": [rule],
    });
    let binding = json!({
        "apiVersion": VERSION,
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name},
        "subjects": subjects,
    });
    [Object::create(role), Object::create(binding)]
}

/// A role of the whole cluster.
pub(crate) fn cluster_role(name: &str, rules: &Value) -> Object {
    Object::create(json!({
        "apiVersion": VERSION,
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    }))
}

/// A binding to a role of the whole cluster.
pub(crate) fn cluster_binding(name: &str, role: &str, subject: &Value) -> Object {
    Object::create(json!({
        "apiVersion": VERSION,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }))
}

/// A server of `kube-system` reads the authority by which the API server proves who it is when it passes a request on.
pub(crate) fn authentication_reader(name: &str, subject: &Value) -> Object {
    Object::create(json!({
        "apiVersion": VERSION,
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": "kube-system"},
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "extension-apiserver-authentication-reader"},
        "subjects": [subject],
    }))
}
