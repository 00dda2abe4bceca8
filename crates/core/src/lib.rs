//! stetfs: a journaling file system on the ext4 on-disk format.
#![forbid(unsafe_code)]
