//! Whether the members of a formed cluster speak TLS with each other. A cluster records the peer URLs of its members, and
//! peers that speak TLS can't be reached by those that don't: etcd must not be given another scheme than the recorded one.
//! Pure.

use std::sync::Arc;

use api::{
    steward::{FILE, StewardConfig},
    v1alpha1::{Etcd, EtcdMember},
};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::validate::ValidateError;

/// Refuses a spec that switches TLS between the peers of a formed cluster. `formed` are the members that have recorded a
/// cluster, `applied` is the configuration that was written last.
pub fn keeps_peer_tls(
    etcd: &Etcd,
    formed: &[Arc<EtcdMember>],
    applied: Option<&ConfigMap>,
) -> Result<(), ValidateError> {
    let wanted = etcd.spec.etcd.peer_url_tls.is_some();
    match recorded(etcd, formed, applied).as_slice() {
        [] => Ok(()),
        // Members that differ: whoever sets it as one of them has it may do so.
        recorded if recorded.contains(&wanted) => Ok(()),
        _ => Err(ValidateError::PeerTlsSwitched { on: wanted }),
    }
}

/// What the members report, else what was written for a cluster that has formed. Empty: nothing is recorded yet.
fn recorded(etcd: &Etcd, formed: &[Arc<EtcdMember>], applied: Option<&ConfigMap>) -> Vec<bool> {
    let reported: Vec<bool> = formed
        .iter()
        .filter_map(|member| member.status.as_ref()?.peer_tls_enabled)
        .collect();
    if !reported.is_empty() {
        return reported;
    }
    let known = etcd
        .status
        .as_ref()
        .is_some_and(|status| status.cluster_id.is_some());
    if formed.is_empty() && !known {
        return Vec::new();
    }
    applied.and_then(written).into_iter().collect()
}

fn written(config: &ConfigMap) -> Option<bool> {
    let text = config.data.as_ref()?.get(FILE)?;
    let config: StewardConfig = serde_saphyr::from_str(text).ok()?;
    Some(config.cluster.peer_tls)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn etcd(tls: bool, status: &Value) -> Etcd {
        let peer = json!({"tlsCASecretRef": {"name": "ca"}, "serverTLSSecretRef": {"name": "server"}});
        let etcd = if tls {
            json!({"peerUrlTls": peer})
        } else {
            json!({})
        };
        serde_json::from_value(json!({
            "metadata": {"name": "main"}, "status": status,
            "spec": {"labels": {}, "etcd": etcd, "backup": {}, "replicas": 3},
        }))
        .unwrap()
    }

    fn member(tls: Option<bool>) -> Arc<EtcdMember> {
        let mut member = json!({"metadata": {"name": "main-0"}, "status": {"clusterID": "c1"}});
        if let Some(tls) = tls {
            member["status"]["peerTLSEnabled"] = json!(tls);
        }
        Arc::new(serde_json::from_value(member).unwrap())
    }

    fn config(tls: bool) -> ConfigMap {
        let text = json!({"cluster": {
            "name": "main", "namespace": "ns", "uid": "u", "token": "u", "members": [], "peerTls": tls,
        }});
        serde_json::from_value(json!({"data": {FILE: text.to_string()}})).unwrap()
    }

    /// Each row: what members report, whether the Etcd's status names a cluster, what was written, and which wishes are
    /// granted: without TLS, with TLS.
    #[test]
    fn a_formed_cluster_keeps_what_it_has_recorded() {
        type Row = (Vec<Arc<EtcdMember>>, bool, Option<bool>, [bool; 2]);
        let (plain, tls, silent) = (member(Some(false)), member(Some(true)), member(None));
        let rows: Vec<Row> = vec![
            // Nothing has formed: the spec may still change.
            (vec![], false, None, [true, true]),
            (vec![], false, Some(false), [true, true]),
            (vec![Arc::clone(&plain)], true, Some(false), [true, false]),
            (vec![Arc::clone(&tls)], true, Some(true), [false, true]),
            // What members say counts more than what was written for them: the edit may be taken back.
            (
                vec![Arc::clone(&plain), Arc::clone(&silent)],
                true,
                Some(true),
                [true, false],
            ),
            (vec![Arc::clone(&tls)], false, Some(false), [false, true]),
            // Members that differ.
            (vec![plain, tls], true, Some(true), [true, true]),
            // Formed, and nobody says how.
            (vec![Arc::clone(&silent)], false, Some(true), [false, true]),
            (vec![silent], false, None, [true, true]),
            // All EtcdMembers are gone.
            (vec![], true, Some(false), [true, false]),
        ];
        for (formed, named, applied, granted) in rows {
            let status = if named {
                json!({"clusterID": "c1"})
            } else {
                json!({})
            };
            let applied = applied.map(config);
            let found = [false, true]
                .map(|tls| keeps_peer_tls(&etcd(tls, &status), &formed, applied.as_ref()).is_ok());
            assert_eq!(found, granted, "{formed:?} {named} {applied:?}");
        }
    }
}
