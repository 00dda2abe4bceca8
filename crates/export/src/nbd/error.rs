//! Why a server or a connection ends.

use std::io::{self, ErrorKind};

use crate::socket::SocketError;

/// What went wrong with a client, or with the server's socket.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// There is no socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The address is not of this machine alone. NBD knows no passwords.
    #[error("{address}: other machines can reach this address")]
    NotLocal {
        /// The address.
        address: String,
    },
    /// The connection has failed.
    #[error("the connection failed: {0}")]
    Io(io::Error),
    /// The client went away in the middle of a message.
    #[error("the client went away in the middle of {what}")]
    Ended {
        /// The message.
        what: &'static str,
    },
    /// The client says nothing where the protocol has it speak.
    #[error("the client says nothing during the handshake")]
    Silent,
    /// Flags that this server has not offered.
    #[error("the client set unknown flags: {flags:#x}")]
    ClientFlags {
        /// All flags that it set.
        flags: u32,
    },
    /// An option does not begin as options do.
    #[error("not an option: it begins with {found:#x}")]
    OptionMagic {
        /// Its first eight bytes.
        found: u64,
    },
    /// An option has more data than any that there is.
    #[error("option {option} has {len} bytes of data, more than {most}")]
    OptionLength {
        /// Its number.
        option: u32,
        /// Bytes of data that it announces.
        len: u32,
        /// The bound.
        most: u32,
    },
    /// The handshake does not end.
    #[error("more than {most} options")]
    TooManyOptions {
        /// The bound.
        most: u32,
    },
    /// The client asked for another export in a way that has no answer.
    #[error("there is no export of the client's name; the only export has an empty name")]
    NoSuchExport,
    /// A request does not begin as requests do.
    #[error("not a request: it begins with {found:#x}")]
    RequestMagic {
        /// Its first four bytes.
        found: u32,
    },
    /// A write has more data than a client may send at once.
    #[error("a write of {len} bytes, more than {most}")]
    PayloadLength {
        /// Bytes of data that it announces.
        len: u32,
        /// The bound.
        most: u32,
    },
}

impl From<io::Error> for NbdError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // Only the handshake waits for a limited time.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Silent,
            _ => Self::Io(error),
        }
    }
}
