//! The handles of a job: the world, its teams, its streams, and the tickets of enqueued operations.

pub(crate) mod stream;
pub(crate) mod team;
pub(crate) mod ticket;
#[allow(clippy::module_inception, reason = "`World` has a module of its own, like the other handles")]
pub(crate) mod world;

pub use stream::{Event, Stream};
pub use team::Team;
pub use ticket::Ticket;
pub use world::World;
