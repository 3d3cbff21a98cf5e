//! The contract on an S3 server, and what only S3 has: versions, object lock, unfinished uploads.

use std::{fs, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use md5::{Digest as _, Md5};
use object_store::{
    ClientOptions, ObjectStoreExt as _,
    aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer, AwsCredential},
    client::{HttpConnector as _, HttpRequest, ReqwestConnector},
    multipart::MultipartStore as _,
    path::Path,
};
use snapstore::{Class, Environment, Object, StoreConfig};

use crate::{
    contract::{content, follows_rotated_secrets, full, put, read},
    rig::Rig,
};

contract!(((), Rig::s3().config()));

/// The same bucket without our client, for what it never does.
fn raw(rig: &Rig, bucket: &str) -> Arc<AmazonS3> {
    let store = AmazonS3Builder::new()
        .with_endpoint(rig.file("endpoint"))
        .with_allow_http(true)
        .with_bucket_name(rig.file(bucket))
        .with_access_key_id(rig.file("secret/accessKeyID"))
        .with_secret_access_key(rig.file("secret/secretAccessKey"))
        .build();
    Arc::new(store.unwrap())
}

fn path(config: &StoreConfig, name: &str) -> Path {
    Path::parse(format!("{}/{name}", config.prefix)).unwrap()
}

