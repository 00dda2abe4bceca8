//! The FUSE protocol, between the kernel and a server that answers its requests.
//!
//! | file | |
//! |---|---|
//! | `abi.rs` | records and numbers, as the kernel's header has them |
//! | `request.rs` | from bytes to what is asked |
//! | `answer.rs` | answers, built where they are sent from |
//! | `channel.rs` | the open `/dev/fuse`: receiving, answering, notifications |
//! | `ring.rs` | the same by io_uring |
//! | `gate.rs` | what closes to hand the connection over to another program |
//! | `serve.rs` | INIT and the workers |
//!
//! Nothing here knows of volumes. A server implements [`Server`]; [`Session`] runs it.
//!
//! The crate `fuser` (last release: 0.18) knows neither SYNCFS, TMPFILE nor STATX, passes on less
//! of SETATTR and IOCTL than the kernel sends, copies the data of reads, and has no place for a
//! second transport.

pub(crate) mod abi;
mod answer;
mod channel;
mod gate;
mod request;
pub(crate) mod ring;
mod serve;

pub(crate) use answer::{Answer, Names};
pub(crate) use channel::{Channel, DEVICE, Notifier, Ticket, largest_data};
pub(crate) use gate::{Gate, Kept};
pub(crate) use request::{Request, What};
pub use ring::to_switch_on_io_uring;
pub(crate) use serve::{Agreed, Answered, Link, Offer, Server, Session, Terms};
