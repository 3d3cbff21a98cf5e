//! String enums whose schema is closed and whose reader is open.

/// Declares a string enum that the schema limits to its known values, while reading keeps any other text as
/// `Unrecognised`, so that an object of another version decodes, and is written back unchanged.
macro_rules! open_enum {
    (
        $(#[doc = $doc:literal])+
        pub enum $name:ident {
            $( $(#[doc = $variant_doc:literal])+ $variant:ident = $text:literal, )+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum $name {
            $( $(#[doc = $variant_doc])+ $variant, )+
            /// A value that this version doesn't know, kept as it was read. The schema refuses it in new objects.
            Unrecognised(String),
        }

        impl $name {
            /// Every value of the schema, in the order of declaration.
            pub const KNOWN: &'static [Self] = &[$( Self::$variant ),+];

            /// The value as it stands in the object.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $text, )+
                    Self::Unrecognised(text) => text,
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $( $text => Self::$variant, )+
                    other => Self::Unrecognised(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Ok(Self::from(text.as_ref()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                crate::open_enum::schema(
                    &[$( $doc ),+],
                    &[$( ($text, &[$( $variant_doc ),+]) ),+],
                )
            }
        }
    };
}
pub(crate) use open_enum;

/// The schema of an open enum: its values, and their meanings in the description.
pub(crate) fn schema(doc: &[&str], values: &[(&str, &[&str])]) -> schemars::Schema {
    let prose = |lines: &[&str]| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    let meanings: Vec<String> = values
        .iter()
        .map(|(name, doc)| format!("- `{name}`: {}", prose(doc)))
        .collect();
    schemars::json_schema!({
        "type": "string",
        "description": format!("{}\n\n{}", prose(doc), meanings.join("\n")),
        "enum": names,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::v1alpha1::MemberSubState;

    #[test]
    fn known_values_are_read_and_written() {
        for value in MemberSubState::KNOWN {
            let text = serde_json::to_value(value).unwrap();
            assert_eq!(text, json!(value.to_string()));
            assert_eq!(&serde_json::from_value::<MemberSubState>(text).unwrap(), value);
        }
    }

    /// A newer steward may know a state that this version doesn't: it is kept, not lost and not an error.
    #[test]
    fn unknown_values_are_kept() {
        let value: MemberSubState = serde_json::from_value(json!("Paused")).unwrap();
        assert_eq!(value, MemberSubState::Unrecognised("Paused".to_owned()));
        assert_eq!(serde_json::to_value(&value).unwrap(), json!("Paused"));
    }

    #[test]
    fn schema_has_known_values_only() {
        let schema = serde_json::to_value(schemars::schema_for!(MemberSubState)).unwrap();
        let known: Vec<&str> = MemberSubState::KNOWN.iter().map(MemberSubState::as_str).collect();
        assert_eq!(schema["enum"], json!(known));
    }
}
