//! Tests through [`Fs`](crate::Fs), judged by e2fsck, debugfs and the kernel.

mod attributes;
mod basic;
mod caches;
mod contents;
mod contiguity;
mod delayed;
mod failing;
mod group_names;
mod groups;
mod large;
mod looks;
mod mounts;
mod options;
mod refused;
mod space;
