//! What a volume refuses for lack of room, and what it must not refuse.

use rustix::io::Errno;

use super::{Model, Synced, Vouched};
use crate::world::op::{Op, Reserve};
use crate::world::{Outcome, World};

impl Model {
    /// Whether an operation may need a block or an inode that its files do not have yet. All others
    /// succeed on a full volume too: those that free something, syncs, and writes into blocks that
    /// the file has.
    pub fn needs_room(&self, op: &Op) -> bool {
        match op {
            Op::Create { .. }
            | Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::LinkSlot { .. }
            | Op::Rename { .. }
            | Op::Tmpfile { .. }
            | Op::SetXattr { .. }
            | Op::SetAcl { .. }
            | Op::GroupDo(_)
            | Op::GroupWrite { .. }
            | Op::GroupCommit { .. } => true,
            Op::Write {
                slot,
                offset,
                payload,
                ..
            }
            | Op::Store {
                slot,
                offset,
                payload,
            } => self.lacks_blocks(*slot, Some(*offset), u64::from(payload.len)),
            Op::Append { slot, payload } => self.lacks_blocks(*slot, None, u64::from(payload.len)),
            Op::Copy {
                to, to_offset, len, ..
            } => self.lacks_blocks(*to, Some(*to_offset), u64::from(*len)),
            Op::Fallocate {
                slot,
                how,
                offset,
                len,
            } => *how != Reserve::Punch && self.lacks_blocks(*slot, Some(*offset), *len),
            _ => false,
        }
    }

    /// Whether a range of an open file, or as many bytes at its end, has blocks that the file has
    /// not.
    fn lacks_blocks(&self, slot: u8, offset: Option<u64>, len: u64) -> bool {
        self.slot(slot).is_ok_and(|id| {
            let offset = offset.unwrap_or_else(|| self.content(id).size());
            let mut blocks = self.blocks_of(offset, len);
            blocks.any(|block| !self.has_block(id, block))
        })
    }

    /// Takes a step that does nothing, because the operation was refused: a group would exceed one
    /// transaction, or there is no room.
    pub fn refuse(&mut self, op: &Op, error: Errno) -> Outcome {
        self.step += 1;
        self.vouched = Vouched::default();
        self.synced = Synced::Nothing;
        self.refuse_in_group(op)?;
        Err(error)
    }

    /// Applies an operation of which a full volume takes only so many bytes.
    pub fn apply_some(&mut self, op: &Op, bytes: usize) -> Outcome {
        self.most = bytes;
        let outcome = self.apply(op);
        self.most = usize::MAX;
        outcome
    }
}
