//! What becomes of one file of a copy, as cp(1) has it.
//!
//! - An existing file is written into: it keeps its owner, mode, attributes and other names, and a
//!   link to it is followed. Only `-r` and `-a` replace a file, and only in two cases: the new one
//!   has no content to write, or (with `-a`) the existing one has further names, whose content must
//!   stay.
//! - Without `-r`, everything but a directory is read and becomes a file. With it, links, pipes and
//!   devices are copied as what they are.
//! - Attributes are set when a file's content (a directory's entries) is complete, because writing
//!   changes times.
//!
//! A link that an image brought along must not lead out of the target. So a copy from an image to
//! this machine goes through no link below the target, and no copy goes through a link that this
//! job made.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use indicatif::ProgressBar;

use super::content::Copier;
use crate::args::Cp;
use crate::failure::{Explain, Failure, Result};
use crate::image::creation_mask;
use crate::owners::{ACL_ACCESS, ACL_DEFAULT, Owners};
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Stamp, Tree, Walk, descend, shown_below};
use crate::{place, repeatable};

/// Device and inode of a file of this machine.
pub(super) type HostId = (u64, u64);

/// Counts of what was not done.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Files that were not copied.
    out: u32,
    /// Files that were copied, but without some of their attributes.
    incomplete: u32,
}

impl Left {
    pub(super) fn into_result(self) -> Result<()> {
        let files = |n, done: &str| match n {
            1 => format!("1 file was {done}"),
            n => format!("{n} files were {done}"),
        };
        let out = (self.out > 0).then(|| files(self.out, "not copied"));
        let incomplete = (self.incomplete > 0)
            .then(|| files(self.incomplete, "copied without all of its attributes"));
        let words: Vec<String> = out.into_iter().chain(incomplete).collect();
        if words.is_empty() {
            Ok(())
        } else {
            Err(Failure::new(words.join(", ")))
        }
    }
}

/// Where the copies go.
pub(super) struct Target<'a> {
    /// The directory into which everything is copied.
    pub(super) dir: &'a dyn Item,
    /// Its path.
    pub(super) path: Vec<u8>,
    /// The name of the copy; None if the target is the directory itself.
    pub(super) name: Option<Vec<u8>>,
    /// True if the target was written with a slash at its end.
    pub(super) must_be_dir: bool,
}

/// Which times `--archive` gives the copies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Times {
    /// Those of the originals.
    Kept,
    /// Those of [`repeatable::times`], none later than this.
    Settled(Option<Stamp>),
}

pub(super) struct Job<'a> {
    args: &'a Cp,
    times: Times,
    /// Files that exist are replaced, as by tar(1), and not written into.
    replaces: bool,
    target: Target<'a>,
    images: Vec<HostId>,
    /// For each file with several names: the ways from the target to where its first name went.
    links: HashMap<(u64, u64), Vec<Vec<u8>>>,
    /// The file creation mask.
    mask: u16,
    /// Symbolic links that this job made.
    made_links: HashSet<(u64, u64)>,
    /// What the sources on the command line became.
    made_first: HashSet<(u64, u64)>,
    copier: Copier,
    bar: ProgressBar,
    left: Left,
}

/// What is known of a source while it is copied.
struct Origin {
    /// True if the source is in the tree that the copy goes to.
    same_tree: bool,
    /// True if the source is in an image and the copy is on this machine.
    leaves_image: bool,
    walk: Walk,
    /// Bytes that all its files together can hold.
    capacity: u64,
    /// Bytes that the files yet to come can hold.
    left: u64,
    /// Files with several names that were counted.
    counted: HashSet<(u64, u64)>,
}

/// A file that is copied: where it is, and where its copy goes.
struct Step<'s> {
    item: &'s dyn Item,
    meta: Meta,
    /// The directory that it was found in; None for a source on the command line.
    parent: Option<&'s dyn Item>,
    to: &'s dyn Item,
    name: &'s [u8],
}

/// A file that exists where a copy goes.
type Existing<'s> = (Box<dyn Item + 's>, Meta);

impl Step<'_> {
    fn is_named(&self) -> bool {
        self.parent.is_none()
    }

    fn shown_copy(&self) -> String {
        shown_below(self.to, self.name)
    }
}

