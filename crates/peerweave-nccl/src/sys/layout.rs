//! Layouts of NCCL's structs: the fields of each struct in each version.
//!
//! NCCL appends new fields to its structs, and identifies the version of a struct by the size and
//! version fields at the start. So the struct of an older version is a prefix of the newest struct.
//! The only exception is `ncclCommProperties_t` before 2.29.7, for which this crate declares a
//! separate struct.
//!
//! Invariant: `cargo xtask abi` compares every size and offset of this module with NVIDIA's
//! headers.

use std::mem::{align_of, offset_of, size_of};

use super::requirements::*;
use super::types::*;
use crate::Version;

/// Describes one field of an NCCL struct: its name, offset, length, and the first version of NCCL
/// that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// NCCL's name for the field.
    pub name: &'static str,
    /// Version of NCCL that introduced the field.
    pub since: Version,
    /// Offset from the start of the struct, in bytes.
    pub offset_bytes: usize,
    /// Length of the field in bytes.
    pub len_bytes: usize,
}

/// Layout of a struct in one version of NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// NCCL's name for the struct.
    pub name: &'static str,
    /// Size of the struct in this version, in bytes (`sizeof`).
    pub len_bytes: usize,
    /// Fields that the struct has in this version, in the order of their offsets.
    pub fields: Vec<Field>,
}

/// A struct whose layout depends on the version of the library.
pub(crate) trait Versioned {
    const NAME: &'static str;
    const FIELDS: &'static [Field];
    const ALIGN_BYTES: usize;

    /// Returns the size of the struct in this version, in bytes (`sizeof`), or `None` if the
    /// version lacks the struct.
    fn len_bytes(version: Version) -> Option<usize> {
        let last = Self::FIELDS.iter().take_while(|field| version.at_least(field.since)).last()?;
        Some((last.offset_bytes + last.len_bytes).next_multiple_of(Self::ALIGN_BYTES))
    }
}

/// Declares the history of a struct: the fields, and for each field the version of NCCL that added
/// the field. NCCL appends new fields at the end of the struct.
macro_rules! history {
    ($Struct:ident as $name:literal { $(($major:literal, $minor:literal, $patch:literal) $($field:ident)+;)+ }) => {
        impl Versioned for $Struct {
            const NAME: &'static str = $name;
            const ALIGN_BYTES: usize = align_of::<$Struct>();
            const FIELDS: &'static [Field] = &[$($(Field {
                name: stringify!($field),
                since: Version::new($major, $minor, $patch),
                offset_bytes: offset_of!($Struct, $field),
                len_bytes: {
                    const fn of<T, U>(_: fn(&T) -> &U) -> usize { size_of::<U>() }
                    of(|all: &$Struct| &all.$field)
                },
            },)+)+];
        }
    };
}

history!(ncclUniqueId as "ncclUniqueId" { (2, 0, 0) internal; });

history!(ncclConfig_t as "ncclConfig_t" {
    (2, 14, 0) size magic version blocking;
    (2, 17, 0) cgaClusterSize minCTAs maxCTAs netName;
    (2, 18, 0) splitShare;
    (2, 26, 0) trafficClass;
    (2, 27, 0) commName collnetEnable CTAPolicy shrinkShare nvlsCTAs;
    (2, 28, 0) nChannelsPerNetPeer nvlinkCentricSched;
    (2, 29, 0) graphUsageMode numRmaCtx;
    (2, 30, 0) maxP2pPeers;
    (2, 30, 5) graphStreamOrdering;
    (2, 31, 0) launchOrderImplicit numRmaSig rmaEagerInit;
    (2, 31, 1) hostCftMode;
    (2, 32, 0) nvlsHostMode;
});

history!(ncclConfigExt_t as "ncclConfigExt_t" { (2, 31, 0) next key val; });

history!(ncclCollConfig_t as "ncclCollConfig_t" {
    (2, 31, 0) size magic version ext minCTAs maxCTAs nvlsCTAs cgaClusterSize algSelection forceAlgSelection CTAPolicy userProfilerTag;
    (2, 32, 0) launchCompletionEvent;
});

history!(ncclSimInfo_t as "ncclSimInfo_t" { (2, 22, 3) size magic version estimatedTime; });

history!(ncclEncryptionConfig_t as "ncclEncryptionConfig_t" { (2, 32, 0) size magic version mode psk; });

history!(ncclWaitSignalDesc_t as "ncclWaitSignalDesc_t" { (2, 29, 2) opCnt peer sigIdx ctx; });

history!(ncclCommProperties_v22902 as "ncclCommProperties_t" {
    (2, 29, 2) size magic version rank nRanks cudaDev nvmlDev deviceApiSupport multimemSupport ginType;
});

history!(ncclCommProperties_t as "ncclCommProperties_t" {
    (2, 29, 7) size magic version rank nRanks cudaDev nvmlDev deviceApiSupport multimemSupport ginType nLsaTeams hostRmaSupport railedGinType;
    (2, 31, 0) commHash ginMinStride ginConnectionType ginSupport devCommRuntimeVersionSize;
    (2, 32, 0) cftSupport cftMulticastSupport cftCountedSupport;
});

history!(ncclTeam_t as "ncclTeam_t" { (2, 28, 3) nRanks rank stride; });

history!(ncclMultimemHandle_t as "ncclMultimemHandle_t" { (2, 28, 3) mcBasePtr; });

history!(ncclLsaBarrierHandle_t as "ncclLsaBarrierHandle_t" { (2, 28, 3) bufHandle nBarriers; });

history!(ncclGinBarrierHandle_t as "ncclGinBarrierHandle_t" { (2, 30, 3) signal0 unused; });

