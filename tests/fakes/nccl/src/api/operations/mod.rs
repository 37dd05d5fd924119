//! The calls that enqueue work, and their groups and operators.

mod collectives;
mod config;
mod groups;
mod one_sided;
mod operators;
mod point_to_point;
mod submit;
