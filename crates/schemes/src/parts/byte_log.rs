//! A byte log in the journal area: its header, its owner, and the ring.
//!
//! Block 0 (JBD2's superblock) and block 1 (our header) of the journal's inode are not in the ring;
//! the other blocks are, in the order of the inode. Positions count bytes from the ring's start and
//! never wrap. They are multiples of a unit: a cache line or a sector of the medium on which the
//! log was made. The header has the unit, because the volume may be opened on another medium after
//! a crash.
//!
//! Opening it has the cases of [`LEFT`], and on a block device those of [`MOVED`].

use std::ops::Range;
use std::sync::Arc;

use stetfs_format::jbd2::JBD2_MAGIC;
use stetfs_format::private_log::{LOG_STATE_OFFSET, LogHeader, TAIL_OFFSET, Tail};
use stetfs_format::width::{must_fit, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockSize, Tid};
use stetfs_media::pmem::{Durable, LINE};
use stetfs_media::{Cause, Class, Pmem, Tag};

use crate::parts::owner::new_epoch;
use crate::parts::ring::{Medium, Ring};
use stetfs_scheme::{About, LogExtent, OpenArgs, Result, SchemeError, recovery_cases};
use stetfs_sync::Mutex;

recovery_cases! {
    LEFT:
    UNMARKED "no mark in the superblock"
        => "a new log, of another epoch",
        "the volume is a plain one: there is nothing in the log";
    CLOSED "the mark, and a header that says closed"
        => "the log goes on where it ended", "everything was home before the header said so";
    NOT_OURS "the mark, and no intact header of this volume and scheme"
        => "error, nothing is written", "what is in the log cannot be told";
    READ_ONLY "the mark, a log to be replayed, and a volume that may only be read"
        => "error", "home has not got the newest content";
}

recovery_cases! {
    MOVED:
    FINER "the mark, and a log in smaller units than the medium's"
        => "error, nothing is written",
        "the volume was moved to a device with longer sectors, where the log cannot go on";
}

const CONTROL: Tag = Tag::new(Class::Journal, Cause::Control);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

/// The number of the first transaction of a new log.
const FIRST_TRANSACTION: Tid = Tid(1);

pub(crate) struct ByteLog<M> {
    pub(crate) ring: Ring<M>,
    block_size: BlockSize,
    header_at: u64,
    /// The header as it was written last.
    header: Mutex<Option<LogHeader>>,
}

/// The place where a log goes on.
pub(crate) struct Start {
    pub(crate) epoch: u64,
    pub(crate) at: u64,
    pub(crate) sequence: Tid,
    /// The log has been written to in this epoch.
    pub(crate) was_used: bool,
}

/// The state of a log when it is opened.
pub(crate) enum Claim {
    /// The log is empty.
    Empty(Start),
    /// The log must be replayed from here on.
    Left(Start),
}

impl<M: Medium> ByteLog<M> {
    /// The blocks of the smallest ring.
    const LEAST_BLOCKS: u64 = 16;

    pub(crate) fn new(medium: M, block_size: BlockSize, extents: &[LogExtent]) -> Result<Self> {
        let (mut skip, mut header_at, mut pieces) = (2, None, Vec::new());
        for extent in extents {
            let (start, len) = (extent.start.0, u64::from(extent.len));
            if header_at.is_none() && skip <= len {
                header_at = Some(block_size.offset_of(start + skip - 1));
            }
            let left_out = skip.min(len);
            skip -= left_out;
            if left_out < len {
                pieces.push((
                    block_size.offset_of(start + left_out),
                    block_size.offset_of(len - left_out),
                ));
            }
        }
        let capacity: u64 = pieces.iter().map(|p| p.1).sum();
        let is_there =
            |&(at, len): &(u64, u64)| at.checked_add(len).is_some_and(|e| e <= medium.size());
        match header_at {
            Some(header_at)
                if capacity >= block_size.offset_of(Self::LEAST_BLOCKS)
                    && pieces.iter().all(is_there) =>
            {
                Ok(Self {
                    ring: Ring::new(medium, pieces)?,
                    block_size,
                    header_at,
                    header: Mutex::default(),
                })
            }
            _ => Err(SchemeError::Unusable(format!(
                "its inode has {capacity} bytes for a log on this medium, too few"
            ))),
        }
    }

