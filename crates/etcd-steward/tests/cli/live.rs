//! A live etcd's chain.
