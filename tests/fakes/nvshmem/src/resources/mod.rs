//! The objects that a program creates and destroys, and queries about these objects: symmetric
//! memory, registrations, teams, modules.
//!
//! Module `job` records the objects. Invariant: a setup call of a team has an effect only after all
//! members have called it with equal arguments.

mod addresses;
mod allocate;
mod launches;
mod modules;
mod register;
mod team_by_id;
mod team_queries;
mod teams;
