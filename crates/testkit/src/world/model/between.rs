//! The states that an operation goes through which takes several handles, as stetfs does it.

use std::ops::Range;

use super::Model;
use crate::world::op::{Op, Payload, Reserve};

impl Model {
    /// The states between this one and that after `op`. A write ends its pieces where `handle`
    /// bytes are full, from the beginning of a block on. A range that is to become zeros gets room
    /// before anything else, so that a full volume is left as it was; where the scheme writes new
    /// blocks to their places before a commit (`places_new`), it is then without the blocks that
    /// lie in it.
    pub fn between(&self, op: &Op, handle: u64, places_new: bool) -> Vec<Self> {
        match op {
            Op::Write {
                slot,
                offset,
                payload,
                ..
            } => self.parts_of_write(*slot, *offset, *payload, handle),
            Op::Append { slot, payload } => match self.slot(*slot) {
                Ok(id) => self.parts_of_write(*slot, self.content(id).size(), *payload, handle),
                Err(_) => Vec::new(),
            },
            Op::Fallocate {
                slot,
                how: how @ (Reserve::Zero | Reserve::ZeroKeepSize),
                offset,
                len,
            } => self.parts_of_zeroing(*slot, *how, *offset..*offset + *len, places_new),
            _ => Vec::new(),
        }
    }

    fn parts_of_write(&self, slot: u8, offset: u64, payload: Payload, handle: u64) -> Vec<Self> {
        let first = offset - offset % self.rules.block;
        let end = offset + u64::from(payload.len);
        let ends = (1..).map(|n| first + n * handle).take_while(|at| *at < end);
        let bytes = payload.bytes();
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
