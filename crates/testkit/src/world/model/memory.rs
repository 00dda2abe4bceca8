//! Clocks that stand still, marked files, mapped memory, and copies.

use rustix::io::Errno;

use super::{Body, Id, Model};
use crate::world::op::{ClockHow, Payload};
use crate::world::sparse::PAGE;
use crate::world::{Moment, Outcome, Reply, moment};

impl Model {
    /// Moves the clock to the time of the next operation and returns it.
    pub fn tick(&mut self) -> Moment {
        let now = self.held.unwrap_or_else(|| moment(self.step));
        self.set_time(now);
        now
    }

    pub(super) fn set_clock(&mut self, how: ClockHow) -> Outcome {
        self.held = match how {
            ClockHow::Runs => None,
            ClockHow::Still => Some(self.held.unwrap_or_else(|| moment(self.step))),
            ClockHow::At(sec, nsec) => Some((sec, nsec)),
        };
        Ok(Reply::Done)
    }

    /// Whether one write to a file is one transaction, up to [`Rules::whole_max`].
    ///
    /// [`Rules::whole_max`]: super::Rules::whole_max
    pub fn is_marked(&self, id: Id) -> bool {
        let node = self.nodes.get(&id);
        self.rules.all_marked || node.is_some_and(|node| node.marked)
    }

    /// The last step that wrote to a file in a way to which the mark's promise does not apply.
    pub fn loose(&self, id: Id) -> usize {
        self.nodes.get(&id).map_or(0, |node| node.loose)
    }

    pub(super) fn mark(&mut self, path: &str, on: bool) -> Outcome {
        let id = self.at(path)?;
        self.touch(id).marked = on;
        Ok(Reply::Done)
    }

    /// Notes a write of `len` bytes. If a mark makes it whole, it joins its transaction at once,
    /// together with all data written before it: none of that is delayed any more.
    pub(super) fn note_written(&mut self, id: Id, len: u64) {
        let (step, is_whole) = (self.step, self.is_marked(id) && len <= self.rules.whole_max);
        if let Some(node) = self.nodes.get_mut(&id) {
            if is_whole {
                node.placed = step;
            } else {
                node.loose = step;
            }
        }
    }

    /// Notes that part of a block was zeroed. Without a mark these zeros are data like that of a
    /// write: with `data=writeback` they may reach the disk after the commit of a later mark.
    pub(super) fn note_zeroed(&mut self, id: Id) {
        let (step, is_whole) = (self.step, self.is_marked(id));
        if let Some(node) = self.nodes.get_mut(&id).filter(|_| !is_whole) {
            node.loose = step;
        }
    }

    /// Stores to mapped pages, which writes these pages at once and changes no times.
    pub(super) fn store(&mut self, slot: u8, offset: u64, payload: Payload) -> Outcome {
        let id = self.slot(slot)?;
        let size = self.content(id).size();
        let end = (offset + u64::from(payload.len)).min(size);
        let Some(len) = end.checked_sub(offset).filter(|len| *len > 0) else {
            return Ok(Reply::Count(0));
        };
        self.store_bytes(id, offset, &payload.bytes()[..len as usize]);
        Ok(Reply::Count(len as usize))
    }

    fn store_bytes(&mut self, id: Id, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let first = offset - offset % PAGE;
        let stop = end.next_multiple_of(PAGE).min(self.content(id).size());
        let touched = self.blocks_of(first, stop - first);
        let step = self.step;
        let node = self.nodes.get_mut(&id).expect("it is open");
        let is_there = touched.clone().all(|block| node.blocks.contains(&block));
        (node.changed, node.written, node.loose) = (step, step, step);
        if !is_there {
            (node.mapped, node.stored) = (step, step);
        }
        node.blocks.extend(touched);
        if let Body::File(content) = &mut node.body {
            content.write(offset, bytes);
        }
    }

    pub(super) fn copy(
        &mut self,
        (from, from_offset): (u8, u64),
        (to, to_offset): (u8, u64),
        len: u32,
    ) -> Outcome {
        let (from, to) = (self.slot(from)?, self.slot(to)?);
        let len = u64::from(len);
        let meets = from_offset < to_offset + len && to_offset < from_offset + len;
        if from == to && meets {
            return Err(Errno::INVAL);
        }
        let most = (len as usize).min(self.most);
        let bytes = self.content(from).read(from_offset, most);
        if !bytes.is_empty() {
            self.write_to(to, to_offset, &bytes);
            let step = self.step;
            let node = self.nodes.get_mut(&to).expect("it is open");
            node.loose = step;
        }
        Ok(Reply::Count(bytes.len()))
    }
}
