//! The result of each PE's checks. The PEs exchange these results immediately before they call
//! NVSHMEM.

use super::unique_id::UniqueId;

/// Outcome of the checks that one PE makes before it starts NVSHMEM.
pub(super) enum Readiness {
    /// The PE is ready. On PE 0, the field is the id by which the PEs connect; on other PEs it is
    /// `None`.
    Ready(Option<UniqueId>),
    /// The PE cannot start. The text is the reason.
    Cannot(String),
}

impl Readiness {
    /// Returns the outcome as a line of text for the other PEs. The id is written in hexadecimal.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Ready(id) => {
                let id = id.map(|id| id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
                format!("ready\t{}", id.unwrap_or_default())
            }
            Self::Cannot(reason) => reason.clone(),
        }
    }

    pub(super) fn from_text(text: &str) -> Self {
        let Some(id) = text.strip_prefix("ready\t") else { return Self::Cannot(text.to_owned()) };
        let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<Vec<u8>> = id.as_bytes().chunks(2).map(byte).collect();
        let id = bytes.and_then(|bytes| <[u8; 128]>::try_from(bytes).ok()).map(UniqueId::from_bytes);
        match (text, id) {
            ("ready\t", _) => Self::Ready(None),
            (_, Some(id)) => Self::Ready(Some(id)),
            (_, None) => Self::Cannot(format!("the PE sent an invalid id: {text:?}")),
        }
    }
}
