//! The fixed newstyle handshake: the client asks for options until it chooses the export or leaves.

use std::io::{Read, Write};

use stetfs_format::width::{must_fit_u32, u32_as_usize};

use super::error::NbdError;
use super::protocol::{
    CAN_MULTI_CONN, FIXED_NEWSTYLE, Fields, HAS_FLAGS, IHAVEOPT, INFO_BLOCK_SIZE, INFO_DESCRIPTION,
    INFO_EXPORT, MOST_PAYLOAD, NBDMAGIC, NO_ZEROES, OPT_ABORT, OPT_EXPORT_NAME, OPT_GO, OPT_INFO,
    OPT_LIST, OPTION_REPLY_MAGIC, READ_ONLY, REP_ACK, REP_ERR_INVALID, REP_ERR_UNKNOWN,
    REP_ERR_UNSUP, REP_INFO, REP_SERVER, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
    read_next, read_whole,
};
use crate::ByteDev;

/// The most data of an option, in bytes: a name of 4 KiB, and more kinds of information than there
/// are.
const MOST_OPTION: u32 = 8 << 10;
/// The most options of a handshake.
const MOST_OPTIONS: u32 = 1024;
/// Bytes for which a request is cheap.
const PREFERRED: u32 = 4096;
/// Zeros behind the answer to `NBD_OPT_EXPORT_NAME`.
const PADDING: usize = 124;

/// How a handshake ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreed {
    /// Requests follow.
    Transmission,
    /// The client has left.
    Left,
}

/// What an option leads to.
enum Next {
    Option,
    End(Agreed),
}

/// Leads the handshake.
///
/// # Errors
/// The client violates the protocol, or the connection fails.
pub(super) fn agree(
    reader: &mut impl Read,
    writer: &mut impl Write,
    dev: &ByteDev,
) -> Result<Agreed, NbdError> {
    let mut greeting = Vec::new();
    greeting.extend(NBDMAGIC.to_be_bytes());
    greeting.extend(IHAVEOPT.to_be_bytes());
    greeting.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    writer.write_all(&greeting)?;
    let mut flags = [0; 4];
    if !read_next(reader, &mut flags, "the flags")? {
        return Ok(Agreed::Left);
    }
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(NbdError::ClientFlags { flags });
    }
    let padded = flags & u32::from(NO_ZEROES) == 0;
    for _ in 0..MOST_OPTIONS {
        let Some((option, data)) = read_option(reader)? else {
            return Ok(Agreed::Left);
        };
        if let Next::End(agreed) = answer(writer, dev, option, &data, padded)? {
            return Ok(agreed);
        }
    }
    Err(NbdError::TooManyOptions { most: MOST_OPTIONS })
}

/// Reads an option's number and its data.
fn read_option(reader: &mut impl Read) -> Result<Option<(u32, Vec<u8>)>, NbdError> {
    let mut head = [0; 16];
    if !read_next(reader, &mut head, "an option")? {
        return Ok(None);
    }
    let mut fields = Fields(&head);
    let (found, option, len) = (fields.u64(), fields.u32(), fields.u32());
    if found != IHAVEOPT {
        return Err(NbdError::OptionMagic { found });
    }
    if len > MOST_OPTION {
        let most = MOST_OPTION;
        return Err(NbdError::OptionLength { option, len, most });
    }
    let mut data = vec![0; u32_as_usize(len)];
    read_whole(reader, &mut data, "an option")?;
    Ok(Some((option, data)))
}

