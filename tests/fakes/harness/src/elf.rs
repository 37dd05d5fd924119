//! Removes functions from a copy of a library by changing their names in its symbol table. Nothing
//! else in the file changes. Invariant: no lookup finds a removed function. The symbol table no
//! longer has the old name, and the hash table has only the hash of the old name.

use object::read::elf::{ElfFile64, FileHeader, SectionHeader, Sym};
use object::{Endianness, elf};

/// Returns the bytes of the library without the functions; ignores functions that the library does
/// not export.
///
/// # Panics
/// If the bytes are not a shared library.
pub(crate) fn without(mut bytes: Vec<u8>, functions: &[String]) -> Vec<u8> {
    for place in places(&bytes, functions) {
        bytes[place] = b'~';
    }
    bytes
}

/// Returns the offsets of the functions' names in the file.
fn places(bytes: &[u8], functions: &[String]) -> Vec<usize> {
    let file = ElfFile64::<Endianness>::parse(bytes).expect("the file is a 64-bit ELF library");
    let header = file.elf_header();
    let endian = file.endian();
    let sections = header.sections(endian, bytes).expect("the library has sections");
    let symbols = sections.symbols(endian, bytes, elf::SHT_DYNSYM).expect("the library has a table of exported names");
    let strings = sections.section(symbols.string_section()).expect("the library has the strings of the names");
    let text_at = strings.sh_offset(endian) as usize;
    symbols
        .iter()
        .filter(|symbol| {
            let name = symbols.symbol_name(endian, symbol).unwrap_or_default();
            functions.iter().any(|function| function.as_bytes() == name)
        })
        .map(|symbol| text_at + symbol.st_name(endian) as usize)
        .collect()
}
