//! A group of writes: what is staged happens at its commit, in the order in which it was staged, to
//! the files as they are then.

use rustix::io::Errno;

use super::{Id, Model};
use crate::world::op::Payload;
use crate::world::{Outcome, Reply};

/// What is staged. Files in it stay when their last name goes.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    staged: Vec<(Id, u64, Payload)>,
}

impl Group {
    pub(super) fn has(&self, id: Id) -> bool {
        self.staged.iter().any(|(staged, ..)| *staged == id)
    }
}

impl Model {
    /// Whether a group is open.
    pub fn has_group(&self) -> bool {
        self.group.is_some()
    }

    fn group(&mut self) -> Result<&mut Group, Errno> {
        self.group.as_mut().ok_or(Errno::BADF)
    }

    pub(super) fn begin_group(&mut self) -> Outcome {
        self.drop_group();
        self.group = Some(Group::default());
        Ok(Reply::Done)
    }

    pub(super) fn stage(&mut self, slot: u8, offset: u64, payload: Payload) -> Outcome {
        let (id, groups) = (self.slot(slot)?, self.rules.groups);
        let group = self.group()?;
        if !groups {
            return Err(Errno::OPNOTSUPP);
        }
        if payload.len > 0 {
            group.staged.push((id, offset, payload));
        }
        Ok(Reply::Done)
    }

    pub(super) fn read_staged(&mut self, slot: u8, offset: u64, len: usize) -> Outcome {
        let id = self.slot(slot)?;
        let mut content = self.content(id).clone();
        let staged = &self.group()?.staged;
        for (_, offset, payload) in staged.iter().filter(|(staged, ..)| *staged == id) {
            content.write(*offset, &payload.bytes());
        }
        Ok(Reply::Bytes(content.read(offset, len)))
    }

    pub(super) fn commit_group(&mut self, lazy: bool) -> Outcome {
        let staged = std::mem::take(&mut self.group()?.staged);
        for (id, offset, payload) in &staged {
            self.write_to(*id, *offset, &payload.bytes());
        }
        if !lazy && !staged.is_empty() {
            self.vouched = self.step;
        }
        self.end_group(staged);
        Ok(Reply::Done)
    }

    pub(super) fn abort_group(&mut self) -> Outcome {
        self.group()?;
        self.drop_group();
        Ok(Reply::Done)
    }

    pub(super) fn drop_group(&mut self) {
        let group = self.group.take().unwrap_or_default();
        self.end_group(group.staged);
    }

    fn end_group(&mut self, staged: Vec<(Id, u64, Payload)>) {
        self.group = None;
        staged.iter().for_each(|(id, ..)| self.collect(*id));
    }
}
