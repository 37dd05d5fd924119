//! Finds the headers and the device library of an installed NVSHMEM, and links kernels with the
//! library.

use std::path::{Path, PathBuf};

use peerweave_device::network::Function;

use crate::Version;
use crate::environment::{names, variable};
use crate::error::LinkError;
use crate::{Arch, CudaHeaders, InputKind, Linked, Linker, Nvrtc};

use super::wrappers::{used_by, wrappers};

/// The oldest supported version of NVSHMEM. [`FIRST_UNKNOWN`] and newer versions are not supported.
const OLDEST: Version = Version::new(3, 3, 0);
const FIRST_UNKNOWN: Version = Version::new(4, 0, 0);

const ARCHIVE: &str = "libnvshmem_device.a";

/// The device library of an installed NVSHMEM: the headers, and the archive `libnvshmem_device.a`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLibrary {
    /// The directory that contains `nvshmem.h`.
    pub include: PathBuf,
    /// Path of the archive `libnvshmem_device.a`.
    pub archive: PathBuf,
    /// The version of NVSHMEM that the headers state.
    pub version: Version,
}

impl DeviceLibrary {
    /// Finds the device library that belongs to a host library. If `PEERWEAVE_NVSHMEM_DEVICE_PATH`
    /// is set, searches only the directory in that variable. If the variable is not set, searches
    /// near the host library. Wheels, archives and system packages use different directory layouts;
    /// the search covers each of these layouts.
    ///
    /// # Errors
    /// [`LinkError::NotFound`] if the headers or the archive are not found; the error lists the
    /// directories that were searched. [`LinkError::VersionMismatch`] if the version is not
    /// supported. [`LinkError::Io`] if the version cannot be read.
    pub fn beside(host_library: &Path) -> Result<Self, LinkError> {
        Self::beside_with(host_library, &|name| variable(name).map(PathBuf::from))
    }

    fn beside_with(host_library: &Path, variable: &dyn Fn(&str) -> Option<PathBuf>) -> Result<Self, LinkError> {
        let given = variable(names::NVSHMEM_DEVICE_PATH);
        let mut places: Vec<(PathBuf, PathBuf)> = Vec::new();
        let mut tree = |root: &Path| places.push((root.join("include"), root.join("lib")));
        match &given {
            Some(root) => tree(root),
            None => {
                let file = host_library.canonicalize().unwrap_or_else(|_| host_library.to_path_buf());
                let lib = file.parent().unwrap_or(Path::new("/")).to_path_buf();
                lib.parent().into_iter().for_each(&mut tree);
                // System packages have a directory for each major version of CUDA:
                // lib/ARCH/nvshmem/13 and include/nvshmem_13.
                if let Some(cuda) = lib.file_name().and_then(|name| name.to_str())
                    && let Some(prefix) = lib.ancestors().find(|prefix| prefix.join("include").is_dir())
                {
                    places.push((prefix.join("include").join(format!("nvshmem_{cuda}")), lib));
                }
            }
        }
        let whole = |(include, lib): &&(PathBuf, PathBuf)| include.join("nvshmem.h").is_file() && lib.join(ARCHIVE).is_file();
        let Some((include, lib)) = places.iter().find(whole) else {
            return Err(LinkError::NotFound {
                what: "NVSHMEM's headers and libnvshmem_device.a",
                remedy: "install NVSHMEM with its headers (for example the wheel nvidia-nvshmem-cu13), or set PEERWEAVE_NVSHMEM_DEVICE_PATH to the \
                         directory that contains include and lib",
                tried: places.into_iter().flat_map(|(include, lib)| [include, lib]).collect(),
            });
        };
        let version = version_of(include)?;
        if version < OLDEST || version >= FIRST_UNKNOWN {
            return Err(LinkError::VersionMismatch {
                what: format!("NVSHMEM's headers in {}", include.display()),
                found: format!("{version:#}"),
                expected: format!("at least {OLDEST:#} and below {FIRST_UNKNOWN:#}"),
            });
        }
        Ok(Self { include: include.clone(), archive: lib.join(ARCHIVE), version })
    }

    /// Checks that this device library is compatible with a host library of version `host`. NVSHMEM
    /// requires that the two libraries have the same major version number. The minor version number
    /// of the device library must not be greater than the minor version number of the host library.
    ///
    /// # Errors
    /// [`LinkError::VersionMismatch`] if the versions are incompatible.
    pub fn check_host(&self, host: Version) -> Result<(), LinkError> {
        if self.version.major == host.major && self.version.minor <= host.minor {
            return Ok(());
        }
        Err(LinkError::VersionMismatch {
            what: format!("NVSHMEM's device library {}", self.archive.display()),
            found: format!("{:#}", self.version),
            expected: format!(
                "version {}.x with x at most {}, because NVSHMEM's host library has version {host}",
                host.major, host.minor
            ),
        })
    }

    /// Links the PTX of kernels with NVSHMEM's device library. Also links the wrapper functions
    /// (`peerweave_nvshmem_*`) that the PTX calls. The first link takes some seconds. Later links
    /// of the same PTX return the module from the cache.
    ///
    /// # Errors
    /// The errors of [`Linker::link`] and [`CudaHeaders::find`]. [`LinkError::Misuse`] if the PTX
    /// calls an unknown wrapper.
    pub fn link(&self, arch: Arch, ptx: &str) -> Result<Linked, LinkError> {
        self.linker(arch, ptx)?.link()
    }

