//! What the transactions in a log of bytes say after a crash: [`LEFT`].
//!
//! That an *earlier* transaction than the last names a block written in place that has another
//! content means nothing: it was durable once, and the block was freed and has a new owner since.

use hashbrown::HashMap;
use stetfs_format::checksum::crc64;
use stetfs_format::width::usize_as_u64;
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::{Block, Cause, Class, Tag};

use crate::parts::record::{Change, changes};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{OpenArgs, RecoveryReport, Result, remnants};

remnants! {
    LEFT:
    NOT_IN_PLACE "the last transaction names a block written in place that has not the content"
        => "the log ends before it",
        "it was in flight; the block is free in the state before it";
    FREED "bytes of a block that the same or a later transaction freed"
        => "they are forgotten", "its new owner's content may be home already";
    BYTES "other bytes"
        => "home with these bytes, in the order of the log, is the block",
        "whatever of them a checkpoint has written, they end as the newest";
    BAD_HOME "a chunk of a block outside the volume or inside the journal"
        => "error, nothing is written", "no file system wrote that";
}

/// A transaction in the log, intact.
pub(crate) struct ByteTransaction {
    /// Its position.
    pub(crate) at: u64,
    /// All of it, without its mask.
    pub(crate) record: Vec<u8>,
    /// How many chunks are in it.
    pub(crate) chunks: u32,
    pub(crate) sequence: Tid,
}

impl ByteTransaction {
    fn changes(&self, args: &OpenArgs) -> Result<Vec<Change<'_>>> {
        Ok(changes(&self.record, self.chunks, args.block_size)?)
    }

    /// Whether each block that it says was written in place is there.
    fn is_in_place(&self, args: &OpenArgs) -> Result<bool> {
        let is_unchecked = [
            Bug::UncheckedReplay,
            Bug::UncheckedPayload,
            Bug::EarlySwitch,
        ];
        if is_unchecked.into_iter().any(is_planted) {
            return Ok(true);
        }
        for change in self.changes(args)? {
            if let Change::InPlace(block, crc) = change {
                check_block(args, block)?;
                if crc64(0, read_home(args, block)?.bytes()) != crc {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Takes the last transaction away, if it is not in place; where the log goes on then.
pub(crate) fn drop_unplaced(
    args: &OpenArgs,
    found: &mut Vec<ByteTransaction>,
) -> Result<Option<u64>> {
    match found.last() {
        Some(last) if !last.is_in_place(args)? => {
            NOT_IN_PLACE.met();
            Ok(found.pop().map(|last| last.at))
        }
        _ => Ok(None),
    }
}

/// Hands over all bytes that count, in the order of the log, when everything was looked at: the
/// transaction and the change.
pub(crate) fn replay(
    args: &OpenArgs,
    found: &[ByteTransaction],
    report: &mut RecoveryReport,
    mut take: impl FnMut(Tid, BlockNo, Bytes<'_>) -> Result<()>,
) -> Result<()> {
    if let (Some(first), Some(last)) = (found.first(), found.last()) {
        report.sequences = Some((first.sequence.0, last.sequence.0));
        report.transactions = u32::try_from(found.len()).unwrap_or(u32::MAX);
    }
    let mut all = Vec::with_capacity(found.len());
    let mut revoked: HashMap<BlockNo, usize> = HashMap::new();
    for (i, found) in found.iter().enumerate() {
        let changes = found.changes(args)?;
        for change in &changes {
            match change {
                Change::Revoked(blocks) => revoked.extend(blocks.iter().map(|&b| (b, i))),
                Change::Bytes { block, .. } => check_block(args, *block)?,
                Change::InPlace(..) => {}
            }
        }
        all.push((found.sequence, changes));
    }
    for (i, (sequence, changes)) in all.into_iter().enumerate() {
        for change in changes {
            let Change::Bytes {
                block,
                class,
                is_all,
                pieces,
            } = change
            else {
                continue;
            };
            let is_revoked = revoked.get(&block).is_some_and(|&by| by >= i);
            if is_revoked && !is_planted(Bug::IgnoredRevoke) {
                FREED.met();
                report.revoked += 1;
                continue;
            }
            BYTES.met();
            report.blocks += 1;
            let bytes = Bytes {
                class,
                is_all,
                pieces,
            };
            take(sequence, block, bytes)?;
        }
    }
    Ok(())
}

/// Bytes of a block, as a transaction gave them to it.
pub(crate) struct Bytes<'a> {
    pub(crate) class: Class,
    /// All other bytes are zeros.
    pub(crate) is_all: bool,
    /// From these offsets on.
    pub(crate) pieces: Vec<(usize, &'a [u8])>,
}

fn check_block(args: &OpenArgs, block: BlockNo) -> Result<()> {
    let in_log = args
        .log
        .iter()
        .any(|e| block >= e.start && block.0 < e.start.0 + u64::from(e.len));
    if block.0 >= args.blocks || in_log {
        BAD_HOME.met();
        return Err(Corrupt::JournalTagBlock(block).into());
    }
    Ok(())
}

/// A block as it is at home.
pub(crate) fn read_home(args: &OpenArgs, block: BlockNo) -> Result<Block> {
    let mut content = Block::zeroed(args.block_size);
    let at = block.0 * usize_as_u64(args.block_size);
    let tag = Tag::new(Class::Data, Cause::Recovery);
    args.dev.read_at(at, content.bytes_mut(), tag)?;
    Ok(content)
}
