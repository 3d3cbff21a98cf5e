//! What the schema alone can't say about an Etcd, in CEL. Each rule stands on the lowest field that it needs, so that
//! an object which broke it before the rule existed can still be changed elsewhere.
//!
//! Fields are tested with `has` and not selected with `?`: only then does the API server know their bounds, which
//! keep a rule's estimated cost within its budget.

use kube::core::{Message, Rule};

use crate::{duration, steward::port};

/// Names become labels and DNS names. They can't be changed, so only new objects are checked.
pub(super) fn name_form() -> Rule {
    Rule::new("oldSelf.hasValue() || self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .optional_old_self(true)
        .message(
            "the name must be of lower-case letters, digits and dashes, start with a letter and not end with a dash: \
             Services and DNS names are made of it",
        )
}

pub(super) fn name_length() -> Rule {
    Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 52")
        .optional_old_self(true)
        .message("the name must not be longer than 52 characters: pods carry it, with a suffix, as a label")
}

/// What the names of this Etcd's members begin with, at the root.
const MEMBER_PREFIX: &str = "(has(self.spec.memberNamePrefix) && self.spec.memberNamePrefix != '' \
     ? self.spec.memberNamePrefix + '-' : '') + self.metadata.name + '-'";

pub(super) fn additional_urls_are_of_members() -> Rule {
    Rule::new(format!(
        "!has(self.spec.etcd.additionalAdvertisePeerURLs) || self.spec.etcd.additionalAdvertisePeerURLs\
         .all(m, m.memberName.startsWith({MEMBER_PREFIX}))"
    ))
    .field_path(".spec.etcd.additionalAdvertisePeerURLs")
    .message(
        "memberName must be that of a member of this Etcd: <etcd name>-<ordinal>, after <memberNamePrefix>- if there \
         is one",
    )
}

pub(super) fn existing_members_have_other_names() -> Rule {
    Rule::new(format!(
        "!has(self.spec.etcd.bootstrapWithExistingCluster) || !self.spec.etcd.bootstrapWithExistingCluster.members\
         .exists(m, m.name.startsWith({MEMBER_PREFIX}))"
    ))
    .field_path(".spec.etcd.bootstrapWithExistingCluster.members")
    .message(
        "members of the existing cluster must not be named like members of this Etcd: give this Etcd another name or \
         a memberNamePrefix",
    )
}

pub(super) fn bootstrap_fixed_while_joining() -> Rule {
    Rule::new(
        "!has(self.status) || !has(self.status.conditions) || !self.status.conditions.exists(c, \
           c.type == 'BootstrappedWithExistingCluster' && c.status == 'False') \
         || !has(self.spec.etcd.bootstrapWithExistingCluster) \
         || !has(oldSelf.spec.etcd.bootstrapWithExistingCluster) \
         || self.spec.etcd.bootstrapWithExistingCluster == oldSelf.spec.etcd.bootstrapWithExistingCluster",
    )
    .field_path(".spec.etcd.bootstrapWithExistingCluster")
    .message(
        "can't be changed while members join the existing cluster: wait for condition BootstrappedWithExistingCluster \
         to be True, or remove the field",
    )
}

pub(super) fn bootstrap_only_at_creation() -> Rule {
    Rule::new(
        "!has(self.etcd.bootstrapWithExistingCluster) || has(oldSelf.etcd.bootstrapWithExistingCluster)",
    )
    .field_path(".etcd.bootstrapWithExistingCluster")
    .message("can't be added to an Etcd that exists: create a new Etcd that joins the existing cluster")
}

/// An optional string that stays as it was created. Empty and unset are the same.
pub(super) fn immutable(field: &str, why: &str) -> Rule {
    Rule::new(format!(
        "(has(self.{field}) ? self.{field} : '') == (has(oldSelf.{field}) ? oldSelf.{field} : '')"
    ))
    .field_path(format!(".{field}"))
    .message(Message::Message(format!(
        "can't be set, changed or removed later, since {why}: create a new Etcd instead"
    )))
}

/// All listen in one pod. A list in a list stands in for a variable.
pub(super) fn ports_differ() -> Rule {
    let (health, metrics) = (port::STEWARD_HEALTH, port::ETCD_METRICS);
    Rule::new(format!(
        "[[has(self.etcd.clientPort) ? self.etcd.clientPort : 2379, \
           has(self.etcd.serverPort) ? self.etcd.serverPort : 2380, \
           has(self.etcd.wrapperPort) ? self.etcd.wrapperPort : 9095, \
           has(self.backup.port) ? self.backup.port : 8080, {health}, {metrics}]]\
         .all(ports, ports.all(p, ports.exists_one(q, p == q)))"
    ))
    .message(Message::Message(format!(
        "ports must differ from each other and from {health} and {metrics}: etcd.clientPort (2379 if unset), \
         etcd.serverPort (2380), etcd.wrapperPort (9095), backup.port (8080)"
    )))
}

/// Only where both are set: an Etcd may live with less disk than the default quota.
pub(super) fn quota_fits_volume() -> Rule {
    Rule::new(
        "!has(self.storageCapacity) || !has(self.etcd.quota) \
         || !quantity(string(self.storageCapacity)).isLessThan(quantity(string(self.etcd.quota)))",
    )
    .field_path(".storageCapacity")
    .message(
        "must not be smaller than etcd.quota: the database grows up to the quota; twice the quota leaves room for \
         defragmentation and restore",
    )
}

/// Not while hibernating, so that entries can stay for the time after.
pub(super) fn additional_urls_within_replicas() -> Rule {
    Rule::new(
        "self.replicas == 0 || !has(self.etcd.additionalAdvertisePeerURLs) \
         || self.etcd.additionalAdvertisePeerURLs.all(m, !m.memberName.matches('-[0-9]{1,3}$') \
           || int(m.memberName.substring(m.memberName.lastIndexOf('-') + 1)) < self.replicas)",
    )
    .field_path(".etcd.additionalAdvertisePeerURLs")
    .message(
        "the ordinal at the end of memberName must be less than replicas: remove the entry or raise replicas",
    )
}

/// Less than 0 is refused by the server itself, since the field can be scaled.
pub(super) fn replicas_odd() -> Rule {
    Rule::new("self <= 0 || (self < 10 && self % 2 == 1)").message(
        "must be 0 (hibernated) or an odd number up to 9: one member more than an odd number makes a cluster slower \
         and survives no more failures",
    )
}

pub(super) fn replicas_not_lowered() -> Rule {
    Rule::new("self == 0 || self >= oldSelf")
        .message("can't be lowered except to 0 (hibernation): keep the number of members or raise it")
}

pub(super) fn dns_label() -> Rule {
    Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("must be of lower-case letters, digits and dashes, and not start or end with a dash")
}

pub(super) fn retention_of_revisions() -> Rule {
    Rule::new(
        "!has(self.autoCompactionMode) || self.autoCompactionMode != 'revision' \
         || !has(self.autoCompactionRetention) || self.autoCompactionRetention.matches('^[0-9]+$')",
    )
    .field_path(".autoCompactionRetention")
    .message("must be a number of revisions, like 10000, with autoCompactionMode revision")
}

pub(super) fn retention_of_time() -> Rule {
    Rule::new(
        "!has(self.autoCompactionRetention) \
         || (has(self.autoCompactionMode) && self.autoCompactionMode == 'revision') \
         || self.autoCompactionRetention.matches('^([0-9]+|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$')",
    )
    .field_path(".autoCompactionRetention")
    .message(
        "must be a duration like 30m, or a number of hours, with autoCompactionMode periodic (the default)",
    )
}

/// URLs follow the TLS setting of their port.
fn scheme_follows(tls: &str) -> String {
    format!("u.startsWith(has(self.{tls}) ? 'https://' : 'http://')")
}

pub(super) fn additional_urls_have_scheme() -> Rule {
    Rule::new(format!(
        "!has(self.additionalAdvertisePeerURLs) || self.additionalAdvertisePeerURLs.all(m, m.urls.all(u, {}))",
        scheme_follows("peerUrlTls")
    ))
    .field_path(".additionalAdvertisePeerURLs")
    .message("urls must all start with https:// if peerUrlTls is set, and with http:// if it isn't")
}

pub(super) fn existing_peers_have_scheme() -> Rule {
    Rule::new(format!(
        "!has(self.bootstrapWithExistingCluster) \
         || self.bootstrapWithExistingCluster.members.all(m, m.peerUrls.all(u, {}))",
        scheme_follows("peerUrlTls")
    ))
    .field_path(".bootstrapWithExistingCluster.members")
    .message(
        "peerUrls must all start with https:// if peerUrlTls is set, and with http:// if it isn't: both clusters must \
         use TLS between peers, or neither",
    )
}

pub(super) fn existing_clients_have_scheme() -> Rule {
    Rule::new(format!(
        "!has(self.bootstrapWithExistingCluster) || self.bootstrapWithExistingCluster.clientEndpoints.all(u, {})",
        scheme_follows("clientUrlTls")
    ))
    .field_path(".bootstrapWithExistingCluster.clientEndpoints")
    .message(
        "must all start with https:// if clientUrlTls is set, and with http:// if it isn't: both clusters must use TLS \
         for clients, or neither",
    )
}

/// What etcd asks of the URL of a peer. What is no URL at all has its own message.
pub(super) fn peer_urls() -> Rule {
    Rule::new("self.all(u, !isURL(u) || (url(u).getPort() != '' && url(u).getEscapedPath() == ''))")
        .message("peer URLs need a port and no path, like https://10.0.0.1:2380")
}

pub(super) fn member_ordinal() -> Rule {
    Rule::new("self.matches('-(0|[1-9][0-9]{0,2})$')")
        .message("must end in a dash and the member's ordinal, like etcd-main-0")
}

pub(super) fn existing_members_unique() -> Rule {
    Rule::new("self.all(m, self.exists_one(n, n.name == m.name))")
        .message("the name of each member must be there only once")
}

pub(super) fn existing_member_name() -> Rule {
    Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message(
        "must be of lower-case letters, digits, dashes and dots, and start and end with a letter or digit",
    )
}

/// Each heartbeat is a write to the API server. What is no duration at all has its own message.
pub(super) fn heartbeat_not_too_fast() -> Rule {
    Rule::new(format!(
        "!{} || duration(self) >= duration('1s')",
        duration::MATCHES
    ))
    .message("must be at least 1s: each heartbeat is a write to the API server")
}

pub(super) fn collection_slower_than_deltas() -> Rule {
    Rule::new(
        "!has(self.garbageCollectionPeriod) || !has(self.deltaSnapshotPeriod) \
         || duration(self.garbageCollectionPeriod) > duration(self.deltaSnapshotPeriod)",
    )
    .field_path(".garbageCollectionPeriod")
    .message("must be longer than deltaSnapshotPeriod: raise the one or lower the other")
}

pub(super) fn secondary_copies_a_store() -> Rule {
    Rule::new(
        "!has(self.secondary) || (has(self.store) && has(self.store.provider) && self.store.provider != '' \
         && has(self.secondary.store.provider) && self.secondary.store.provider != '')",
    )
    .field_path(".secondary")
    .message("set store.provider and secondary.store.provider: the one is copied to the other")
}

pub(super) fn secondary_is_another_place() -> Rule {
    let differ = |field: &str| {
        let (one, other) = (
            format!("self.store.{field}"),
            format!("self.secondary.store.{field}"),
        );
        format!("has({one}) != has({other}) || (has({one}) && {one} != {other})")
    };
    let fields = ["provider", "container", "prefix", "endpointOverride"].map(differ);
    Rule::new(format!(
        "!has(self.secondary) || !has(self.store) || {}",
        fields.join(" || ")
    ))
    .field_path(".secondary.store")
    .message("must be another place than store: set another container, prefix or endpointOverride")
}

pub(super) fn signatures_have_a_key() -> Rule {
    Rule::new(
        "!has(self.signing) || (has(self.signing.secretRef) && has(self.signing.secretRef.name) \
         && self.signing.secretRef.name != '') || (has(self.signing.policy) && self.signing.policy == 'Ignore')",
    )
    .field_path(".signing.secretRef")
    .message("name a Secret with at least one key, or set policy to Ignore")
}

pub(super) fn some_backups_are_kept() -> Rule {
    Rule::new(
        "(has(self.garbageCollectionPolicy) && self.garbageCollectionPolicy != 'LimitBased') \
         || !has(self.maxBackupsLimitBasedGC) || self.maxBackupsLimitBasedGC > 0",
    )
    .field_path(".maxBackupsLimitBasedGC")
    .message(
        "must be at least 1 with garbageCollectionPolicy LimitBased (the default): no backup would be left",
    )
}
