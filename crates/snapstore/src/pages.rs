//! Listings that come in pages. A store that loses the thread must not make a short listing look whole, nor an endless
//! one of a short one.

use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
};

use crate::error::{Class, Error, Result};

/// More objects than any cluster's backups have.
const MOST_OBJECTS: usize = 500_000;

/// Pages without an object in a row: some stores have them where many objects were deleted.
const MOST_EMPTY_PAGES: usize = 1000;

/// Checks one listing, page after page.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    action: &'a str,
    prefix: &'a str,
    /// Whether a key may go on on the next page, with another version.
    has_versions: bool,
    /// Hashes of the tokens so far.
    tokens: HashSet<u64>,
    /// The last key of the pages before.
    last: Option<String>,
    objects: usize,
    empty: usize,
}

impl<'a> Pages<'a> {
    /// Of the keys that begin with `prefix`.
    pub(crate) fn new(action: &'a str, prefix: &'a str) -> Self {
        Self {
            action,
            prefix,
            has_versions: false,
            tokens: HashSet::new(),
            last: None,
            objects: 0,
            empty: 0,
        }
    }

    /// A key may have more than one entry.
    pub(crate) fn of_versions(action: &'a str, prefix: &'a str) -> Self {
        Self {
            has_versions: true,
            ..Self::new(action, prefix)
        }
    }

    fn bad(&self, detail: impl Into<String>) -> Error {
        Error::new(Class::BadResponse, self.action, detail)
    }

    /// Checks the keys of a page: below the prefix, and after those of the pages before.
    pub(crate) fn check<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>) -> Result<()> {
        let mut newest: Option<&str> = None;
        let before = self.objects;
        for key in keys {
            if !key.starts_with(self.prefix) {
                let detail = format!("the listing of {:?} holds {key:?}", self.prefix);
                return Err(self.bad(detail));
            }
            if let Some(last) = &self.last
                && goes_back(last, key)
                && !(self.has_versions && last == key)
            {
                let detail = format!("the listing goes back: {key:?} comes on a page after {last:?}");
                return Err(self.bad(detail));
            }
            newest = newest.max(Some(key));
            self.objects += 1;
        }
        if self.objects > MOST_OBJECTS {
            return Err(self.bad(format!("the listing has more than {MOST_OBJECTS} objects")));
        }
        self.empty = if self.objects == before { self.empty + 1 } else { 0 };
        if self.empty > MOST_EMPTY_PAGES {
            return Err(self.bad(format!("{MOST_EMPTY_PAGES} pages of the listing are empty")));
        }
        if let Some(newest) = newest {
            self.last = Some(newest.to_owned());
        }
        Ok(())
    }

    /// Where the listing goes on; `None`: it is whole. For stores that say apart from the token whether there is more.
    pub(crate) fn next(
        &mut self,
        is_truncated: Option<bool>,
        token: Option<String>,
    ) -> Result<Option<String>> {
        let token = token.filter(|token| !token.is_empty());
        match (is_truncated, token) {
            (Some(false), _) => Ok(None),
            (Some(true), None) => Err(self.bad(
                "the listing is cut short, and doesn't say how it goes on: what is missing is not known",
            )),
            (None, None) => Err(self.bad("the listing doesn't say whether it is whole")),
            (_, Some(token)) => self.follow(token).map(Some),
        }
    }

    /// The same where a token alone says that there is more.
    pub(crate) fn next_by_token(&mut self, token: Option<String>) -> Result<Option<String>> {
        let is_truncated = token.as_ref().is_some_and(|token| !token.is_empty());
        self.next(Some(is_truncated), token)
    }

    fn follow(&mut self, token: String) -> Result<String> {
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        if self.tokens.insert(hasher.finish()) {
            Ok(token)
        } else {
            Err(self.bad("the listing goes in a circle: a page points at one that was read already"))
        }
    }
}

/// Byte by byte, as nearly all stores sort; or folder by folder, as some do.
fn goes_back(last: &str, key: &str) -> bool {
    key <= last && key.split('/').le(last.split('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_on() {
        let pages = |versions, pages: &[&[&str]]| {
            let mut checked = if versions {
                Pages::of_versions("list", "p/")
            } else {
                Pages::new("list", "p/")
            };
            pages
                .iter()
                .all(|page| checked.check(page.iter().copied()).is_ok())
        };
        for (expected, keys) in [
            (true, &[&["p/a", "p/b"][..], &["p/c"]][..]),
            (true, &[&["p/a"], &[], &["p/b"]]),
            (true, &[&["p/a-1/x"], &["p/a/x"]]),
            (true, &[&["p/a/x"], &["p/a-1/x"]]), // Folder by folder.
            (false, &[&["p/a", "p/b"], &["p/a", "p/b"]]),
            (false, &[&["p/a", "p/b"], &["p/b", "p/c"]]),
            (false, &[&["p/b"], &["p/a"]]),
            (false, &[&["p/b"], &["p/c"], &["p/a"]]),
            (false, &[&["q/a"]]),
        ] {
            assert_eq!(pages(false, keys), expected, "{keys:?}");
        }
        assert!(
            pages(true, &[&["p/a", "p/b"], &["p/b", "p/c"]]),
            "another version"
        );
        assert!(!pages(true, &[&["p/a", "p/b"], &["p/a"]]));
        let empty = [&[][..]; MOST_EMPTY_PAGES + 1];
        assert!(pages(false, &empty[1..]) && !pages(false, &empty));
    }

    #[test]
    fn tokens_lead_on() {
        let next = |truncated, tokens: &[Option<&str>]| {
            let mut pages = Pages::new("list", "");
            let mut last = Ok(None);
            for token in tokens {
                last = pages
                    .next(truncated, token.map(str::to_owned))
                    .map_err(|e| e.class());
            }
            last
        };
        let token = |token: &str| Ok(Some(token.to_owned()));
        let bad = Err(Class::BadResponse);
        assert_eq!(next(Some(true), &[Some("a"), Some("b")]), token("b"));
        assert_eq!(next(Some(true), &[Some("a"), Some("a")]), bad);
        assert_eq!(next(Some(true), &[Some("a"), Some("b"), Some("a")]), bad);
        assert_eq!(next(Some(true), &[None]), bad);
        assert_eq!(next(Some(true), &[Some("")]), bad);
        assert_eq!(next(Some(false), &[Some("a"), None]), Ok(None));
        assert_eq!(next(None, &[None]), bad);
        assert_eq!(next(None, &[Some("a")]), token("a"));
    }
}
