//! A server for NBD clients: QEMU, `nbd-client`, `nbdcopy`.
//!
//! It speaks the fixed newstyle handshake and simple replies, as
//! [the protocol](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md) has them. It
//! offers one export, whose name is empty.
//!
//! | file | what it is |
//! |---|---|
//! | `protocol` | numbers and records |
//! | `handshake` | what comes before the first request |
//! | `transmission` | requests and replies |
//! | `socket` | addresses and connections |
//! | `server` | accepting, and the end |
//!
//! # What holds
//!
//! - A flush covers every write that was answered before, on any connection: all connections use
//!   one device, so clients may open several (`NBD_FLAG_CAN_MULTI_CONN`).
//! - A write with forced unit access is answered when it is durable.
//! - Each connection has some workers. One of them reads a request, the others carry theirs out, so
//!   that a read need not wait for a flush. Replies come in the order in which requests are done.
//! - What a client says is hostile: each length has a bound, a violation of the protocol has a
//!   name and ends the connection. A connection that says nothing during the handshake ends too.
//!   Memory is bounded by the number of connections, which is bounded as well.
//!
//! Structured replies are not offered. They would report holes and errors in the middle of a read;
//! our devices know no holes, and a read is answered only when all of it was read.

mod error;
mod handshake;
mod protocol;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod transmission;

pub use error::NbdError;
pub use server::{Listener, NbdStats, Server};
pub use socket::Address;
