//! The linker: compiles sources, and links them with other inputs to a cubin. Uses the disk cache.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::Arch;
use crate::error::LinkError;
use crate::source::Source;
use crate::source::fingerprint::Fingerprint;
use crate::toolkit::{Input, InputKind, NvJitLink, Nvrtc, Target};

mod cache;

pub use cache::{Cache, Key};

/// A linked module, which [`Linker::link`] returns.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Linked {
    /// The cubin: machine code for the architecture that was passed to [`Linker::new`].
    pub cubin: Vec<u8>,
    /// Log that NVRTC and nvJitLink wrote; empty if the module was read from the cache.
    pub log: String,
    /// Whether the module was read from the cache.
    pub cached: bool,
}

impl fmt::Debug for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linked({} bytes, {})", self.cubin.len(), if self.cached { "from the cache" } else { "linked now" })
    }
}

enum Part<'a> {
    Ready(Input<'a>),
    Source(Source),
    File(InputKind, PathBuf),
}

/// A builder that collects inputs and options, and links the inputs to a cubin for one
/// architecture.
///
/// ```no_run
/// use peerweave_link::{Arch, Linker, Source};
///
/// let ptx = ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }";
/// let source = Source::new("add.cu", "extern \"C\" __device__ int add(int a, int b) { return a + b; }");
/// let linked = Linker::new(Arch::new(9, 0)).ptx("kernels", ptx).source(source).link()?;
/// println!("{} bytes", linked.cubin.len());
/// # Ok::<(), peerweave_link::LinkError>(())
/// ```
pub struct Linker<'a> {
    arch: Arch,
    parts: Vec<Part<'a>>,
    options: Vec<String>,
    lto: bool,
    cache: Option<Cache>,
}

impl<'a> Linker<'a> {
    /// Creates a linker for `arch`, without inputs. The linker uses the cache that the environment
    /// specifies ([`Cache::from_env`]).
    pub fn new(arch: Arch) -> Self {
        Self { arch, parts: Vec::new(), options: Vec::new(), lto: false, cache: Cache::from_env() }
    }

    /// Sets the cache; `None` disables caching.
    #[must_use]
    pub fn cache(self, cache: Option<Cache>) -> Self {
        Self { cache, ..self }
    }

    /// Adds PTX text as an input. Error messages call the input `name`.
    #[must_use]
    pub fn ptx(self, name: impl Into<String>, text: &'a str) -> Self {
        self.input(Input::new(InputKind::Ptx, name, text.as_bytes()))
    }

    /// Adds an input of any format, whose bytes are in memory.
    #[must_use]
    pub fn input(mut self, input: Input<'a>) -> Self {
        self.parts.push(Part::Ready(input));
        self
    }