    /// Returns the linker that [`link`](Self::link) uses, so that the caller can add inputs and
    /// options.
    ///
    /// # Errors
    /// The errors of [`Nvrtc::load`] and [`CudaHeaders::find`]. [`LinkError::Misuse`] if the PTX
    /// calls an unknown wrapper.
    pub fn linker<'a>(&self, arch: Arch, ptx: &'a str) -> Result<Linker<'a>, LinkError> {
        self.part_linker(arch, ptx, &used_by(ptx)?)
    }

    /// Returns the linker for `ptx`, which is one part of a crate's PTX. `used` must contain the
    /// wrappers of NVSHMEM's device functions that all parts together call. To obtain these
    /// wrappers, pass the crate's whole PTX to [`used_by`](super::used_by). All parts are linked
    /// with the same wrappers, so the wrappers are compiled once and cached.
    ///
    /// # Errors
    /// The errors of [`Nvrtc::load`] and [`CudaHeaders::find`].
    pub fn part_linker<'a>(&self, arch: Arch, ptx: &'a str, used: &[&Function]) -> Result<Linker<'a>, LinkError> {
        let headers = CudaHeaders::find(Nvrtc::load()?)?;
        let linker = Linker::new(arch).ptx("kernels.ptx", ptx).file(InputKind::Archive, &self.archive);
        Ok(if used.is_empty() { linker } else { linker.source(wrappers(used, &self.include, &headers)) })
    }
}

fn version_of(include: &Path) -> Result<Version, LinkError> {
    let path = include.join("non_abi/nvshmem_version.h");
    let text = std::fs::read_to_string(&path).map_err(|error| LinkError::io(&path, &error))?;
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("#define ")?.trim().strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok())
    };
    let parts = ["NVSHMEM_VENDOR_MAJOR_VERSION", "NVSHMEM_VENDOR_MINOR_VERSION", "NVSHMEM_VENDOR_PATCH_VERSION"].map(number);
    match parts {
        [Some(major), Some(minor), Some(patch)] => Ok(Version::of_numbers([major, minor, patch])),
        _ => Err(LinkError::Io {
            path,
            reason: "found no version of NVSHMEM, expected the macros NVSHMEM_VENDOR_{MAJOR,MINOR,PATCH}_VERSION".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(root: &Path, include: &str, lib: &str, version: &str) {
        let put = |path: PathBuf, text: String| {
            std::fs::create_dir_all(path.parent().expect("the path has a parent")).expect("the temporary directory is writable");
            std::fs::write(path, text).expect("the temporary directory is writable");
        };
        let mut numbers = version.split('.');
        let mut line = |name: &str| {
            format!("#define NVSHMEM_VENDOR_{name}_VERSION {}\n", numbers.next().expect("the version has three numbers"))
        };
        let text = [line("MAJOR"), line("MINOR"), line("PATCH")].concat();
        put(root.join(include).join("nvshmem.h"), String::new());
        put(root.join(include).join("non_abi/nvshmem_version.h"), text);
        put(root.join(lib).join(ARCHIVE), String::new());
        put(root.join(lib).join("libnvshmem_host.so.3"), String::new());
    }

    #[test]
    fn device_library_in_a_wheel_or_system_package_is_found() {
        for (include, lib) in
            [("nvidia/nvshmem/include", "nvidia/nvshmem/lib"), ("usr/include/nvshmem_13", "usr/lib/x86_64-linux-gnu/nvshmem/13")]
        {
            let root = tempfile::tempdir().expect("a temporary directory can be created");
            let root = root.path().canonicalize().expect("the directory exists");
            install(&root, include, lib, "3.4.5");
            let found = DeviceLibrary::beside_with(&root.join(lib).join("libnvshmem_host.so.3"), &|_| None)
                .expect("the device library was installed above");
            assert_eq!((found.include, found.version), (root.join(include), Version::new(3, 4, 5)));
        }
    }

    #[test]
    fn missing_device_library_error_names_what_to_install() {
        let root = tempfile::tempdir().expect("a temporary directory can be created");
        let variable = |name: &str| (name == "PEERWEAVE_NVSHMEM_DEVICE_PATH").then(|| root.path().to_path_buf());
        let error = DeviceLibrary::beside_with(Path::new("/nowhere/lib/libnvshmem_host.so.3"), &variable)
            .expect_err("the search fails, because the directory is empty");
        let LinkError::NotFound { tried, .. } = &error else { panic!("{error}, expected NotFound") };
        assert_eq!(tried[..], [root.path().join("include"), root.path().join("lib")]);
    }

    #[test]
    fn incompatible_nvshmem_device_library_is_an_error() {
        let root = tempfile::tempdir().expect("a temporary directory can be created");
        let variable = |name: &str| (name == "PEERWEAVE_NVSHMEM_DEVICE_PATH").then(|| root.path().to_path_buf());
        let find = |version: &str| {
            install(root.path(), "include", "lib", version);
            DeviceLibrary::beside_with(Path::new("/nowhere"), &variable)
        };
        for version in ["3.2.9", "4.0.0"] {
            assert!(matches!(find(version), Err(LinkError::VersionMismatch { .. })), "{version}");
        }
        let found = find("3.4.5").expect("the version is supported");
        for (host, fits) in [((3, 4, 0), true), ((3, 8, 0), true), ((3, 3, 24), false), ((4, 4, 0), false)] {
            let checked = found.check_host(Version::new(host.0, host.1, host.2));
            assert_eq!(checked.is_ok(), fits, "{host:?}");
            assert!(checked.is_ok() || matches!(checked, Err(LinkError::VersionMismatch { .. })));
        }
    }
}
