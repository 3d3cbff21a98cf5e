//! Events on the objects that people look at. An event that can't be written is logged and never fails a reconcile.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tracing::warn;

/// The API server refuses longer notes.
const MAX_NOTE_BYTES: usize = 1024;

/// Publishes events in the name of one controller.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
    related: Option<ObjectReference>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// `controller` and `instance` (the pod) tell where an event came from.
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        let reporter = Reporter {
            controller: controller.to_owned(),
            instance: Some(instance.to_owned()),
        };
        Self {
            recorder: Recorder::new(client, reporter),
            related: None,
        }
    }

    /// The same, for events that have to do with another object too. Events that differ in nothing but their note are
    /// counted as one, with the first note: the other object keeps them apart.
    pub fn related_to(&self, other: ObjectReference) -> Self {
        Self {
            recorder: self.recorder.clone(),
            related: Some(other),
        }
    }

    /// Something happened as it should.
    pub async fn normal<K>(&self, object: &K, action: &str, reason: &str, note: impl Into<String>)
    where
        K: Resource<DynamicType = ()> + Sync,
    {
        self.publish(object, EventType::Normal, action, reason, note.into())
            .await;
    }

    /// Something happened that somebody should look at.
    pub async fn warning<K>(&self, object: &K, action: &str, reason: &str, note: impl Into<String>)
    where
        K: Resource<DynamicType = ()> + Sync,
    {
        self.publish(object, EventType::Warning, action, reason, note.into())
            .await;
    }

    async fn publish<K>(&self, object: &K, type_: EventType, action: &str, reason: &str, mut note: String)
    where
        K: Resource<DynamicType = ()> + Sync,
    {
        note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: self.related.clone(),
        };
        if let Err(error) = self.recorder.publish(&event, &object.object_ref(&())).await {
            warn!(reason, %error, "failed to publish an event");
        }
    }
}
