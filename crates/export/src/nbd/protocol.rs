//! The protocol's numbers and records. Everything is big-endian. Names are the protocol's.

use std::io::{self, ErrorKind, Read};

use super::error::NbdError;

pub(super) const NBDMAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub(super) const IHAVEOPT: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// Handshake flags, the server's and the client's.
pub(super) const FIXED_NEWSTYLE: u16 = 1 << 0;
pub(super) const NO_ZEROES: u16 = 1 << 1;

/// Transmission flags.
pub(super) const HAS_FLAGS: u16 = 1 << 0;
pub(super) const READ_ONLY: u16 = 1 << 1;
pub(super) const SEND_FLUSH: u16 = 1 << 2;
pub(super) const SEND_FUA: u16 = 1 << 3;
pub(super) const SEND_TRIM: u16 = 1 << 5;
pub(super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(super) const CAN_MULTI_CONN: u16 = 1 << 8;

/// Options.
pub(super) const OPT_EXPORT_NAME: u32 = 1;
pub(super) const OPT_ABORT: u32 = 2;
pub(super) const OPT_LIST: u32 = 3;
pub(super) const OPT_INFO: u32 = 6;
pub(super) const OPT_GO: u32 = 7;

/// Replies to options.
pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_SERVER: u32 = 2;
pub(super) const REP_INFO: u32 = 3;
pub(super) const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub(super) const REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub(super) const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;

/// Kinds of information.
pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_DESCRIPTION: u16 = 2;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

/// Commands.
pub(super) const CMD_READ: u16 = 0;
pub(super) const CMD_WRITE: u16 = 1;
pub(super) const CMD_DISC: u16 = 2;
pub(super) const CMD_FLUSH: u16 = 3;
pub(super) const CMD_TRIM: u16 = 4;
pub(super) const CMD_WRITE_ZEROES: u16 = 6;

/// Flags of commands.
pub(super) const CMD_FLAG_FUA: u16 = 1 << 0;
pub(super) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;

/// The most data of a read or a write, in bytes: what clients may rely on that ask for no bound.
pub(super) const MOST_PAYLOAD: u32 = 32 << 20;

/// Why a request failed, as the reply says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Eperm,
    Eio,
    Enomem,
    Einval,
    Enospc,
}

impl Refused {
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Eperm => 1,
            Self::Eio => 5,
            Self::Enomem => 12,
            Self::Einval => 22,
            Self::Enospc => 28,
        }
    }
}

/// A request without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) command: u16,
    /// Which request a reply belongs to.
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl Request {
    /// Bytes of a request.
    pub(super) const LEN: usize = 28;

    /// # Errors
    /// [`NbdError::RequestMagic`].
    pub(super) fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, NbdError> {
        let mut fields = Fields(bytes);
        let found = fields.u32();
        if found != REQUEST_MAGIC {
            return Err(NbdError::RequestMagic { found });
        }
        Ok(Self {
            flags: fields.u16(),
            command: fields.u16(),
            cookie: fields.u64(),
            offset: fields.u64(),
            len: fields.u32(),
        })
    }
}

/// Fields one after the other. Whoever takes them has looked that they are there: of what is not,
/// the bytes are zeros.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        if let Some((found, rest)) = self.0.split_first_chunk() {
            field = *found;
            self.0 = rest;
        }
        field
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// Reads a whole message.
///
/// # Errors
/// [`NbdError::Ended`] with the name of the message, or the connection's.
pub(super) fn read_whole(
    from: &mut impl Read,
    bytes: &mut [u8],
    what: &'static str,
) -> Result<(), NbdError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => NbdError::Ended { what },
        _ => error.into(),
    })
}

/// Reads a message, if the client has not gone away before it.
///
/// # Errors
/// As [`read_whole`].
pub(super) fn read_next(
    from: &mut impl Read,
    bytes: &mut [u8],
    what: &'static str,
) -> Result<bool, NbdError> {
    let found = loop {
        match from.read(bytes) {
            Ok(found) => break found,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    };
    if found == 0 {
        return Ok(false);
    }
    read_whole(from, &mut bytes[found..], what).map(|()| true)
}

/// Whether an error of the connection says that the client has gone.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    )
}
