//! What keeps backups from working: full snapshots and deltas are stored beside each other, and one that works says nothing
//! of the other.

use snapstore::Kind;
use tokio::time::Instant;

/// What keeps backups from working.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// CamelCase class.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// When it was last seen.
    pub at: Instant,
}

/// The failures that aren't over.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    full: Option<Trouble>,
    delta: Option<Trouble>,
    /// Of what both need.
    term: Option<Trouble>,
}

impl Failures {
    /// The one that was seen last.
    pub fn newest(&self) -> Option<&Trouble> {
        let all = [&self.term, &self.full, &self.delta];
        all.into_iter().flatten().max_by_key(|trouble| trouble.at)
    }

    /// The one that was seen last of those that keep snapshots of a kind from being stored.
    pub fn of(&self, kind: Kind) -> Option<&Trouble> {
        let own = match kind {
            Kind::Full => &self.full,
            Kind::Delta => &self.delta,
        };
        let both = [&self.term, own];
        both.into_iter().flatten().max_by_key(|trouble| trouble.at)
    }

    /// Snapshots of a kind fail, or of both.
    pub(super) fn add(&mut self, kind: Option<Kind>, trouble: Trouble) {
        *match kind {
            Some(Kind::Full) => &mut self.full,
            Some(Kind::Delta) => &mut self.delta,
            None => &mut self.term,
        } = Some(trouble);
    }

    /// Snapshots of a kind are stored again.
    pub(super) fn clear(&mut self, kind: Kind) {
        self.term = None;
        *match kind {
            Kind::Full => &mut self.full,
            Kind::Delta => &mut self.delta,
        } = None;
    }

    /// Forgets the failures of kinds of which nothing is to be stored.
    pub(super) fn retain(&mut self, full: bool, delta: bool) {
        self.full = self.full.take().filter(|_| full);
        self.delta = self.delta.take().filter(|_| delta);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_works_clears_its_own_failures_only() {
        let trouble = |reason, seconds| Trouble {
            reason,
            message: String::new(),
            at: Instant::now() + Duration::from_secs(seconds),
        };
        let reason = |trouble: Option<&Trouble>| trouble.map(|trouble| trouble.reason);
        let mut failures = Failures::default();
        assert_eq!(reason(failures.newest()), None);
        failures.add(Some(Kind::Full), trouble("Timeout", 1));
        failures.add(Some(Kind::Delta), trouble("AccessDenied", 2));
        failures.add(None, trouble("EtcdUnreachable", 3));
        assert_eq!(reason(failures.newest()), Some("EtcdUnreachable"));
        failures.clear(Kind::Delta);
        assert_eq!(reason(failures.newest()), Some("Timeout"));
        assert_eq!(reason(failures.of(Kind::Delta)), None);
        assert_eq!(reason(failures.of(Kind::Full)), Some("Timeout"));
        failures.clear(Kind::Full);
        assert_eq!(reason(failures.newest()), None);
    }
}