    /// Adds CUDA C++ text. NVRTC compiles the text to relocatable machine code, or to LTO-IR if
    /// [`lto`](Self::lto) has been called.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.parts.push(Part::Source(source));
        self
    }

    /// Adds a file as an input. The cache key depends on the path, the length and the modification
    /// time of the file, but not on its content.
    #[must_use]
    pub fn file(mut self, kind: InputKind, path: impl Into<PathBuf>) -> Self {
        self.parts.push(Part::File(kind, path.into()));
        self
    }

    /// Adds an option for nvJitLink, such as `-g`.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Enables link-time optimisation for all sources and all LTO-IR inputs.
    #[must_use]
    pub fn lto(self) -> Self {
        Self { lto: true, ..self }
    }

    /// Links the inputs, or returns the module from the cache if an earlier call has stored it.
    ///
    /// # Errors
    /// The errors of [`Nvrtc::load`], [`Nvrtc::compile`], [`NvJitLink::load`] and
    /// [`NvJitLink::link`]. [`LinkError::Io`] if an input file or a header directory cannot be
    /// read. [`LinkError::VersionMismatch`] if the versions of NVRTC and nvJitLink are not
    /// compatible.
    ///
    /// A cache that cannot be read or written is not an error: the module is then linked without
    /// the cache.
    pub fn link(&self) -> Result<Linked, LinkError> {
        let Some(cache) = &self.cache else { return self.link_now() };
        let (cubin, log, cached) = cache.get_or(&self.key()?, || self.link_now().map(|linked| (linked.cubin, linked.log)))?;
        Ok(Linked { cubin, log, cached })
    }

    /// Returns the key under which the linked module is cached. The key is the digest of all
    /// inputs, the options, the architecture, and the versions of NVRTC and nvJitLink.
    ///
    /// # Errors
    /// The errors of [`Nvrtc::load`] and [`NvJitLink::load`]. [`LinkError::Io`] if an input file or
    /// a header directory cannot be read.
    pub fn key(&self) -> Result<Key, LinkError> {
        let mut print = Fingerprint::new();
        print.text("arch", &self.arch.to_string());
        print.text("nvJitLink", &format!("{:#}", NvJitLink::load()?.version()));
        print.text("lto", if self.lto { "yes" } else { "no" });
        self.options.iter().for_each(|option| print.text("option", option));
        for part in &self.parts {
            match part {
                Part::Ready(input) => {
                    print.text("input", &format!("{:?} {}", input.kind, input.name));
                    print.bytes("bytes", &input.bytes);
                }
                Part::Source(source) => {
                    print.text("NVRTC", &format!("{:#}", Nvrtc::load()?.version()));
                    source.fingerprint(&mut print)?;
                }
                Part::File(kind, path) => {
                    print.text("input", &format!("{kind:?}"));
                    print.file(path)?;
                }
            }
        }
        Ok(Key::new(print.finish()))
    }

    fn link_now(&self) -> Result<Linked, LinkError> {
        let linker = NvJitLink::load()?;
        let sources = self.parts.iter().filter_map(|part| if let Part::Source(source) = part { Some(source) } else { None });
        let mut compiled = self.compile_all(linker, &sources.collect::<Vec<_>>())?.into_iter();
        let (mut inputs, mut logs) = (Vec::new(), Vec::new());
        for part in &self.parts {
            inputs.push(match part {
                Part::Ready(input) => Input { kind: input.kind, name: input.name.clone(), bytes: Cow::Borrowed(&*input.bytes) },
                Part::Source(_) => {
                    let (input, log) = compiled.next().expect("compile_all returns one result for each source");
                    logs.push(log);
                    input
                }
                Part::File(kind, path) => Input::new(*kind, file_name(path), read(path)?),
            });
        }
        let mut options = self.options.clone();
        if self.lto {
            options.push("-lto".into());
        }
        let (cubin, log) = linker.link(self.arch, &options, &inputs)?;
        logs.push(log);
        logs.retain(|log| !log.is_empty());
        Ok(Linked { cubin, log: logs.join("\n"), cached: false })
    }

    /// Compiles sources in parallel, on as many threads as this process has processors. Returns the
    /// results in the order of the sources, or the first error in that order.
    fn compile_all(&self, linker: &NvJitLink, sources: &[&Source]) -> Result<Vec<(Input<'static>, String)>, LinkError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(sources.len());
        let next = AtomicUsize::new(0);
        let done: Vec<OnceLock<Result<_, LinkError>>> = sources.iter().map(|_| OnceLock::new()).collect();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((source, done)) = sources.get(at).zip(done.get(at)) else { return };
                let _ = done.set(self.compile(linker, source));
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        done.into_iter().map(|done| done.into_inner().expect("every source was compiled by one of the threads")).collect()
    }

    fn compile(&self, linker: &NvJitLink, source: &Source) -> Result<(Input<'static>, String), LinkError> {
        let nvrtc = Nvrtc::load()?;
        let (kind, target) = match self.lto {
            true => (InputKind::LtoIr, Target::LtoIr(self.arch)),
            false => (InputKind::Cubin, Target::Cubin(self.arch)),
        };
        // Machine code requires that NVRTC and nvJitLink have the same major version. LTO-IR also
        // requires that nvJitLink is not older than NVRTC.
        let (compiler, linker) = (nvrtc.version(), linker.version());
        if compiler.major != linker.major || (self.lto && compiler > linker) {
            return Err(LinkError::VersionMismatch {
                what: format!("NVRTC at {}", nvrtc.path().display()),
                found: format!("{compiler:#}"),
                expected: format!("a version that is compatible with nvJitLink {linker:#}"),
            });
        }
        let source = source.clone().option("-rdc=true");
        let compile = || nvrtc.compile(&source, target).map(|compiled| (compiled.image, compiled.log));
        // The compiled source is cached too, so that a source in several links is compiled once.
        let (image, log) = match &self.cache {
            Some(cache) => {
                let mut print = Fingerprint::new();
                print.text("compiled for", &format!("{} {kind:?}", self.arch));
                print.text("NVRTC", &format!("{compiler:#}"));
                source.fingerprint(&mut print)?;
                let (image, log, _) = cache.get_or(&Key::new(print.finish()), compile)?;
                (image, log)
            }
            None => compile()?,
        };
        Ok((Input::new(kind, source.name(), image), log))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn read(path: &Path) -> Result<Vec<u8>, LinkError> {
    std::fs::read(path).map_err(|error| LinkError::io(path, &error))
}

impl fmt::Debug for Linker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linker({}, {} inputs)", self.arch, self.parts.len())
    }
}
