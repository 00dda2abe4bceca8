//! The interfaces that C calls. They and `stetfs-sys` have all of the unsafe code.

pub mod c;
pub mod sqlite;
