//! Implements `#[derive(Element)]`.

use crate::argument::has_fixed_layout;
use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Result, parse2};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = parse2(item)?;
    let name = &input.ident;
    let Data::Struct(data) = &input.data else {
        let why = "Element: found an enum or union, expected a struct, because every bit pattern of the fields must be valid";
        return Err(Error::new_spanned(name, why));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &input.generics,
            "Element: found generic parameters, expected a struct without generic parameters",
        ));
    }
    if !has_fixed_layout(&input, "Element")? {
        let why =
            "Element: the layout is not fixed, expected #[repr(C)] or #[repr(transparent)], so that all PEs use the same layout";
        return Err(Error::new_spanned(name, why));
    }
    let types: Vec<_> = data.fields.iter().map(|field| &field.ty).collect();
    if types.is_empty() {
        return Err(Error::new_spanned(name, "Element: the struct has no fields, expected at least one field"));
    }
    let padding = format!("Element: `{name}` has padding, which cannot be sent: replace the padding by fields");
    let reduction = reduces(&input)?.then(|| {
        let mixed = format!(
            "Element: `{name}` has fields of several types, expected one type for #[element(reduce)]: remove the attribute"
        );
        quote! {
            const _: () = assert!(::peerweave::derived::is_uniform(FIELDS), #mixed);

            impl ::peerweave::Number for #name {
                fn accepts(op: ::peerweave::ReduceOp) -> bool {
                    // A premultiplied sum is refused, because its scalar would have to be a struct.
                    !matches!(op, ::peerweave::ReduceOp::PreMulSum) #(&& <#types as ::peerweave::Number>::accepts(op))*
                }
            }
        }
    });
    Ok(quote! {
        const _: () = {
            const FIELDS: &[::peerweave::DType] = &[#(<#types as ::peerweave::Element>::DTYPE),*];
            const _: () = {
                assert!(::core::mem::size_of::<#name>() == 0 #(+ ::core::mem::size_of::<#types>())*, #padding);
                assert!(::core::mem::align_of::<#name>() <= 64, "the alignment of an element must be at most 64 bytes");
            };

            // SAFETY: the fields are elements, and `repr` fixes the layout. The check above rejects
            // padding. So every bit pattern is a valid value, and all bytes are initialised.
            #[allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
            unsafe impl ::peerweave::Plain for #name {}

            // SAFETY: the fields are elements, and the check above rejects padding. The struct is
            // sent as values of the type of its fields, or as integers with the size of its
            // alignment. The size of a struct is a multiple of its alignment.
            #[allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
            unsafe impl ::peerweave::Element for #name {
                const DTYPE: ::peerweave::DType = ::peerweave::derived::dtype(FIELDS, ::core::mem::align_of::<Self>());
                const PARTS: usize = ::core::mem::size_of::<Self>() / Self::DTYPE.size_bytes();
            }

            impl ::peerweave::SingleElement for #name {}
            #reduction
        };
    })
}

/// Returns whether the struct has the attribute `#[element(reduce)]`.
fn reduces(input: &DeriveInput) -> Result<bool> {
    let mut found = false;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("element")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("reduce") {
                return Err(meta.error("Element: unknown argument of the attribute, expected #[element(reduce)]"));
            }
            found = true;
            Ok(())
        })?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(item: TokenStream, why: &str) {
        let error = expand(item).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn element_derive_refuses_types_without_fixed_layout() {
        refused(
            quote!(
                struct A {
                    x: u32,
                }
            ),
            "#[repr(C)]",
        );
        refused(
            quote!(
                #[repr(align(8))]
                struct A {
                    x: u32,
                }
            ),
            "#[repr(C)]",
        );
        refused(
            quote!(
                #[repr(C, packed)]
                struct A {
                    x: u32,
                }
            ),
            "packed",
        );
        refused(
            quote!(
                #[repr(C)]
                enum A {
                    X,
                }
            ),
            "expected a struct",
        );
        refused(quote!(#[repr(C)] union A { x: u32 }), "expected a struct");
        refused(
            quote!(
                #[repr(C)]
                struct A<T> {
                    x: T,
                }
            ),
            "generic parameters",
        );
        refused(
            quote!(
                #[repr(C)]
                struct A {}
            ),
            "at least one",
        );
        refused(
            quote!(
                #[repr(C)]
                struct A;
            ),
            "at least one",
        );
        refused(
            quote!(
                #[repr(C)]
                #[element(sum)]
                struct A {
                    x: u32,
                }
            ),
            "#[element(reduce)]",
        );
    }

    #[test]
    fn number_trait_is_derived_only_with_the_reduce_attribute() {
        let plain = expand(quote!(
            #[repr(C)]
            struct A {
                x: u32,
                y: [u32; 2],
            }
        ))
        .unwrap()
        .to_string();
        assert!(!plain.contains("Number"), "{plain}");
        let marked = expand(quote!(
            #[repr(transparent)]
            #[element(reduce)]
            struct A(u32);
        ))
        .unwrap()
        .to_string();
        assert!(marked.contains("Number"), "{marked}");
    }
}
