//! Checks that wrong programs do not compile, and that the compiler prints what is wrong and what
//! to do.
//!
//! Each program is compiled against the library that Cargo has built for this test.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A wrong body for the function of [`BEFORE`], and texts that the compiler must print.
struct Wrong {
    body: &'static str,
    says: &'static [&'static str],
}

/// The items and parameters that each body can use.
const BEFORE: &str = "
#![allow(unused)]
use peerweave::*;
#[derive(Clone, Copy, PartialEq, Debug)]
struct Own;
#[derive(Clone, Copy, PartialEq, Debug, Element)]
#[repr(C)]
struct Moved(u32, [f32; 2]);
mod kernels {
    use peerweave_device::prelude::*;
    #[kernel]
    pub fn fill(ctx: &Context, x: SymSlice<u64>, value: u64) {}
}
fn wrong(world: &World, team: &Team, stream: &Stream, context: &Context, x: &Symmetric<f32>, words: &Symmetric<u64>, rank: Rank) {
";

/// A body that compiles.
const RIGHT: &str = "team.put_blocking(&1.5f32, x, rank); stream.launch(&kernels::fill::KERNEL, 1, 1, (words, 1));";

const BUFFERS: &[Wrong] = &[
    Wrong {
        body: "team.put_blocking(1.5f32, x, rank);",
        says: &["`f32` cannot be read by an operation on elements of type", "help: consider borrowing here"],
    },
    Wrong {
        body: "team.put_blocking(Some([1.5f32]), x, rank);",
        says: &[
            "`Option<[f32; 1]>` cannot be read by an operation on elements of type",
            "pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`; blocking forms also accept `&[T]`, `&Vec<T>`, `&[T; N]` and `&T`",
        ],
    },
    Wrong {
        body: "team.get_blocking(x, &[0f32; 4], rank);",
        says: &[
            "`&[f32; 4]` cannot be written by an operation on elements of type `f32`",
            "`&mut [T]`, `&mut Vec<T>`, `&mut [T; N]` and `&mut T`",
        ],
    },
    Wrong {
        body: "team.put(stream, &[1.5f32], x, rank);",
        says: &[
            "`&[f32; 1]` cannot be read by a stream-ordered operation on elements of type",
            "a stream must keep the memory of its operations alive: pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`, or call the `_blocking` form",
        ],
    },
    Wrong {
        body: "context.get(x, &mut vec![0f32], rank);",
        says: &[
            "`&mut Vec<f32>` cannot be written by a stream-ordered operation on elements of type `f32`",
            "a stream must keep the memory of its operations alive: pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`, or call the `_blocking` form",
        ],
    },
    Wrong {
        body: "team.scatter_blocking((), x, rank);",
        says: &[
            "`()` cannot be read at the root of an operation on elements of type",
            "`&[T]`, `&Vec<T>`, `&[T; N]` and `&T`; each of these types may be inside an `Option`; ranks other than the root may pass `none()`",
        ],
    },
    Wrong {
        body: "team.gather_blocking(x, &[0f32; 4], rank);",
        says: &[
            "`&[f32; 4]` cannot be written at the root of an operation on elements of type `f32`",
            "`&mut [T]`, `&mut Vec<T>`, `&mut [T; N]` and `&mut T`; each of these types may be inside an `Option`; ranks other than the root may pass `none()`",
        ],
    },
    Wrong {
        body: "team.wait_until_blocking(words, Compare::Eq, 1);",
        says: &[
            "a PE cannot wait for `&Symmetric<u64>`",
            "pass a `&Signal`, or `(&symmetric, index)` for an element of an integer type of at least 16 bits",
        ],
    },
];

const ELEMENTS: &[Wrong] = &[
    Wrong {
        body: "world.alloc::<bool>(1);",
        says: &[
            "`bool` is not an element type",
            "structs with `#[derive(Element)]` and `#[repr(C)]`",
            "`bool` and `char` are not elements, because some bit patterns are not valid for them: use `Bool` and `u32`",
        ],
    },
    Wrong {
        body: "world.alloc::<Own>(1);",
        says: &[
            "`Own` is not an element type",
            "Peerweave does not transfer values of this type",
            "elements are integers, floats, `Bool`, complex numbers (feature `num-complex`), arrays of elements, and structs with `#[derive(Element)]` and `#[repr(C)]`",
        ],
    },
    Wrong {
        body: "fn one<T: Element>(team: &Team, y: &T, x: &Symmetric<T>) { team.put_blocking(y, x, Rank::new(0)); }",
        says: &[
            "`&T` cannot be read by an operation on elements of type `T`",
            "the trait `SingleElement` is not implemented for `T`",
        ],
    },
    Wrong {
        body: "fn one<T: SingleElement>() {} one::<[f32; 2]>();",
        says: &["`[f32; 2]` cannot be passed as a single element", "pass a slice, such as `std::slice::from_ref(&x)`"],
    },
    Wrong {
        body: "team.all_reduce_in_place_blocking(&mut [F8E4M3::from_bits(0)], ReduceOp::Sum);",
        says: &[
            "reductions are not defined for `F8E4M3`",
            "reductions are defined for integers, floats of 16 bits and more, `Bool`, complex numbers, arrays of these, and structs with `#[derive(Element)]` and `#[element(reduce)]`",
        ],
    },
    Wrong {
        body: "team.all_reduce_in_place_blocking(&mut [Moved(1, [0.0; 2])][..], ReduceOp::Sum);",
        says: &["reductions are not defined for `Moved`", "and structs with `#[derive(Element)]` and `#[element(reduce)]`"],
    },
    Wrong {
        body: "Reduction::pre_mul_sum([1f32; 2]);",
        says: &[
            "`[f32; 2]` is not a single integer or float",
            "pass an integer of at most 64 bits, `f16`, `bf16`, `f32` or `f64`",
        ],
    },
    Wrong {
        body: "team.atomic_add_blocking(x, 0, 1.0, rank);",
        says: &[
            "`f32` has no atomic arithmetic",
            "`i32`, `u32`, `i64`, `u64`, `isize` and `usize` have atomic arithmetic; `f32` and `f64` can only be fetched, set and swapped",
        ],
    },
    Wrong {
        body: "team.atomic_set_blocking(&world.alloc::<u8>(1).unwrap(), 0, 1, rank);",
        says: &[
            "`u8` has no atomic operations",
            "`i32`, `u32`, `i64`, `u64`, `isize` and `usize` have all atomic operations; `f32` and `f64` can only be fetched, set and swapped",
        ],
    },
    Wrong {
        body: "team.wait_until_any_blocking(x, None, Compare::Eq, 1.0);",
        says: &[
            "a PE cannot wait for elements of type `f32`",
            "a PE can wait for elements of type `i16`, `u16`, `i32`, `u32`, `i64`, `u64`, `isize` or `usize`",
        ],
    },
    Wrong {
        body: "team.all_reduce_rms_norm_blocking(words, words, words, RmsNorm::new(words));",
        says: &["RMSNorm is not defined for rows of `u64`", "rows consist of elements of type `f16`, `bf16` or `f32`"],
    },
];

const KERNELS: &[Wrong] = &[
    Wrong {
        body: "stream.launch(&kernels::fill::KERNEL, 1, 1, (words, 1u32));",
        says: &[
            "`u32` cannot be passed to a kernel's parameter of type `u64`",
            "pass a value of the parameter's own type, `&Symmetric<T>` for a `SymSlice<T>`, or `&Team` for a `KernelTeam`",
        ],
    },
    Wrong {
        body: "stream.launch(&kernels::fill::KERNEL, 1, 1, words);",
        says: &[
            "`&Symmetric<u64>` is not a tuple of arguments for a kernel with the parameters `(SymSlice<u64>, u64)`",
            "pass one argument for each parameter, in a tuple: `(&x, 5)`, `(&x,)` for one parameter, `()` for no parameters",
        ],
    },
    Wrong {
        body: "mod more { use peerweave_device::prelude::*; #[kernel] pub fn name(ctx: &Context, name: String) {} }",
        says: &[
            "`String` cannot be an argument of a kernel",
            "arguments are numbers, `SymSlice<T>`, `DeviceSlice<T>`, `KernelTeam`, arrays of these, and structs with `#[derive(KernelArg)]` and `#[repr(C)]`",
        ],
    },
];

/// Returns the folder of this test, which has the libraries that Cargo has built.
fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test is known");
    test.parent().expect("the test lies in a folder").to_owned()
}

