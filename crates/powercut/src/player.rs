//! Repeats recorded calls on a volume.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use stetfs::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use stetfs::{
    Attr, Caller, Change, FallocateMode, Fs, Name, OpenFlags, RenameFlags, Schedule, Scheduled,
    SetAttr, SetTime, SetXattr, WriteFlags,
};
use stetfs_format::inode::InodeFlags;
use stetfs_format::{InodeNo, Time};

use crate::call::{Attribute, Call, Recording, Slot, What};
use crate::tree::{Body, Node, Object};

/// When the journal commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Where the program syncs, or a transaction is full.
    AtSyncs,
    /// After each call as well.
    EachCall,
    /// After each call as well, when the data of files was sent to the device.
    WrittenBack,
}

impl Pace {
    /// All paces.
    pub const ALL: [Self; 3] = [Self::AtSyncs, Self::EachCall, Self::WrittenBack];
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtSyncs => "at-syncs",
            Self::EachCall => "each-call",
            Self::WrittenBack => "written-back",
        })
    }
}

impl FromStr for Pace {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|pace| pace.to_string() == text);
        match found {
            Some(pace) => Ok(pace),
            None => bail!("{text}: not at-syncs, each-call or written-back"),
        }
    }
}

/// Repeats recorded calls on a volume.
pub struct Player<'a> {
    fs: &'a Fs,
    caller: Caller,
    inodes: BTreeMap<Object, InodeNo>,
    pace: Pace,
    /// Open files, each once: a recording does not say when a file was opened.
    open: Vec<Object>,
    /// The last call that concerns each object.
    last: BTreeMap<Object, usize>,
}

impl<'a> Player<'a> {
    /// A player on a volume that holds the tree from before the program, in these inodes
    /// (`Tree::write`).
    pub fn new(
        fs: &'a Fs,
        recording: &Recording,
        inodes: BTreeMap<Object, InodeNo>,
        pace: Pace,
    ) -> Self {
        Self {
            fs,
            caller: Caller::root(),
            inodes,
            pace,
            open: Vec::new(),
            last: last_uses(recording),
        }
    }

    fn ino(&self, object: Object) -> Result<InodeNo> {
        let ino = self.inodes.get(&object).copied();
        ino.context("the recording names a file that it does not make")
    }

    fn opened(&mut self, object: Object) -> Result<InodeNo> {
        let ino = self.ino(object)?;
        if !self.open.contains(&object) {
            self.fs.open(&self.caller, ino, OpenFlags::WRITE)?;
            self.open.push(object);
        }
        Ok(ino)
    }

    /// Opens an object whose name is about to go, if a later call uses it.
    fn keep(&mut self, number: usize, object: Object) -> Result<()> {
        let is_used = self.last.get(&object).is_some_and(|last| *last > number);
        let attr = self.fs.getattr(self.ino(object)?)?;
        if is_used && attr.mode & S_IFMT == S_IFREG {
            self.opened(object)?;
        }
        Ok(())
    }

    /// Repeats call `number` of the recording.
    ///
    /// # Errors
    /// The volume refuses it.
    pub fn play(&mut self, number: usize, what: &What) -> Result<()> {
        let (fs, c) = (self.fs, self.caller.clone());
        if let Some(change) = self.of_names(number, what)? {
            fs.change(&c, &change)?;
            return self.note_whiteout(what);
        }
        match what {
            What::Make { slot, object, node } => self.make(slot, *object, node)?,
            What::Unnamed { object, node } => {
                let c = owner(node);
                let mode = node.mode & 0o7777;
                let made = fs.create_unnamed(&c, fs.root(), mode, OpenFlags::WRITE)?;
                self.inodes.insert(*object, made.ino);
                self.open.push(*object);
            }
            What::Write {
                file,
                offset,
                bytes,
                ..
            } => {
                let ino = self.opened(*file)?;
                let none = WriteFlags::empty();
                let (_, wrote) = fs.write_with(&c, ino, *offset, &bytes.0, none)?;
                ensure!(wrote == bytes.0.len(), "only {wrote} bytes were written");
            }
            What::Zero { file, offset, len } => {
                let ino = self.opened(*file)?;
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                fs.fallocate(&c, ino, mode, *offset, *len)?;
            }
            What::Resize { file, to, .. } => {
                let ino = self.opened(*file)?;
                let size = Some(*to);
                let set = SetAttr {
                    size,
                    ..SetAttr::default()
                };
                fs.setattr(&c, ino, &set)?;
            }
            What::Set { object, attributes } => {
                let mut change = |change: &Change<'_>| fs.change(&c, change);
                set(self.ino(*object)?, attributes, &mut change)?;
            }
            What::Close { file } => {
                if let Some(at) = self.open.iter().position(|open| open == file) {
                    self.open.swap_remove(at);
                    fs.release(self.ino(*file)?)?;
                }
            }
            What::Fsync { object, datasync } => fs.fsync(self.ino(*object)?, *datasync)?,
            What::Group { steps } => self.commit(number, steps)?,
            What::Sync => fs.sync()?,
            What::Mark { .. } => {}
            What::Link { .. } | What::Remove { .. } | What::Rename { .. } => {
                unreachable!("a change of names")
            }
        }
        Ok(())
    }

