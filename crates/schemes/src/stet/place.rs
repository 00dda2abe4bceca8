//! The place of the byte log: the volume's journal area, or a region of memory beside the volume
//! that is paired with it ([`owner`]).
//!
//! The region's ring begins at [`REGION_RING`] and ends with the region. Opening the log has the
//! cases of its place, and those of [`ELSEWHERE`].

use std::sync::Arc;

use stetfs_format::nvm_pair::{PairState, RegionHeader, RegionState, VolumeRecord};
use stetfs_format::private_log::{LogHeader, REGION_RING, Tail};
use stetfs_format::width::u64_as_usize;
use stetfs_format::{BlockSize, Tid};
use stetfs_media::pmem::LINE;
use stetfs_media::{Block, BlockDev, BlockRef, Cause, Dirty, Pmem, PmemDev};
use stetfs_scheme::{About, OpenArgs, Result, SchemeError, Terms, recovery_cases};

use crate::parts::area::JournalArea;
use crate::parts::byte_log::{self, ByteLog, Start};
use crate::parts::owner::{self, Look, Pair};
use crate::parts::reader::{ByteTransaction, Reader, damaged};
use crate::parts::record::{Record, content_of, longest_chunk};
use crate::parts::ring::{Medium, Ring};

recovery_cases! {
    ELSEWHERE:
    NOT_GIVEN "the mark, and a record of memory beside the volume, and no memory"
        => "error, nothing is written", "what was committed last is in that memory";
    CONFIRMED "in memory beside the volume, a transaction that is not intact, and a word that says \
        that it was durable"
        => "error, nothing is written", "it was damaged later";
    IN_VOLUME "the mark, and a log in the volume, and memory beside it"
        => "error, nothing is written",
        "what was committed last is in the volume's log: a mount without the memory recovers it";
}

/// The number of a region's first transaction.
const FIRST_TRANSACTION: Tid = Tid(1);

/// A log has room for at least this many of the longest transactions.
const TRANSACTIONS: u64 = 4;

/// Returns the most bytes that a transaction of `blocks` blocks takes.
fn longest_of(blocks: u32, block_size: BlockSize) -> u64 {
    u64::from(blocks) * Record::bound(1, 1, block_size)
}

pub(super) enum LogPlace {
    /// In the volume's journal area.
    Inside(ByteLog<Arc<dyn BlockDev>>),
    /// In memory beside the volume.
    Beside(Region),
}

pub(super) struct Region {
    pair: Pair,
    ring: Ring<Arc<dyn BlockDev>>,
}

/// The state of a log when it is opened.
pub(super) enum Claim {
    /// The log is empty.
    Empty(Start),
    /// The log must be replayed from here on.
    Left(Start),
}

impl LogPlace {
    /// Finds out whose the log is, and opens it.
    pub(super) fn claim(about: &'static About, args: &OpenArgs) -> Result<(Self, Claim)> {
        if args.log.is_empty() {
            return Err(SchemeError::Unusable(
                "the volume has no journal; make one with `tune2fs -j`, or mount with scheme=null"
                    .to_owned(),
            ));
        }
        let size = args.block_size;
        let area = JournalArea::new(args.dev.clone(), size, args.log.clone());
        let is_inside = if args.has_private_log {
            is_inside(&area, size)?
        } else {
            None
        };
        match (&args.nvm, is_inside) {
            (None, Some(false)) => {
                NOT_GIVEN.reached();
                Err(SchemeError::Nvm(format!(
                    "scheme {} had some beside this volume, with what was committed last: mount \
                        with nvm=FILE (or `stetfs fsck --nvm FILE`)",
                    about.name
                )))
            }
            (Some(nvm), Some(true)) => {
                IN_VOLUME.reached();
                Err(SchemeError::Nvm(format!(
                    "what was committed last is not in {}, but in the volume's journal: mount \
                        once without nvm=FILE (or run `stetfs fsck`)",
                    nvm.describe()
                )))
            }
            (None, _) => {
                let mut log = ByteLog::new(args.dev.clone(), size, &args.log)?;
                let claim = match log.claim(about, args)? {
                    byte_log::Claim::Empty(start) => Claim::Empty(start),
                    byte_log::Claim::Left(start) => Claim::Left(start),
                };
                Ok((Self::Inside(log), claim))
            }
            (Some(nvm), _) => Region::claim(about, args, &area, nvm),
        }
    }

