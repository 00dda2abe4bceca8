//! Applies a layer's changes in one transaction.
//!
//! The order:
//! 1. make the plan, and check whether others have changed what it changes;
//! 2. remove from the layer what only overlayfs needs; nobody sees the layer yet;
//! 3. make durable what the command has written;
//! 4. stage the changes in one group, in the plan's order; this checks permissions and refuses more
//!    than one transaction holds;
//! 5. check again what others have changed; the group itself notices later changes;
//! 6. commit.
//!
//! After a failure before 6 the directory is as it was.

use rustix::io::Errno;
use stetfs::{Caller, Change, Kind, Name, RenameFlags, SetAttr, SetTime, SetXattr};
use stetfs_format::InodeNo;
use stetfs_format::inode::Time;

use super::make::Where;
use super::notes::Notes;
use super::plan::{self, About, Child, Found, Plan, Tree, What, Xattr};
use crate::aside::Pages;
use crate::backend::{AtomicGroup, Backend};
use crate::errno::errno;
use crate::server::FsServer;

/// Why nothing was changed, and the file that was the cause.
pub(super) struct Told {
    pub(super) errno: Errno,
    pub(super) path: Vec<u8>,
}

impl Told {
    fn new(errno: Errno, path: &[u8]) -> Self {
        Self {
            errno,
            path: path.to_vec(),
        }
    }
}

/// The names and files of which the kernel's knowledge is wrong after a commit.
#[derive(Default)]
pub(super) struct Stale {
    pub(super) names: Vec<(InodeNo, Vec<u8>)>,
    pub(super) files: Vec<InodeNo>,
    dirs: Vec<InodeNo>,
}

impl Stale {
    /// Returns the directories. The kernel keeps their entries as pages.
    pub(super) fn dirs(&self) -> Vec<Pages> {
        Pages::of_files(self.dirs.iter().copied())
    }
}

/// A volume as a [`Tree`].
struct Volume<'a, B>(&'a B);

