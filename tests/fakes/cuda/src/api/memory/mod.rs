//! Functions for memory: allocation, sharing, queries and copies.

pub(super) mod copy;
pub(super) mod host;
pub(super) mod ipc;
pub(super) mod managed;
pub(super) mod multicast;
pub(super) mod plain;
pub(super) mod pointer;
pub(super) mod pool;
pub(super) mod sharing;
pub(super) mod virtual_memory;
