//! Recovery of stet: the cases of [`reader::LEFT`](crate::parts::reader::LEFT), which transactions
//! count, and of [`replay::LEFT`](crate::parts::replay::LEFT), what is done with each block.
//!
//! Recovery writes nothing home. It makes the index of held versions anew, and the volume is
//! served. The log goes on behind the last transaction that counts.
//!
//! Before the volume is served, recovery overwrites the bytes behind that transaction. A
//! transaction that was in flight may be complete except for one block written in place. If that
//! block got the same content again later, the transaction would count after the next crash,
//! although the volume has been seen without it.

use stetfs_media::Block;

use super::place::{self, Claim, LogPlace};
use super::version::{Content, RangesVersion};
use crate::engine::log::Span;
use crate::parts::byte_log::Start;
use crate::parts::index::{Changing, Index};
use crate::parts::reader::Reader;
use crate::parts::replay::{Bytes, read_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{About, OpenArgs, Ranges, RecoveryReport, Result};

/// The state that recovery found in the log.
pub(super) struct Left {
    pub(super) epoch: u64,
    pub(super) span: Span,
    pub(super) index: Index<RangesVersion>,
}

pub(super) fn recover(
    about: &'static About,
    args: &OpenArgs,
) -> Result<(LogPlace, Left, RecoveryReport)> {
    let mut report = RecoveryReport::default();
    let (log, claim) = LogPlace::claim(about, args)?;
    let left = match claim {
        Claim::Empty(start) => Left {
            epoch: start.epoch,
            span: Span::empty(start.at, start.sequence),
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
    log: &LogPlace,
    args: &OpenArgs,
    start: Start,
    report: &mut RecoveryReport,
) -> Result<Left> {
    let masked = log.masked(args.block_size);
    let reader = Reader::new(log.ring(), args, masked, &start);
    let (mut found, mut at) = place::all(&reader, &start, log.committed()?)?;
    // Not beside the volume: there no block is written in place.
    if !log.is_beside() {
        at = reader.drop_unplaced(&mut found)?.unwrap_or(at);
    }
    let survey = reader.survey(&found)?;
    let mut bases = survey.bases(args)?;
    let index = Index::default();
    reader.replay(&found, &survey, report, |bytes| {
        let base = bases.remove(&bytes.block);
        add(&mut index.write(), log, args, base, bytes)
    })?;
    if at < reader.end {
        log.ring().wipe_unit(at)?;
    }
    log.resume()?;
    let next = found.last().map_or(start.sequence, |t| t.sequence.next());
    Ok(Left {
        epoch: start.epoch,
        span: Span {
            head: at,
            tail: start.at,
            sequence: next,
            transactions: found.iter().map(|t| (t.sequence, t.at)).collect(),
        },
        index,
    })
}

/// Takes over the bytes of one chunk into the index. `base` is the content of home, if it was read.
fn add(
    versions: &mut Changing<'_, RangesVersion>,
    log: &LogPlace,
    args: &OpenArgs,
    base: Option<Block>,
    bytes: Bytes<'_>,
) -> Result<()> {
    let (size, block) = (args.block_size, bytes.block);
    let is_all = bytes.is_all && !is_planted(Bug::UnzeroedBase);
    let mut changed = if is_all {
        Ranges::whole(size.bytes())
    } else {
        Ranges::new()
    };
    let content = match versions.get(&block).map(RangesVersion::content) {
        _ if is_all && log.is_beside() => Content::Logged(bytes.at),
        before => {
            let mut content = match before {
                _ if is_all => Block::zeroed(size.bytes()).into(),
                Some(Content::Here(content)) => content.clone(),
                Some(Content::Logged(at)) => log.content(*at, size)?,
                Some(Content::Home) | None => match base {
                    Some(base) => base.into(),
                    None => read_home(args, block)?.into(),
                },
            };
            // So that the content is not shared, and `make_mut` does not copy it.
            versions.change(&block, RangesVersion::forget_content);
            let raw = content.make_mut();
            for (offset, bytes) in bytes.pieces {
                raw[offset..offset + bytes.len()].copy_from_slice(bytes);
                changed.add(offset, bytes.len());
            }
            Content::Here(content)
        }
    };
    let new = || RangesVersion::new(bytes.class, None, Content::Home, bytes.sequence);
    versions.change_or_insert(block, new, |version| {
        version.change(bytes.sequence, content, &changed, is_all);
    });
    Ok(())
}