impl<B: Backend> Tree for Volume<'_, B> {
    type Node = InodeNo;
    type Error = stetfs::Error;

    fn children(&self, dir: &InodeNo) -> stetfs::Result<Vec<Child<InodeNo>>> {
        let mut children = Vec::new();
        self.0.readdir(*dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                children.push((entry.name.to_vec(), entry.ino));
            }
            true
        })?;
        Ok(children)
    }

    fn child(&self, dir: &InodeNo, name: &[u8]) -> stetfs::Result<Option<InodeNo>> {
        match self.0.lookup(&Caller::root(), *dir, name) {
            Ok(entry) => Ok(Some(entry.ino)),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn about(&self, ino: &InodeNo) -> stetfs::Result<About> {
        let attr = self.0.getattr(*ino)?;
        Ok(About {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            atime: (attr.atime.sec, attr.atime.nsec),
            mtime: (attr.mtime.sec, attr.mtime.nsec),
        })
    }

    fn xattrs(&self, ino: &InodeNo) -> stetfs::Result<Vec<Xattr>> {
        let root = Caller::root();
        let names = self.0.listxattr(&root, *ino)?;
        let names = names.split(|byte| *byte == 0).filter(|n| !n.is_empty());
        names
            .map(|name| Ok((name.to_vec(), self.0.getxattr(&root, *ino, name)?)))
            .collect()
    }
}

impl<B: Backend> FsServer<B> {
    /// Lays a layer over its directory. Returns what the kernel must be told.
    pub(super) fn apply_layer(&self, c: &Caller, at: &Where) -> Result<Stale, Told> {
        let told = |e: &stetfs::Error, path: &[u8]| Told::new(errno(e), path);
        let tree = Volume(&self.fs);
        let plan = plan::plan(&tree, &at.upper, &at.dir).map_err(|e| match e {
            plan::Error::Tree(path, e) => told(&e, &path),
            plan::Error::TooDeep(path) => Told::new(Errno::NAMETOOLONG, &path),
        })?;
        if let Some(path) = plan.conflicts.first() {
            return Err(Told::new(Errno::BUSY, path));
        }
        if plan.changes.is_empty() {
            return Ok(Stale::default());
        }
        self.check_others(&plan)?;
        self.clean(&plan).map_err(|e| told(&e, b""))?;
        self.fs.sync().map_err(|e| told(&e, b""))?;
        let mut group = self
            .fs
            .new_group()
            .ok_or_else(|| Told::new(Errno::NOTSUP, b""))?;
        let mut trashed = 0;
        let mut stale = Stale::default();
        for change in &plan.changes {
            let staged = Staging {
                c,
                at,
                group: &mut *group,
                trashed: &mut trashed,
                stale: &mut stale,
            }
            .stage(change, |ino| self.has_others_in(ino));
            staged.map_err(|e| told(&e, &change.path))?;
        }
        self.check_others(&plan)?;
        group.commit(c).map_err(|e| told(&e, b""))?;
        stale.names.push((at.place, plan::UPPER.into()));
        stale.dirs.sort_unstable();
        stale.dirs.dedup();
        Ok(stale)
    }

    /// Removes from the layer what only overlayfs needs.
    fn clean(&self, plan: &Plan<InodeNo>) -> stetfs::Result<()> {
        let root = Caller::root();
        for (ino, name) in &plan.marks {
            match self.fs.change(&root, &Change::RemoveXattr(*ino, name)) {
                // A file with several names is in the list several times.
                Err(e) if e.kind() == Kind::NoData => {}
                other => drop(other?),
            }
        }
        for (dir, name) in &plan.whiteouts {
            self.fs.change(&root, &Change::Unlink((*dir, name)))?;
        }
        Ok(())
    }

    /// Returns whether others have changed a directory or names in it.
    fn has_others_in(&self, dir: InodeNo) -> bool {
        let noted = self
            .layer
            .noted(|notes| notes.has_names(dir) || notes.has_file(dir));
        noted.unwrap_or(true)
    }

    /// Fails if others have changed what the plan changes.
    fn check_others(&self, plan: &Plan<InodeNo>) -> Result<(), Told> {
        for change in &plan.changes {
            let name = change.path.rsplit(|byte| *byte == b'/').next();
            let name = name.unwrap_or_default();
            let of_old = |notes: &Notes, dir, old: Option<&Found<InodeNo>>| {
                notes.has_name(dir, name) || old.is_some_and(|old| notes.has_file(old.node))
            };
            let noted = self.layer.noted(|notes| match &change.what {
                What::Remove { dir, old } => of_old(notes, *dir, Some(old)),
                What::Place { dir, old, .. } => of_old(notes, *dir, old.as_ref()),
                What::Inside { .. } => false,
                What::Attributes { node, .. } => {
                    !change.what.is_of_times() && notes.has_file(*node)
                }
            });
            if noted.map_err(|e| Told::new(e, &change.path))? {
                return Err(Told::new(Errno::BUSY, &change.path));
            }
            let (What::Remove { old, .. } | What::Place { old: Some(old), .. }) = &change.what
            else {
                continue;
            };
            if old.about.is_dir() {
                self.check_others_below(old.node, &mut change.path.clone())?;
            }
        }
        Ok(())
    }

    /// Fails if others have changed anything in a directory that is removed.
    fn check_others_below(&self, dir: InodeNo, path: &mut Vec<u8>) -> Result<(), Told> {
        let mut dirs = vec![(dir, std::mem::take(path))];
        while let Some((dir, path)) = dirs.pop() {
            let noted = self.layer.noted(|notes| notes.has_names(dir));
            if noted.map_err(|e| Told::new(e, &path))? {
                return Err(Told::new(Errno::BUSY, &path));
            }
            let children = Volume(&self.fs).children(&dir);
            for (name, ino) in children.map_err(|e| Told::new(errno(&e), &path))? {
                let path = [&path[..], b"/", &name].concat();
                let noted = self.layer.noted(|notes| notes.has_file(ino));
                if noted.map_err(|e| Told::new(e, &path))? {
                    return Err(Told::new(Errno::BUSY, &path));
                }
                let attr = self.fs.getattr(ino);
                let attr = attr.map_err(|e| Told::new(errno(&e), &path))?;
                if stetfs::mode::is_dir(attr.mode) {
                    dirs.push((ino, path));
                }
            }
        }
        Ok(())
    }
}

/// Stages one change in the group.
struct Staging<'a> {
    c: &'a Caller,
    at: &'a Where,
    group: &'a mut dyn AtomicGroup,
    /// Number of directories in the trash.
    trashed: &'a mut u64,
    stale: &'a mut Stale,
}