    pub(super) fn ring(&self) -> &Ring<Arc<dyn BlockDev>> {
        match self {
            Self::Inside(log) => &log.ring,
            Self::Beside(region) => &region.ring,
        }
    }

    /// Returns the most blocks that a transaction may have.
    pub(super) fn max_transaction(&self, block_size: BlockSize) -> u32 {
        let most = self.ring().capacity / TRANSACTIONS / longest_of(1, block_size);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    pub(super) fn is_beside(&self) -> bool {
        matches!(self, Self::Beside(_))
    }

    /// Returns the distance in bytes at which JBD2 would look for records in the ring; 0: nowhere.
    pub(super) fn masked(&self, block_size: BlockSize) -> usize {
        match self {
            Self::Inside(_) => block_size.bytes(),
            Self::Beside(_) => 0,
        }
    }

    /// Returns the newest transaction that is noted as durable; `None` for a log in the volume,
    /// which has no such note.
    pub(super) fn committed(&self) -> Result<Option<Tid>> {
        match self {
            Self::Inside(_) => Ok(None),
            Self::Beside(Region { pair, .. }) => {
                owner::committed(&*pair.pmem, pair.header.seed()).map(Some)
            }
        }
    }

    /// Returns the content of a block from a log in memory, where the chunk at this position has
    /// all of it.
    pub(super) fn content(&self, at: u64, block_size: BlockSize) -> Result<BlockRef> {
        let unit = self.ring().unit;
        let (start, before) = (at / unit * unit, u64_as_usize(at % unit));
        let longest = before + longest_chunk(block_size);
        let mut units = vec![0; longest.next_multiple_of(u64_as_usize(unit))];
        self.ring().read(start, &mut units)?;
        let mut content = Block::zeroed(block_size.bytes());
        content_of(&units[before..], content.bytes_mut())?;
        Ok(content.into())
    }

    /// Writes a transaction's record as the last part of a body; all of it is durable when it
    /// returns. For a log beside the volume the body must be empty.
    pub(super) fn write(
        &self,
        body: Dirty<'_>,
        at: u64,
        record: &[u8],
        sequence: Tid,
    ) -> Result<()> {
        let Self::Beside(Region { ring, pair, .. }) = self else {
            return self.ring().write_covering_commit(body, at, record);
        };
        assert!(
            body.is_empty(),
            "blocks written in place, and the log is not"
        );
        ring.write_covering_commit(Dirty::on(&*ring.medium), at, record)?;
        pair.note_commit(sequence);
        owner::note_committed(&*pair.pmem, pair.header.seed(), sequence)
    }

    /// Makes the blocks durable that a checkpoint has written home.
    pub(super) fn make_durable(&self, dev: &dyn BlockDev) -> Result<()> {
        let cause = Cause::Checkpoint;
        match self {
            Self::Inside(_) => Ok(dev.flush(cause)?),
            Self::Beside(Region { pair, .. }) => {
                pair.note_in_volume(cause)?;
                dev.flush(cause)?;
                pair.note_in_memory(cause)
            }
        }
    }

    /// Moves the log's tail; durable when it returns.
    pub(super) fn write_tail(&self, tail: Tail, cause: Cause) -> Result<()> {
        match self {
            Self::Inside(log) => log.write_tail(tail, cause),
            Self::Beside(region) => region.pair.move_tail(tail, cause),
        }
    }

    /// Goes on with a log that was left, after what does not count in it was wiped.
    pub(super) fn resume(&self) -> Result<()> {
        match self {
            Self::Inside(_) => Ok(()),
            Self::Beside(region) => region.pair.resume(),
        }
    }

    /// Closes the log, when everything is home; durable when it returns.
    pub(super) fn close(&self) -> Result<()> {
        match self {
            Self::Inside(log) => log.write_log_state(true),
            Self::Beside(region) => region.pair.close(PairState::Shut),
        }
    }
}

/// Returns all transactions that count, and the position behind them. `committed` was durable.
pub(super) fn all<M: Medium>(
    reader: &Reader<'_, M>,
    start: &Start,
    committed: Option<Tid>,
) -> Result<(Vec<ByteTransaction>, u64)> {
    let (found, at) = reader.all(start)?;
    let next = found.last().map_or(start.sequence, |t| t.sequence.next());
    if committed.is_some_and(|tid| tid.is_at_or_after(next)) {
        CONFIRMED.reached();
        return Err(damaged(next, "it was durable"));
    }
    Ok((found, at))
}

/// Returns true when the log of a volume with the mark is in the journal area, and false when it is
/// beside the volume; `None`: neither kind of header is there.
fn is_inside(area: &JournalArea, block_size: BlockSize) -> Result<Option<bool>> {
    let mut raw = vec![0; block_size.bytes()];
    area.read(owner::RECORD_BLOCK, &mut raw)?;
    Ok(
        match (LogHeader::is_one(&raw), VolumeRecord::is_one(&raw)) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        },
    )
}

