//! Shared parts of tests and judges: images made by mke2fs and judged by e2fsck, programs and
//! mounts of this machine, random numbers, the model of a file system and its operations as text,
//! and documents with generated tables.
#![forbid(unsafe_code)]

pub mod document;
pub mod ground;
pub mod host;
pub mod image;
pub mod mounted;
pub mod rng;
pub mod world;
