//! Implements `name_shared_array!`, which generates a symbol (a name in PTX) for each declaration
//! of shared memory. A declaration gets the same symbol in every build.
//!
//! If several declarations have the same name, they are numbered, and the symbol contains the
//! number. The compiler expands the macros of a crate in a fixed order, so a declaration has the
//! same number in every build.

use proc_macro2::{TokenStream, TokenTree};
use quote::quote;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use syn::parse::{ParseStream, Parser};
use syn::{Ident, Token};

/// Number of shared arrays with the same name that the macro has expanded so far in this
/// compilation. The key is the name.
static NUMBERS: LazyLock<Mutex<HashMap<String, u32>>> = LazyLock::new(Mutex::default);

/// Expands the tokens `$crate, NAME, [type; length]` to a call of `shared_array_named!`. The call
/// contains the symbol that the array has in PTX. The function `symbol` computes the symbol.
pub(crate) fn expand(declaration: TokenStream) -> syn::Result<TokenStream> {
    let parse = |input: ParseStream<'_>| {
        let home: Vec<TokenTree> = [input.parse()?].into();
        input.parse::<Token![,]>()?;
        let name: Ident = input.parse()?;
        input.parse::<Token![,]>()?;
        Ok((home, name, input.parse::<TokenStream>()?))
    };
    let (home, name, array) = parse.parse2(declaration)?;
    let home: TokenStream = home.into_iter().collect();
    let package = std::env::var("CARGO_CRATE_NAME").unwrap_or_default();
    let symbol = symbol(&package, &name.to_string(), number(&name.to_string()));
    Ok(quote!(#home::shared_array_named! { #symbol: #array }))
}

fn number(name: &str) -> u32 {
    let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    let next = numbers.entry(name.to_owned()).or_default();
    *next += 1;
    *next - 1
}

/// Returns the symbol of a declaration of shared memory. A symbol in PTX has only ASCII letters,
/// digits and `_`, so any character of a Rust name that is not allowed in PTX is replaced by its
/// code.
fn symbol(package: &str, name: &str, number: u32) -> String {
    let plain = |text: &str| -> String {
        let plain = |letter: char| {
            if letter.is_ascii_alphanumeric() { letter.to_string() } else { format!("_{:x}_", u32::from(letter)) }
        };
        text.chars().map(|letter| if letter == '_' { "_".to_owned() } else { plain(letter) }).collect()
    };
    format!("peerweave_shared_{}_{}_{number}", plain(package), plain(name.trim_start_matches("r#")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(source: &str) -> String {
        expand(source.parse().expect("the source consists of tokens"))
            .expect("the source is a declaration of shared memory")
            .to_string()
            .replace(' ', "")
    }

    #[test]
    fn shared_array_symbol_ends_with_the_array_name_and_a_number() {
        let first = expanded("there, TILE, [f32; 4]");
        let moved = expanded("\n\n\n        there, TILE, [f32; 4]");
        let other = expanded("there, ROW, [f32; 4]");
        for (found, end) in [(&first, "_TILE_0"), (&moved, "_TILE_1"), (&other, "_ROW_0")] {
            assert!(found.starts_with("there::shared_array_named!{\"peerweave_shared_"), "{found}");
            assert!(found.ends_with(&format!("{end}\":[f32;4]}}")), "{found}");
        }
    }

    #[test]
    fn shared_memory_symbols_have_only_characters_valid_in_ptx() {
        assert_eq!(symbol("kernels", "r#Größe", 3), "peerweave_shared_kernels_Gr_f6__df_e_3");
    }
}
