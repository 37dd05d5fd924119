//! Sets the soname of the library, and prevents the unloading of the library, because its threads
//! outlive a `dlclose`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // References inside the library are bound at link time, so that a copy from which a name was
    // removed still loads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
