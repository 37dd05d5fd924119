//! `peerweave info`. Being written.
pub mod machine;
