//! Who looks at logs and Events wants to hear of each kind of failure once, not at every try, and once that it is over.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

/// The reasons of failures that have been told and aren't over.
#[derive(Debug, Clone, Default)]
pub(super) struct Told(Arc<Mutex<BTreeSet<&'static str>>>);

impl Told {
    /// It fails. Says whether that is news.
    pub(super) fn fails(&self, reason: &'static str) -> bool {
        self.lock().insert(reason)
    }

    /// It works. Says whether that is news.
    pub(super) fn works(&self) -> bool {
        !std::mem::take(&mut *self.lock()).is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_news_once_until_it_works() {
        let told = Told::default();
        assert!(!told.works());
        let news =
            ["AccessDenied", "AccessDenied", "Unreachable", "AccessDenied"].map(|reason| told.fails(reason));
        assert_eq!(news, [true, false, true, false]);
        assert!(told.works());
        assert!(!told.works());
        assert!(told.fails("AccessDenied"));
    }
}
