//! The interfaces that C calls: the unsafe code beside that of `stetfs-sys`.

pub mod c;
pub mod sqlite;
