//! Memory behind addresses and handles, and the copies that move its bytes.

pub(crate) mod address;
pub(crate) mod allocation;
mod binding;
pub(crate) mod physical;
pub(crate) mod plain;
pub(crate) mod team;
pub(crate) mod transfer;
