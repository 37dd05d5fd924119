//! The exported functions. Each checks its arguments in the order of the driver, so that a call
//! with several errors returns the same code.

mod devices;
mod lookup;
mod memory;
mod streams;
