//! One contract for every store, run on local folders and on real servers. What needs a server is named `store_…`.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

/// Runs the whole contract, each part on a store of its own. `$open` gives what must live as long as the store, and
/// its configuration.
macro_rules! contract {
    ($open:expr) => {
        contract!($open; store =>
            keeps_what_is_put, keeps_large_content, never_overwrites, deletes, reads_ranges,
            failed_uploads_leave_nothing, one_of_two_uploads_wins);
        contract!($open; config => lists_its_own_prefix_only, tells_a_missing_container);
    };
    ($open:expr; $what:ident => $($name:ident),*) => {$(
        #[tokio::test]
        async fn $name() {
            let (_held, config) = $open;
            contract!($what config, $name);
        }
    )*};
    (store $config:ident, $name:ident) => { crate::contract::$name(&*$config.open().unwrap()).await };
    (config $config:ident, $name:ident) => { crate::contract::$name(&$config).await };
}

mod contract;
mod copy;
mod hostile;
mod listings;
mod local;
mod proxy;
mod redirects;
mod rig;
mod slow;
mod store_azure;
mod store_gcs;
mod store_s3;
mod store_s3_faults;
mod store_swift;
mod stub;
