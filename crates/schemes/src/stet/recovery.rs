//! What a crash left in the log, and what is done with it. Which transactions count:
//! [`reader::LEFT`](super::reader::LEFT); what these say:
//! [`replay::LEFT`](crate::parts::replay::LEFT).
//!
//! Nothing is written home: the index of what home has not got is made anew, and the volume is
//! served. The log goes on where the last transaction that counts ends.
//!
//! What lies behind the last transaction that counts is overwritten before the volume is served. A
//! transaction that was in flight could be complete but for a block written in place; if that block
//! got the same content again, the transaction would count after the next crash, although the
//! volume has been seen without it.

use std::collections::VecDeque;

use stetfs_format::{BlockNo, Tid};
use stetfs_media::Block;

use super::log::{Claim, Log};
use super::reader::Reader;
use super::versions::Version;
use crate::parts::byte_log::Start;
use crate::parts::index::{Changing, Index};
use crate::parts::replay::{Bytes, drop_unplaced, read_home, replay};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{About, OpenArgs, Ranges, RecoveryReport, Result};

/// What the log has.
pub(super) struct Left {
    /// Where it goes on.
    pub(super) start: Start,
    /// Where it begins.
    pub(super) tail: u64,
    /// Number and position of what is in it.
    pub(super) transactions: VecDeque<(Tid, u64)>,
    pub(super) index: Index<Version>,
}

pub(super) fn recover(
    about: &'static About,
    args: &OpenArgs,
) -> Result<(Log, Left, RecoveryReport)> {
    let mut report = RecoveryReport::default();
    let (log, claim) = Log::claim(about, args)?;
    let left = match claim {
        Claim::Empty(start) => Left {
            tail: start.at,
            start,
            transactions: VecDeque::new(),
            index: Index::default(),
        },
        Claim::Left(start) => {
            report.was_needed = true;
            index_log(&log, args, start, &mut report)?
        }
    };
    Ok((log, left, report))
}

fn index_log(
    log: &Log,
    args: &OpenArgs,
    start: Start,
    report: &mut RecoveryReport,
) -> Result<Left> {
    let masked = log.masked(args.block_size);
    let reader = Reader::new(log.ring(), args, masked, log.committed()?, &start);
    let (mut found, mut at) = reader.all(&start)?;
    // Beside the volume, a record is begun when what it says of home is durable.
    if !log.is_beside() {
        at = drop_unplaced(args, &mut found)?.unwrap_or(at);
    }
    let index = Index::default();
    replay(args, &found, report, |sequence, block, bytes| {
        add(&mut index.write(), args, sequence, (block, bytes))
    })?;
    if at < reader.end {
        log.ring().wipe_unit(at)?;
    }
    log.resume()?;
    let next = found.last().map_or(start.sequence, |t| t.sequence.next());
    Ok(Left {
        tail: start.at,
        start: Start {
            at,
            sequence: next,
            ..start
        },
        transactions: found.iter().map(|t| (t.sequence, t.at)).collect(),
        index,
    })
}

/// Takes what a transaction changed over into the index.
fn add(
    versions: &mut Changing<'_, Version>,
    args: &OpenArgs,
    sequence: Tid,
    (block, bytes): (BlockNo, Bytes<'_>),
) -> Result<()> {
    let size = args.block_size;
    let is_all = bytes.is_all && !is_planted(Bug::UnzeroedBase);
    if !versions.contains_key(&block) {
        let content = match is_all {
            true => Block::zeroed(size),
            false => read_home(args, block)?,
        };
        let version = Version::new(bytes.class, None, content.into(), sequence);
        versions.insert(block, version);
    }
    let mut changed = Ranges::new();
    versions.change(&block, |version| {
        let content = version.content_mut();
        if is_all {
            content.fill(0);
            changed.add(0, size);
        }
        for (offset, bytes) in bytes.pieces {
            content[offset..offset + bytes.len()].copy_from_slice(bytes);
            changed.add(offset, bytes.len());
        }
        version.note(sequence, &changed);
    });
    Ok(())
}