impl Region {
    fn claim(
        about: &'static About,
        args: &OpenArgs,
        area: &JournalArea,
        nvm: &Arc<dyn Pmem>,
    ) -> Result<(LogPlace, Claim)> {
        let contents = Contents { args, nvm };
        let claim = owner::claim(about, args, area, nvm, &contents)?;
        let ring = contents.ring()?;
        let (pair, claim) = match claim {
            owner::Claim::New(pair) => {
                let start = Start {
                    epoch: pair.header.epoch,
                    at: 0,
                    sequence: FIRST_TRANSACTION,
                    was_used: false,
                };
                if args.writable {
                    let tail = Tail {
                        line: ring.line(start.at),
                        sequence: start.sequence,
                    };
                    let newest = Tid(FIRST_TRANSACTION.0 - 1);
                    // The old content of the ring is of another epoch.
                    let seed = pair.header.seed();
                    let none_yet = || owner::note_committed(&**nvm, seed, newest);
                    pair.begin(args.has_private_log, tail, newest, none_yet)?;
                }
                (pair, Claim::Empty(start))
            }
            owner::Claim::Left(pair) => {
                let start = contents.start(&ring, pair.header.epoch, pair.tail())?;
                (pair, Claim::Left(start))
            }
        };
        Ok((LogPlace::Beside(Self { pair, ring }), claim))
    }
}

/// A region of this scheme, as `owner` looks at it.
struct Contents<'a> {
    args: &'a OpenArgs,
    nvm: &'a Arc<dyn Pmem>,
}

impl Contents<'_> {
    fn ring(&self) -> Result<Ring<Arc<dyn BlockDev>>> {
        let dev: Arc<dyn BlockDev> = Arc::new(PmemDev::new(self.nvm.clone()));
        let capacity = self.nvm.size().saturating_sub(REGION_RING) / LINE * LINE;
        let least = longest_of(Terms::LEAST_TRANSACTION, self.args.block_size) * TRANSACTIONS;
        if capacity < least {
            return Err(SchemeError::Nvm(format!(
                "{} has {} bytes, and a volume with such blocks needs {}",
                self.nvm.describe(),
                self.nvm.size(),
                REGION_RING + least
            )));
        }
        Ring::new(dev, vec![(REGION_RING, capacity)])
    }

    /// Returns the place where a log goes on.
    fn start(&self, ring: &Ring<Arc<dyn BlockDev>>, epoch: u64, tail: Tail) -> Result<Start> {
        let at = u64::from(tail.line) * LINE;
        if at >= ring.capacity {
            let (shown, capacity) = (self.nvm.describe(), ring.capacity);
            let why = format!("{shown}: its log begins at byte {at} of {capacity}");
            return Err(SchemeError::Nvm(why));
        }
        Ok(Start {
            epoch,
            at,
            sequence: tail.sequence,
            was_used: true,
        })
    }
}

impl Look for Contents<'_> {
    fn newest(&self, header: &RegionHeader, state: &RegionState) -> Result<Tid> {
        let ring = self.ring()?;
        let start = self.start(&ring, header.epoch, state.tail)?;
        let committed = owner::committed(&**self.nvm, header.seed())?;
        let reader = Reader::new(&ring, self.args, 0, &start);
        let (found, _) = all(&reader, &start, Some(committed))?;
        let before = Tid(start.sequence.0.wrapping_sub(1));
        Ok(found.last().map_or(before, |last| last.sequence))
    }

    fn holds_any(&self, header: &RegionHeader, state: &RegionState) -> Result<bool> {
        let newest = self.newest(header, state)?;
        Ok(!state.tail.sequence.is_after(newest))
    }
}