fn answer(
    writer: &mut impl Write,
    dev: &ByteDev,
    option: u32,
    data: &[u8],
    padded: bool,
) -> Result<Next, NbdError> {
    let mut reply = |kind, data: &[u8]| reply(writer, option, kind, data);
    match option {
        OPT_EXPORT_NAME if data.is_empty() => {
            let mut export = Vec::new();
            export.extend(dev.size().to_be_bytes());
            export.extend(flags(dev).to_be_bytes());
            export.extend([0; PADDING].iter().filter(|_| padded));
            writer.write_all(&export)?;
            return Ok(Next::End(Agreed::Transmission));
        }
        // There is no way to say it.
        OPT_EXPORT_NAME => return Err(NbdError::NoSuchExport),
        OPT_ABORT => {
            // The client may have gone without waiting for the answer.
            let _ = reply(REP_ACK, &[]);
            return Ok(Next::End(Agreed::Left));
        }
        OPT_LIST if data.is_empty() => {
            // The length of the name, which is empty, and a description.
            let mut server = vec![0; 4];
            server.extend(dev.dev().describe().into_bytes());
            reply(REP_SERVER, &server)?;
            reply(REP_ACK, &[])?;
        }
        OPT_LIST => reply(REP_ERR_INVALID, b"NBD_OPT_LIST has no data")?,
        OPT_INFO | OPT_GO => match Wanted::decode(data) {
            None => reply(REP_ERR_INVALID, b"lengths that do not add up")?,
            Some(wanted) if !wanted.is_default => {
                reply(REP_ERR_UNKNOWN, b"the only export has an empty name")?;
            }
            Some(wanted) => {
                for info in infos(dev, &wanted) {
                    reply(REP_INFO, &info)?;
                }
                reply(REP_ACK, &[])?;
                if option == OPT_GO {
                    return Ok(Next::End(Agreed::Transmission));
                }
            }
        },
        _ => reply(REP_ERR_UNSUP, &[])?,
    }
    Ok(Next::Option)
}

fn reply(writer: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> Result<(), NbdError> {
    let mut message = Vec::new();
    message.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    message.extend(option.to_be_bytes());
    message.extend(kind.to_be_bytes());
    message.extend(must_fit_u32(data.len()).to_be_bytes());
    message.extend(data);
    Ok(writer.write_all(&message)?)
}

/// What `NBD_OPT_INFO` and `NBD_OPT_GO` ask for.
struct Wanted {
    /// The export is the one that there is.
    is_default: bool,
    kinds: Vec<u16>,
}

impl Wanted {
    /// `None` if the lengths in it do not add up.
    fn decode(data: &[u8]) -> Option<Self> {
        let (len, rest) = data.split_first_chunk()?;
        let len = u32_as_usize(u32::from_be_bytes(*len));
        let (_, rest) = rest.split_at_checked(len)?;
        let (count, rest) = rest.split_first_chunk()?;
        let (kinds, odd) = rest.as_chunks();
        let all = usize::from(u16::from_be_bytes(*count)) == kinds.len() && odd.is_empty();
        all.then(|| Self {
            is_default: len == 0,
            kinds: kinds.iter().map(|kind| u16::from_be_bytes(*kind)).collect(),
        })
    }

    fn has(&self, kind: u16) -> bool {
        self.kinds.contains(&kind)
    }
}

/// The export always, the others if they are asked for.
fn infos(dev: &ByteDev, wanted: &Wanted) -> Vec<Vec<u8>> {
    let begun = |kind: u16| kind.to_be_bytes().to_vec();
    let mut export = begun(INFO_EXPORT);
    export.extend(dev.size().to_be_bytes());
    export.extend(flags(dev).to_be_bytes());
    let mut infos = vec![export];
    if wanted.has(INFO_BLOCK_SIZE) {
        let mut sizes = begun(INFO_BLOCK_SIZE);
        let least = dev.sector_size();
        for size in [least, PREFERRED.max(least), MOST_PAYLOAD] {
            sizes.extend(size.to_be_bytes());
        }
        infos.push(sizes);
    }
    if wanted.has(INFO_DESCRIPTION) {
        let mut description = begun(INFO_DESCRIPTION);
        description.extend(dev.dev().describe().into_bytes());
        infos.push(description);
    }
    infos
}

/// The transmission flags.
fn flags(dev: &ByteDev) -> u16 {
    let able = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN;
    if dev.dev().read_only() {
        able | READ_ONLY
    } else {
        able | SEND_TRIM | SEND_WRITE_ZEROES
    }
}
