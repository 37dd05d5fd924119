//! A communicator as its users have it: what it is asked, how calls on it complete, how it is
//! waited for and watched, how it ends.

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