impl<'a> Job<'a> {
    pub(super) fn new(
        args: &'a Cp,
        target: Target<'a>,
        images: Vec<HostId>,
        bar: ProgressBar,
    ) -> Self {
        Self {
            args,
            times: Times::Kept,
            replaces: false,
            target,
            images,
            links: HashMap::new(),
            mask: creation_mask(),
            made_links: HashSet::new(),
            made_first: HashSet::new(),
            copier: Copier::new(),
            bar,
            left: Left::default(),
        }
    }

    pub(super) fn set_times(&mut self, times: Times) {
        self.times = times;
    }

    pub(super) fn replace(&mut self) {
        self.replaces = true;
    }

    pub(super) fn end(self) -> Left {
        self.bar.finish_and_clear();
        self.left
    }

    /// Copies a source of the command line. `same` is the tree of the target, if the source is in
    /// it.
    pub(super) fn copy_source(
        &mut self,
        from: &dyn Tree,
        path: &[u8],
        same: Option<&dyn Tree>,
    ) -> Result<()> {
        // As cp: a link named on the command line is followed unless the copy is recursive.
        let item = from
            .at(path, !self.recursive())?
            .ok_or_else(|| Failure::new("no such file or directory"))?;
        let meta = item.meta()?;
        let is_tree = meta.kind == FileKind::Dir && self.recursive();
        if is_tree {
            if let Some(tree) = same
                && is_below(tree, &self.target.path, meta.id)?
            {
                return Err(Failure::new("cannot be copied into itself"));
            }
            if !self.bar.is_hidden() {
                self.count(&mut Walk::new(from), &*item, None);
            }
        } else {
            self.bar.inc_length(meta.size);
        }
        let capacity = from.capacity()?;
        let mut origin = Origin {
            same_tree: same.is_some(),
            leaves_image: from.is_image() && self.target.dir.descriptor().is_some(),
            walk: Walk::new(from),
            capacity,
            left: capacity,
            counted: HashSet::new(),
        };
        let to = self.target.dir;
        let name = match &self.target.name {
            Some(name) => name.clone(),
            None => place::last_part(path).to_vec(),
        };
        let step = Step {
            item: &*item,
            meta,
            parent: None,
            to,
            name: &name,
        };
        if matches!(&*name, b"" | b"." | b"..") {
            // The source has no name of its own, so its content goes into the target.
            if !is_tree {
                return Err(is_directory());
            }
            origin.walk.enter(&*item, None)?;
            return self.copy_dir(&mut origin, &step, Some(to));
        }
        if self.target.must_be_dir && self.target.name.is_some() && meta.kind != FileKind::Dir {
            let shown = step.shown_copy();
            return Err(Failure::new(format!("{shown}/ is not a directory"))
                .advise("make the directory first, or leave out the slash to copy to that name"));
        }
        self.copy_one(&mut origin, &step)
    }

    /// Adds the sizes to come to the bar's length. Errors are told later, when the files are
    /// copied.
    fn count(&self, walk: &mut Walk, item: &dyn Item, parent: Option<&dyn Item>) {
        let Ok(meta) = item.meta() else { return };
        self.bar.inc_length(meta.size);
        if meta.kind != FileKind::Dir || walk.enter(item, parent).is_err() {
            return;
        }
        for name in item.names().unwrap_or_default() {
            if let Ok(Some(child)) = item.child(&name) {
                self.count(walk, &*child, Some(item));
            }
        }
        walk.leave();
    }

    fn recursive(&self) -> bool {
        self.args.recursive || self.args.archive
    }

    /// With -r what has no content is copied as what it is.
    fn has_content(&self, meta: &Meta) -> bool {
        meta.kind == FileKind::File || !self.recursive()
    }

    pub(super) fn say(&self, what: String) {
        self.bar.suspend(|| eprintln!("stetfs: {what}"));
    }

    /// Tells what was not copied.
    pub(super) fn leave_out(&mut self, failure: Failure) {
        self.left.out += 1;
        self.say(failure.to_string());
    }

    /// True if this is a file of this machine and one of the command's images.
    fn is_image_in_use(&self, item: &dyn Item, meta: &Meta) -> bool {
        item.descriptor().is_some() && self.images.contains(&meta.id)
    }

