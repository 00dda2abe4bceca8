//! Contents: writing, truncating, allocating.

use rustix::io::Errno;

use super::{Body, Id, Model};
use crate::world::op::{Payload, Reserve};
use crate::world::sparse::Sparse;
use crate::world::{Outcome, Reply};

impl Model {
    pub(super) fn resize(&mut self, id: Id, size: u64) {
        let block = self.rules.block;
        let beyond = size.div_ceil(block);
        if size < self.content(id).size() && !size.is_multiple_of(block) {
            self.note_zeroed(id);
        }
        let node = self.modify(id);
        node.is_cut |= size == 0;
        if let Body::File(content) = &mut node.body {
            // Preallocated blocks beyond the end are freed even if the size stays the same.
            if size <= content.size() {
                node.blocks.split_off(&beyond);
            }
            content.resize(size);
        }
    }

    pub(super) fn content(&self, id: Id) -> &Sparse {
        match &self.node(id).body {
            Body::File(content) => content,
            _ => unreachable!("only regular files are open"),
        }
    }

    pub(super) fn write(&mut self, slot: u8, offset: Option<u64>, payload: Payload) -> Outcome {
        let mut bytes = payload.bytes();
        bytes.truncate(self.most);
        self.write_bytes(slot, offset, &bytes)?;
        Ok(Reply::Count(bytes.len()))
    }

    pub(super) fn write_bytes(
        &mut self,
        slot: u8,
        offset: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let id = self.slot(slot)?;
        if !bytes.is_empty() {
            let offset = offset.unwrap_or_else(|| self.content(id).size());
            self.write_to(id, offset, bytes);
        }
        Ok(())
    }

    pub(super) fn write_to(&mut self, id: Id, offset: u64, bytes: &[u8]) {
        let touched = self.blocks_of(offset, bytes.len() as u64);
        let before = self.node(id);
        let is_there = before.size() >= offset + bytes.len() as u64
            && touched.clone().all(|block| before.blocks.contains(&block));
        let (mapped, stored) = (before.mapped, before.stored);
        let has_times = (before.mtime, before.ctime) == (self.now, self.now);
        let is_known = self.now.is_some();
        let node = self.modify(id);
        if is_there {
            node.mapped = mapped;
        }
        if is_there && has_times && is_known {
            node.stored = stored;
        }
        node.blocks.extend(touched);
        self.note_written(id, bytes.len() as u64);
        let node = self.nodes.get_mut(&id).expect("it was modified");
        if let Body::File(content) = &mut node.body {
            content.write(offset, bytes);
        }
    }

    /// Returns the numbers of the blocks that a range of bytes touches.
    pub(super) fn blocks_of(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        offset / self.rules.block..(offset + len).div_ceil(self.rules.block)
    }

    pub(super) fn fallocate(&mut self, slot: u8, how: Reserve, offset: u64, len: u64) -> Outcome {
        let id = self.slot(slot)?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        if !self.rules.extents && how != Reserve::Punch {
            return Err(Errno::OPNOTSUPP);
        }
        let size = self.content(id).size();
        let keep = matches!(
            how,
            Reserve::KeepSize | Reserve::Punch | Reserve::ZeroKeepSize
        );
        let zero = matches!(how, Reserve::Punch | Reserve::Zero | Reserve::ZeroKeepSize);
        if how == Reserve::Punch && offset >= size {
            self.modify(id);
            return Ok(Reply::Done);
        }
        let block = self.rules.block;
        let touched = self.blocks_of(offset, len);
        let node = self.modify(id);
        match how {
            Reserve::Punch => {
                // The last block is zero beyond the end of the file.
                let end = if offset + len >= size {
                    size.next_multiple_of(block)
                } else {
                    offset + len
                };
                let whole = offset.div_ceil(block)..end / block;
                node.blocks.retain(|n| !whole.contains(n));
            }
            _ => node.blocks.extend(touched),
        }
        let has_edges = !offset.is_multiple_of(block) || !(offset + len).is_multiple_of(block);
        if zero && has_edges {
            self.note_zeroed(id);
        }
        let node = self.nodes.get_mut(&id).expect("it was modified");
        if let Body::File(content) = &mut node.body {
            if zero {
                content.zero(offset, len);
            }
            if !keep {
                content.resize(size.max(offset + len));
            }
        }
        Ok(Reply::Done)
    }
}