history!(ncclLLA2AHandle_t as "ncclLLA2AHandle_t" { (2, 28, 3) bufHandle nSlots; });

history!(ncclDevResourceRequirements_t as "ncclDevResourceRequirements_t" {
    (2, 28, 7) next bufferSize bufferAlign outBufferHandle ginSignalCount ginCounterCount outGinSignalStart outGinCounterStart;
});

history!(ncclTeamRequirements_t as "ncclTeamRequirements_t" { (2, 28, 3) next team multimem outMultimemHandle; });

// 2.28 has a struct without size, magic and version. It is not declared, because the device API of
// 2.28 is not supported.
history!(ncclDevCommRequirements_t as "ncclDevCommRequirements_t" {
    (2, 29, 2) size magic version resourceRequirementsList teamRequirementsList lsaMultimem barrierCount lsaBarrierCount railGinBarrierCount
        lsaLLA2ABlockCount lsaLLA2ASlotCount ginForceEnable ginContextCount ginSignalCount ginCounterCount;
    (2, 29, 7) ginConnectionType ginExclusiveContexts ginQueueDepth;
    (2, 30, 3) ginTrafficClass worldGinBarrierCount;
    (2, 30, 7) ginStrongSignalsRequired ginVaSignalsRequired;
    (2, 31, 0) ginCustomStride ginType useRuntimeVersion cftCaps cftBarrierCount;
});

/// Returns the layout of a struct in this version, or `None` if the version lacks the struct.
/// `name` is NCCL's name for the struct.
pub fn layout_of(name: &str, version: Version) -> Option<Layout> {
    layouts(version).into_iter().find(|layout| layout.name == name)
}

/// Returns the layouts of all structs that this version declares.
pub fn layouts(version: Version) -> Vec<Layout> {
    fn push<T: Versioned>(all: &mut Vec<Layout>, version: Version) {
        if let Some(len_bytes) = T::len_bytes(version) {
            let fields = T::FIELDS.iter().copied().take_while(|field| version.at_least(field.since)).collect();
            all.push(Layout { name: T::NAME, len_bytes, fields });
        }
    }
    let mut all = Vec::new();
    push::<ncclUniqueId>(&mut all, version);
    push::<ncclConfig_t>(&mut all, version);
    push::<ncclConfigExt_t>(&mut all, version);
    push::<ncclCollConfig_t>(&mut all, version);
    push::<ncclSimInfo_t>(&mut all, version);
    push::<ncclEncryptionConfig_t>(&mut all, version);
    push::<ncclWaitSignalDesc_t>(&mut all, version);
    push::<ncclCommProperties_t>(&mut all, version);
    if !all.iter().any(|layout| layout.name == ncclCommProperties_t::NAME) {
        push::<ncclCommProperties_v22902>(&mut all, version);
    }
    push::<ncclTeam_t>(&mut all, version);
    push::<ncclMultimemHandle_t>(&mut all, version);
    push::<ncclLsaBarrierHandle_t>(&mut all, version);
    push::<ncclGinBarrierHandle_t>(&mut all, version);
    push::<ncclLLA2AHandle_t>(&mut all, version);
    push::<ncclDevResourceRequirements_t>(&mut all, version);
    push::<ncclTeamRequirements_t>(&mut all, version);
    push::<ncclDevCommRequirements_t>(&mut all, version);
    all
}

/// Returns the size of `ncclDevComm` in this version, in bytes, or `None` if this crate does not
/// know the size. NCCL 2.31 and later report the size at run time.
pub fn device_comm_len_bytes(version: Version) -> Option<usize> {
    const KNOWN: [(Version, usize); 5] = [
        (Version::new(2, 30, 3), 240),
        (Version::new(2, 30, 4), 240),
        (Version::new(2, 30, 7), 240),
        (Version::new(2, 31, 2), 248),
        (Version::new(2, 32, 3), 248),
    ];
    KNOWN.iter().find(|(known, _)| *known == version).map(|(_, len_bytes)| *len_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_len(minor: u8, patch: u8) -> Option<usize> {
        ncclConfig_t::len_bytes(Version::new(2, minor, patch))
    }

    #[test]
    fn config_struct_is_larger_in_later_versions() {
        let known = [
            (13, 4, None),
            (14, 3, Some(24)),
            (17, 1, Some(40)),
            (18, 1, Some(48)),
            (25, 1, Some(48)),
            (26, 2, Some(48)),
            (27, 3, Some(72)),
            (28, 3, Some(80)),
            (29, 2, Some(88)),
            (30, 3, Some(96)),
            (30, 7, Some(96)),
            (31, 2, Some(112)),
            (32, 3, Some(120)),
            (99, 0, Some(120)),
        ];
        for (minor, patch, len) in known {
            assert_eq!(config_len(minor, patch), len, "2.{minor}.{patch}");
        }
    }

    #[test]
    fn properties_struct_is_larger_in_later_versions() {
        let of = |minor, patch| layout_of("ncclCommProperties_t", Version::new(2, minor, patch)).map(|layout| layout.len_bytes);
        assert_eq!(of(28, 9), None);
        assert_eq!(of(29, 2), Some(40));
        assert_eq!(of(29, 7), Some(56));
        assert_eq!(of(32, 3), Some(152));
    }

    #[test]
    fn struct_fields_are_ordered_by_version_and_offset() {
        for layout in layouts(super::super::HEADER) {
            assert!(layout.fields.windows(2).all(|pair| pair[0].since <= pair[1].since), "{}", layout.name);
            assert!(
                layout.fields.windows(2).all(|pair| pair[0].offset_bytes + pair[0].len_bytes <= pair[1].offset_bytes),
                "{}",
                layout.name
            );
        }
    }
}
