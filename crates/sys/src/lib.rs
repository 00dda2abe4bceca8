//! The only unsafe code outside the C interface: system calls that no safe crate wraps.