    fn name<'w>(&self, slot: &'w Slot) -> Result<Name<'w>> {
        Ok((self.ino(slot.dir)?, &slot.name))
    }

    /// Returns the change of a call that gives, takes or changes a name; `None` for other calls.
    fn of_names<'w>(&mut self, number: usize, what: &'w What) -> Result<Option<Change<'w>>> {
        Ok(Some(match what {
            What::Link { slot, object } => Change::Link(self.ino(*object)?, self.name(slot)?),
            What::Remove { slot, object } => {
                self.keep(number, *object)?;
                let mode = self.fs.getattr(self.ino(*object)?)?.mode;
                match mode & S_IFMT {
                    S_IFDIR => Change::Rmdir(self.name(slot)?),
                    _ => Change::Unlink(self.name(slot)?),
                }
            }
            What::Rename {
                from: (from, _),
                to: (to, replaced),
                behind,
                ..
            } => {
                if let Some(replaced) = replaced {
                    self.keep(number, *replaced)?;
                }
                let flags = match behind {
                    None => RenameFlags::empty(),
                    Some(_) if behind == replaced => RenameFlags::EXCHANGE,
                    Some(_) => RenameFlags::WHITEOUT,
                };
                Change::Rename(self.name(from)?, self.name(to)?, flags)
            }
            _ => return Ok(None),
        }))
    }

    /// A rename may have left a device behind.
    fn note_whiteout(&mut self, what: &What) -> Result<()> {
        if let What::Rename {
            from: (from, _),
            to: (_, replaced),
            behind: Some(whiteout),
            ..
        } = what
            && *replaced != Some(*whiteout)
        {
            let (dir, name) = self.name(from)?;
            let made = self.fs.lookup(&self.caller, dir, name)?;
            self.inodes.insert(*whiteout, made.ino);
        }
        Ok(())
    }

    fn make(&mut self, slot: &Slot, object: Object, node: &Node) -> Result<()> {
        let (fs, c, dir) = (self.fs, owner(node), self.ino(slot.dir)?);
        let (name, mode) = (slot.name.as_slice(), node.mode & 0o7777);
        let made = match (&node.body, node.mode & S_IFMT) {
            (_, S_IFDIR) => fs.mkdir(&c, dir, name, mode)?,
            (Body::Link(target), S_IFLNK) => fs.symlink(&c, dir, name, target)?,
            (_, S_IFREG) => {
                self.open.push(object);
                fs.create(&c, dir, name, mode, OpenFlags::WRITE)?
            }
            _ => fs.mknod(&c, dir, name, node.mode, node.rdev)?,
        };
        self.inodes.insert(object, made.ino);
        Ok(())
    }

    /// Stages a group again and commits it. Where commits come after each call, they also come
    /// within this one, if it takes more than one handle.
    fn commit(&mut self, number: usize, steps: &[Call]) -> Result<()> {
        let (fs, c) = (self.fs, self.caller.clone());
        let mut group = fs.begin();
        for step in steps {
            match &step.what {
                What::Write {
                    file,
                    offset,
                    bytes,
                    ..
                } => {
                    let ino = self.opened(*file)?;
                    self.mark(ino)?;
                    group.write(&c, ino, *offset, &bytes.0)?;
                }
                What::Set { object, attributes } => {
                    let mut change = |change: &Change<'_>| group.change(&c, change);
                    set(self.ino(*object)?, attributes, &mut change)?;
                }
                what => match self.of_names(number, what)? {
                    Some(change) => drop(group.change(&c, &change)?),
                    None => bail!("no group does this: {}", step.text()),
                },
            }
        }
        let _between = (self.pace == Pace::EachCall).then(|| Scheduled::by(Arc::new(Between)));
        Ok(group.commit(&c)?)
    }

    /// Marks the file: the program had a group on it, so it was marked.
    fn mark(&self, ino: InodeNo) -> Result<()> {
        if !self.fs.can_group(ino)? {
            let flags = self.fs.get_flags(ino)? | InodeFlags::JOURNAL_DATA;
            self.fs.set_flags(&self.caller, ino, flags)?;
        }
        Ok(())
    }
}

