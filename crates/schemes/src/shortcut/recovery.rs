//! Recovery of Shortcut-JFS: the cases of [`reader::LEFT`](crate::parts::reader::LEFT), which
//! transactions count, and of [`replay::LEFT`](crate::parts::replay::LEFT), what is done with each
//! block.
//!
//! In order of stores: all bytes home; fence; the tail, moved behind them in one store. A second
//! cut before that finds the same log and does the same again. The next transaction skips one
//! number, so that remains of an incomplete one are never taken for it.

use std::sync::Arc;

use stetfs_format::private_log::Tail;
use stetfs_format::width::usize_as_u64;
use stetfs_media::{Cause, Class, Pmem, Tag};

use crate::parts::byte_log::{ByteLog, Claim, Start};
use crate::parts::reader::{ByteTransaction, Reader};
use stetfs_scheme::{About, OpenArgs, RecoveryReport, Result};

pub(super) fn recover(
    about: &'static About,
    byte_log: &mut ByteLog<Arc<dyn Pmem>>,
    args: &OpenArgs,
) -> Result<(Start, RecoveryReport)> {
    let mut report = RecoveryReport::default();
    let start = match byte_log.claim(about, args)? {
        Claim::Empty(start) => start,
        Claim::Left(left) => {
            report.was_needed = true;
            bring_home(byte_log, args, &left, &mut report)?
        }
    };
    Ok((start, report))
}

fn bring_home(
    byte_log: &ByteLog<Arc<dyn Pmem>>,
    args: &OpenArgs,
    left: &Start,
    report: &mut RecoveryReport,
) -> Result<Start> {
    let reader = Reader::new(&byte_log.ring, args, 0, left);
    let (mut found, mut at) = reader.all(left)?;
    at = reader.drop_unplaced(&mut found)?.unwrap_or(at);
    let next = found.last().map_or(left.sequence, |t| t.sequence.next());
    apply(&reader, &byte_log.ring.medium, &found, report)?;
    let start = Start {
        epoch: left.epoch,
        at: at % byte_log.ring.capacity,
        sequence: next.next(),
        was_used: true,
    };
    let tail = Tail {
        line: byte_log.ring.line(at),
        sequence: start.sequence,
    };
    byte_log.write_tail(tail, Cause::Recovery)?;
    Ok(start)
}

/// Writes the bytes that count home, durably.
fn apply(
    reader: &Reader<'_, Arc<dyn Pmem>>,
    medium: &Arc<dyn Pmem>,
    found: &[ByteTransaction],
    report: &mut RecoveryReport,
) -> Result<()> {
    let tag = Tag::new(Class::Journal, Cause::Recovery);
    let size = reader.args.block_size;
    reader.replay(found, &reader.survey(found)?, report, |bytes| {
        for (offset, piece) in bytes.pieces {
            let at = size.start_of(bytes.block) + usize_as_u64(offset);
            medium.store(at, piece, tag)?;
            medium.flush(at, usize_as_u64(piece.len()), tag)?;
        }
        Ok(())
    })?;
    Ok(medium.fence(Cause::Recovery)?)
}
