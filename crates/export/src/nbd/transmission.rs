//! Requests and replies of one connection.
//!
//! Some workers share it. The one that holds the reading end takes a request with its data, lets
//! the next worker read, carries the request out and replies. So requests run at the same time, and
//! there is no queue that could grow.

use std::io::{IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use stetfs_format::width::u32_as_usize;
use stetfs_media::{Block, MediaError};

use super::error::NbdError;
use super::protocol::{
    CMD_DISC, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
    CMD_WRITE_ZEROES, MOST_PAYLOAD, Refused, Request, SIMPLE_REPLY_MAGIC, read_next, read_whole,
};
use crate::{ByteDev, errno};

/// Requests of a connection that run at the same time: a flush does not keep reads waiting, and
/// the device has some writes to choose from.
const WORKERS: usize = 4;
/// Each worker has room of its own for this many bytes of data. For more it borrows the
/// connection's.
const SMALL: usize = 1 << 20;
/// Room for data is in whole sectors, in bytes.
const SECTOR: usize = 512;

/// What all connections share.
pub(super) struct Export {
    pub(super) dev: Arc<ByteDev>,
    /// The server ends, and takes no more requests.
    pub(super) is_ending: AtomicBool,
    /// Requests that were taken.
    pub(super) requests: AtomicU64,
}

/// One connection, whose handshake is over.
pub(super) struct Connection<'a, R, W> {
    export: &'a Export,
    reader: Mutex<R>,
    writer: Mutex<W>,
    /// Room for the data of one large request.
    large: Mutex<Block>,
    /// No more requests are read.
    is_over: AtomicBool,
}

/// A request that was read.
struct Taken<'r> {
    request: Request,
    /// Why it is not carried out.
    refused: Option<Refused>,
    data: Room<'r>,
}

/// The data of a request.
struct Room<'r> {
    own: &'r mut Block,
    large: Option<MutexGuard<'r, Block>>,
    len: usize,
}

impl Room<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        let block = self.large.as_deref_mut().unwrap_or(self.own);
        if block.bytes().len() < self.len {
            *block = Block::zeroed(self.len.next_multiple_of(SECTOR));
        }
        &mut block.bytes_mut()[..self.len]
    }
}

impl Drop for Room<'_> {
    /// Large requests are rare, and a connection may be idle for days.
    fn drop(&mut self) {
        if let Some(large) = &mut self.large {
            **large = Block::zeroed(0);
        }
    }
}

impl<'a, R: Read + Send, W: Write + Send> Connection<'a, R, W> {
    pub(super) fn new(export: &'a Export, reader: R, writer: W) -> Self {
        Self {
            export,
            reader: Mutex::new(reader),
            writer: Mutex::new(writer),
            large: Mutex::new(Block::zeroed(0)),
            is_over: AtomicBool::new(false),
        }
    }

    /// Serves until the client leaves or the server ends; then no request is under way any more.
    /// `cut` ends the connection after an error, so that no worker waits for the client.
    ///
    /// # Errors
    /// The first of a worker's: the client violates the protocol, or the connection fails.
    pub(super) fn serve(&self, cut: &(dyn Fn() + Sync)) -> Result<(), NbdError> {
        let work = || {
            let done = self.work();
            self.is_over.store(true, Ordering::Relaxed);
            if done.is_err() {
                cut();
            }
            done
        };
        thread::scope(|scope| {
            let spawn = |_| {
                let worker = thread::Builder::new().name("nbd-worker".to_owned());
                worker.spawn_scoped(scope, work)
            };
            // Fewer do as well.
            let others: Vec<_> = (1..WORKERS).map_while(|n| spawn(n).ok()).collect();
            let mut ended = work();
            for other in others {
                let done = other.join();
                ended = ended.and(done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            ended
        })
    }

    fn work(&self) -> Result<(), NbdError> {
        let mut own = Block::zeroed(0);
        while let Some(mut taken) = self.take(&mut own)? {
            self.export.requests.fetch_add(1, Ordering::Relaxed);
            let done = taken.refused.map_or(Ok(()), Err);
            let data = taken.data.bytes();
            let done = done.and_then(|()| self.carry_out(&taken.request, data));
            let is_read = taken.request.command == CMD_READ && done.is_ok();
            let data = if is_read { data } else { &mut [] };
            self.reply(taken.request.cookie, done, data)?;
        }
        Ok(())
    }

    /// Reads a request, with its data if it is a write. None when the client has left or the server
    /// ends.
    fn take<'r>(&'r self, own: &'r mut Block) -> Result<Option<Taken<'r>>, NbdError> {
        let mut reader = self.reader.lock();
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if is_set(&self.is_over) || is_set(&self.export.is_ending) {
            return Ok(None);
        }
        let taken = self.read_request(&mut *reader, own);
        if !matches!(taken, Ok(Some(_))) {
            // Before another worker gets the reading end.
            self.is_over.store(true, Ordering::Relaxed);
        }
        taken
    }

    fn read_request<'r>(
        &'r self,
        reader: &mut R,
        own: &'r mut Block,
    ) -> Result<Option<Taken<'r>>, NbdError> {
        let mut head = [0; Request::LEN];
        if !read_next(reader, &mut head, "a request")? {
            return Ok(None);
        }
        let request = Request::decode(&head)?;
        if request.command == CMD_DISC {
            return Ok(None);
        }
        let (len, most) = (request.len, MOST_PAYLOAD);
        if request.command == CMD_WRITE && len > most {
            return Err(NbdError::PayloadLength { len, most });
        }
        let refused = self.refusal(&request);
        let len = match request.command {
            // The data comes in any case.
            CMD_WRITE => u32_as_usize(len),
            CMD_READ if refused.is_none() => u32_as_usize(len),
            _ => 0,
        };
        let large = (len > SMALL).then(|| self.large.lock());
        let mut data = Room { own, large, len };
        if request.command == CMD_WRITE {
            read_whole(reader, data.bytes(), "the data of a write")?;
        }
        Ok(Some(Taken {
            request,
            refused,
            data,
        }))
    }

