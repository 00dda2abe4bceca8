//! The command as its users meet it: run as a process, judged by e2fsprogs, man, and (where it can)
//! a mount.

mod copy;
#[cfg(feature = "crash")]
mod crash;
#[cfg(feature = "lab")]
mod damaged;
mod docs;
mod export;
mod files;
mod fsck;
mod hostile;
mod journal;
#[cfg(feature = "lab")]
mod lab;
mod mistakes;
mod mkfs;
mod mounted;
mod nand;
#[cfg(feature = "crash")]
mod parts;
mod run;
mod twice;
