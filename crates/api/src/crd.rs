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
