//! Run-time parameters of NCCL (requires NCCL 2.30.3). Also has a function that makes NCCL read the
//! environment variables for its log again.
//!
//! This module only reads parameters. A program can set parameters only by environment variables,
//! before NCCL is first used.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};

use crate::sys::{ncclParamHandle_t, ncclResult_t};
use crate::{MisuseKind, Nccl, NcclError, Version};

impl Nccl {
    /// Returns all parameters that NCCL publishes, with their values as text. If the environment
    /// variable `NCCL_PARAM_DUMP_ALL` is `true`, also returns unpublished parameters. Requires NCCL
    /// 2.30.3.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before NCCL 2.30.3; [`NcclError::Nccl`]; [`NcclError::Forked`].
    pub fn params(self) -> Result<BTreeMap<String, String>, NcclError> {
        let mut params = BTreeMap::new();
        for key in self.param_keys()? {
            let value = self.param_value(&key)?;
            params.insert(key.to_string_lossy().into_owned(), value);
        }
        Ok(params)
    }

    /// Returns the value of a parameter as text, or `None` if NCCL has no parameter with this name.
    /// Requires NCCL 2.30.3.
    ///
    /// # Errors
    /// As for [`params`](Self::params); [`NcclError::Misuse`] for a name with a zero byte.
    pub fn param(self, name: &str) -> Result<Option<String>, NcclError> {
        const CALL: &str = "Nccl::param";
        let Ok(key) = CString::new(name) else {
            return Err(NcclError::misuse(CALL, MisuseKind::Text { what: "the name", why: "the name contains a zero byte" }));
        };
        match self.param_value(&key) {
            Ok(value) => Ok(Some(value)),
            Err(NcclError::Nccl(failure)) if failure.code.get() == ncclResult_t::ncclInvalidArgument.0 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the value of a parameter, or `None` if NCCL has no parameter with this name. `T` is
    /// the type in which NCCL stores the value: an integer of 8 to 64 bits, or `bool`. A `String`
    /// can be read from a parameter of any type. Requires NCCL 2.30.3.
    ///
    /// ```no_run
    /// use peerweave_nccl::Nccl;
    ///
    /// let sets_names: Option<bool> = Nccl::load()?.param_as("NCCL_SET_THREAD_NAME")?;
    /// # Ok::<(), peerweave_nccl::NcclError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`param`](Self::param). [`NcclError::Nccl`] with
    /// [`ResultCode::INVALID_ARGUMENT`](crate::ResultCode::INVALID_ARGUMENT) for an integer type
    /// whose width or signedness differs from the parameter's type. [`NcclError::Misuse`] for
    /// `bool` if the value is neither true nor false.
    pub fn param_as<T: ParamValue>(self, name: &str) -> Result<Option<T>, NcclError> {
        const CALL: &str = "Nccl::param_as";
        let Ok(key) = CString::new(name) else {
            return Err(NcclError::misuse(CALL, MisuseKind::Text { what: "the name", why: "the name contains a zero byte" }));
        };
        let mut handle: ncclParamHandle_t = std::ptr::null_mut();
        // SAFETY: the key ends in a zero byte. NCCL stores one handle, which is valid as long as
        // NCCL is loaded.
        match self.code("ncclParamBind", |api| unsafe { api.ncclParamBind(&raw mut handle, key.as_ptr()) })? {
            ncclResult_t::ncclSuccess => T::read(self, handle).map(Some),
            ncclResult_t::ncclInvalidArgument => Ok(None),
            code => Err(self.failure("ncclParamBind", code, None)),
        }
    }

    /// Makes NCCL print the parameters that [`params`](Self::params) returns, with their values, to
    /// standard output. Requires NCCL 2.30.3.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before NCCL 2.30.3; [`NcclError::Forked`].
    pub fn dump_params(self) -> Result<(), NcclError> {
        // SAFETY: the function takes no arguments and only prints.
        self.code("ncclParamDumpAll", |api| unsafe { api.ncclParamDumpAll() })
    }

    /// Makes NCCL read the environment variables for its log again, before NCCL logs the next
    /// message. These variables are `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS` and `NCCL_DEBUG_FILE`.
    /// Requires NCCL 2.24.3.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before NCCL 2.24.3; [`NcclError::Forked`].
    pub fn reset_debug(self) -> Result<(), NcclError> {
        // NCCL exports `ncclResetDebugInitInternal` since 2.28.3, and deprecates
        // `ncclResetDebugInit`.
        if self.has("ncclResetDebugInitInternal") {
            // SAFETY: the function takes no arguments, and locks the state that it changes.
            return self.code("ncclResetDebugInitInternal", |api| unsafe { api.ncclResetDebugInitInternal() });
        }
        self.needs("ncclResetDebugInit", Version::new(2, 24, 3))?;
        // SAFETY: as above.
        self.code("ncclResetDebugInit", |api| unsafe { api.ncclResetDebugInit() })
    }

    fn param_keys(self) -> Result<Vec<CString>, NcclError> {
        let mut table: *mut *const c_char = std::ptr::null_mut();
        let mut len: c_int = 0;
        // SAFETY: the function stores a pointer and a number. The table is valid until this thread
        // queries again.
        self.call("ncclParamGetAllParameterKeys", |api| unsafe {
            api.ncclParamGetAllParameterKeys(&raw mut table, &raw mut len)
        })?;
        let len = usize::try_from(len).unwrap_or(0);
        if table.is_null() || len == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: NCCL reports that the table has that many entries.
        let keys = unsafe { std::slice::from_raw_parts(table, len) };
        // SAFETY: each entry is null or text that is valid as long as the table.
        Ok(keys.iter().filter(|key| !key.is_null()).map(|key| unsafe { CStr::from_ptr(*key) }.to_owned()).collect())
    }

    fn param_value(self, key: &CStr) -> Result<String, NcclError> {
        let mut value: *const c_char = std::ptr::null();
        let mut len: c_int = 0;
        // SAFETY: the key ends in a zero byte. NCCL stores a pointer and a number. The text is
        // valid until this thread queries again.
        self.call("ncclParamGetParameter", |api| unsafe {
            api.ncclParamGetParameter(key.as_ptr(), &raw mut value, &raw mut len)
        })?;
        if value.is_null() {
            return Ok(String::new());
        }
        // SAFETY: as above.
        Ok(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }
}

/// A type in which [`Nccl::param_as`] can return a value: `i8` to `i64`, `u8` to `u64`, `bool`, and
/// `String`.
///
/// The trait is sealed, because NCCL has one function for each supported type.
pub trait ParamValue: sealed::Read {}

mod sealed {
    use crate::sys::ncclParamHandle_t;
    use crate::{Nccl, NcclError};

    /// A type that can be read from a parameter of NCCL.
    pub trait Read: Sized {
        /// Reads the parameter whose handle `ncclParamBind` returned.
        fn read(nccl: Nccl, handle: ncclParamHandle_t) -> Result<Self, NcclError>;
    }
}

macro_rules! integers {
    ($($Integer:ty => $function:ident),*) => {$(
        impl sealed::Read for $Integer {
            fn read(nccl: Nccl, handle: ncclParamHandle_t) -> Result<Self, NcclError> {
                let mut value: Self = 0;
                // SAFETY: the handle came from `ncclParamBind`. NCCL stores one integer of this
                // width.
                nccl.call(stringify!($function), |api| unsafe { api.$function(handle, &raw mut value) })?;
                Ok(value)
            }
        }

        impl ParamValue for $Integer {}
    )*};
}

integers! {
    i8 => ncclParamGetI8, i16 => ncclParamGetI16, i32 => ncclParamGetI32, i64 => ncclParamGetI64,
    u8 => ncclParamGetU8, u16 => ncclParamGetU16, u32 => ncclParamGetU32, u64 => ncclParamGetU64
}

impl sealed::Read for String {
    fn read(nccl: Nccl, handle: ncclParamHandle_t) -> Result<Self, NcclError> {
        let mut value: *const c_char = std::ptr::null();
        // SAFETY: the handle came from `ncclParamBind`. NCCL stores a pointer to text that is valid
        // until this thread queries again.
        nccl.call("ncclParamGetStr", |api| unsafe { api.ncclParamGetStr(handle, &raw mut value) })?;
        if value.is_null() {
            return Ok(Self::new());
        }
        // SAFETY: as above.
        Ok(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }
}

impl ParamValue for String {}

impl sealed::Read for bool {
    /// Reads the parameter as text, because NCCL has no function for Boolean values.
    fn read(nccl: Nccl, handle: ncclParamHandle_t) -> Result<Self, NcclError> {
        match String::read(nccl, handle)?.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => {
                let kind = MisuseKind::Text {
                    what: "the parameter",
                    why: "the value is neither true nor false; read the parameter as a String",
                };
                Err(NcclError::misuse("Nccl::param_as", kind))
            }
        }
    }
}

impl ParamValue for bool {}
