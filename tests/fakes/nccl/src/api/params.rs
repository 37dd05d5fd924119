//! NCCL's runtime parameters: the published ones with their defaults, and some additional ones of
//! this library.
//!
//! Parameters have no effect here. Invariant: a value is read from the environment once, because
//! NCCL caches it.
//!
//! `NCCL_FAKE_I8`, `_I16` ... `_U64` are integer parameters that NCCL does not have, so that the
//! typed reads can be tested. They are 0 unless the environment sets them, and are not listed.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::LazyLock;

use crate::abi::{Out, Result, invalid, not_null};
use crate::call::exports;

/// Type of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Text,
    Bool,
    Integer(u8, bool),
}

struct Param {
    key: &'static CStr,
    kind: Type,
    text: CString,
    /// Result of a raw read.
    raw: Vec<u8>,
}

/// The parameters: key, type, default value, and whether NCCL documents the parameter.
const KNOWN: &[(&CStr, Type, &str, bool)] = &[
    (c"NCCL_DEBUG_FILE", Type::Text, "", true),
    (c"NCCL_DEBUG_TIMESTAMP_FORMAT", Type::Text, "[%F %T] ", true),
    (c"NCCL_DEBUG_TIMESTAMP_LEVELS", Type::Text, "WARN,ATTN", true),
    (c"NCCL_SET_THREAD_NAME", Type::Bool, "FALSE", true),
    (c"NCCL_DEBUG_SUBSYS", Type::Text, "INIT,ENV,BOOTSTRAP", true),
    (c"NCCL_DEBUG_LEVELS", Type::Text, "NONE", true),
    (c"NCCL_DEBUG", Type::Text, "<unknown>", true),
    (c"NCCL_PARAM_DUMP_ALL", Type::Bool, "FALSE", false),
    (c"NCCL_NO_CACHE", Type::Text, "", false),
    (c"NCCL_WARN_ENABLE_DEBUG_INFO", Type::Bool, "FALSE", false),
    (c"NCCL_FAKE_I8", Type::Integer(1, true), "0", false),
    (c"NCCL_FAKE_I16", Type::Integer(2, true), "0", false),
    (c"NCCL_FAKE_I32", Type::Integer(4, true), "0", false),
    (c"NCCL_FAKE_I64", Type::Integer(8, true), "0", false),
    (c"NCCL_FAKE_U8", Type::Integer(1, false), "0", false),
    (c"NCCL_FAKE_U16", Type::Integer(2, false), "0", false),
    (c"NCCL_FAKE_U32", Type::Integer(4, false), "0", false),
    (c"NCCL_FAKE_U64", Type::Integer(8, false), "0", false),
];

static PARAMS: LazyLock<HashMap<&'static CStr, Param>> = LazyLock::new(|| {
    let one = |known: &(&'static CStr, Type, &str, bool)| {
        let set = std::env::var(known.0.to_string_lossy().as_ref()).ok();
        let mut text = set.unwrap_or_else(|| known.2.to_owned());
        let raw = match known.1 {
            Type::Text => [text.as_bytes(), &[0]].concat(),
            Type::Bool => {
                let on = matches!(text.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes");
                text = if on { "TRUE".into() } else { "FALSE".into() };
                vec![u8::from(on)]
            }
            Type::Integer(bytes, _) => {
                let value: i128 = text.trim().parse().unwrap_or(0);
                value.to_le_bytes()[..usize::from(bytes)].to_vec()
            }
        };
        (known.0, Param { key: known.0, kind: known.1, text: CString::new(text).unwrap_or_default(), raw })
    };
    KNOWN.iter().map(one).collect()
});

thread_local! {
    static TABLE: RefCell<Vec<*const c_char>> = const { RefCell::new(Vec::new()) };
}

fn find(key: *const c_char) -> Result<&'static Param> {
    not_null(key, "key")?;
    // SAFETY: the program promises a C string.
    let key = unsafe { CStr::from_ptr(key) };
    match PARAMS.get(key) {
        Some(param) => Ok(param),
        None => invalid(format!("parameter {} does not exist", key.to_string_lossy())),
    }
}