/// Returns the libraries of a crate, the newest first. Cargo may have built several for other
/// tests. The newest one is built from the current source.
fn libraries(name: &str) -> Vec<PathBuf> {
    let start = format!("lib{name}-");
    let files =
        std::fs::read_dir(folder()).expect("the folder of this test can be read").map(|file| file.expect("a file can be listed"));
    let mut found: Vec<_> = files
        .filter(|file| file.file_name().to_str().is_some_and(|name| name.starts_with(&start) && name.ends_with(".rlib")))
        .map(|file| (file.metadata().and_then(|data| data.modified()).expect("the file has a modification time"), file.path()))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// Compiles a body with the libraries of `peerweave` and `peerweave-device`. Returns what the
/// compiler prints if it fails, with single spaces and short names.
fn compile(body: &str, [peerweave, device]: [&Path; 2]) -> Result<(), String> {
    let mut child = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition=2024", "--crate-type=lib", "--crate-name=wrong", "--emit=metadata", "--color=never"])
        .args(["--out-dir", env!("CARGO_TARGET_TMPDIR")])
        .args(["-L", &format!("dependency={}", folder().display())])
        .args(["--extern", &format!("peerweave={}", peerweave.display())])
        .args(["--extern", &format!("peerweave_device={}", device.display())])
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the compiler can be started");
    let program = format!("{BEFORE}{body}\n}}");
    child.stdin.take().expect("the input is a pipe").write_all(program.as_bytes()).expect("the compiler reads the program");
    let output = child.wait_with_output().expect("the compiler process ends");
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(text.split_whitespace().collect::<Vec<_>>().join(" ").replace("peerweave::", ""))
    }
}