/// A request that the library doesn't know.
async fn call(rig: &Rig, method: &str, path: &str, headers: &[(&'static str, &str)], body: &str) {
    let credential = AwsCredential {
        key_id: rig.file("secret/accessKeyID"),
        secret_key: rig.file("secret/secretAccessKey"),
        token: None,
    };
    let mut request = HttpRequest::new(body.to_owned().into());
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = format!("{}/{path}", rig.file("endpoint")).parse().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    AwsAuthorizer::new(&credential, "s3", "us-east-1")
        .try_authorize(&mut request, None)
        .unwrap();
    let client = ReqwestConnector::default()
        .connect(&ClientOptions::new().with_allow_http(true))
        .unwrap();
    let response = client.execute(request).await.unwrap();
    let status = response.status();
    let answer = response.into_body().bytes().await.unwrap();
    assert!(status.is_success(), "{method} {path}: {status}: {answer:?}");
}

/// A new bucket that protects each object for a day.
async fn bucket_with_retention(rig: &Rig) -> String {
    let bucket = format!("retained-{:016x}", rand::random::<u64>());
    call(
        rig,
        "PUT",
        &bucket,
        &[("x-amz-bucket-object-lock-enabled", "true")],
        "",
    )
    .await;
    let rule = "<Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule>";
    let enabled = "<ObjectLockEnabled>Enabled</ObjectLockEnabled>";
    let lock = format!("<ObjectLockConfiguration>{enabled}{rule}</ObjectLockConfiguration>");
    let md5 = BASE64_STANDARD.encode(Md5::digest(&lock));
    call(
        rig,
        "PUT",
        &format!("{bucket}?object-lock="),
        &[("content-md5", &md5)],
        &lock,
    )
    .await;
    bucket
}

/// What the store protects is listed with its term, and refusing to delete it is no other fault.
#[tokio::test]
async fn locked_objects_are_told_apart() {
    let rig = Rig::s3();
    let config = StoreConfig {
        container: bucket_with_retention(&rig).await,
        ..rig.config()
    };
    let store = config.open().unwrap();
    let day = SignedDuration::from_hours(24);
    assert_eq!(store.immutability().await.unwrap().retention, Some(day));
    let stored = [
        put(&*store, &full(7, 0), content(10)).await,
        put(&*store, &full(8, 0), content(9 << 20)).await,
    ];
    let now = Timestamp::now();
    for (stored, found) in stored.iter().zip(store.list().await.unwrap().snapshots) {
        let until = found.object.immutable_until.unwrap();
        assert!(
            (until.duration_since(now) - day).abs() < SignedDuration::from_secs(60),
            "{until}"
        );
        let error = store.delete(&stored.object).await.unwrap_err();
        assert_eq!(error.class(), Class::Locked, "{error}");
    }
    assert_eq!(store.list().await.unwrap().snapshots.len(), 2);
}

/// A bucket with a default retention wants a checksum of what is put: MD5 will do where others are off.
#[tokio::test]
async fn retention_takes_either_checksum() {
    let rig = Rig::s3();
    let bucket = bucket_with_retention(&rig).await;
    for (revision, setting) in [(1, "when_supported"), (2, "when_required")] {
        let (folder, config) = rig.config_with_own_secret();
        fs::write(folder.path().join("requestChecksumCalculation"), setting).unwrap();
        let store = StoreConfig {
            container: bucket.clone(),
            ..config
        }
        .open()
        .unwrap();
        for (age, size) in [(0, 1000), (1, 9 << 20)] {
            let stored = put(&*store, &full(revision, age), content(size)).await;
            assert!(read(&*store, &stored.object).await == content(size), "{setting}");
        }
    }
}

/// A snapshot that can't be deleted is hidden by a delete marker and a tag on the version below it.
#[tokio::test]
async fn excluded_snapshots_are_marked() {
    let rig = Rig::s3();
    let config = rig.config_in("locked-bucket");
    let store = config.open().unwrap();
    let stored = [
        put(&*store, &full(7, 0), content(10)).await,
        put(&*store, &full(8, 0), content(10)).await,
    ];
    let tags = "<Tagging><TagSet><Tag><Key>x-etcd-snapshot-exclude</Key><Value>true</Value></Tag></TagSet></Tagging>";
    let object = &stored[0].object;
    let version = object.version.as_deref().unwrap();
    let path = format!(
        "{}/{}?tagging=&versionId={version}",
        rig.file("locked-bucket"),
        object.key
    );
    call(&rig, "PUT", &path, &[], tags).await;
    assert!(
        !store.list().await.unwrap().snapshots[0].excluded,
        "a tag alone hides nothing"
    );
    raw(&rig, "locked-bucket")
        .delete(&Path::parse(&object.key).unwrap())
        .await
        .unwrap();
    let excluded: Vec<_> = store
        .list()
        .await
        .unwrap()
        .snapshots
        .iter()
        .map(|s| s.excluded)
        .collect();
    assert_eq!(excluded, [true, false]);
}

/// Nothing but what is below `v1/` and `v2/` is looked at; chunks and foreign names are told apart.
#[tokio::test]
async fn classifies_what_others_left() {
    let rig = Rig::s3();
    let (config, raw) = (rig.config(), raw(&rig, "bucket"));
    let names = [
        "v2/Full-00000000-00000007-1700000000.gz",
        "v1/Backup-1690000000/Full-00000000-00000003-1690000000",
        "v2/Full-00000000-00000009-1700000009.gz/0000000001",
        "v2/Incr-00000008-00000009-1700000009.xz",
        "v2/notes.txt",
        "elsewhere/Full-00000000-00000099-1700000099.gz",
    ];
    for name in names {
        raw.put(&path(&config, name), "x".into()).await.unwrap();
    }
    let listing = config.open().unwrap().list().await.unwrap();
    assert_eq!(
        listing
            .snapshots
            .iter()
            .map(|s| s.name.last_revision)
            .collect::<Vec<_>>(),
        [3, 7]
    );
    assert_eq!(
        listing
            .chunks
            .iter()
            .map(|c| c.parent.last_revision)
            .collect::<Vec<_>>(),
        [9]
    );
    assert_eq!(listing.unparsable.len(), 2);
}

/// Uploads of a process that died are found by their age.
#[tokio::test]
async fn aborts_stale_uploads() {
    let rig = Rig::s3();
    let (config, raw) = (rig.config(), raw(&rig, "bucket"));
    let key = path(&config, "v2/Full-00000000-00000007-1700000000.gz");
    for _ in 0..3 {
        let id = raw.create_multipart(&key).await.unwrap();
        raw.put_part(&key, &id, 0, content(5 << 20).into()).await.unwrap();
    }
    let store = config.open().unwrap();
    let hour = SignedDuration::from_hours(1);
    assert_eq!(
        store.abort_stale_uploads(Timestamp::now() - hour).await.unwrap(),
        0
    );
    assert_eq!(
        store.abort_stale_uploads(Timestamp::now() + hour).await.unwrap(),
        3
    );
    assert_eq!(
        store.abort_stale_uploads(Timestamp::now() + hour).await.unwrap(),
        0
    );
}

/// In a bucket with object lock the first version of a key is what was backed up; whatever came later is not.
#[tokio::test]
async fn oldest_version_counts() {
    let rig = Rig::s3();
    let (config, raw) = (rig.config_in("locked-bucket"), raw(&rig, "locked-bucket"));
    let store = config.open().unwrap();
    assert!(store.immutability().await.unwrap().versioned);
    let name = full(7, 0);
    let stored = put(&*store, &name, content(1000)).await;
    let key = path(&config, &format!("v2/{name}"));
    raw.put(&key, "an attacker's".into()).await.unwrap();
    raw.delete(&key).await.unwrap();

    let listing = store.list().await.unwrap();
    assert_eq!(listing.snapshots.len(), 1);
    let found = &listing.snapshots[0].object;
    assert_eq!((found.size, &found.version), (1000, &stored.object.version));
    assert_eq!(read(&*store, found).await, content(1000));
    assert_eq!(read(&*store, &stored.object).await, content(1000));
}

/// Wrong keys, a bucket that isn't there and a dead server are three things.
#[tokio::test]
async fn says_what_is_wrong() {
    let rig = Rig::s3();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &str| fs::write(folder.path().join(name), value).unwrap();
    write("accessKeyID", &rig.file("secret/accessKeyID"));
    write("secretAccessKey", "wrong");
    write("region", "us-east-1");
    write("s3ForcePathStyle", "true");
    let variable = [("AWS_APPLICATION_CREDENTIALS", folder.path().to_str().unwrap())];
    let config = rig.config();
    let wrong_key = StoreConfig {
        environment: Environment::from_iter(variable),
        ..rig.config()
    };
    let no_bucket = StoreConfig {
        container: "no-such-bucket".to_owned(),
        ..rig.config()
    };
    let dead = StoreConfig {
        endpoint: Some("http://127.0.0.1:9".to_owned()),
        ..rig.config()
    };
    for (mut config, class) in [
        (wrong_key, Class::AccessDenied),
        (no_bucket, Class::BucketNotFound),
        (dead, Class::Unreachable),
    ] {
        config.retry.attempts = 2;
        let store = config.open().unwrap();
        let error = store.list().await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        let body = snapstore::Body::from_bytes(Bytes::from_static(b"x"));
        let error = store.put(&full(1, 0), body).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        let secret = rig.file("secret/secretAccessKey");
        assert!(!format!("{error:?}{error}{store:?}").contains(&secret));
    }
    let refused = StoreConfig {
        allow_http: false,
        ..config
    }
    .open()
    .unwrap_err();
    assert_eq!(refused.class(), Class::InvalidConfig);
}

#[tokio::test]
async fn follows_rotated_keys() {
    let (folder, config) = Rig::s3().config_with_own_secret();
    follows_rotated_secrets(&config, &folder.path().join("secretAccessKey"), "not yet valid").await;
    // Unusable files don't end what works.
    let store = config.open().unwrap();
    fs::remove_file(folder.path().join("accessKeyID")).unwrap();
    assert_eq!(store.list().await.unwrap().snapshots.len(), 2);
}

#[tokio::test]
async fn missing_object_is_not_found() {
    let store = Rig::s3().config().open().unwrap();
    let object = Object {
        key: "nowhere".to_owned(),
        size: 1,
        etag: None,
        last_modified: None,
        version: None,
        immutable_until: None,
    };
    let error = store.get(&object, None).await.map(drop).unwrap_err();
    assert_eq!(error.class(), Class::NotFound, "{error}");
}
