//! A vhost-user-blk server: the disk of a virtual machine, whose memory it shares.
//!
//! QEMU, Cloud Hypervisor, crosvm and others connect to the socket and hand over the memory of the
//! machine and its queues. Then each request goes from the machine's driver to this server and
//! back, with no other program between. The messages are those of
//! [vhost-user](https://qemu-project.gitlab.io/qemu/interop/vhost-user.html), the requests those of
//! [virtio](https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html), section 5.2.
//! Messages, queues and memory are read by rust-vmm's crates; what is here is the disk.
//!
//! | file | what it is |
//! |---|---|
//! | `disk` | requests: what each does, and its status |
//! | `config` | what the machine is told of the disk |
//! | `work` | the threads that carry requests out, and which are under way |
//! | `frontend` | one connection: its queues |
//! | `server` | accepting, and the end |
//!
//! # What holds
//!
//! - A flush covers every write that was answered before, in any queue. A machine that asks for no
//!   flushes, or turns the cache off (`writeback` 0), has each write durable when it is answered.
//! - Requests of all queues, also of one queue, run at the same time: a read does not wait for a
//!   flush. They are answered in the order in which they are done.
//! - One machine at a time is connected; another waits until it has gone, and until all that it
//!   asked for is done.
//! - What the machine writes into its queues and buffers is hostile: it is copied before it is
//!   looked at, each length has a bound, and a request that is none is returned unanswered. The
//!   memory that requests take is there before the first one, and does not grow with them.
//!
//! The program that connects is trusted as far as this: it hands over the memory, and can end this
//! server by cutting the file of that memory off.

mod config;
mod disk;
mod frontend;
mod server;
#[cfg(test)]
mod tests;
mod work;

pub use server::{Listener, Server, VhostStats};
