//! The command as users meet it: run as a process, judged by e2fsprogs, man, and, where possible, a
//! mount.

mod action;
mod archive;
mod as_coreutils;
mod below;
mod beside;
mod container;
mod copy;
#[cfg(feature = "crash")]
mod crash;
#[cfg(feature = "crash")]
mod damaged;
mod docs;
mod export;
mod fakeroot;
mod files;
mod freeze;
mod from;
mod fsck;
mod fstab;
mod fuse2fs;
mod hostile;
#[cfg(feature = "crash")]
mod incomplete;
mod journal;
mod look;
mod mistakes;
mod mkfs;
mod mounted;
mod nand;
mod ordinary;
mod partition;
#[cfg(feature = "crash")]
mod parts;
#[cfg(feature = "crash")]
mod program;
mod qcow2;
mod recover;
mod resize;
mod run;
mod served;
#[cfg(feature = "crash")]
mod shared;
#[cfg(feature = "crash")]
mod strangers;
mod survive;
mod twice;
mod tx;
mod tx_memory;
mod unchecked;
mod unit;
mod upgrade;
