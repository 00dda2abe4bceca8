//! Groups of changes on a recording volume. The recorder notes staged changes; the group's commit
//! makes them one call of the recording.

use std::collections::BTreeMap;

use stetfs::{Attr, Caller, Change, Error, Fs, Group, Name, Result};
use stetfs_format::InodeNo;
use stetfs_fuse::backend::AtomicGroup;

use super::seen::Seen;
use super::{Log, Recorder};
use crate::call::What;

/// A group of the volume, and the changes staged in it.
pub(super) struct Noted {
    recorder: Recorder,
    group: Group,
    steps: Vec<Step>,
}

/// A directory and a name in it.
type OwnName = (InodeNo, Vec<u8>);

enum Step {
    Write(InodeNo, u64, Vec<u8>),
    Remove(OwnName, InodeNo),
    Rename((OwnName, InodeNo), (OwnName, Option<InodeNo>)),
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

    fn change(&mut self, c: &Caller, change: &Change<'_>) -> Result<Attr> {
        let owned = |(dir, name): Name<'_>| (dir, name.to_vec());
        let (step, attr) = match *change {
            Change::Unlink(name) => {
                let gone = self.group.change(c, change)?;
                (Some(Step::Remove(owned(name), gone.ino)), gone)
            }
            Change::Rename(from, to, flags) if flags.is_empty() => {
                let replaced = self.group.lookup(c, to.0, to.1).ok();
                let replaced = replaced.map(|entry| entry.ino);
                let moved = self.group.change(c, change)?;
                // A rename between two names of one file does nothing.
                let happens = replaced != Some(moved.ino);
                let step = Step::Rename((owned(from), moved.ino), (owned(to), replaced));
                (happens.then_some(step), moved)
            }
            Change::SetAttr(ino, _) | Change::SetXattr(ino, ..) | Change::RemoveXattr(ino, _) => {
                (Some(Step::Set(ino)), self.group.change(c, change)?)
            }
            // The mount asks for no other change in a group.
            _ => return Err(Error::NotSupported),
        };
        self.steps.extend(step);
        Ok(attr)
    }

    fn commit(&mut self, c: &Caller) -> Result<()> {
        let (group, steps) = (&mut self.group, &self.steps);
        self.recorder.noting(
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

/// Returns the inodes that are written to or set, as they are before the commit.
fn before(fs: &Fs, steps: &[Step]) -> Result<BTreeMap<InodeNo, Seen>> {
    let inodes = steps.iter().filter_map(|step| match step {
        Step::Write(ino, ..) | Step::Set(ino) => Some(*ino),
        Step::Remove(..) | Step::Rename(..) => None,
    });
    inodes.map(|ino| Ok((ino, Seen::of(fs, ino)?))).collect()
}

impl Log {
    /// Records each step as a call, then joins these calls into one.
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
                Step::Remove((dir, name), gone) => self.removed(fs, *dir, name, *gone),
                Step::Rename(((dir, name), moved), ((new_dir, new_name), replaced)) => {
                    let (from, to) = (self.slot(*dir, name), self.slot(*new_dir, new_name));
                    self.at_the_time_of(fs, *new_dir);
                    let moved = self.object(*moved);
                    let replaced = replaced.map(|ino| self.object(ino));
                    self.renamed((from, moved), (to, replaced), None);
                }
                // The first `Set` of an inode records all that its steps have changed.
                Step::Set(ino) => {
                    if let (Some(old), Ok(mut new)) = (before.get_mut(ino), Seen::of(fs, *ino)) {
                        self.set(*ino, old.all(&new));
                        // The length is the one that the writes have reached so far.
                        new.attr.size = old.attr.size;
                        *old = new;
                    }
                }
            }
        }
        // A write may have cleared set-user-ID and file capabilities.
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
