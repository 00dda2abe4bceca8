//! The FUSE protocol, between the kernel and whatever answers its requests.
//!
//! | file | |
//! |---|---|
//! | `abi.rs` | records and numbers, as the kernel's header has them |
//! | `request.rs` | from bytes to what is asked |
//! | `answer.rs` | answers, built where they are sent from |
//! | `channel.rs` | the open `/dev/fuse`: receiving, answering, notifications |
//! | `serve.rs` | INIT and the workers |
//!
//! Nothing here knows of volumes. A server implements [`Server`]; [`Session`] runs it.

pub mod abi;
mod answer;
mod channel;
mod request;
mod serve;

pub use answer::{Answer, Names};
pub(crate) use channel::DEVICE;
pub use channel::{Notifier, Ticket};
pub use request::{BadRequest, Request, What};
pub use serve::{Answered, Offer, Server, Session, Terms};
