//! Collectives with a configuration for a single call (requires NCCL 2.31), issued immediately or
//! recorded in a group.
//!
//! `of_call.rs` has the configuration. Invariant: each call passes its own copy of the
//! configuration to NCCL. The copy lives until the call has ended. If the call is in a group, the
//! copy lives until the group has ended.

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
    /// Returns a wrapper around this communicator. Collectives that are called on the wrapper use
    /// `config`. Requires NCCL 2.31.
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
    /// Returns a wrapper around this group. Collectives that are recorded through the wrapper use
    /// `config`. The wrapper is useful for a thread with several ranks. Requires NCCL 2.31.
    ///
    /// Recording a call copies the configuration, so the configuration need not live until the
    /// group is launched.
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

/// A communicator whose collectives use a given configuration. Created by [`Communicator::with`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Configured<'a> {
    communicator: &'a Communicator,
    config: &'a CollConfig,
}

/// A group whose collectives use a given configuration. Created by [`Group::with`].
#[derive(Debug)]
#[must_use]
pub struct ConfiguredGroup<'a, 'env> {
    group: &'a mut Group<'env>,
    config: &'a CollConfig,
}

macro_rules! configured {
    ($($(#[$doc:meta])* $Call:ident $name:ident($($argument:ident: $Type:ty),*);)*) => {
        /// Collectives that use the configuration of this value. Before NCCL 2.31 each call fails
        /// with [`NcclError::Unsupported`].
        impl Configured<'_> {
            $(
                #[doc = concat!("Enqueues [`Communicator::", stringify!($name), "`] with the configuration. The linked method documents the lengths of the buffers.")]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = concat!("The errors of [`Communicator::", stringify!($name), "`].")]
                #[doc = "[`NcclError::Unsupported`] also for options that the library does not support."]
                pub fn $name<'a, T: Element>(&self, stream: &'a Arc<CudaStream>, $($argument: $Type),*) -> Result<(), NcclError> {
                    self.communicator.run(Call::$Call, stream, Some(self.config), |builder| shapes::$name(builder, $($argument),*))
                }
            )*
        }

        /// Methods that record collectives in the group. All of these collectives use the
        /// configuration of this value. Before NCCL 2.31 each call fails with
        /// [`NcclError::Unsupported`].
        impl<'a> ConfiguredGroup<'_, 'a> {
            $(
                #[doc = concat!("Records [`Communicator::", stringify!($name), "`] with the configuration. The call is issued when the group is launched. The linked method documents the lengths of the buffers.")]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = concat!("[`Communicator::", stringify!($name), "`] lists the possible errors. [`NcclError::Unsupported`] also for options that the library does not support.")]
                #[doc = "This method returns an error that is detected before the launch. The group then does not contain the call."]
                #[doc = "[`Nccl::group`](crate::Nccl::group) returns an error that is detected later."]
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
