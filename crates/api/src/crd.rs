//! The CustomResourceDefinitions of all kinds, as they are shipped.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::v1alpha1::{Etcd, EtcdCopyBackupsTask, EtcdMember, EtcdOpsTask};

/// Every kind's CRD, ready to be applied.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        Etcd::crd(),
        EtcdMember::crd(),
        EtcdOpsTask::crd(),
        EtcdCopyBackupsTask::crd(),
    ];
    for version in crds.iter_mut().flat_map(|crd| &mut crd.spec.versions) {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
        {
            visit(schema, &forbid_null);
            visit(schema, &unwrap_paragraphs);
            if let Some(status) = schema
                .properties
                .as_mut()
                .and_then(|fields| fields.get_mut("status"))
            {
                visit(status, &drop_default);
            }
        }
    }
    crds
}

/// Takes a default away. In a status those come from the tolerant reader only, and nobody would own what they fill in.
fn drop_default(schema: &mut JSONSchemaProps) {
    schema.default = None;
}

/// Takes `nullable` away: the API server then drops an explicit `null` as if the field weren't there, instead of
/// storing it.
fn forbid_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
    }
}

/// Joins the lines of each paragraph; doc comments are wrapped for the eye of the programmer.
fn unwrap_paragraphs(schema: &mut JSONSchemaProps) {
    if let Some(text) = &mut schema.description {
        *text = text
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "))
            .collect::<Vec<_>>()
            .join("\n\n");
    }
}

/// Applies a change to a schema and to every schema below it.
fn visit(schema: &mut JSONSchemaProps, change: &impl Fn(&mut JSONSchemaProps)) {
    change(schema);
    for child in children(schema) {
        visit(child, change);
    }
}

/// The schemas directly below a schema.
fn children(schema: &mut JSONSchemaProps) -> Vec<&mut JSONSchemaProps> {
    let mut children: Vec<&mut JSONSchemaProps> = schema
        .properties
        .iter_mut()
        .flat_map(|p| p.values_mut())
        .collect();
    if let Some(JSONSchemaPropsOrBool::Schema(additional)) = &mut schema.additional_properties {
        children.push(additional);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => children.push(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => children.extend(items),
        None => {}
    }
    for branches in [&mut schema.all_of, &mut schema.any_of, &mut schema.one_of] {
        children.extend(branches.iter_mut().flatten());
    }
    children.extend(schema.not.as_deref_mut());
    children
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn schemas() -> Vec<(String, JSONSchemaProps)> {
        let versions = all().into_iter().flat_map(|crd| {
            let kind = crd.spec.names.kind;
            crd.spec
                .versions
                .into_iter()
                .map(move |version| (kind.clone(), version.schema.unwrap()))
        });
        versions
            .map(|(kind, schema)| (kind, schema.open_api_v3_schema.unwrap()))
            .collect()
    }

    /// `null` is dropped on writing, each rule says what to do, and texts are one line per paragraph.
    #[test]
    fn schemas_are_finished() {
        for (kind, mut schema) in schemas() {
            let rules = Cell::new(0);
            visit(&mut schema, &|schema| {
                assert_eq!(schema.nullable, None, "{kind}");
                for rule in schema.x_kubernetes_validations.iter().flatten() {
                    assert!(
                        rule.message.as_deref().is_some_and(|message| message.len() > 10),
                        "{kind}: {}",
                        rule.rule
                    );
                    rules.set(rules.get() + 1);
                }
                for paragraph in schema.description.iter().flat_map(|text| text.split("\n\n")) {
                    assert!(!paragraph.contains('\n'), "{kind}: {paragraph}");
                }
            });
            assert_eq!(
                rules.get() == 0,
                kind == "EtcdMember",
                "{kind} has {} rules",
                rules.get()
            );
        }
    }

    /// `kubectl apply` keeps the manifest in an annotation of at most 256 KiB.
    #[test]
    fn crds_fit_an_annotation() {
        for crd in all() {
            let size = serde_json::to_string(&crd).unwrap().len();
            assert!(size < 128 << 10, "{} has {size} bytes", crd.spec.names.kind);
        }
    }

    /// A column whose path leads nowhere is empty for ever.
    #[test]
    fn columns_lead_somewhere() {
        for crd in all() {
            let version = &crd.spec.versions[0];
            let root = version
                .schema
                .as_ref()
                .unwrap()
                .open_api_v3_schema
                .as_ref()
                .unwrap();
            for column in version.additional_printer_columns.iter().flatten() {
                let path = column.json_path.split('[').next().unwrap_or_default();
                let mut at = Some(root);
                for name in path
                    .trim_start_matches('.')
                    .split('.')
                    .filter(|name| *name != "metadata")
                {
                    if name == "creationTimestamp" {
                        break;
                    }
                    at = at.and_then(|schema| schema.properties.as_ref()?.get(name));
                }
                assert!(at.is_some(), "{}: {}", crd.spec.names.kind, column.json_path);
            }
        }
    }
}
