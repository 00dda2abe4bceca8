//! What tests and judges share: images made by mke2fs and judged by e2fsck, programs and mounts of
//! this machine, chance, the model of a file system and its operations as text, documents with
//! tables that are made.
#![forbid(unsafe_code)]

pub mod document;
pub mod ground;
pub mod host;
pub mod image;
pub mod mounted;
pub mod rng;
pub mod world;