impl Staging<'_> {
    fn stage(
        mut self,
        change: &plan::Change<InodeNo>,
        has_others: impl FnOnce(InodeNo) -> bool,
    ) -> stetfs::Result<()> {
        let name = change.path.rsplit(|byte| *byte == b'/').next();
        let name = name.unwrap_or_default();
        match &change.what {
            What::Remove { dir, old } => {
                self.remove(*dir, name, old)?;
                self.is_stale(*dir, name);
            }
            What::Place {
                upper,
                dir,
                new,
                old,
            } => {
                if let Some(old) = old {
                    // A rename over a file removes it by itself.
                    if old.about.is_dir() || new.about.is_dir() {
                        self.remove(*dir, name, old)?;
                    } else {
                        self.stale.files.push(old.node);
                    }
                }
                self.rename((*upper, name), (*dir, name))?;
                self.is_stale(*dir, name);
            }
            What::Inside { .. } => {}
            What::Attributes {
                node,
                new,
                xattrs: (set, gone),
                ..
            } => {
                if change.what.is_of_times() && has_others(*node) {
                    // The times that others have set are as good as the layer's.
                    return Ok(());
                }
                for (name, value) in set {
                    self.change(&Change::SetXattr(*node, name, value, SetXattr::Any))?;
                }
                for name in gone {
                    self.change(&Change::RemoveXattr(*node, name))?;
                }
                // After the ACLs, which change the mode.
                self.dress(*node, change, new)?;
                self.stale.files.push(*node);
            }
        }
        Ok(())
    }

    fn change(&mut self, change: &Change<'_>) -> stetfs::Result<()> {
        self.group.change(self.c, change).map(drop)
    }

    fn rename(&mut self, from: Name<'_>, to: Name<'_>) -> stetfs::Result<()> {
        self.change(&Change::Rename(from, to, RenameFlags::empty()))
    }

    fn is_stale(&mut self, dir: InodeNo, name: &[u8]) {
        self.stale.names.push((dir, name.to_vec()));
        self.stale.dirs.push(dir);
    }

    /// Removes a file. A directory goes to the trash in one piece.
    fn remove(&mut self, dir: InodeNo, name: &[u8], old: &Found<InodeNo>) -> stetfs::Result<()> {
        self.stale.files.push(old.node);
        if !old.about.is_dir() {
            return self.change(&Change::Unlink((dir, name)));
        }
        let there = self.trashed.to_string();
        *self.trashed += 1;
        let trashed = (self.at.trash, there.as_bytes());
        self.rename((dir, name), trashed)
    }

    /// Gives a directory its attributes in the layer.
    fn dress(
        &mut self,
        ino: InodeNo,
        change: &plan::Change<InodeNo>,
        new: &About,
    ) -> stetfs::Result<()> {
        let What::Attributes { old, .. } = &change.what else {
            return Ok(());
        };
        let time = |(sec, nsec)| Some(SetTime::At(Time { sec, nsec }));
        let set = SetAttr {
            mode: (new.mode != old.mode).then_some(new.mode & 0o7777),
            uid: (new.uid != old.uid).then_some(new.uid),
            gid: (new.gid != old.gid).then_some(new.gid),
            atime: time(new.atime),
            mtime: time(new.mtime),
            ..SetAttr::default()
        };
        self.change(&Change::SetAttr(ino, &set))
    }
}
