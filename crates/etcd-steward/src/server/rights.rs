//! What a caller may do. Each method of the API needs one right; who a caller is says which ones it has.

use axum::http::Method;

use super::tls::Caller;

/// What a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Right {
    /// To look.
    Read,
    /// To take a snapshot.
    Snapshot,
    /// To work on the members' databases.
    Maintain,
    /// To end what others have begun.
    Cancel,
}

const ALL: &[Right] = &[Right::Read, Right::Snapshot, Right::Maintain, Right::Cancel];

/// Paths that need no right at all, by what they begin with.
const OPEN: [&str; 2] = ["/grpc.health.v1.Health/", "/healthz"];

/// The right that a call needs; `None` if anybody may make it. What isn't known here needs the rarest one.
pub(super) fn needed(method: &Method, path: &str) -> Option<Right> {
    if OPEN.iter().any(|open| path.starts_with(open)) {
        return None;
    }
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    Some(match *parts {
        ["steward.v1.SnapshotsService", "CreateSnapshot"] => Right::Snapshot,
        ["steward.v1.OperationsService", "CancelOperation"] => Right::Cancel,
        [
            "steward.v1.SnapshotsService" | "steward.v1.MembersService" | "steward.v1.OperationsService",
            call,
        ] if looks(call) => Right::Read,
        [reflection, _] if reflection.starts_with("grpc.reflection.") => Right::Read,
        // etcd-backup-restore takes snapshots by GET.
        ["snapshot", "full" | "delta"] => Right::Snapshot,
        ["snapshot", "latest"] | ["member" | "operations" | "config" | "metrics"]
            if method == Method::GET =>
        {
            Right::Read
        }
        ["operations", _] if method == Method::GET => Right::Read,
        ["operations", _] => Right::Cancel,
        _ => Right::Maintain,
    })
}

fn looks(call: &str) -> bool {
    ["Get", "List", "Wait", "Watch"]
        .iter()
        .any(|verb| call.starts_with(verb))
}

/// The rights of a caller.
pub(super) fn of(caller: &Caller) -> &'static [Right] {
    match caller {
        Caller::Anonymous => &[],
        Caller::Owner(_) => ALL,
        Caller::Controller(name) => match name.as_str() {
            "opstask-controller" => ALL,
            "compaction-controller" => &[Right::Read, Right::Snapshot],
            _ => &[Right::Read],
        },
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::FileDescriptorSet;
    use steward_proto::FILE_DESCRIPTOR_SET;

    use super::*;

    /// A new method has to be placed here before it is served; the launcher's are on a socket of their own.
    #[test]
    fn every_method_needs_a_right() {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let mut found: Vec<_> = Vec::new();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    if service.name() != "BootstrapService" {
                        found.push((path.clone(), needed(&Method::POST, &path)));
                    }
                }
            }
        }
        found.retain(|(_, right)| *right != Some(Right::Read));
        found.sort();
        let found: Vec<_> = found
            .iter()
            .map(|(path, right)| (path.as_str(), *right))
            .collect();
        assert_eq!(
            found,
            [
                ("/steward.v1.MaintenanceService/Compact", Some(Right::Maintain)),
                ("/steward.v1.MaintenanceService/Defragment", Some(Right::Maintain)),
                (
                    "/steward.v1.OperationsService/CancelOperation",
                    Some(Right::Cancel)
                ),
                (
                    "/steward.v1.SnapshotsService/CreateSnapshot",
                    Some(Right::Snapshot)
                ),
            ]
        );
    }

    #[test]
    fn every_path_needs_a_right() {
        for (method, path, expected) in [
            (Method::GET, "/healthz", None),
            (Method::POST, "/grpc.health.v1.Health/Check", None),
            (
                Method::POST,
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                Some(Right::Read),
            ),
            (Method::GET, "/member", Some(Right::Read)),
            (Method::GET, "/config", Some(Right::Read)),
            (Method::GET, "/metrics", Some(Right::Read)),
            (Method::GET, "/snapshot/latest", Some(Right::Read)),
            (Method::GET, "/operations", Some(Right::Read)),
            (Method::GET, "/operations/x", Some(Right::Read)),
            (Method::DELETE, "/operations/x", Some(Right::Cancel)),
            (Method::POST, "/snapshot/full", Some(Right::Snapshot)),
            (Method::GET, "/snapshot/delta", Some(Right::Snapshot)),
            (Method::POST, "/maintenance/defrag", Some(Right::Maintain)),
            (Method::POST, "/maintenance/compact", Some(Right::Maintain)),
            (Method::GET, "/unknown", Some(Right::Maintain)),
            (Method::POST, "/member", Some(Right::Maintain)),
        ] {
            assert_eq!(needed(&method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn controllers_have_the_rights_that_they_need() {
        let controller = |name: &str| of(&Caller::Controller(name.to_owned()));
        assert_eq!(
            controller("compaction-controller"),
            [Right::Read, Right::Snapshot]
        );
        assert_eq!(controller("opstask-controller"), ALL);
        assert_eq!(controller("custodian"), [Right::Read]);
        assert!(of(&Caller::Anonymous).is_empty());
    }
}
