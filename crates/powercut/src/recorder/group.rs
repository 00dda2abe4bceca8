//! Groups of changes on a recording volume: what is staged is noted, and becomes one call of the
//! recording when the group is committed.

use std::collections::BTreeMap;

use stetfs::{Caller, Fs, Group, RenameFlags, Result, SetAttr, SetXattr};
use stetfs_format::InodeNo;
use stetfs_fuse::backend::AtomicGroup;

use super::seen::Seen;
use super::{Log, Recorder};
use crate::call::What;

/// A group of the volume, and what is staged in it.
pub(super) struct Noted {
    recorder: Recorder,
    group: Group,
    steps: Vec<Step>,
}

/// A name in a directory.
type Name = (InodeNo, Vec<u8>);

enum Step {
    Write(InodeNo, u64, Vec<u8>),
    Remove(Name, InodeNo),
    Rename((Name, InodeNo), (Name, Option<InodeNo>)),
    Set(InodeNo),
}

impl Noted {
    pub(super) fn boxed(recorder: &Recorder) -> Box<dyn AtomicGroup> {
        Box::new(Self {
            recorder: recorder.clone(),
            group: recorder.fs.begin(),
            steps: Vec::new(),
        })
    }
}

impl AtomicGroup for Noted {
    fn files(&self) -> Vec<InodeNo> {
        self.group.files()
    }

    fn size(&self, ino: InodeNo) -> Result<u64> {
        self.group.size(ino)
    }

    fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.group.read(ino, offset, out)
    }

    fn write(&mut self, c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<()> {
        self.group.write(c, ino, offset, bytes)?;
        self.steps.push(Step::Write(ino, offset, bytes.to_vec()));
        Ok(())
    }

    fn unlink(&mut self, c: &Caller, dir: InodeNo, name: &[u8]) -> Result<()> {
        let gone = self.group.lookup(c, dir, name)?.ino;
        self.group.unlink(c, dir, name)?;
        self.steps.push(Step::Remove((dir, name.to_vec()), gone));
        Ok(())
    }

    fn rename(
        &mut self,
        c: &Caller,
        (dir, name): (InodeNo, &[u8]),
        (new_dir, new_name): (InodeNo, &[u8]),
    ) -> Result<()> {
        let moved = self.group.lookup(c, dir, name)?.ino;
        let replaced = self.group.lookup(c, new_dir, new_name).ok();
        let replaced = replaced.map(|entry| entry.ino);
        let none = RenameFlags::empty();
        self.group.rename(c, dir, name, new_dir, new_name, none)?;
        // Two names of one file: nothing happens.
        if replaced != Some(moved) {
            let (from, to) = ((dir, name.to_vec()), (new_dir, new_name.to_vec()));
            self.steps.push(Step::Rename((from, moved), (to, replaced)));
        }
        Ok(())
    }

    fn setattr(&mut self, c: &Caller, ino: InodeNo, set: &SetAttr) -> Result<()> {
        self.group.setattr(c, ino, set)?;
        self.steps.push(Step::Set(ino));
        Ok(())
    }

    fn setxattr(&mut self, c: &Caller, ino: InodeNo, name: &[u8], value: &[u8]) -> Result<()> {
        self.group.setxattr(c, ino, name, value, SetXattr::Any)?;
        self.steps.push(Step::Set(ino));
        Ok(())
    }

    fn removexattr(&mut self, c: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.group.removexattr(c, ino, name)?;
        self.steps.push(Step::Set(ino));
        Ok(())
    }

    fn commit(&mut self, c: &Caller) -> Result<()> {
        let (group, steps) = (&mut self.group, &self.steps);
        self.recorder.change(
            |fs| {
                let before = before(fs, steps)?;
                group.commit(c)?;
                Ok(before)
            },
            |log, fs, before| log.committed(fs, steps, before),
        )?;
        self.steps.clear();
        Ok(())
    }
}

/// The attributes of what is written to or set, before that.
fn before(fs: &Fs, steps: &[Step]) -> Result<BTreeMap<InodeNo, Seen>> {
    let inodes = steps.iter().filter_map(|step| match step {
        Step::Write(ino, ..) | Step::Set(ino) => Some(*ino),
        Step::Remove(..) | Step::Rename(..) => None,
    });
    inodes.map(|ino| Ok((ino, Seen::of(fs, ino)?))).collect()
}

impl Log {
    /// The steps, as the calls that they are by themselves, become one.
    fn committed(&mut self, fs: &Fs, steps: &[Step], before: &BTreeMap<InodeNo, Seen>) {
        let first = self.calls.len();
        let mut before = before.clone();
        for step in steps {
            match step {
                Step::Write(ino, offset, bytes) => {
                    let Some(Seen { attr: file, .. }) = before.get_mut(ino) else {
                        continue;
                    };
                    self.at_the_time_of(fs, *ino);
                    self.wrote(*ino, *offset, bytes, file.size);
                    file.size = file.size.max(offset + bytes.len() as u64);
                }
                Step::Remove((dir, name), gone) => self.removed(fs, *dir, name, Some(*gone)),
                Step::Rename(((dir, name), moved), ((new_dir, new_name), replaced)) => {
                    let (from, to) = (self.slot(*dir, name), self.slot(*new_dir, new_name));
                    self.at_the_time_of(fs, *new_dir);
                    let moved = self.object(*moved);
                    let replaced = replaced.map(|ino| self.object(ino));
                    self.renamed((from, moved), (to, replaced), None);
                }
                // All that its steps have changed, with the first of them.
                Step::Set(ino) => {
                    if let (Some(old), Ok(mut new)) = (before.get_mut(ino), Seen::of(fs, *ino)) {
                        self.set(*ino, old.all(&new));
                        // The length is that of the writes so far.
                        new.attr.size = old.attr.size;
                        *old = new;
                    }
                }
            }
        }
        // A write clears privileges.
        for (ino, old) in &before {
            if let Ok(new) = Seen::of(fs, *ino) {
                self.set(*ino, old.all(&new));
            }
        }
        let steps = self.calls.split_off(first);
        if let Some(step) = steps.first() {
            self.push(step.path.clone(), What::Group { steps });
        }
    }
}
