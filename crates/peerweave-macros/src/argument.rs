//! Implements `#[derive(KernelArg)]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, Index, Result, parse2};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = parse2(item)?;
    let name = &input.ident;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(
            name,
            "KernelArg: found an enum or union, expected a struct, because every bit pattern of the fields must be valid",
        ));
    };
    if input.generics.type_params().next().is_some() || input.generics.lifetimes().next().is_some() {
        return Err(Error::new_spanned(
            &input.generics,
            "KernelArg: found lifetimes or type parameters, expected a struct without lifetimes and type parameters",
        ));
    }
    if !has_fixed_layout(&input, "KernelArg")? {
        return Err(Error::new_spanned(
            name,
            "KernelArg: the layout is not fixed, expected #[repr(C)] or #[repr(transparent)], so that host and GPU use the same layout",
        ));
    }
    let fields: Vec<TokenStream> = match &data.fields {
        Fields::Named(fields) => {
            fields.named.iter().map(|field| field.ident.as_ref().map_or(quote!(), |name| quote!(#name))).collect()
        }
        Fields::Unnamed(fields) => (0..fields.unnamed.len()).map(Index::from).map(|index| quote!(#index)).collect(),
        Fields::Unit => Vec::new(),
    };
    let types: Vec<_> = data.fields.iter().map(|field| &field.ty).collect();
    let (generics, arguments, clause) = input.generics.split_for_impl();
    let checks: Vec<_> = (0..types.len()).map(|index| format_ident!("field_{index}")).collect();
    Ok(quote! {
        const _: () = {
            #(
                #[allow(dead_code)]
                fn #checks #generics () #clause {
                    fn is_argument<T: ::peerweave_device::types::KernelArg>() {}
                    is_argument::<#types>();
                }
            )*

            // SAFETY: `repr` fixes the layout. Every field is a `KernelArg`, which the functions
            // above check, and `visit` visits every field. The alignment is checked in `visit`.
            #[allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
            unsafe impl #generics ::peerweave_device::types::KernelArg for #name #arguments #clause {
                // Only the host calls this method, so kernels do not contain it.
                #[cfg(not(target_arch = "nvptx64"))]
                fn visit(&self, visitor: &mut dyn ::peerweave_device::types::ArgVisitor) {
                    const { assert!(::core::mem::align_of::<Self>() <= 16, "the alignment of a kernel's argument must be at most 16 bytes") };
                    let _ = &visitor;
                    #(::peerweave_device::types::KernelArg::visit(&self.#fields, visitor);)*
                }
            }
        };
    })
}

/// Returns whether the struct has the attribute `#[repr(C)]` or `#[repr(transparent)]`, which fixes
/// its layout. `derive` is the name of the derived trait, for error messages.
///
/// # Errors
/// If the struct is packed.
pub(crate) fn has_fixed_layout(input: &DeriveInput, derive: &str) -> Result<bool> {
    let mut fixed = false;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            fixed |= meta.path.is_ident("C") || meta.path.is_ident("transparent");
            if meta.path.is_ident("packed") {
                return Err(meta.error(format_args!("{derive}: the struct is packed, expected aligned fields")));
            }
            // Skips the argument of a representation such as `align(N)`.
            if meta.input.peek(syn::token::Paren) {
                let content;
                syn::parenthesized!(content in meta.input);
                content.parse::<TokenStream>()?;
            }
            Ok(())
        })?;
    }
    Ok(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(item: TokenStream) -> String {
        expand(item).unwrap_err().to_string()
    }

    #[test]
    fn kernel_arg_derive_refuses_types_without_fixed_layout() {
        assert!(
            refused(quote!(
                struct A {
                    x: u32,
                }
            ))
            .contains("#[repr(C)]")
        );
        assert!(
            refused(quote!(
                #[repr(align(8))]
                struct A {
                    x: u32,
                }
            ))
            .contains("#[repr(C)]")
        );
        assert!(
            refused(quote!(
                #[repr(C, packed)]
                struct A {
                    x: u32,
                }
            ))
            .contains("packed")
        );
        assert!(
            refused(quote!(
                #[repr(C)]
                enum A {
                    X,
                }
            ))
            .contains("a struct")
        );
        assert!(
            refused(quote!(
                #[repr(C)]
                struct A<T> {
                    x: T,
                }
            ))
            .contains("type parameters")
        );
        assert!(
            expand(quote!(
                #[repr(C, align(16))]
                struct A {
                    x: u32,
                }
            ))
            .is_ok()
        );
        assert!(
            expand(quote!(
                #[repr(transparent)]
                struct A(u32);
            ))
            .is_ok()
        );
    }
}
