//! The order in which objects of an addon, and addons, are applied.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Kinds of Kubernetes' own groups, in the order in which they are applied: what others need stands first. Kinds that are not
/// named stand before the last row; kinds of other groups stand after all, since a webhook or a definition may be theirs.
const KINDS: &[&[&str]] = &[
    &["Namespace"],
    &["CustomResourceDefinition"],
    &[
        "PriorityClass",
        "RuntimeClass",
        "StorageClass",
        "IngressClass",
    ],
    &["ServiceAccount", "Secret", "ConfigMap"],
    &["ClusterRole", "Role"],
    &["ClusterRoleBinding", "RoleBinding"],
    &[
        "LimitRange",
        "ResourceQuota",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "PersistentVolume",
        "PersistentVolumeClaim",
    ],
    &["Service"],
    &[
        "DaemonSet",
        "Deployment",
        "StatefulSet",
        "ReplicaSet",
        "Pod",
        "Job",
        "CronJob",
    ],
];
/// Kinds that send requests of others to pods of the addon: those are applied before.
const LAST: &[&str] = &[
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// The place of an object among those of its addon. Objects of one place keep the order of their files.
#[must_use]
pub(super) fn place(object: &Value) -> usize {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let own = !group.contains('.') || group.ends_with(".k8s.io");
    let named = KINDS.iter().position(|kinds| kinds.contains(&kind));
    match named {
        _ if !own => KINDS.len() + 2,
        Some(place) => place,
        None if LAST.contains(&kind) => KINDS.len() + 1,
        None => KINDS.len(),
    }
}

/// Names with what each depends on, in an order in which everything stands after what it depends on, by name otherwise; and the
/// names in circles, or behind one. Dependencies that are no names of the map count as there.
#[must_use]
pub(super) fn sorted(depends: &BTreeMap<String, Vec<String>>) -> (Vec<String>, BTreeSet<String>) {
    let mut left: BTreeSet<String> = depends.keys().cloned().collect();
    let mut order = Vec::new();
    loop {
        let next = left.iter().find(|name| {
            let needs = depends.get(*name).into_iter().flatten();
            needs.into_iter().all(|need| !left.contains(need))
        });
        let Some(next) = next.cloned() else {
            return (order, left);
        };
        left.remove(&next);
        order.push(next);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_need_stands_first() {
        let mut objects = [
            (
                "admissionregistration.k8s.io/v1",
                "ValidatingWebhookConfiguration",
            ),
            ("example.com/v1", "Namespace"),
            ("apps/v1", "Deployment"),
            ("networking.k8s.io/v1", "Ingress"),
            ("v1", "Service"),
            ("apiregistration.k8s.io/v1", "APIService"),
            ("rbac.authorization.k8s.io/v1", "RoleBinding"),
            ("rbac.authorization.k8s.io/v1", "Role"),
            ("v1", "ConfigMap"),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            ("v1", "Namespace"),
        ]
        .map(|(version, kind)| json!({"apiVersion": version, "kind": kind}));
        objects.sort_by_key(place);
        let kinds: Vec<_> = objects.iter().map(|object| &object["kind"]).collect();
        let expected = [
            "Namespace",
            "CustomResourceDefinition",
            "ConfigMap",
            "Role",
            "RoleBinding",
            "Service",
            "Deployment",
            "Ingress",
            "ValidatingWebhookConfiguration",
            "APIService",
            "Namespace",
        ];
        assert_eq!(kinds, expected);
        assert_eq!(objects[10]["apiVersion"], "example.com/v1");
    }

    #[test]
    fn a_name_stands_after_what_it_depends_on_and_circles_are_left() {
        for (given, order, circle) in [
            (&["a:c", "b:", "c:b"][..], &["b", "c", "a"][..], &[][..]),
            (&["a:b", "b:a", "c:a", "d:"], &["d"], &["a", "b", "c"]),
            (&["a:a", "b:x"], &["b"], &["a"]),
        ] {
            let depends = given.iter().map(|text| {
                let (name, needs) = text.split_once(':').unwrap();
                let needs = needs.split(',').filter(|need| !need.is_empty());
                (name.to_owned(), needs.map(str::to_owned).collect())
            });
            let (found, left) = sorted(&depends.collect());
            assert_eq!(found, order, "{given:?}");
            assert!(left.iter().eq(circle), "{given:?}: {left:?}");
        }
    }
}