/// Commits before each handle.
#[derive(Debug)]
struct Between;

impl Schedule for Between {
    fn commits_first(&self) -> bool {
        true
    }

    fn splits(&self) -> bool {
        false
    }

    fn pass(&self) {}

    fn wait(&self) {}
}

/// Sets attributes through `change`.
fn set(
    ino: InodeNo,
    attributes: &[Attribute],
    change: &mut dyn FnMut(&Change<'_>) -> stetfs::Result<Attr>,
) -> Result<()> {
    for (name, value) in extended(attributes) {
        match value {
            Some(value) => drop(change(&Change::SetXattr(ino, name, value, SetXattr::Any))?),
            // It may have gone with the change of owner or mode.
            None => match change(&Change::RemoveXattr(ino, name)) {
                Err(stetfs::Error::NoData) => {}
                done => drop(done?),
            },
        }
    }
    if let Some(set) = plain(attributes) {
        change(&Change::SetAttr(ino, &set))?;
    }
    Ok(())
}

/// Returns the request for setattr, if there is one; extended attributes are not in it.
fn plain(attributes: &[Attribute]) -> Option<SetAttr> {
    let mut set = SetAttr::default();
    for attribute in attributes {
        match attribute {
            Attribute::Mode(mode) => set.mode = Some(mode & 0o7777),
            Attribute::Owner(uid, gid) => (set.uid, set.gid) = (Some(*uid), Some(*gid)),
            Attribute::Modified(sec, nsec) => {
                let (sec, nsec) = (*sec, *nsec);
                set.mtime = Some(SetTime::At(Time { sec, nsec }));
            }
            Attribute::Xattr(..) => {}
        }
    }
    (set != SetAttr::default()).then_some(set)
}

/// Returns the extended attributes and their new values.
fn extended(attributes: &[Attribute]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    attributes.iter().filter_map(|attribute| match attribute {
        Attribute::Xattr(name, value) => Some((name.as_slice(), value.as_deref())),
        _ => None,
    })
}

/// Returns the caller who makes an object, and who may do everything else.
fn owner(node: &Node) -> Caller {
    Caller {
        uid: node.uid,
        gid: node.gid,
        ..Caller::root()
    }
}

/// Returns the last call that concerns each object, apart from its names.
pub(crate) fn last_uses(recording: &Recording) -> BTreeMap<Object, usize> {
    let calls = recording.calls.iter().enumerate();
    let each = calls.flat_map(|(number, call)| {
        let objects = call.what.each().filter_map(object_of);
        objects.map(move |object| (object, number))
    });
    each.collect()
}

/// Returns the object that a call changes, apart from names.
fn object_of(what: &What) -> Option<Object> {
    match what {
        What::Write { file, .. }
        | What::Zero { file, .. }
        | What::Resize { file, .. }
        | What::Close { file } => Some(*file),
        What::Set { object, .. } | What::Fsync { object, .. } | What::Link { object, .. } => {
            Some(*object)
        }
        What::Make { .. }
        | What::Group { .. }
        | What::Unnamed { .. }
        | What::Remove { .. }
        | What::Rename { .. }
        | What::Sync
        | What::Mark { .. } => None,
    }
}
