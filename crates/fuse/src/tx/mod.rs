//! Transactions that a program or a command asks for through a mount.
//!
//! - `groups.rs`: a program's group. Its requests change the volume in one transaction
//!   (docs/ATOMIC.md).
//! - [`layer`]: a command's layer. `stetfs tx` lays it over the volume, and one transaction applies
//!   it (docs/TX.md).

pub(crate) mod groups;

pub mod layer;
