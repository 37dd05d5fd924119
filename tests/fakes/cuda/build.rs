//! Gives the library the name that the dynamic linker looks for, and prevents its unloading:
//! threads of its streams run for as long as the process.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // References inside the library are bound at link time, so that a copy from which a name was
    // taken away still loads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
