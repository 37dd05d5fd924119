//! The attributes of a device.

use core::ffi::c_int;

use super::device::Device;
use super::features::{capability, fabric_supported, has_multicast, has_pools, has_vmm, version};
use crate::abi::{Code, Result};

/// Returns the value of an attribute (`CUdevice_attribute`) of a device.
pub(crate) fn attribute(device: &Device, attribute: c_int) -> Result<c_int> {
    if !(1..=last_attribute(version())).contains(&attribute) {
        return Err(Code::INVALID_VALUE);
    }
    let vmm = c_int::from(has_vmm());
    Ok(match attribute {
        1 => 1024,                   // threads per block
        2 | 3 => 1024,               // block x, y
        4 => 64,                     // block z
        5 => c_int::MAX,             // grid x
        6 | 7 => 65535,              // grid y, z
        8 => 49152,                  // shared memory per block
        9 => 65536,                  // constant memory
        10 => 32,                    // warp
        11 => c_int::MAX,            // pitch
        12 | 82 => 65536,            // registers per block, per multiprocessor
        13 => 1_980_000,             // clock, kHz
        14 => 512,                   // texture alignment
        16 => 132,                   // multiprocessors
        33 => device.bus() as c_int, // PCI bus
        34 | 50 => 0,                // PCI device, domain
        36 => 2_619_000,             // memory clock, kHz
        37 => 6144,                  // bus width, bits
        38 => 62_914_560,            // L2
        39 => 2048,                  // threads per multiprocessor
        40 => 3,                     // copy engines
        75 => capability().0,
        76 => capability().1,
        81 => 233_472, // shared memory per multiprocessor
        87 => 2,
        97 => 232_448, // shared memory opt-in
        106 => 32,     // blocks per multiprocessor
        111 => 1024,   // reserved shared memory
        // Supported features: overlap, mapped host memory, concurrent kernels, ECC, unified
        // addressing, priorities, L1 caches, managed memory, preemption, host registration,
        // 64-bit stream memory operations, cooperative launch, clusters, IPC events.
        15 | 19 | 31 | 32 | 41 | 78..=80 | 83 | 89..=96 | 98 | 99 | 113 | 116 | 120 | 122 | 123 | 125 | 126 => 1,
        115 => c_int::from(has_pools()),
        119 => 0,         // pools cannot be shared between processes here
        102 | 103 => vmm, // virtual memory, POSIX file descriptors
        110 => 0,         // no RDMA
        128 => c_int::from(vmm == 1 && fabric_supported()),
        132 => c_int::from(vmm == 1 && has_multicast()),
        130 | 131 | 134 => -1, // no NUMA
        _ => 0,
    })
}

/// Returns the last attribute that a driver of this version knows.
fn last_attribute(version: c_int) -> c_int {
    match version {
        ..11040 => 118,
        11040..11060 => 119,
        11060..11070 => 121,
        11070..12000 => 124,
        12000..12010 => 129,
        12010..12020 => 132,
        12020..12050 => 134,
        12050..12080 => 135,
        12080..13000 => 143,
        13000..13010 => 147,
        13010..13030 => 148,
        13030..13040 => 156,
        _ => 161,
    }
}
