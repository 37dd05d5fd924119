//! The exported functions. Each function checks its arguments in the order in which the driver
//! checks them, so that a call with several errors returns the driver's code.

mod devices;
mod lookup;
mod memory;
mod streams;
