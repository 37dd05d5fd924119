//! The table of wrappers. Each wrapper calls one function of NVSHMEM's device library. As in
//! NVSHMEM, a symmetric address is the address in this PE's own heap. Lengths are in bytes.

/// Expands the table to declarations for kernels, and to data for the host.
macro_rules! functions {
    ($(fn $name:ident($($parameter:ident: $t:ty),*) -> $result:ty = $body:literal;)*) => {
        /// Declarations, for kernels, of the wrappers of NVSHMEM's device functions.
        #[cfg(all(target_arch = "nvptx64", feature = "nvshmem"))]
        pub(crate) mod functions {
            unsafe extern "C" {
                $(pub(crate) fn $name($($parameter: $t),*) -> $result;)*
            }
        }

        /// All wrappers of NVSHMEM's device functions that kernels may call.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const FUNCTIONS: &[super::Function] = &[$(
            super::Function {
                name: stringify!($name),
                result: <$result as super::InCpp>::NAME,
                parameters: &[$((<$t as super::InCpp>::NAME, stringify!($parameter))),*],
                body: $body,
            }
        ),*];
    };
}

functions! {
    fn peerweave_nvshmem_put_thread(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmem_putmem((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_put_warp(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmemx_putmem_warp((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_put_block(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmemx_putmem_block((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_put_nbi_thread(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmem_putmem_nbi((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_put_nbi_warp(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmemx_putmem_nbi_warp((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_put_nbi_block(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmemx_putmem_nbi_block((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_get_thread(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmem_getmem((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_get_warp(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmemx_getmem_warp((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_get_block(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmemx_getmem_block((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_get_nbi_thread(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmem_getmem_nbi((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_get_nbi_warp(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmemx_getmem_nbi_warp((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_get_nbi_block(to: u64, from: u64, bytes: u64, pe: i32) -> () = "nvshmemx_getmem_nbi_block((void*)to, (const void*)from, bytes, pe);";
    fn peerweave_nvshmem_put_signal_thread(to: u64, from: u64, bytes: u64, signal: u64, value: u64, op: i32, pe: i32) -> () = "nvshmem_putmem_signal((void*)to, (const void*)from, bytes, (uint64_t*)signal, value, op, pe);";
    fn peerweave_nvshmem_put_signal_warp(to: u64, from: u64, bytes: u64, signal: u64, value: u64, op: i32, pe: i32) -> () = "nvshmemx_putmem_signal_warp((void*)to, (const void*)from, bytes, (uint64_t*)signal, value, op, pe);";
    fn peerweave_nvshmem_put_signal_block(to: u64, from: u64, bytes: u64, signal: u64, value: u64, op: i32, pe: i32) -> () = "nvshmemx_putmem_signal_block((void*)to, (const void*)from, bytes, (uint64_t*)signal, value, op, pe);";
    fn peerweave_nvshmem_put_signal_nbi_thread(to: u64, from: u64, bytes: u64, signal: u64, value: u64, op: i32, pe: i32) -> () = "nvshmem_putmem_signal_nbi((void*)to, (const void*)from, bytes, (uint64_t*)signal, value, op, pe);";
    fn peerweave_nvshmem_put_signal_nbi_warp(to: u64, from: u64, bytes: u64, signal: u64, value: u64, op: i32, pe: i32) -> () = "nvshmemx_putmem_signal_nbi_warp((void*)to, (const void*)from, bytes, (uint64_t*)signal, value, op, pe);";
    fn peerweave_nvshmem_put_signal_nbi_block(to: u64, from: u64, bytes: u64, signal: u64, value: u64, op: i32, pe: i32) -> () = "nvshmemx_putmem_signal_nbi_block((void*)to, (const void*)from, bytes, (uint64_t*)signal, value, op, pe);";
    fn peerweave_nvshmem_p8(to: u64, value: u8, pe: i32) -> () = "nvshmem_uint8_p((uint8_t*)to, value, pe);";
    fn peerweave_nvshmem_p16(to: u64, value: u16, pe: i32) -> () = "nvshmem_uint16_p((uint16_t*)to, value, pe);";
    fn peerweave_nvshmem_p32(to: u64, value: u32, pe: i32) -> () = "nvshmem_uint32_p((uint32_t*)to, value, pe);";
    fn peerweave_nvshmem_p64(to: u64, value: u64, pe: i32) -> () = "nvshmem_uint64_p((uint64_t*)to, value, pe);";
    fn peerweave_nvshmem_g8(from: u64, pe: i32) -> u8 = "return nvshmem_uint8_g((const uint8_t*)from, pe);";
    fn peerweave_nvshmem_g16(from: u64, pe: i32) -> u16 = "return nvshmem_uint16_g((const uint16_t*)from, pe);";
    fn peerweave_nvshmem_g32(from: u64, pe: i32) -> u32 = "return nvshmem_uint32_g((const uint32_t*)from, pe);";
    fn peerweave_nvshmem_g64(from: u64, pe: i32) -> u64 = "return nvshmem_uint64_g((const uint64_t*)from, pe);";
    fn peerweave_nvshmem_signal_op(signal: u64, value: u64, op: i32, pe: i32) -> () = "nvshmemx_signal_op((uint64_t*)signal, value, op, pe);";
    fn peerweave_nvshmem_atomic_fetch32(word: u64, pe: i32) -> u32 = "return nvshmem_uint32_atomic_fetch((uint32_t*)word, pe);";
    fn peerweave_nvshmem_atomic_set32(word: u64, value: u32, pe: i32) -> () = "nvshmem_uint32_atomic_set((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_swap32(word: u64, value: u32, pe: i32) -> u32 = "return nvshmem_uint32_atomic_swap((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_compare_swap32(word: u64, current: u32, value: u32, pe: i32) -> u32 = "return nvshmem_uint32_atomic_compare_swap((uint32_t*)word, current, value, pe);";
    fn peerweave_nvshmem_atomic_fetch_add32(word: u64, value: u32, pe: i32) -> u32 = "return nvshmem_uint32_atomic_fetch_add((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_add32(word: u64, value: u32, pe: i32) -> () = "nvshmem_uint32_atomic_add((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_fetch_and32(word: u64, value: u32, pe: i32) -> u32 = "return nvshmem_uint32_atomic_fetch_and((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_and32(word: u64, value: u32, pe: i32) -> () = "nvshmem_uint32_atomic_and((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_fetch_or32(word: u64, value: u32, pe: i32) -> u32 = "return nvshmem_uint32_atomic_fetch_or((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_or32(word: u64, value: u32, pe: i32) -> () = "nvshmem_uint32_atomic_or((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_fetch_xor32(word: u64, value: u32, pe: i32) -> u32 = "return nvshmem_uint32_atomic_fetch_xor((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_xor32(word: u64, value: u32, pe: i32) -> () = "nvshmem_uint32_atomic_xor((uint32_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_fetch64(word: u64, pe: i32) -> u64 = "return nvshmem_uint64_atomic_fetch((uint64_t*)word, pe);";
    fn peerweave_nvshmem_atomic_set64(word: u64, value: u64, pe: i32) -> () = "nvshmem_uint64_atomic_set((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_swap64(word: u64, value: u64, pe: i32) -> u64 = "return nvshmem_uint64_atomic_swap((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_compare_swap64(word: u64, current: u64, value: u64, pe: i32) -> u64 = "return nvshmem_uint64_atomic_compare_swap((uint64_t*)word, current, value, pe);";
    fn peerweave_nvshmem_atomic_fetch_add64(word: u64, value: u64, pe: i32) -> u64 = "return nvshmem_uint64_atomic_fetch_add((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_add64(word: u64, value: u64, pe: i32) -> () = "nvshmem_uint64_atomic_add((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_fetch_and64(word: u64, value: u64, pe: i32) -> u64 = "return nvshmem_uint64_atomic_fetch_and((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_and64(word: u64, value: u64, pe: i32) -> () = "nvshmem_uint64_atomic_and((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_fetch_or64(word: u64, value: u64, pe: i32) -> u64 = "return nvshmem_uint64_atomic_fetch_or((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_or64(word: u64, value: u64, pe: i32) -> () = "nvshmem_uint64_atomic_or((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_fetch_xor64(word: u64, value: u64, pe: i32) -> u64 = "return nvshmem_uint64_atomic_fetch_xor((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_atomic_xor64(word: u64, value: u64, pe: i32) -> () = "nvshmem_uint64_atomic_xor((uint64_t*)word, value, pe);";
    fn peerweave_nvshmem_fence() -> () = "nvshmem_fence();";
    fn peerweave_nvshmem_quiet() -> () = "nvshmem_quiet();";
}
