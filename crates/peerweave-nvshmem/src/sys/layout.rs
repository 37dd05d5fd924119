//! Sizes and offsets of the declared structs, which are compared with NVSHMEM's headers.

use std::mem::offset_of;

use super::types::*;
use crate::Version;

/// The size of a struct, or the offset of a field of a struct. The tuple has three elements: the
/// text `size X` or `offset X.f`, the first version of NVSHMEM whose headers declare the struct or
/// the field, and the size or offset in bytes.
pub type Fact = (&'static str, Version, i64);

/// Returns the sizes of all declared structs, and the offsets of their fields.
pub fn facts() -> Vec<Fact> {
    let mut all = Vec::new();
    macro_rules! layout {
        ($since:expr, $Struct:ident { $($field:ident),* }) => {
            all.push((concat!("size ", stringify!($Struct)), $since, size_of::<$Struct>() as i64));
            $(all.push((concat!("offset ", stringify!($Struct), ".", stringify!($field)), $since, offset_of!($Struct, $field) as i64));)*
        };
    }
    let oldest = Version::new(3, 3, 24);
    layout!(oldest, nvshmemx_uniqueid_t { version, internal });
    layout!(oldest, nvshmemx_uniqueid_args_t { version, id, myrank, nranks });
    layout!(oldest, nvshmemx_init_args_t { version, uid_args });
    layout!(INIT_LAYOUT_2, nvshmemx_init_args_t { cuda_device_id, content });
    layout!(oldest, nvshmemx_init_attr_t { version, mpi_comm, args });
    layout!(oldest, nvshmem_team_config_t { version, num_contexts, uniqueid });
    layout!(HEADER_OF_REGIONS, nvshmemx_region_attrs_t { hints });
    all
}

/// The first version of NVSHMEM whose headers declare `nvshmemx_region_attrs_t`. The struct has the
/// attributes of a region of the program in which NVSHMEM may batch transfers.
const HEADER_OF_REGIONS: Version = Version::new(3, 8, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn struct_version_fields_match_the_nvshmem_headers() {
        let old = nvshmemx_init_attr_t::unset(Version::new(3, 4, 5));
        assert_eq!((old.version, old.args.version, old.args.uid_args.version), (65680, 65664, 65560));
        assert_eq!(old.args.cuda_device_id, 0, "the device is padding in layout 1");
        let new = nvshmemx_init_attr_t::unset(Version::new(3, 8, 0));
        assert_eq!((new.version, new.args.version, new.args.cuda_device_id), (131216, 131200, -1));
        assert_eq!(nvshmemx_uniqueid_t::EMPTY.version, 65664);
        assert_eq!(nvshmem_team_config_t::UNSET.version, 131136);
    }

    #[test]
    fn struct_sizes_match_the_nvshmem_headers() {
        let size = |name: &str| facts().iter().find(|fact| fact.0 == format!("size {name}")).expect("the struct is listed").2;
        assert_eq!(size("nvshmemx_uniqueid_t"), 128);
        assert_eq!(size("nvshmemx_uniqueid_args_t"), 24);
        assert_eq!(size("nvshmemx_init_args_t"), 128);
        assert_eq!(size("nvshmemx_init_attr_t"), 144);
        assert_eq!(size("nvshmem_team_config_t"), 64);
        assert_eq!(size("nvshmemx_region_attrs_t"), 64);
    }
}