    fn copy_one(&mut self, origin: &mut Origin, step: &Step<'_>) -> Result<()> {
        let Step {
            item,
            meta,
            to,
            name,
            ..
        } = *step;
        if self.is_image_in_use(item, &meta) {
            return Err(Failure::new("is an image that this command works on"));
        }
        if meta.kind == FileKind::Dir && !self.recursive() {
            return Err(is_directory());
        }
        let has_content = self.has_content(&meta);
        let mut there = self.existing(origin, step)?;
        if let Some((file, other)) = &there {
            if origin.same_tree && other.id == meta.id {
                return Err(Failure::new("the copy and the original are the same file"));
            }
            if self.args.no_clobber && meta.kind != FileKind::Dir {
                return Ok(());
            }
            self.check_replaced(step, &**file, other)?;
        }
        if self.args.archive && meta.nlink > 1 && self.link_again(step, there.as_ref())? {
            return Ok(());
        }
        let is_replaced = |(_, other): &Existing<'_>| {
            other.kind != FileKind::Dir
                && (self.replaces || !has_content || self.args.archive && other.nlink > 1)
        };
        if there.as_ref().is_some_and(is_replaced) {
            to.remove_file(name).during(|| step.shown_copy())?;
            there = None;
        }
        let there = there.as_ref().map(|(file, _)| &**file);
        if meta.kind == FileKind::Dir {
            origin.walk.enter(item, step.parent)?;
            let done = self.copy_dir(origin, step, there);
            origin.walk.leave();
            return done;
        }
        if has_content {
            return self.copy_content(origin, step, there);
        }
        let made = match meta.kind {
            FileKind::Symlink => to.make_symlink(name, &item.read_link()?),
            kind => to.make_node(name, kind, meta.mode, meta.rdev),
        };
        let made = made.during(|| step.shown_copy())?;
        if meta.kind == FileKind::Symlink {
            self.made_links.insert(made.meta()?.id);
        }
        self.finish(step, &*made)
    }

    /// Notes that a file is copied, and gives the copy its attributes.
    fn finish(&mut self, step: &Step<'_>, copy: &dyn Item) -> Result<()> {
        let id = copy.meta()?.id;
        if self.args.archive && step.meta.nlink > 1 {
            // Only if the name is the copy itself: a further name for a symbolic link that leads
            // there would be a name of the link.
            let named = step.to.child(step.name)?;
            if named.is_some_and(|named| named.meta().is_ok_and(|meta| meta.id == id)) {
                let mut way = step.to.way().to_vec();
                way.push(step.name.to_vec());
                self.links.insert(step.meta.id, way);
            }
        }
        if step.is_named() {
            self.made_first.insert(id);
        }
        self.copy_attributes(step.item, copy, &step.meta)
    }

    /// Returns the file that the copy goes into, or that it replaces.
    fn existing<'s>(&self, origin: &Origin, step: &Step<'s>) -> Result<Option<Existing<'s>>> {
        let Some(mut file) = step.to.child(step.name).during(|| step.shown_copy())? else {
            return Ok(None);
        };
        if file.meta()?.kind == FileKind::Symlink {
            file = self.behind(origin, step, file)?;
        }
        let meta = file.meta().during(|| step.shown_copy())?;
        Ok(Some((file, meta)))
    }

    /// Returns what the copy goes into where a symbolic link is: the file that it leads to, or the
    /// link, which is then replaced.
    fn behind<'s>(
        &self,
        origin: &Origin,
        step: &Step<'s>,
        link: Box<dyn Item + 's>,
    ) -> Result<Box<dyn Item + 's>> {
        let is_dir = step.meta.kind == FileKind::Dir;
        if self.replaces {
            // As tar(1) with --keep-directory-symlink: `/lib` stays the link that it is.
            let led = step.to.followed(step.name)?.filter(|_| is_dir);
            return Ok(match led {
                Some(led) if led.meta()?.kind == FileKind::Dir => led,
                _ => link,
            });
        }
        if self.has_content(&step.meta) {
            return self.through(origin, step, &*link);
        }
        Ok(link)
    }

    /// Returns where the symbolic link in the copy's place leads.
    fn through<'s>(
        &self,
        origin: &Origin,
        step: &Step<'s>,
        link: &dyn Item,
    ) -> Result<Box<dyn Item + 's>> {
        let shown = step.shown_copy();
        if self.made_links.contains(&link.meta()?.id) {
            return Err(Failure::new(format!(
                "{shown} is a symbolic link that this command has just made"
            )));
        }
        if origin.leaves_image && !step.is_named() {
            return Err(Failure::new(format!(
                "{shown} is a symbolic link, and files from an image are not written through links"
            ))
            .advise("remove the link, or copy this one file by its name"));
        }
        let led = step.to.followed(step.name).during(|| shown.clone())?;
        led.ok_or_else(|| {
            Failure::new(format!(
                "{shown} is a symbolic link to a file that does not exist"
            ))
            .advise("remove the link, or copy to the path that it names")
        })
    }

    /// Checks that the copy may replace the existing file, or go into it.
    fn check_replaced(&self, step: &Step<'_>, there: &dyn Item, other: &Meta) -> Result<()> {
        let shown = there.shown();
        let (is_dir, was_dir) = (step.meta.kind == FileKind::Dir, other.kind == FileKind::Dir);
        if is_dir != was_dir && (was_dir || !self.replaces) {
            let kind = other.kind.word();
            return Err(Failure::new(format!("{shown} exists and is a {kind}")));
        }
        if self.is_image_in_use(there, other) {
            return Err(Failure::new(format!(
                "{shown} is an image that this command works on"
            )));
        }
        if step.is_named() && step.meta.kind != FileKind::Dir && self.made_first.contains(&other.id)
        {
            return Err(Failure::new(format!(
                "{shown} was just copied from another source, and is not overwritten"
            )));
        }
        Ok(())
    }

    /// Gives a file with several names a further one if it was copied before, and replaces what has
    /// that name.
    fn link_again(&self, step: &Step<'_>, there: Option<&Existing<'_>>) -> Result<bool> {
        let Some(first) = self.links.get(&step.meta.id) else {
            return Ok(false);
        };
        let link = &mut |first: &dyn Item| {
            if let Some((_, other)) = there {
                if first.meta()?.id == other.id {
                    return Ok(());
                }
                step.to.remove_file(step.name)?;
            }
            step.to.make_link(step.name, first)
        };
        descend(self.target.dir, first, link).during(|| step.shown_copy())?;
        Ok(true)
    }

    /// Copies a directory into an existing one, or as a new one.
    fn copy_dir(
        &mut self,
        origin: &mut Origin,
        step: &Step<'_>,
        there: Option<&dyn Item>,
    ) -> Result<()> {
        let Step {
            item: dir,
            meta,
            to,
            name,
            ..
        } = *step;
        // The names are taken before the copy is made: it may lie inside the original.
        let names = dir.names();
        // As cp: a default ACL, for which the umask does not count, must not give others the right
        // to write that the umask takes away.
        let mode = if self.args.archive {
            meta.mode
        } else {
            meta.mode & !(self.mask & 0o022)
        };
        let made = match there {
            Some(_) => None,
            None => Some(
                to.make_dir(name, mode | 0o700)
                    .during(|| step.shown_copy())?,
            ),
        };
        let Some(copy) = there.or(made.as_deref()) else {
            unreachable!("one of them is there");
        };
        for name in names? {
            let found = dir
                .child(&name)
                .and_then(|child| child.ok_or_else(|| Failure::new("no such file or directory")));
            let done = found.and_then(|child| {
                let step = Step {
                    meta: child.meta()?,
                    item: &*child,
                    parent: Some(dir),
                    to: copy,
                    name: &name,
                };
                self.copy_one(origin, &step)
            });
            if let Err(e) = done {
                // Tell what fails, and copy the rest.
                self.leave_out(e.context(shown_below(dir, &name)));
            }
        }
        if made.is_some() && !self.args.archive && meta.mode & 0o700 != 0o700 {
            // The owner needed full access while the directory was filled.
            let mode = copy.meta()?.mode & !(!meta.mode & 0o700);
            copy.set_mode(mode).during(|| copy.shown())?;
        }
        // A directory behind a link is another one, which only takes what is in this one.
        if self.replaces && !step.is_named() && is_link(to, name)? {
            return Ok(());
        }
        self.copy_attributes(dir, copy, &meta)
    }

    /// Copies a file's content into an existing file, or into a new one.
    fn copy_content(
        &mut self,
        origin: &mut Origin,
        step: &Step<'_>,
        there: Option<&dyn Item>,
    ) -> Result<()> {
        let Step { item, meta, .. } = *step;
        self.bar.set_message(item.shown());
        let mut source = item.open()?;
        let copy = match there {
            Some(there) => there.open_to_write(),
            None => step.to.make_file(step.name, meta.mode & 0o777),
        };
        let copy = copy.during(|| step.shown_copy())?;
        // Of a file with several names only the first copy counts, but each has to be bounded.
        let is_first = meta.nlink < 2 || origin.counted.insert(meta.id);
        let mut left = if is_first {
            origin.left
        } else {
            origin.capacity
        };
        let bar = &self.bar;
        let copied = self
            .copier
            .copy(&mut *source, &*copy, &mut left, &mut |n| bar.inc(n));
        if is_first {
            origin.left = left;
        }
        copied?;
        self.finish(step, &*copy)
    }

    /// Gives a copy the owner that `--chown` names. With `--archive`, copies owner, mode,
    /// attributes and times. The order matters: each of the first may change the next.
    fn copy_attributes(&mut self, item: &dyn Item, copy: &dyn Item, meta: &Meta) -> Result<()> {
        let shown_copy = || copy.shown();
        let owners = &self.args.owners;
        if !self.args.archive {
            return match owners.chown {
                Some(_) => set_owner(copy, owners),
                None => Ok(()),
            };
        }
        let (uid, gid) = owners.of(meta.uid, meta.gid);
        let owned = copy.set_owner(uid, gid).during(shown_copy)?;
        let mut lost = Vec::new();
        let mut xattrs = item.xattrs()?;
        for (name, value) in &mut xattrs {
            owners.adapt(name, value);
        }
        if meta.kind != FileKind::Symlink {
            // Remove what the directory's default ACL added; the original has none of it.
            for acl in [ACL_ACCESS, ACL_DEFAULT] {
                if !xattrs.iter().any(|(name, _)| name == acl) {
                    copy.remove_xattr(acl).during(shown_copy)?;
                }
            }
            // Without the original's owner, the set-ID bits would grant something else.
            let mode = if owned { meta.mode } else { meta.mode & 0o1777 };
            copy.set_mode(mode).during(shown_copy)?;
        }
        for (name, value) in xattrs {
            if let Err(e) = copy.set_xattr(&name, &value) {
                lost.push(format!("{} ({e})", shown(&name)));
            }
        }
        let (atime, mtime) = match self.times {
            Times::Kept => (meta.atime, meta.mtime),
            Times::Settled(latest) => repeatable::times(meta, latest),
        };
        copy.set_times(atime, mtime).during(shown_copy)?;
        if !lost.is_empty() {
            self.left.incomplete += 1;
            let lost = lost.join(", ");
            let copy = copy.shown();
            self.say(format!(
                "{copy}: copied, but without the extended attributes {lost}"
            ));
        }
        Ok(())
    }
}

/// Gives a copy to the owner that was named.
fn set_owner(copy: &dyn Item, owners: &Owners) -> Result<()> {
    let there = copy.meta()?;
    let (uid, gid) = owners.of(there.uid, there.gid);
    if copy.set_owner(uid, gid).during(|| copy.shown())? {
        return Ok(());
    }
    Err(Failure::new("may not be given to another owner").context(copy.shown()))
}

fn is_link(dir: &dyn Item, name: &[u8]) -> Result<bool> {
    let there = dir.child(name)?.map(|there| there.meta()).transpose()?;
    Ok(there.is_some_and(|there| there.kind == FileKind::Symlink))
}

fn is_directory() -> Failure {
    Failure::new("is a directory").advise("copy directories with -r or -a")
}

/// True if `path` is the directory with this id, or lies in it.
fn is_below(tree: &dyn Tree, path: &[u8], dir: (u64, u64)) -> Result<bool> {
    for ancestor in Path::new(OsStr::from_bytes(path)).ancestors() {
        let there = tree.at(ancestor.as_os_str().as_bytes(), true)?;
        if let Some(there) = there
            && there.meta()?.id == dir
        {
            return Ok(true);
        }
    }
    Ok(false)
}