    /// Checks that the log belongs to this volume and scheme, and opens it.
    pub(crate) fn claim(&mut self, about: &'static About, args: &OpenArgs) -> Result<Claim> {
        let header = LogHeader::decode(&self.read_header()?);
        if !args.has_private_log {
            UNMARKED.reached();
            let epoch = header.map_or_else(|_| new_epoch(), |h| h.epoch.wrapping_add(1));
            return Ok(Claim::Empty(self.begin(about, args, epoch)?));
        }
        let header = header.inspect_err(|_| NOT_OURS.reached())?;
        if header.uuid != args.uuid {
            NOT_OURS.reached();
            return Err(SchemeError::Unusable(
                "its log belongs to another volume".to_owned(),
            ));
        }
        if header.scheme != about.name {
            NOT_OURS.reached();
            return Err(SchemeError::Unusable(format!(
                "its log was written by scheme {}: mount with scheme={}",
                header.scheme, header.scheme
            )));
        }
        let (unit, least) = (u64::from(header.unit), self.ring.medium.unit());
        if unit < least {
            FINER.reached();
            return Err(SchemeError::Unusable(format!(
                "its log was written in units of {unit} bytes, and this medium has {least}: \
                    recover it on a medium as the one that it was on"
            )));
        }
        self.ring.unit = unit;
        let start = Start {
            epoch: header.epoch,
            at: self.tail_of(&header)?,
            sequence: header.tail.sequence,
            was_used: true,
        };
        let is_closed = header.is_closed;
        *self.header.lock() = Some(header);
        if is_closed {
            // The unmount that closed it was cut short. The header must not be made anew, because
            // while the volume has the mark, a torn header would count.
            CLOSED.reached();
            if args.writable {
                self.write_log_state(false)?;
            }
            return Ok(Claim::Empty(start));
        }
        if !args.writable {
            READ_ONLY.reached();
            return Err(SchemeError::Unusable(
                "it must be replayed, which needs a writable volume".to_owned(),
            ));
        }
        Ok(Claim::Left(start))
    }

    /// Begins an empty log.
    fn begin(&self, about: &About, args: &OpenArgs, epoch: u64) -> Result<Start> {
        let start = Start {
            epoch,
            at: 0,
            sequence: FIRST_TRANSACTION,
            was_used: false,
        };
        if args.writable {
            let header = LogHeader {
                scheme: about.name.to_owned(),
                uuid: args.uuid,
                unit: must_fit(self.ring.medium.unit()),
                epoch,
                is_closed: false,
                tail: Tail {
                    line: 0,
                    sequence: start.sequence,
                },
            };
            self.change_header(0..LogHeader::SIZE, CONTROL, |old| *old = Some(header))?;
        }
        Ok(start)
    }

    /// Returns the position of the log's tail.
    fn tail_of(&self, header: &LogHeader) -> Result<u64> {
        let (at, capacity) = (u64::from(header.tail.line) * LINE, self.ring.capacity);
        if at >= capacity || !at.is_multiple_of(self.ring.unit) {
            let why = format!("its log begins at byte {at} of {capacity}");
            return Err(SchemeError::Unusable(why));
        }
        Ok(at)
    }

    /// Reads the header from the medium.
    fn read_header(&self) -> Result<Vec<u8>> {
        let len = usize_as_u64(LogHeader::SIZE).next_multiple_of(self.ring.medium.unit());
        let mut bytes = vec![0; u64_as_usize(len)];
        self.ring
            .medium
            .load(self.header_at, &mut bytes, RECOVERY)?;
        Ok(bytes)
    }

    /// Closes the log or opens it again, in one store; durable when it returns.
    pub(crate) fn write_log_state(&self, is_closed: bool) -> Result<()> {
        let at = LOG_STATE_OFFSET;
        self.change_header(at..at + 8, CONTROL, |header| {
            header
                .iter_mut()
                .for_each(|header| header.is_closed = is_closed);
        })
    }

    /// Moves the log's tail, in one store; durable when it returns.
    pub(crate) fn write_tail(&self, tail: Tail, cause: Cause) -> Result<()> {
        let tag = Tag::new(Class::Journal, cause);
        self.change_header(TAIL_OFFSET..TAIL_OFFSET + 8, tag, |header| {
            header.iter_mut().for_each(|header| header.tail = tail);
        })
    }

