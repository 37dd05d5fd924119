//! Creates, derives, suspends and ends communicators, and answers queries of them.

mod config;
mod derive;
mod end;
mod init;
mod query;
mod runtime;
mod start;
mod suspend;
