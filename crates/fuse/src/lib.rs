//! The FUSE mount.
#![forbid(unsafe_code)]
