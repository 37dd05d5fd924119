//! Multicast objects.
use crate::abi::{Code, Result};
/// The devices of a multicast object and what they bound.
pub(crate) struct Team;
impl Team {
    pub(crate) fn replicate(&self, _offset: u64, _bytes: &[u8]) -> Result {
        Err(Code::NOT_SUPPORTED)
    }
}
exports! {}
