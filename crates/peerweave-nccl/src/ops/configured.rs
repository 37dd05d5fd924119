//! Collectives with a configuration for the call (NCCL 2.31), issued immediately or recorded in a
//! group.
//!
//! `of_call.rs` has the configuration. Invariant: NCCL reads a configuration that belongs to this
//! call only, and lives as long as its borrows.

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceBufferMut};
use peerweave_types::{Element, Rank};

use crate::comm::communicator::Communicator;
use crate::library::error::NcclError;
use crate::ops::group::Group;
use crate::ops::reduction::Reduction;
use crate::ops::shapes;
use crate::ops::signatures::collectives;
use crate::{Call, CollConfig};

impl Communicator {
    /// Returns the collectives with a configuration for the call. Requires NCCL 2.31.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use peerweave_nccl::{CudaStream, DeviceMemory};
    /// # use peerweave_nccl::{CollConfig, Communicator, NcclError, ReduceOp};
    /// # fn f(communicator: &Communicator, stream: &Arc<CudaStream>, values: &mut DeviceMemory<f32>) -> Result<(), NcclError> {
    /// let few = CollConfig::new().max_ctas(4);
    /// communicator.with(&few).all_reduce_in_place(stream, values, ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with<'a>(&'a self, config: &'a CollConfig) -> Configured<'a> {
        Configured { communicator: self, config }
    }
}

impl<'env> Group<'env> {
    /// Returns the collectives with a configuration for the call, recorded in the group. For a
    /// thread with several ranks. Requires NCCL 2.31.
    ///
    /// The configuration is read when a call is recorded, and need not live longer.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use peerweave_nccl::{CudaStream, DeviceMemory};
    /// # use peerweave_nccl::{CollConfig, Communicator, Nccl, NcclError, ReduceOp};
    /// # fn f(nccl: Nccl, ranks: &mut [(Communicator, Arc<CudaStream>, DeviceMemory<f32>)]) -> Result<(), NcclError> {
    /// let few = CollConfig::new().max_ctas(4);
    /// nccl.group(|group| {
    ///     for (communicator, stream, values) in ranks {
    ///         group.with(&few).all_reduce_in_place(communicator, stream, values, ReduceOp::Sum)?;
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn with<'a>(&'a mut self, config: &'a CollConfig) -> ConfiguredGroup<'a, 'env> {
        ConfiguredGroup { group: self, config }
    }
}

/// A communicator with a configuration for single calls. Created by [`Communicator::with`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Configured<'a> {
    communicator: &'a Communicator,
    config: &'a CollConfig,
}

/// A group with a configuration for single calls. Created by [`Group::with`].
#[derive(Debug)]
#[must_use]
pub struct ConfiguredGroup<'a, 'env> {
    group: &'a mut Group<'env>,
    config: &'a CollConfig,
}

macro_rules! configured {
    ($($(#[$doc:meta])* $Call:ident $name:ident($($argument:ident: $Type:ty),*);)*) => {
        /// The collectives of the communicator, configured. Before NCCL 2.31 each is
        /// [`NcclError::Unsupported`].
        impl Configured<'_> {
            $(
                #[doc = concat!("Enqueues [`Communicator::", stringify!($name), "`] with the configuration. The lengths are the same.")]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = concat!("[As for the call](Communicator::", stringify!($name), ");")]
                #[doc = "[`NcclError::Unsupported`] for options that the library does not support."]
                pub fn $name<'a, T: Element>(&self, stream: &'a Arc<CudaStream>, $($argument: $Type),*) -> Result<(), NcclError> {
                    self.communicator.run(Call::$Call, stream, Some(self.config), |builder| shapes::$name(builder, $($argument),*))
                }
            )*
        }

        /// The collectives of a communicator, configured and recorded. Before NCCL 2.31 each is
        /// [`NcclError::Unsupported`].
        impl<'a> ConfiguredGroup<'_, 'a> {
            $(
                #[doc = concat!("Records [`Communicator::", stringify!($name), "`] with the configuration, issued when the group is launched. The lengths are the same.")]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = concat!("[As for the call](Communicator::", stringify!($name), "), as far as they are detected before the launch, and")]
                #[doc = "[`NcclError::Unsupported`] for options that the library does not support; the call is then not recorded. The other errors are returned by"]
                #[doc = "[`Nccl::group`](crate::Nccl::group)."]
                pub fn $name<T: Element>(
                    &mut self,
                    communicator: &Communicator,
                    stream: &'a Arc<CudaStream>,
                    $($argument: $Type),*
                ) -> Result<(), NcclError> {
                    self.group.record(Call::$Call, communicator, stream, Some(self.config), |builder| shapes::$name(builder, $($argument),*))
                }
            )*
        }
    };
}

collectives!(configured);
