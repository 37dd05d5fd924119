//! Implements `#[kernel]`.
//!
//! For the host, the macro generates the function, and a type with the constant `KERNEL`. For the
//! GPU, the macro generates the function and an entry point. `peerweave-build` runs a second Cargo,
//! which compiles the crate for the GPU. In that build, the crate's own kernels get entry points,
//! and the kernels of its dependencies do not.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use syn::{Error, FnArg, ItemFn, Result, ReturnType, Safety, Type, parse2};

/// Environment variable that contains the name of a package. Only the kernels of this package get
/// entry points. `peerweave-build` sets the variable for the Cargo process that compiles the
/// package for the GPU.
const PACKAGE: &str = "PEERWEAVE_PTX_PACKAGE";

/// Name of the file with the crate's PTX. `peerweave-build` writes this file to `OUT_DIR`. Its
/// content is a Rust expression of type `PtxImage`.
const EMBEDDED: &str = "peerweave_ptx.rs";

/// Whether the macro has already generated a call of `kernel_preamble!` in this compilation. The
/// PTX of a crate must contain the preamble exactly once.
static PREAMBLE: AtomicBool = AtomicBool::new(false);

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = parse2(item)?;
    let mut signature = Signature::read(&function)?;
    signature.options = Options::read(attribute)?;
    let inline = function.attrs.iter().all(|attribute| !attribute.path().is_ident("inline"));
    let inline = inline.then(|| quote!(#[inline]));
    let (host, entry) = (signature.host(&function), signature.entry(&function));
    Ok(quote! {
        #inline
        #function
        #host
        #entry
    })
}

/// The signature of a kernel, and the arguments of its `#[kernel]` attribute.
struct Signature {
    has_context: bool,
    types: Vec<Type>,
    options: Options,
}

/// The arguments of `#[kernel(max_threads = N, unchecked, ptx = PATH)]`.
#[derive(Default)]
struct Options {
    /// Maximum number of threads per block; `None` if the attribute gives no maximum.
    max_threads: Option<u32>,
    /// Whether the kernel's entry point skips the check of the context's version.
    is_unchecked: bool,
    /// Path of the static that contains the crate's PTX. `None` means that the kernel embeds the
    /// PTX itself.
    ptx: Option<syn::Path>,
}

impl Options {
    fn read(attribute: TokenStream) -> Result<Self> {
        const EXPECTED: &str = "#[kernel]: unknown argument, expected `max_threads = N`, `unchecked` or `ptx = PATH`";
        let mut options = Self::default();
        let all = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
        let metas = syn::parse::Parser::parse2(all, attribute.clone()).map_err(|_| Error::new_spanned(&attribute, EXPECTED))?;
        for meta in metas {
            match &meta {
                syn::Meta::Path(path) if path.is_ident("unchecked") => options.is_unchecked = true,
                syn::Meta::NameValue(pair) if pair.path.is_ident("max_threads") => {
                    options.max_threads = Some(max_threads(&pair.value)?);
                }
                syn::Meta::NameValue(pair) if pair.path.is_ident("ptx") => options.ptx = Some(path(&pair.value)?),
                other => return Err(Error::new_spanned(other, EXPECTED)),
            }
        }
        Ok(options)
    }
}

fn max_threads(value: &syn::Expr) -> Result<u32> {
    let number = match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => number.base10_parse::<u32>().ok(),
        _ => None,
    };
    match number {
        Some(number @ 1..=1024) => Ok(number),
        _ => Err(Error::new_spanned(value, "#[kernel]: max_threads is out of range, expected 1 to 1024")),
    }
}

fn path(value: &syn::Expr) -> Result<syn::Path> {
    match value {
        syn::Expr::Path(syn::ExprPath { path, qself: None, .. }) => Ok(path.clone()),
        _ => Err(Error::new_spanned(
            value,
            "#[kernel]: the value of ptx is not a path, expected the path of a static with the crate's PTX",
        )),
    }
}