    /// Why a request cannot be carried out, whatever its data.
    fn refusal(&self, request: &Request) -> Option<Refused> {
        let dev = &self.export.dev;
        let command = request.command;
        let allowed = match command {
            CMD_WRITE_ZEROES => CMD_FLAG_FUA | CMD_FLAG_NO_HOLE,
            _ => CMD_FLAG_FUA,
        };
        if request.flags & !allowed != 0 {
            return Some(Refused::Einval);
        }
        let changes = matches!(command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
        if changes && dev.dev().read_only() {
            return Some(Refused::Eperm);
        }
        let end = request.offset.checked_add(request.len.into());
        let fits = end.is_some_and(|end| end <= dev.size());
        match command {
            CMD_FLUSH => None,
            CMD_WRITE | CMD_WRITE_ZEROES => (!fits).then_some(Refused::Enospc),
            CMD_READ => (!fits || request.len > MOST_PAYLOAD).then_some(Refused::Einval),
            CMD_TRIM => (!fits).then_some(Refused::Einval),
            _ => Some(Refused::Einval),
        }
    }

    fn carry_out(&self, request: &Request, data: &mut [u8]) -> Result<(), Refused> {
        let dev = &self.export.dev;
        let (offset, len) = (request.offset, u64::from(request.len));
        let is_durable = request.flags & CMD_FLAG_FUA != 0;
        let flush = |()| if is_durable { dev.flush() } else { Ok(()) };
        let done = match request.command {
            CMD_READ => dev.read_at(offset, data),
            CMD_WRITE if is_durable => dev.write_durable(offset, data),
            CMD_WRITE => dev.write_at(offset, data),
            CMD_TRIM => match dev.discard(offset, len) {
                // It is a hint.
                Err(MediaError::Unsupported { .. }) => Ok(()),
                done => done.and_then(flush),
            },
            CMD_WRITE_ZEROES => dev.write_zeros(offset, len).and_then(flush),
            CMD_FLUSH => dev.flush(),
            _ => return Err(Refused::Einval),
        };
        done.map_err(|error| {
            tracing::error!("{error}");
            refused(&error)
        })
    }

    fn reply(&self, cookie: u64, done: Result<(), Refused>, data: &[u8]) -> Result<(), NbdError> {
        let mut head = [0; 16];
        let error = done.map_or_else(Refused::number, |()| 0);
        head[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        head[4..8].copy_from_slice(&error.to_be_bytes());
        head[8..].copy_from_slice(&cookie.to_be_bytes());
        let mut writer = self.writer.lock();
        let sent = writer.write_vectored(&[IoSlice::new(&head), IoSlice::new(data)])?;
        writer.write_all(head.get(sent..).unwrap_or_default())?;
        let sent = sent.saturating_sub(head.len());
        writer.write_all(data.get(sent..).unwrap_or_default())?;
        Ok(writer.flush()?)
    }
}

/// The device's error as the protocol has it.
fn refused(error: &MediaError) -> Refused {
    match errno(error) {
        _ if matches!(error, MediaError::Unsupported { .. }) => Refused::Einval,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Refused::Enospc,
        Errno::PERM | Errno::ACCESS | Errno::ROFS => Refused::Eperm,
        Errno::NOMEM => Refused::Enomem,
        Errno::INVAL => Refused::Einval,
        _ => Refused::Eio,
    }
}
