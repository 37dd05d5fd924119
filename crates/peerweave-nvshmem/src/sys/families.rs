//! NVSHMEM's typed functions: 1,344 functions in 71 families. A family has one function for each C
//! type that it supports.
//!
//! The names of the functions in a family differ only in the part that states the type. Their
//! signatures differ only in the types to which pointers point, so one Rust function type
//! represents all of them. Functions that take or return an element by value are an exception: for
//! these, the caller converts an address ([`ByValue`]) to the function's type.
//!
//! Invariant: [`Families`] has one method for each family. The function type that this method
//! returns is the type of the family's functions.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use peerweave_driver::cudarc::driver::sys::CUstream;
use peerweave_dylib::{Library, MissingSymbol, Symbol, SymbolInfo};

use super::types::nvshmem_team_t;

/// A C type for which NVSHMEM has typed functions. The name of each variant, in lower case, occurs
/// in the names of these functions, such as `float` in `nvshmem_float_put`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant has NVSHMEM's name for the C type")]
#[repr(usize)]
pub enum CType {
    Bfloat16,
    Half,
    Float,
    Double,
    Char,
    Short,
    Schar,
    Int,
    Long,
    Longlong,
    Uchar,
    Ushort,
    Uint,
    Ulong,
    Ulonglong,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Size,
    Ptrdiff,
}

const N_TYPES: usize = 25;

/// The set of C types for which a family has functions: one bit for each [`CType`].
type Types = u32;

const fn types(list: &[CType]) -> Types {
    let (mut bits, mut index) = (0, 0);
    while index < list.len() {
        bits |= 1 << list[index] as usize;
        index += 1;
    }
    bits
}

const RMA: Types = (1 << N_TYPES) - 1;
const REDUCE: Types = RMA & !types(&[CType::Ptrdiff]);
const BITWISE: Types = {
    use CType::*;
    types(&[Uchar, Ushort, Uint, Ulong, Ulonglong, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64, Size])
};
const WAIT: Types = {
    use CType::*;
    types(&[Short, Int, Long, Longlong, Ushort, Uint, Ulong, Ulonglong, Int32, Int64, Uint32, Uint64, Size, Ptrdiff])
};
const AMO_BITWISE: Types = {
    use CType::*;
    types(&[Uint, Ulong, Ulonglong, Int32, Uint32, Int64, Uint64])
};
const AMO: Types = AMO_BITWISE | types(&[CType::Int, CType::Long, CType::Longlong, CType::Size, CType::Ptrdiff]);
const AMO_EXTENDED: Types = AMO | AMO_FLOAT & !types(&[CType::Half]);
const AMO_FLOAT: Types = types(&[CType::Half, CType::Float, CType::Double]);