impl Signature {
    fn read(function: &ItemFn) -> Result<Self> {
        let signature = &function.sig;
        let (safe, not_safe) = match &signature.safety {
            Safety::Default => (None, None),
            Safety::Safe(word) => (Some(word.span), None),
            Safety::Unsafe(word) => (None, Some(word.span)),
        };
        for (found, what) in [
            (signature.constness.map(|word| word.span), "const"),
            (signature.asyncness.map(|word| word.span), "async"),
            (safe, "safe"),
            (not_safe, "unsafe"),
            (signature.abi.as_ref().map(|abi| abi.extern_token.span), "extern"),
            (signature.variadic.as_ref().map(|dots| dots.dots.spans[0]), "variadic"),
        ] {
            if let Some(span) = found {
                return Err(Error::new(span, format!("#[kernel]: the function is {what}, expected a plain `fn`")));
            }
        }
        if !signature.generics.params.is_empty() {
            return Err(Error::new_spanned(
                &signature.generics,
                "#[kernel]: the function is generic, expected no generic parameters; write one kernel for each type, and call a generic function from each kernel",
            ));
        }
        let mut has_context = false;
        let mut types = Vec::new();
        for (index, input) in signature.inputs.iter().enumerate() {
            match input {
                FnArg::Receiver(receiver) => {
                    return Err(Error::new_spanned(receiver, "#[kernel]: found a method, expected a function"));
                }
                FnArg::Typed(parameter) if is_context(&parameter.ty) => {
                    if index > 0 {
                        return Err(Error::new_spanned(
                            parameter,
                            "#[kernel]: found `&Context` as a later parameter, expected `&Context` as the first parameter",
                        ));
                    }
                    has_context = true;
                }
                FnArg::Typed(parameter) => {
                    if let Type::Reference(reference) = &*parameter.ty {
                        return Err(Error::new_spanned(
                            reference,
                            "#[kernel]: found a reference, expected a `KernelArg`; pass memory as `SymSlice<T>` or `DeviceSlice<T>`",
                        ));
                    }
                    types.push((*parameter.ty).clone());
                }
            }
        }
        if types.len() > 16 {
            return Err(Error::new_spanned(
                &signature.inputs,
                format!(
                    "#[kernel]: found {} arguments, expected at most 16; combine arguments in a struct with #[derive(KernelArg)]",
                    types.len()
                ),
            ));
        }
        Ok(Self { has_context, types, options: Options::default() })
    }

