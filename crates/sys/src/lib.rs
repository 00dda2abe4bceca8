//! The only unsafe code outside the C interface: system calls and instructions that no safe crate
//! wraps.
//!
//! Each function is safe to call with any arguments: an error of the kernel is returned as its
//! errno, an invalid range panics.
#![cfg_attr(not(test), deny(clippy::as_conversions))]

#[cfg(target_os = "linux")]
pub mod block_ioctl;
mod cache_line;
#[cfg(target_os = "linux")]
pub mod file_ioctl;
#[cfg(target_os = "linux")]
pub mod fuse_ioctl;
#[cfg(target_os = "linux")]
pub mod fuse_ring;
#[cfg(target_os = "linux")]
pub mod inherited;
#[cfg(target_os = "linux")]
mod interrupt;
#[cfg(target_os = "linux")]
pub mod libc_files;
#[cfg(target_os = "linux")]
mod lock;
#[cfg(target_os = "linux")]
pub mod loop_ioctl;
#[cfg(target_os = "linux")]
mod lost_pages;
#[cfg(target_os = "linux")]
pub mod mapping;
#[cfg(target_os = "linux")]
pub mod mtd;
#[cfg(target_os = "linux")]
pub mod namespace;
#[cfg(target_os = "linux")]
pub mod ring;
#[cfg(target_os = "linux")]
pub mod ublk;
#[cfg(target_os = "linux")]
mod uring;
mod xor;

pub use cache_line::store_fence;
#[cfg(target_os = "linux")]
pub use interrupt::interrupt;
#[cfg(target_os = "linux")]
pub use lock::{is_range_locked, lock_memory, lock_range};
pub use xor::xor_into;