    fn change_header(
        &self,
        changed: Range<usize>,
        tag: Tag,
        change: impl FnOnce(&mut Option<LogHeader>),
    ) -> Result<()> {
        let mut header = self.header.lock();
        change(&mut header);
        let mut bytes = [0; LogHeader::SIZE];
        let header = header.as_ref().expect("a log that was claimed");
        header.encode(&mut bytes);
        self.ring
            .medium
            .rewrite(self.header_at, &bytes, changed, tag)
    }
}

impl ByteLog<Arc<dyn Pmem>> {
    /// Stores the state that makes a durable body valid; durable when it returns.
    pub(crate) fn write_commit(&self, body: Durable<'_>, at: u64, word: u64) -> Result<()> {
        let tag = Tag::new(Class::Journal, Cause::CommitRecord);
        Ok(body.store_commit_word(self.ring.word_at(at), word, tag)?)
    }

    /// Stores a transaction's state that no body rests on; durable when it returns.
    pub(crate) fn write_state(&self, at: u64, word: u64, cause: Cause) -> Result<()> {
        let (at, tag) = (self.ring.word_at(at), Tag::new(Class::Journal, cause));
        self.ring.medium.store_u64(at, word, tag)?;
        self.ring.medium.flush(at, 8, tag)?;
        Ok(self.ring.medium.fence(tag.cause)?)
    }

    /// Clears the blocks in the first `used` bytes of the ring that begin like a record of JBD2, so
    /// that its recovery never takes them for one.
    pub(crate) fn wipe(&self, used: u64) -> Result<()> {
        let mut at = 0;
        for &(offset, len) in &self.ring.pieces {
            for block in (0..len).step_by(self.block_size.bytes()) {
                if at + block >= used {
                    break;
                }
                let word = self.ring.medium.load_u64(offset + block, CONTROL)?;
                if word.to_le_bytes().starts_with(&JBD2_MAGIC.to_be_bytes()) {
                    self.ring
                        .medium
                        .store_nt(offset + block, &[0; 8], CONTROL)?;
                }
            }
            at += len;
        }
        Ok(self.ring.medium.fence(Cause::Control)?)
    }
}

#[cfg(test)]
mod tests {
    use stetfs_format::BlockNo;
    use stetfs_media::pmem::Dirty;
    use stetfs_media::{Image, SimPmem};

    use super::*;

    fn extent(start: u64, len: u32) -> LogExtent {
        LogExtent {
            start: BlockNo(start),
            len,
        }
    }

    #[test]
    fn the_ring_goes_around_and_across_pieces() {
        for extents in [
            vec![extent(3, 40)],
            vec![extent(9, 1), extent(50, 20), extent(30, 19)],
            vec![extent(20, 2), extent(60, 38)],
        ] {
            let pmem = Arc::new(SimPmem::new(Image::new(128 << 10)));
            let medium: Arc<dyn Pmem> = pmem.clone();
            let byte_log = ByteLog::new(medium, BlockSize::of(1024), &extents).expect("a log");
            assert_eq!(byte_log.ring.capacity, 38 * 1024);
            let ring = &byte_log.ring;
            let bytes: Vec<u8> = (0..ring.capacity / 8 * 8)
                .map(|i| (i % 251) as u8)
                .collect();
            let at = ring.capacity * 3 + 17 * 64;
            let mut body = Dirty::in_memory(&*pmem);
            ring.write(&mut body, at, &bytes).expect("a write");
            let mut found = vec![0; bytes.len()];
            ring.read(at, &mut found).expect("a read");
            assert_eq!(found, bytes);
            ring.read(0, &mut found[..64]).expect("a read");
            assert_eq!(found[..64], bytes[bytes.len() - 17 * 64..][..64]);
            // Blocks outside of the journal are untouched, and so are its blocks 0 and 1.
            let newest = pmem.newest().to_bytes();
            let mine: Vec<u64> = extents
                .iter()
                .flat_map(|e| e.start.0..e.start.0 + u64::from(e.len))
                .skip(2)
                .collect();
            for block in (0..128).filter(|b| !mine.contains(b)) {
                assert!(
                    newest[block as usize * 1024..][..1024]
                        .iter()
                        .all(|&b| b == 0)
                );
            }
        }
    }
}
