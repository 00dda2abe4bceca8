//! The intermediate states of an operation that takes several handles in stetfs.

use std::ops::Range;

use super::Model;
use crate::world::op::{Op, Reserve};

impl Model {
    /// Returns the states between this one and the one after `op`.
    ///
    /// A write is split every `handle` bytes, counted from the beginning of its first block. A
    /// write of up to [`Rules::whole_max`](super::Rules::whole_max) bytes to a marked file is not
    /// split. Zeroing a range first allocates all of its blocks, so that nothing else happens on a
    /// full volume. If the scheme writes new blocks to their places before a commit (`places_new`),
    /// one more state follows, in which the blocks that lie wholly in the range are missing.
    ///
    /// A full volume took at most `most` bytes of a write, which then may end at any block, or
    /// nothing of another operation if that is 0.
    pub fn between(&self, op: &Op, handle: u64, places_new: bool, most: usize) -> Vec<Self> {
        let written = |slot, offset, mut bytes: Vec<u8>| {
            let unit = if bytes.len() > most {
                self.rules.block
            } else {
                handle
            };
            bytes.truncate(most);
            self.parts_of_write(slot, offset, &bytes, unit)
        };
        match op {
            Op::Write {
                slot,
                offset,
                payload,
                ..
            } => written(*slot, *offset, payload.bytes()),
            Op::Append { slot, payload } => match self.slot(*slot) {
                Ok(id) => written(*slot, self.content(id).size(), payload.bytes()),
                Err(_) => Vec::new(),
            },
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => match self.slot(*from) {
                Ok(id) => {
                    let bytes = self.content(id).read(*from_offset, *len as usize);
                    written(*to, *to_offset, bytes)
                }
                Err(_) => Vec::new(),
            },
            Op::Fallocate {
                slot,
                how: how @ (Reserve::Zero | Reserve::ZeroKeepSize),
                offset,
                len,
            } if most > 0 => {
                self.parts_of_zeroing(*slot, *how, *offset..*offset + *len, places_new)
            }
            _ => Vec::new(),
        }
    }

    fn parts_of_write(&self, slot: u8, offset: u64, bytes: &[u8], unit: u64) -> Vec<Self> {
        let len = bytes.len() as u64;
        let is_marked = self.slot(slot).is_ok_and(|id| self.is_marked(id));
        if is_marked && len <= self.rules.whole_max {
            return Vec::new();
        }
        let first = offset - offset % self.rules.block;
        let end = offset + len;
        let ends = (1..).map(|n| first + n * unit).take_while(|at| *at < end);
        let part = |at: u64| {
            let mut part = self.clone();
            let written = part.write_bytes(slot, Some(offset), &bytes[..(at - offset) as usize]);
            written.is_ok().then_some(part)
        };
        ends.filter_map(part).collect()
    }

    fn parts_of_zeroing(
        &self,
        slot: u8,
        how: Reserve,
        range: Range<u64>,
        places_new: bool,
    ) -> Vec<Self> {
        let (len, block) = (range.end - range.start, self.rules.block);
        let (Ok(id), touched) = (self.slot(slot), self.blocks_of(range.start, len)) else {
            return Vec::new();
        };
        let mut roomy = self.clone();
        let node = roomy.nodes.get_mut(&id).expect("it is open");
        node.blocks.extend(touched);
        if !places_new {
            return vec![roomy];
        }
        let mut empty = roomy.clone();
        if empty.fallocate(slot, how, range.start, len).is_err() {
            return Vec::new();
        }
        let whole = range.start.div_ceil(block)..range.end / block;
        let node = empty.nodes.get_mut(&id).expect("it is open");
        node.blocks.retain(|n| !whole.contains(n));
        vec![roomy, empty]
    }
}
