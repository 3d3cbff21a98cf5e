//! XML documents of stores. A document of another kind (a proxy's page, say) is none with all fields missing.

use quick_xml::{Reader, events::Event};
use serde::de::DeserializeOwned;

use crate::error::{Class, Error, Result};

/// Reads a document whose outermost element is named `root`.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8], root: &str, action: &str) -> Result<T> {
    parse_any(body, &[root], action)
}

/// The same with more than one name.
pub(crate) fn parse_any<T: DeserializeOwned>(body: &[u8], roots: &[&str], action: &str) -> Result<T> {
    let bad = |detail: String| Error::new(Class::BadResponse, action, detail);
    match root(body) {
        Some(found) if roots.contains(&found.as_str()) => {}
        Some(found) => {
            let found = found.chars().take(40).collect::<String>();
            return Err(bad(format!(
                "a document {found:?} came where {} is expected",
                roots[0]
            )));
        }
        None => return Err(bad(format!("no document came where {} is expected", roots[0]))),
    }
    quick_xml::de::from_reader(body).map_err(|e| bad(format!("answer not understood: {e}")))
}

fn root(body: &[u8]) -> Option<String> {
    let mut reader = Reader::from_reader(body);
    loop {
        match reader.read_event().ok()? {
            Event::Start(element) | Event::Empty(element) => {
                return Some(String::from_utf8_lossy(element.local_name().as_ref()).into_owned());
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct List {
        item: Vec<String>,
    }

    #[test]
    fn only_the_whole_document_that_was_asked_for_counts() {
        let read = |text: &str| parse::<List>(text.as_bytes(), "List", "list").map_err(|e| e.class());
        let items = |items: &[&str]| {
            Ok(List {
                item: items.iter().map(|i| (*i).to_owned()).collect(),
            })
        };
        assert_eq!(
            read("<?xml version=\"1.0\"?>\n<List xmlns=\"x\"><item>a</item></List>"),
            items(&["a"])
        );
        assert_eq!(read("<s3:List xmlns:s3=\"x\"></s3:List>"), items(&[]));
        assert_eq!(read("<List/>"), items(&[]));
        for bad in [
            "",
            "OK",
            "{}",
            "<html><body>Log in</body></html>",
            "<Error><Code>SlowDown</Code></Error>",
            "<List><item>a</item>",
            "<List><item>a</ite",
        ] {
            assert_eq!(read(bad), Err(Class::BadResponse), "{bad}");
        }
    }
}
