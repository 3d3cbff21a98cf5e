//! Schemas for types of Kubernetes itself, cut down to what a CRD needs.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema, transform::transform_subschemas};

/// The schema of an upstream type without its descriptions, which `kubectl explain` has for the type itself and
/// which would make up most of the CRD.
pub(crate) fn embedded<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    strip_descriptions(&mut schema);
    schema
}

fn strip_descriptions(schema: &mut Schema) {
    schema.remove("description");
    transform_subschemas(&mut strip_descriptions, schema);
}

/// A quantity that isn't negative, as a string or a whole number.
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 32,
        "x-kubernetes-validations": [{
            "rule": "isQuantity(string(self)) && !string(self).startsWith('-')",
            "message": "must be a size like 512Mi, 8Gi or 1073741824",
        }],
    })
}

/// Labels that pods or Services get.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "x-kubernetes-validations": [{
                "rule": "self.matches('^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$')",
                "message": "a label's value must be of letters, digits, dashes, underscores and dots, and start and \
                            end with a letter or digit",
            }],
        },
    })
}
