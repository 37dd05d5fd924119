//! Sets the soname of the library, and prevents the unloading of the library, because the threads
//! of its streams may outlive a `dlclose`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // References inside the library are bound at link time, so that a copy from which a name was
    // removed still loads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