    /// Generates the type whose constant `KERNEL` describes the kernel. The macro generates a type
    /// and not a module, because a module inside a function body cannot name the types of the
    /// parameters.
    fn host(&self, function: &ItemFn) -> TokenStream {
        let name = &function.sig.ident;
        let text = name.to_string();
        let visibility = &function.vis;
        let types = &self.types;
        let names: Vec<_> = (0..types.len()).map(|index| format_ident!("argument_{index}")).collect();
        let call = self.call(function, &names);
        let doc = format!("The kernel [`{name}()`](fn@{name}). A launch takes `{name}::KERNEL`.");
        let (image, declaration) = match &self.options.ptx {
            Some(path) => (quote!(#path), None),
            None => {
                let image = image();
                (quote!(PTX), Some(quote!(static PTX: ::peerweave_device::launch::PtxImage = #image;)))
            }
        };
        quote! {
            #[cfg(not(target_arch = "nvptx64"))]
            #[doc = #doc]
            #[allow(non_camel_case_types, clippy::exhaustive_enums)]
            #[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
            #visibility enum #name {}

            #[cfg(not(target_arch = "nvptx64"))]
            #[allow(unsafe_code, unused_variables, private_interfaces, clippy::all)]
            impl #name {
                /// The description of the kernel, which is passed to the function that launches the
                /// kernel.
                pub const KERNEL: ::peerweave_device::launch::Kernel<(#(#types,)*)> = {
                    #declaration
                    /// # Safety
                    /// `context` points to a context that is valid during the call.
                    unsafe fn host(context: *const ::peerweave_device::types::KernelContext, (#(#names,)*): (#(#types,)*)) {
                        // SAFETY: the caller promises a valid context.
                        let Ok(context) = (unsafe { ::peerweave_device::prelude::Context::enter(context) }) else {
                            panic!("the kernel context has a different version, expected the version of this crate's peerweave-device")
                        };
                        #call
                    }
                    // SAFETY: the entry in the PTX was generated from the same parameters.
                    unsafe { ::peerweave_device::launch::Kernel::new(#text, &#image, host) }
                };
            }
        }
    }

    /// Generates the kernel's entry point in the PTX. Generates nothing if this compilation is not
    /// for the GPU, or if the kernel belongs to a dependency of the compiled crate.
    fn entry(&self, function: &ItemFn) -> TokenStream {
        let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
        if env::var(PACKAGE).is_ok_and(|compiled| compiled == package) {
            self.entry_of_this_package(function)
        } else {
            TokenStream::new()
        }
    }

    fn entry_of_this_package(&self, function: &ItemFn) -> TokenStream {
        let text = function.sig.ident.to_string();
        let types = &self.types;
        let names: Vec<_> = (0..types.len()).map(|index| format_ident!("argument_{index}")).collect();
        let call = self.call(function, &names);
        let first = !PREAMBLE.swap(true, Ordering::Relaxed);
        let preamble = first.then(|| quote!(::peerweave_device::kernel_preamble!();));
        // `peerweave-build` replaces this comment in the PTX by the directive `.maxntid`, which the
        // compiler cannot emit.
        let bound = self.options.max_threads.map(|threads| {
            let line = format!("// peerweave.max_threads {text} {threads}");
            quote!(
                mod max_threads {
                    ::core::arch::global_asm!(#line);
                }
            )
        });
        let enter = if self.options.is_unchecked {
            quote! {
                // SAFETY: a launch passes the address of a context that stays allocated until the
                // kernel has ended. The host compares the version before each launch.
                let context = unsafe { ::peerweave_device::prelude::Context::enter_unchecked(context) };
            }
        } else {
            quote! {
                // SAFETY: a launch passes the address of a context that stays allocated until the
                // kernel has ended.
                let Ok(context) = (unsafe { ::peerweave_device::prelude::Context::enter(context) }) else {
                    ::peerweave_device::gpu::trap()
                };
            }
        };
        quote! {
            #[cfg(target_arch = "nvptx64")]
            const _: () = {
                #preamble
                #bound

                /// # Safety
                /// `context` points to a context that is valid until the kernel has ended. The
                /// arguments are the arguments of the launch.
                #[unsafe(export_name = #text)]
                #[allow(unsafe_code, improper_ctypes_definitions, unused_variables, clippy::all)]
                pub unsafe extern "ptx-kernel" fn entry(
                    context: *const ::peerweave_device::types::KernelContext,
                    #(#names: #types,)*
                ) {
                    #enter
                    #call
                }
            };
        }
    }

    /// Generates code that calls the kernel's function. The code ignores an error that the function
    /// returns, because the failed operation has already written the error to the context's status.
    fn call(&self, function: &ItemFn, names: &[syn::Ident]) -> TokenStream {
        let name = &function.sig.ident;
        let context = self.has_context.then(|| quote!(&context,));
        match &function.sig.output {
            ReturnType::Default => quote!(#name(#context #(#names),*);),
            ReturnType::Type(_, result) if matches!(&**result, Type::Tuple(tuple) if tuple.elems.is_empty()) => {
                quote!(#name(#context #(#names),*);)
            }
            ReturnType::Type(..) => quote! {
                let result: ::core::result::Result<(), ::peerweave_device::prelude::Failed> = #name(#context #(#names),*);
                let _ = result;
            },
        }
    }
}

/// Returns whether a type is a shared reference to a type whose path ends with `Context`.
fn is_context(ty: &Type) -> bool {
    let Type::Reference(reference) = ty else { return false };
    let Type::Path(path) = &*reference.elem else { return false };
    reference.mutability.is_none() && path.path.segments.last().is_some_and(|segment| segment.ident == "Context")
}

/// Generates an expression of type `PtxImage`. If the build script has written the crate's PTX to a
/// file, the expression includes this file. If not, the expression is an image without PTX.
fn image() -> TokenStream {
    let embedded = env::var_os("OUT_DIR").is_some_and(|out| Path::new(&out).join(EMBEDDED).is_file());
    if embedded {
        let file = format!("/{EMBEDDED}");
        return quote!(::core::include!(::core::concat!(::core::env!("OUT_DIR"), #file)));
    }
    let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
    let problem = format!("{package} was built without PTX: call `peerweave_build::kernels()` in the build script of {package}");
    quote!(::peerweave_device::launch::PtxImage { variants: &[], problem: #problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(item: TokenStream) -> String {
        expand(TokenStream::new(), item).unwrap_err().to_string()
    }

    #[test]
    fn kernel_attribute_refuses_max_threads_outside_1_to_1024() {
        let read = |attribute| Options::read(attribute).map(|options| (options.max_threads, options.is_unchecked));
        assert_eq!(read(quote!()).unwrap(), (None, false));
        assert_eq!(read(quote!(max_threads = 1024)).unwrap(), (Some(1024), false));
        assert_eq!(read(quote!(max_threads = 8, unchecked)).unwrap(), (Some(8), true));
        for wrong in
            [quote!(max_threads = 0), quote!(max_threads = 1025), quote!(max_threads = "8"), quote!(threads = 8), quote!(8)]
        {
            assert!(read(wrong).unwrap_err().to_string().contains("max_threads"));
        }
    }

    #[test]
    fn kernel_attribute_with_a_ptx_path_generates_no_static() {
        let expanded = |attribute: TokenStream| {
            expand(
                attribute,
                quote!(
                    fn k() {}
                ),
            )
            .unwrap()
            .to_string()
        };
        let shared = expanded(quote!(ptx = crate::PTX));
        assert!(shared.contains("& crate :: PTX") && !shared.contains("static"), "{shared}");
        assert!(expanded(quote!()).contains("static PTX"));
        let error = Options::read(quote!(ptx = 3)).map(drop).unwrap_err().to_string();
        assert!(error.contains("ptx is not a path"), "{error}");
    }

    #[test]
    fn kernel_attribute_refuses_functions_that_cannot_be_kernels() {
        assert!(
            refused(quote!(
                fn k<T>(x: T) {}
            ))
            .contains("is generic")
        );
        assert!(
            refused(quote!(
                /// # Safety
                /// None.
                unsafe fn k() {}
            ))
            .contains("is unsafe")
        );
        assert!(
            refused(quote!(
                async fn k() {}
            ))
            .contains("is async")
        );
        assert!(
            refused(quote!(
                const fn k() {}
            ))
            .contains("is const")
        );
        assert!(
            refused(quote!(
                extern "C" fn k() {}
            ))
            .contains("is extern")
        );
        assert!(
            refused(quote!(
                fn k(&self) {}
            ))
            .contains("a method")
        );
        assert!(
            refused(quote!(
                fn k(x: &[f32]) {}
            ))
            .contains("SymSlice<T>")
        );
        assert!(
            refused(quote!(
                fn k(x: u32, ctx: &Context) {}
            ))
            .contains("as the first parameter")
        );
        let many: Vec<_> = (0..17).map(|index| format_ident!("a{index}")).collect();
        assert!(refused(quote!(fn k(#(#many: u32),*) {})).contains("found 17 arguments"));
        assert!(
            expand(
                quote!(fast),
                quote!(
                    fn k() {}
                )
            )
            .unwrap_err()
            .to_string()
            .contains("max_threads")
        );
    }

    #[test]
    fn context_parameter_is_recognised_by_the_name_of_the_type() {
        let has = |item: TokenStream| Signature::read(&parse2(item).unwrap()).unwrap().has_context;
        assert!(has(quote!(
            fn k(ctx: &Context, x: u32) {}
        )));
        assert!(has(quote!(
            fn k(_: &peerweave_device::prelude::Context) {}
        )));
        assert!(!has(quote!(
            fn k(x: u32) {}
        )));
    }
}
