//! The only unsafe code outside the C interface: system calls that no safe crate wraps.
//!
//! Each function is safe to call with any arguments: what the kernel refuses comes back as its errno.

#[cfg(target_os = "linux")]
pub mod block_ioctl;
#[cfg(target_os = "linux")]
pub mod ring;