/// Returns the libraries with which [`RIGHT`] compiles: the newest of `peerweave`, and the one of
/// `peerweave-device` that it was built with.
fn fitting() -> &'static [PathBuf; 2] {
    static FITTING: OnceLock<[PathBuf; 2]> = OnceLock::new();
    FITTING.get_or_init(|| {
        let peerweave = libraries("peerweave").into_iter().next().expect("Cargo has built peerweave for this test");
        let mut printed = String::new();
        for device in libraries("peerweave_device") {
            match compile(RIGHT, [&peerweave, &device]) {
                Ok(()) => return [peerweave, device],
                Err(text) => printed = text,
            }
        }
        panic!("the right body does not compile: {printed}");
    })
}

/// Checks that each body fails to compile, and that the compiler prints the texts.
fn check(table: &[Wrong]) {
    let [peerweave, device] = fitting();
    for Wrong { body, says } in table {
        let printed = compile(body, [peerweave, device]).expect_err(body);
        for expected in *says {
            assert!(printed.contains(expected), "{body}\nexpected: {expected}\nfound: {printed}");
        }
    }
}

#[test]
fn compiler_error_for_a_wrong_buffer_says_what_to_pass() {
    check(BUFFERS);
}

#[test]
fn compiler_error_for_a_wrong_element_type_lists_valid_types() {
    check(ELEMENTS);
}

#[test]
fn compiler_error_for_a_wrong_kernel_argument_says_what_to_pass() {
    check(KERNELS);
}