fn of(handle: *const c_void) -> Result<&'static Param> {
    not_null(handle, "handle")?;
    match PARAMS.values().find(|param| std::ptr::from_ref(*param).cast() == handle) {
        Some(param) => Ok(param),
        None => invalid("the handle is not that of a parameter"),
    }
}

fn read_into(handle: *const c_void, out: *mut c_void, kind: Type) -> Result {
    let param = of(handle)?;
    not_null(out, "out")?;
    if param.kind != kind {
        return invalid(format!("parameter {} has another type than the call", param.key.to_string_lossy()));
    }
    // SAFETY: the program promises a value of the function's type there, which is as long as the
    // parameter.
    unsafe { std::ptr::copy_nonoverlapping(param.raw.as_ptr(), out.cast(), param.raw.len()) };
    Ok(())
}

macro_rules! getters {
    ($($name:ident $bytes:literal $signed:literal;)*) => {
        exports! {$(
            /// Reads a parameter that must have exactly this type.
            fn $name(h: *const c_void, out: *mut c_void) {
                read_into(h, out, Type::Integer($bytes, $signed))
            }
        )*}
    };
}

getters! {
    ncclParamGetI8 1 true;
    ncclParamGetI16 2 true;
    ncclParamGetI32 4 true;
    ncclParamGetI64 8 true;
    ncclParamGetU8 1 false;
    ncclParamGetU16 2 false;
    ncclParamGetU32 4 false;
    ncclParamGetU64 8 false;
}

fn shown() -> impl Iterator<Item = &'static Param> {
    let all = PARAMS[c"NCCL_PARAM_DUMP_ALL"].raw == [1];
    let listed = move |known: &&(&'static CStr, Type, &str, bool)| known.3 || (all && !matches!(known.1, Type::Integer(..)));
    KNOWN.iter().filter(listed).map(|known| &PARAMS[known.0])
}

exports! {
    /// Finds a parameter.
    fn ncclParamBind(out: *mut *const c_void, key: *const c_char) {
        not_null(out, "out")?;
        Out(out).set(std::ptr::from_ref(find(key)?).cast());
        Ok(())
    }

    /// Reads a parameter as text.
    fn ncclParamGetStr(h: *const c_void, out: *mut *const c_char) {
        let param = of(h)?;
        not_null(out, "out")?;
        Out(out).set(param.text.as_ptr());
        Ok(())
    }

    /// Reads a parameter's bytes.
    fn ncclParamGet(h: *const c_void, out: *mut c_void, max_len: c_int, len: *mut c_int) {
        let param = of(h)?;
        not_null(out, "out")?;
        if usize::try_from(max_len).is_ok_and(|max| max < param.raw.len()) || max_len < 0 {
            return invalid(format!("the buffer for parameter {} requires {} bytes", param.key.to_string_lossy(), param.raw.len()));
        }
        // SAFETY: the program promises `max_len` bytes there.
        unsafe { std::ptr::copy_nonoverlapping(param.raw.as_ptr(), out.cast(), param.raw.len()) };
        if !len.is_null() {
            Out(len).set(param.raw.len() as c_int);
        }
        Ok(())
    }

    /// Reads a parameter as text by its key.
    fn ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, value_len: *mut c_int) {
        let param = find(key)?;
        not_null(value, "value")?;
        Out(value).set(param.text.as_ptr());
        if !value_len.is_null() {
            Out(value_len).set(param.text.as_bytes().len() as c_int);
        }
        Ok(())
    }

    /// Returns the keys that NCCL documents; all keys with `NCCL_PARAM_DUMP_ALL`.
    fn ncclParamGetAllParameterKeys(table: *mut *const *const c_char, table_len: *mut c_int) {
        not_null(table, "table")?;
        not_null(table_len, "tableLen")?;
        TABLE.with_borrow_mut(|keys| {
            *keys = shown().map(|param| param.key.as_ptr()).collect();
            Out(table).set(keys.as_ptr());
            Out(table_len).set(keys.len() as c_int);
        });
        Ok(())
    }
}

/// Prints the parameters.
#[unsafe(no_mangle)]
extern "C" fn ncclParamDumpAll() {
    for param in shown() {
        eprintln!("{}={}", param.key.to_string_lossy(), param.text.to_string_lossy());
    }
}
