//! A transaction's draft: the action for each block, and the block's part of the record.

use stetfs_format::private_log::ChunkKind;
use stetfs_format::width::usize_as_u64;
use stetfs_media::BlockRef;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{LoggedBlock, Origin, Ranges};

use super::rule::{Action, Rule};
use super::version::RangesVersion;
use crate::engine::log::{Log, Version};
use crate::parts::home::Piece;
use crate::parts::record::Record;

/// The state of the log by which a record is made.
pub(super) struct Describing<'s> {
    pub(super) log: &'s Log<RangesVersion>,
    pub(super) rule: &'s Rule,
    /// Zeros: the old content of a new block.
    pub(super) zeros: &'s BlockRef,
}

/// A transaction's record, and its changes of blocks that keep their homes.
pub(super) struct Draft<'a> {
    pub(super) record: Record,
    /// The changes in the record.
    pub(super) logged: Vec<Change<'a>>,
    /// The pieces that go home in one atomic write with the record.
    pub(super) placed: Vec<Piece<'a>>,
    /// The bytes that this write still has room for.
    pub(super) room: usize,
}

/// A block in a transaction's record.
pub(super) struct Change<'a> {
    pub(super) block: &'a LoggedBlock,
    /// The bytes that the transaction changed.
    pub(super) changed: Ranges,
    /// The record has more than these: all bytes that home does not have.
    pub(super) carried: bool,
    /// The offset in the record of the chunk that has all of the block; `None`: no chunk has.
    pub(super) whole: Option<usize>,
}

impl<'a> Draft<'a> {
    /// Adds blocks that keep their homes: to the record, or to the pieces that go home with it.
    pub(super) fn describe(&mut self, to: &Describing<'_>, stays: &[&'a LoggedBlock]) {
        let (middle, fills) = {
            let span = to.log.span.lock();
            // A checkpoint is far away while less than half of the bytes are in use that make it
            // due.
            (
                span.behind_oldest(2),
                span.used() > to.log.limits.most_used / 2,
            )
        };
        let index = to.log.index.read();
        for &block in stays {
            if block.origin.is_new() {
                self.describe_new(to, block);
                continue;
            }
            if block.ranges.is_empty() {
                continue;
            }
            let old = index.get(&block.home);
            // Otherwise recovery would write the logged bytes over the block in place.
            let is_logged = old.is_some() && !is_planted(Bug::PlacedOverLog);
            if !is_logged && self.is_placed(to, block) {
                continue;
            }
            let delays = old.filter(|version| middle.is_after(version.oldest()));
            let all = delays.and_then(RangesVersion::portable).map(|pending| {
                let mut all = pending.clone();
                all.add_all(&block.ranges);
                all
            });
            let all = all.filter(|all| to.rule.carries(&block.ranges, all, fills));
            let carried = all.is_some();
            let ranges = if is_planted(Bug::LostCarry) {
                &block.ranges
            } else {
                all.as_ref().unwrap_or(&block.ranges)
            };
            let action = to.rule.logged(block, ranges);
            let at = self.record.bytes();
            let (home, class, content) = (block.home, block.class, &block.content);
            match action {
                Action::Delta => {
                    let kind = ChunkKind::Ranges;
                    self.record.ranges(kind, home, class, content, ranges);
                }
                _ => self.record.block(home, class, content),
            }
            if let Some((ino, _)) = block.owner {
                let changes = old.map_or(0, |version| version.changes);
                to.rule.count(action, ino, &block.ranges, changes, at);
            }
            let is_whole = action == Action::Whole;
            self.logged.push(Change {
                block,
                changed: block.ranges.clone(),
                carried: carried || is_whole,
                whole: is_whole.then_some(at),
            });
        }
    }

    /// Adds a new block to the record.
    fn describe_new(&mut self, to: &Describing<'_>, block: &'a LoggedBlock) {
        let (home, class, content) = (block.home, block.class, &block.content);
        let mut set = Ranges::new();
        set.add_changes(0, to.zeros, content);
        let whole = Some(self.record.bytes());
        match to.rule.logged(block, &set) {
            Action::Delta => self.record.zeroed(home, class, content, &set),
            _ => self.record.block(home, class, content),
        }
        self.logged.push(Change {
            block,
            changed: Ranges::whole(content.len()),
            carried: true,
            whole,
        });
    }

    /// Adds the checksums of blocks that are written where they stay.
    pub(super) fn describe_placed(&mut self, to: &Describing<'_>, home: &[&LoggedBlock]) {
        let mut home: Vec<&LoggedBlock> = home.to_vec();
        home.sort_unstable_by_key(|block| block.home);
        let switched = home.iter().filter(|b| b.origin == Origin::Relocated);
        for block in switched {
            if let Some((ino, _)) = block.owner {
                to.rule.count(Action::Switch, ino, &block.ranges, 0, 0);
            }
        }
        for run in home.chunk_by(|a, b| a.home.plus(1) == b.home && a.class == b.class) {
            for run in run.chunks(usize::from(u16::MAX)) {
                let contents = run.iter().map(|block| &block.content[..]);
                self.record.run(run[0].home, run[0].class, contents);
            }
        }
    }

    /// Adds a block to the pieces that go home with the record, if that is the cheapest action;
    /// false if not. The log must have nothing of the block.
    fn is_placed(&mut self, to: &Describing<'_>, block: &'a LoggedBlock) -> bool {
        let Some((ino, _)) = block.owner.filter(|_| self.room > 0) else {
            return false;
        };
        let sectors = block.ranges.widened(to.rule.home_unit());
        if sectors.bytes() > self.room || to.rule.choose(ino, &block.ranges, 0) != Action::InPlace {
            return false;
        }
        let data = self.record.bytes();
        to.rule.count(Action::InPlace, ino, &block.ranges, 0, data);
        self.room -= sectors.bytes();
        let start = to.log.block_size.start_of(block.home);
        self.placed.extend(sectors.iter().map(|range| Piece {
            offset: start + usize_as_u64(range.start),
            class: block.class,
            bytes: &block.content[range],
        }));
        true
    }
}
