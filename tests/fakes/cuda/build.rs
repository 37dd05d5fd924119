//! Gives the library the name that the dynamic linker looks for, and keeps it in memory once it was
//! opened. Threads of the library's streams run for as long as the process: its code must never go
//! away under them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // References inside the library are bound at link time, so that a copy from which a name was
    // taken away still loads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