/// The functions of one family: one function for each C type that the family supports. Each
/// function is resolved at its first use.
#[derive(Debug)]
pub struct Family {
    /// Name of the function for each type; empty if the family lacks the type.
    names: [&'static CStr; N_TYPES],
    symbols: [Symbol; N_TYPES],
    since: &'static str,
}

impl Family {
    const fn new(all: [&'static CStr; N_TYPES], types: Types, since: &'static str) -> Self {
        let mut names = all;
        let mut index = 0;
        while index < N_TYPES {
            if types & (1 << index) == 0 {
                names[index] = c"";
            }
            index += 1;
        }
        Self { names, symbols: [const { Symbol::unknown() }; N_TYPES], since }
    }

    /// Returns the address of the family's function for the C type `kind`.
    ///
    /// # Errors
    /// `MissingSymbol` if the library lacks the function, or if the family has no function for the
    /// type. In the second case, the name in the error is empty.
    #[inline]
    pub fn address(&self, library: &Library, kind: CType) -> Result<NonNull<c_void>, MissingSymbol> {
        self.symbols[kind as usize].get(library, self.names[kind as usize], self.since)
    }

    fn symbols(&self) -> impl Iterator<Item = SymbolInfo> {
        let named = self.names.iter().filter(|name| !name.is_empty());
        named.map(|name| SymbolInfo::new(name.to_str().expect("names of functions are ASCII"), self.since))
    }
}

macro_rules! names {
    ($prefix:literal, $suffix:literal) => {
        names!($prefix, $suffix, "bfloat16" "half" "float" "double" "char" "short" "schar" "int" "long" "longlong" "uchar" "ushort" "uint" "ulong"
            "ulonglong" "int8" "int16" "int32" "int64" "uint8" "uint16" "uint32" "uint64" "size" "ptrdiff")
    };
    ($prefix:literal, $suffix:literal, $($kind:literal)*) => {
        [$(match CStr::from_bytes_with_nul(concat!($prefix, $kind, $suffix, "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }),*]
    };
}

macro_rules! families {
    ($($since:literal $types:ident $prefix:literal TYPE $suffix:literal $name:ident: $Function:ty;)*) => {
        /// All typed functions of one NVSHMEM library, grouped by family.
        #[derive(Debug)]
        pub struct Families {
            library: Library,
            $(
                #[doc = concat!("The functions `", $prefix, "TYPE", $suffix, "`, one for each C type.")]
                pub $name: Family,
            )*
        }

        /// Returns the declared typed functions of all families.
        pub fn typed_symbols() -> Vec<SymbolInfo> {
            let mut all = Vec::new();
            $(all.extend(Family::new(names!($prefix, $suffix), $types, $since).symbols());)*
            all
        }

        impl Families {
            /// Returns the typed functions of `library`. Each function is resolved at its first
            /// use.
            pub fn new(library: Library) -> Self {
                Self { library, $($name: Family::new(names!($prefix, $suffix), $types, $since),)* }
            }

            /// Returns the declared typed functions that the library lacks.
            pub fn missing(&self) -> Vec<SymbolInfo> {
                let lacks = |symbol: &SymbolInfo| {
                    let name = std::ffi::CString::new(symbol.name).expect("function names contain no zero byte");
                    self.library.symbol(&name).is_none()
                };
                typed_symbols().into_iter().filter(lacks).collect()
            }

            $(
                #[doc = concat!("Returns the function `", $prefix, "TYPE", $suffix, "` for the type `kind`.")]
                ///
                /// # Errors
                /// Returns the same errors as [`Family::address`].
                #[inline]
                #[allow(clippy::useless_transmute, reason = "for `ByValue`, both types of the transmute are the same")]
                pub fn $name(&self, kind: CType) -> Result<$Function, MissingSymbol> {
                    let address = self.$name.address(&self.library, kind)?;
                    // SAFETY: the address is that of the function with this name. Its arguments and
                    // result are as declared, up to the types to which pointers point.
                    Ok(unsafe { std::mem::transmute::<NonNull<c_void>, $Function>(address) })
                }
            )*
        }
    };
}

/// A function with the arguments: target, source, count, PE.
pub type Transfer = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int);
/// A function with the arguments: target, source, count, PE, stream.
pub type TransferOnStream = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, CUstream);
/// A function with the arguments: target, source, stride of the target, stride of the source,
/// count, PE.
pub type Strided = unsafe extern "C" fn(*mut c_void, *const c_void, isize, isize, usize, c_int);
/// A function with the arguments of [`Strided`], followed by a stream.
pub type StridedOnStream = unsafe extern "C" fn(*mut c_void, *const c_void, isize, isize, usize, c_int, CUstream);
/// A function with the arguments: target, source, count, signal word, signal value, signal
/// operation, PE, stream.
pub type PutSignalOnStream = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut u64, u64, c_int, c_int, CUstream);
/// A function with the arguments: team, target, source, count.
pub type Collective = unsafe extern "C" fn(nvshmem_team_t, *mut c_void, *const c_void, usize) -> c_int;
/// A function with the arguments of [`Collective`], followed by a stream.
pub type CollectiveOnStream = unsafe extern "C" fn(nvshmem_team_t, *mut c_void, *const c_void, usize, CUstream) -> c_int;
/// A function with the arguments: team, target, source, count, root.
pub type Broadcast = unsafe extern "C" fn(nvshmem_team_t, *mut c_void, *const c_void, usize, c_int) -> c_int;
/// A function with the arguments of [`Broadcast`], followed by a stream.
pub type BroadcastOnStream = unsafe extern "C" fn(nvshmem_team_t, *mut c_void, *const c_void, usize, c_int, CUstream) -> c_int;
/// A function with the arguments: words, number of words, mask, comparison, pointer to the values,
/// stream.
pub type WaitVectorOnStream = unsafe extern "C" fn(*mut c_void, usize, *const c_int, c_int, *mut c_void, CUstream);
/// A function with two arguments: the address of the target, and the number of the PE.
pub type Increment = unsafe extern "C" fn(*mut c_void, c_int);
/// Address of a function that takes or returns an element by value. The function's type depends on
/// the element type, so the caller converts the address to a function pointer.
pub type ByValue = NonNull<c_void>;

families! {
    "3.3.24" RMA "nvshmem_" TYPE "_put" put: Transfer;
    "3.3.24" RMA "nvshmem_" TYPE "_put_nbi" put_nbi: Transfer;
    "3.3.24" RMA "nvshmem_" TYPE "_get" get: Transfer;
    "3.3.24" RMA "nvshmem_" TYPE "_get_nbi" get_nbi: Transfer;
    "3.3.24" RMA "nvshmem_" TYPE "_iput" iput: Strided;
    "3.3.24" RMA "nvshmem_" TYPE "_iget" iget: Strided;
    "3.3.24" RMA "nvshmem_" TYPE "_p" p: ByValue;
    "3.3.24" RMA "nvshmem_" TYPE "_g" g: ByValue;
    "3.3.24" RMA "nvshmemx_" TYPE "_put_on_stream" put_on_stream: TransferOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_put_nbi_on_stream" put_nbi_on_stream: TransferOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_get_on_stream" get_on_stream: TransferOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_get_nbi_on_stream" get_nbi_on_stream: TransferOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_iput_on_stream" iput_on_stream: StridedOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_iget_on_stream" iget_on_stream: StridedOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_p_on_stream" p_on_stream: ByValue;
    "3.3.24" RMA "nvshmemx_" TYPE "_g_on_stream" g_on_stream: ByValue;
    "3.3.24" RMA "nvshmemx_" TYPE "_put_signal_on_stream" put_signal_on_stream: PutSignalOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_put_signal_nbi_on_stream" put_signal_nbi_on_stream: PutSignalOnStream;

    "3.3.24" RMA "nvshmem_" TYPE "_alltoall" alltoall: Collective;
    "3.3.24" RMA "nvshmem_" TYPE "_fcollect" fcollect: Collective;
    "3.3.24" RMA "nvshmem_" TYPE "_broadcast" broadcast: Broadcast;
    "3.3.24" RMA "nvshmemx_" TYPE "_alltoall_on_stream" alltoall_on_stream: CollectiveOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_fcollect_on_stream" fcollect_on_stream: CollectiveOnStream;
    "3.3.24" RMA "nvshmemx_" TYPE "_broadcast_on_stream" broadcast_on_stream: BroadcastOnStream;

    "3.3.24" REDUCE "nvshmem_" TYPE "_sum_reduce" sum_reduce: Collective;
    "3.3.24" REDUCE "nvshmem_" TYPE "_prod_reduce" prod_reduce: Collective;
    "3.3.24" REDUCE "nvshmem_" TYPE "_min_reduce" min_reduce: Collective;
    "3.3.24" REDUCE "nvshmem_" TYPE "_max_reduce" max_reduce: Collective;
    "3.3.24" BITWISE "nvshmem_" TYPE "_and_reduce" and_reduce: Collective;
    "3.3.24" BITWISE "nvshmem_" TYPE "_or_reduce" or_reduce: Collective;
    "3.3.24" BITWISE "nvshmem_" TYPE "_xor_reduce" xor_reduce: Collective;
    "3.3.24" REDUCE "nvshmem_" TYPE "_sum_reducescatter" sum_reducescatter: Collective;
    "3.3.24" REDUCE "nvshmem_" TYPE "_prod_reducescatter" prod_reducescatter: Collective;
    "3.3.24" REDUCE "nvshmem_" TYPE "_min_reducescatter" min_reducescatter: Collective;
    "3.3.24" REDUCE "nvshmem_" TYPE "_max_reducescatter" max_reducescatter: Collective;
    "3.3.24" BITWISE "nvshmem_" TYPE "_and_reducescatter" and_reducescatter: Collective;
    "3.3.24" BITWISE "nvshmem_" TYPE "_or_reducescatter" or_reducescatter: Collective;
    "3.3.24" BITWISE "nvshmem_" TYPE "_xor_reducescatter" xor_reducescatter: Collective;

    "3.3.24" REDUCE "nvshmemx_" TYPE "_sum_reduce_on_stream" sum_reduce_on_stream: CollectiveOnStream;
    "3.3.24" REDUCE "nvshmemx_" TYPE "_prod_reduce_on_stream" prod_reduce_on_stream: CollectiveOnStream;
    "3.3.24" REDUCE "nvshmemx_" TYPE "_min_reduce_on_stream" min_reduce_on_stream: CollectiveOnStream;
    "3.3.24" REDUCE "nvshmemx_" TYPE "_max_reduce_on_stream" max_reduce_on_stream: CollectiveOnStream;
    "3.3.24" BITWISE "nvshmemx_" TYPE "_and_reduce_on_stream" and_reduce_on_stream: CollectiveOnStream;
    "3.3.24" BITWISE "nvshmemx_" TYPE "_or_reduce_on_stream" or_reduce_on_stream: CollectiveOnStream;
    "3.3.24" BITWISE "nvshmemx_" TYPE "_xor_reduce_on_stream" xor_reduce_on_stream: CollectiveOnStream;
    "3.3.24" REDUCE "nvshmemx_" TYPE "_sum_reducescatter_on_stream" sum_reducescatter_on_stream: CollectiveOnStream;
    "3.3.24" REDUCE "nvshmemx_" TYPE "_prod_reducescatter_on_stream" prod_reducescatter_on_stream: CollectiveOnStream;
    "3.3.24" REDUCE "nvshmemx_" TYPE "_min_reducescatter_on_stream" min_reducescatter_on_stream: CollectiveOnStream;
    "3.3.24" REDUCE "nvshmemx_" TYPE "_max_reducescatter_on_stream" max_reducescatter_on_stream: CollectiveOnStream;
    "3.3.24" BITWISE "nvshmemx_" TYPE "_and_reducescatter_on_stream" and_reducescatter_on_stream: CollectiveOnStream;
    "3.3.24" BITWISE "nvshmemx_" TYPE "_or_reducescatter_on_stream" or_reducescatter_on_stream: CollectiveOnStream;
    "3.3.24" BITWISE "nvshmemx_" TYPE "_xor_reducescatter_on_stream" xor_reducescatter_on_stream: CollectiveOnStream;

    "3.3.24" WAIT "nvshmemx_" TYPE "_wait_until_on_stream" wait_until_on_stream: ByValue;
    "3.3.24" WAIT "nvshmemx_" TYPE "_wait_until_all_on_stream" wait_until_all_on_stream: ByValue;
    "3.3.24" WAIT "nvshmemx_" TYPE "_wait_until_all_vector_on_stream" wait_until_all_vector_on_stream: WaitVectorOnStream;

    "3.3.24" AMO "nvshmem_" TYPE "_atomic_inc" atomic_inc: Increment;
    "3.3.24" AMO "nvshmem_" TYPE "_atomic_add" atomic_add: ByValue;
    "3.3.24" AMO_EXTENDED "nvshmem_" TYPE "_atomic_set" atomic_set: ByValue;
    "3.3.24" AMO_EXTENDED "nvshmem_" TYPE "_atomic_fetch" atomic_fetch: ByValue;
    "3.3.24" AMO_EXTENDED "nvshmem_" TYPE "_atomic_swap" atomic_swap: ByValue;
    "3.3.24" AMO "nvshmem_" TYPE "_atomic_compare_swap" atomic_compare_swap: ByValue;
    "3.3.24" AMO "nvshmem_" TYPE "_atomic_fetch_inc" atomic_fetch_inc: ByValue;
    "3.3.24" AMO "nvshmem_" TYPE "_atomic_fetch_add" atomic_fetch_add: ByValue;
    "3.3.24" AMO_BITWISE "nvshmem_" TYPE "_atomic_and" atomic_and: ByValue;
    "3.3.24" AMO_BITWISE "nvshmem_" TYPE "_atomic_or" atomic_or: ByValue;
    "3.3.24" AMO_BITWISE "nvshmem_" TYPE "_atomic_xor" atomic_xor: ByValue;
    "3.3.24" AMO_BITWISE "nvshmem_" TYPE "_atomic_fetch_and" atomic_fetch_and: ByValue;
    "3.3.24" AMO_BITWISE "nvshmem_" TYPE "_atomic_fetch_or" atomic_fetch_or: ByValue;
    "3.3.24" AMO_BITWISE "nvshmem_" TYPE "_atomic_fetch_xor" atomic_fetch_xor: ByValue;
    "3.8.0" AMO_FLOAT "nvshmemx_" TYPE "_atomic_add" atomic_add_float: ByValue;
    "3.8.0" AMO_FLOAT "nvshmemx_" TYPE "_atomic_fetch_add" atomic_fetch_add_float: ByValue;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Families {
        use peerweave_dylib::{Search, Visibility};
        // Any library suffices, because no function is called.
        // SAFETY: a file of this name is the system's C library.
        const SEARCH: Search = unsafe { Search::without_variable("libc", &["libc.so.6"]) };
        Families::new(SEARCH.open(Visibility::Local).expect("the C library is loaded"))
    }

    #[test]
    fn type_specific_functions_have_1344_distinct_names() {
        let names = typed_symbols();
        assert_eq!(names.len(), 1344);
        let distinct: std::collections::BTreeSet<_> = names.iter().map(|symbol| symbol.name).collect();
        assert_eq!(distinct.len(), names.len());
        for name in [
            "nvshmem_bfloat16_put",
            "nvshmemx_size_xor_reduce_on_stream",
            "nvshmem_ptrdiff_atomic_swap",
            "nvshmemx_half_atomic_add",
        ] {
            assert!(distinct.contains(name), "{name}");
        }
    }

    #[test]
    fn missing_function_for_a_c_type_is_an_error() {
        let families = families();
        let missing = families.and_reduce_on_stream(CType::Float).expect_err("bitwise operations exist only for integers");
        assert_eq!(missing.name, "");
        let missing = families.put(CType::Float).expect_err("libc lacks the function");
        assert_eq!(missing.name, "nvshmem_float_put");
    }
}
