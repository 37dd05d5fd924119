//! The communicator, without its communication calls: queries, completion of calls, waits with
//! deadlines, the watchdog, and the end of a communicator. `ops` has the communication calls.

pub(crate) mod abort;
pub(crate) mod communicator;
pub(crate) mod complete;
pub(crate) mod leaks;
pub(crate) mod lifecycle;
pub(crate) mod siblings;
pub(crate) mod teardown;
pub(crate) mod wait;
pub(crate) mod watchdog;
pub(crate) mod work;
