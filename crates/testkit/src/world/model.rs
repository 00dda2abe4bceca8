//! The model: the effect of each operation, in memory.
//!
//! Checks come in the order of the kernel's `fs/namei.c`, `fs/open.c`, `fs/xattr.c`,
//! `fs/posix_acl.c` and `fs/ext4`; the differential test compares the model with the kernel's ext4.
//! The caller is the superuser with umask 0, and mounts do not update atime.
//! The model does not know how much space there is: it is told what was refused for the lack of it
//! (`room.rs`).
//!
//! The model also knows at which step each file last changed, which is what an fsync of it vouches
//! for, and which files can have no delayed data after a step.

mod attributes;
mod between;
mod contents;
mod group;
mod memory;
mod room;
mod synced;

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use super::acl::Acl;
use super::op::{Durable, Op, RenameHow, SLOTS};
use super::sparse::Sparse;
use super::tree::{Facts, Pages, Tree, add_run, join, name_links, note_pages};
use super::{BASE, Moment, Outcome, Reply, Stat, World};
use group::Group;
pub use synced::Synced;
use synced::Vouched;

const S_IFCHR: u32 = 0o020_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// Symbolic links on one path (MAXSYMLINKS).
const LINKS_MAX: u32 = 40;

/// The differences between volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Files are mapped by extents; otherwise only holes can be punched.
    pub extents: bool,
    /// Inodes have space for nanoseconds, for times after 2038 and for the creation time.
    pub fine_times: bool,
    /// Bytes of a block.
    pub block: u64,
    /// Files of the volume can have groups of writes.
    pub groups: bool,
    /// The most bytes of one write to a marked file that is still one transaction.
    pub whole_max: u64,
    /// Every file counts as marked.
    pub all_marked: bool,
}

/// A file of the model, by a number of its own.
pub type Id = u64;

#[derive(Clone, Debug)]
enum Body {
    Dir {
        names: BTreeMap<String, Id>,
        parent: Id,
    },
    File(Sparse),
    Link(String),
    /// Major and minor number of a device, else zeros.
    Special(u32, u32),
}

/// A file of the model.
#[derive(Clone, Debug)]
pub struct Node {
    body: Body,
    kind: u32,
    mode: u16,
    uid: u32,
    gid: u32,
    nlink: u64,
    /// Made without a name, but may get one.
    nameable: bool,
    xattrs: BTreeMap<String, Vec<u8>>,
    acl: Option<Acl>,
    default_acl: Option<Acl>,
    /// Times; `None` if the clock was not known.
    atime: Option<Moment>,
    mtime: Option<Moment>,
    ctime: Option<Moment>,
    btime: Option<Moment>,
    /// The blocks that a regular file has, written or allocated, by their number in the file.
    blocks: BTreeSet<u64>,
    /// The last step that changed its content or attributes: an fsync vouches for it.
    changed: usize,
    /// The last step that changed its inode: where data persists apart, an fsync vouches for it and
    /// for the file's data.
    stored: usize,
    /// The step that made it or last changed its content: an fdatasync vouches for it.
    written: usize,
    /// The step that made it, or last changed its size or which blocks hold its content: where data
    /// persists apart, an fdatasync vouches for it and for the file's data.
    mapped: usize,
    /// It was truncated to nothing and has not been closed since.
    is_cut: bool,
    /// The last step that required places for all of its data (`auto_da_alloc`): a crash that keeps
    /// anything done after that step keeps this data too.
    placed: usize,
    /// How many committed groups wrote to it.
    group_commits: usize,
    /// One write to it is one transaction (`chattr +j`).
    marked: bool,
    /// The last step that wrote to it in a way to which the mark's promise does not apply.
    loose: usize,
}

/// The file system in memory.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: BTreeMap<Id, Node>,
    next: Id,
    base: Id,
    slots: [Option<Id>; SLOTS as usize],
    group: Option<Group>,
    /// The other of two groups.
    other: Option<Group>,
    rules: Rules,
    step: usize,
    vouched: Vouched,
    synced: Synced,
    /// The present time, if it is known.
    now: Option<Moment>,
    /// The time at which the clock stands, if it does.
    held: Option<Moment>,
    /// The most bytes that the present operation writes.
    most: usize,
}

const ROOT: Id = 0;

impl Model {
    /// A volume that holds only the base directory.
    pub fn new(rules: Rules) -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
            next: 0,
            base: 0,
            slots: [None; SLOTS as usize],
            group: None,
            other: None,
            rules,
            step: 0,
            vouched: Vouched::default(),
            synced: Synced::Nothing,
            now: None,
            held: None,
            most: usize::MAX,
        };
        let dir = |parent| Body::Dir {
            names: BTreeMap::new(),
            parent,
        };
        model.add(dir(ROOT), S_IFDIR, 0o755);
        model.base = model.add(dir(ROOT), S_IFDIR, 0o755);
        model.insert(ROOT, BASE, model.base);
        model
    }

    /// Sets the clock. Files made or changed before that have unknown times.
    pub fn set_time(&mut self, (sec, nsec): Moment) {
        self.now = Some((sec, if self.rules.fine_times { nsec } else { 0 }));
    }

    /// How many operations were applied.
    pub fn steps(&self) -> usize {
        self.step
    }

    /// The last step that required places for all data of a file.
    pub fn placed(&self, id: Id) -> usize {
        self.nodes.get(&id).map_or(0, |node| node.placed)
    }

    /// The rules of the volume.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns the size of a regular file; `None` if there is none.
    pub fn size_of(&self, id: Id) -> Option<u64> {
        let node = self.nodes.get(&id)?;
        matches!(node.body, Body::File(_)).then(|| node.size())
    }

    /// Whether a file has the block with this number in it, written or allocated.
    pub fn has_block(&self, id: Id, block: u64) -> bool {
        let node = self.nodes.get(&id);
        node.is_some_and(|node| node.blocks.contains(&block))
    }

    fn add(&mut self, body: Body, kind: u32, mode: u16) -> Id {
        let id = self.next;
        self.next += 1;
        let nlink = if kind == S_IFDIR { 2 } else { 1 };
        let node = Node {
            body,
            kind,
            mode,
            uid: 0,
            gid: 0,
            nlink,
            nameable: false,
            xattrs: BTreeMap::new(),
            acl: None,
            default_acl: None,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now.filter(|_| self.rules.fine_times),
            blocks: BTreeSet::new(),
            changed: self.step,
            stored: self.step,
            written: self.step,
            mapped: self.step,
            is_cut: false,
            placed: self.step,
            group_commits: 0,
            marked: false,
            loose: 0,
        };
        self.nodes.insert(id, node);
        id
    }

    fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    /// Notes a change in this step, which also changes ctime.
    fn touch(&mut self, id: Id) -> &mut Node {
        let (step, now) = (self.step, self.now);
        let node = self
            .nodes
            .get_mut(&id)
            .expect("a node that is linked or open");
        (node.changed, node.stored) = (step, step);
        node.ctime = now;
        node
    }

    /// Notes a change of content, which also changes mtime.
    fn modify(&mut self, id: Id) -> &mut Node {
        let node = self.touch(id);
        node.mtime = node.ctime;
        node.written = node.changed;
        node.mapped = node.changed;
        node
    }

    fn names(&self, id: Id) -> Result<&BTreeMap<String, Id>, Errno> {
        match &self.node(id).body {
            Body::Dir { names, .. } => Ok(names),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn is_dir(&self, id: Id) -> bool {
        self.node(id).kind == S_IFDIR
    }

    fn parent(&self, id: Id) -> Id {
        match &self.node(id).body {
            Body::Dir { parent, .. } => *parent,
            _ => unreachable!("only directories are asked for their parent"),
        }
    }

    fn insert(&mut self, dir: Id, name: &str, id: Id) {
        let moved_dir = match &mut self.touch(id).body {
            Body::Dir { parent, .. } => {
                *parent = dir;
                true
            }
            _ => false,
        };
        let node = self.modify(dir);
        node.nlink += u64::from(moved_dir);
        if let Body::Dir { names, .. } = &mut node.body {
            names.insert(name.to_owned(), id);
        }
    }

    fn remove(&mut self, dir: Id, name: &str) {
        let node = self.modify(dir);
        let Body::Dir { names, .. } = &mut node.body else {
            return;
        };
        let Some(id) = names.remove(name) else { return };
        if self.is_dir(id) {
            self.touch(dir).nlink -= 1;
        }
    }

    /// Removes one link, of a directory all; drops a file without links unless somebody has it
    /// open.
    fn drop_link(&mut self, id: Id) {
        let dir = self.is_dir(id);
        let node = self.touch(id);
        node.nlink = if dir { 0 } else { node.nlink - 1 };
        self.collect(id);
    }

    fn collect(&mut self, id: Id) {
        let unused = self.nodes.get(&id).is_some_and(|n| n.nlink == 0);
        let staged = self.groups().any(|group| group.has(id));
        if unused && !staged && !self.slots.contains(&Some(id)) {
            self.nodes.remove(&id);
        }
    }

    /// Returns the directory and the last name of a path; looks up everything before the last name.
    fn split<'a>(&self, start: Id, path: &'a str, links: &mut u32) -> Result<(Id, &'a str), Errno> {
        let mut names = path
            .split('/')
            .filter(|n| !n.is_empty() && *n != ".")
            .peekable();
        let mut dir = start;
        while let Some(name) = names.next() {
            self.names(dir)?;
            if names.peek().is_none() {
                return Ok((dir, name));
            }
            dir = self.step_into(dir, name, links)?;
        }
        Err(Errno::NOENT)
    }

    /// Returns the file behind one name in the middle of a path.
    fn step_into(&self, dir: Id, name: &str, links: &mut u32) -> Result<Id, Errno> {
        let id = self.child(dir, name)?.ok_or(Errno::NOENT)?;
        match &self.node(id).body {
            Body::Link(target) => {
                let (dir, name) = self.follow(dir, target, links)?;
                self.child(dir, &name)?.ok_or(Errno::NOENT)
            }
            _ => Ok(id),
        }
    }

    /// Returns the file behind a name in a directory; `None` if there is none.
    fn child(&self, dir: Id, name: &str) -> Result<Option<Id>, Errno> {
        let names = self.names(dir)?;
        match name {
            ".." => Ok(Some(self.parent(dir))),
            name if name.len() > 255 => Err(Errno::NAMETOOLONG),
            name => Ok(names.get(name).copied()),
        }
    }

    /// Follows a link. Returns the directory and name at its end, which is no link.
    fn follow(&self, dir: Id, target: &str, links: &mut u32) -> Result<(Id, String), Errno> {
        *links += 1;
        if *links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        let (dir, name) = self.split(dir, target, links)?;
        match self.child(dir, name)?.map(|id| &self.node(id).body) {
            Some(Body::Link(next)) => self.follow(dir, next, links),
            _ => Ok((dir, name.to_owned())),
        }
    }

    fn place<'a>(&self, path: &'a str) -> Result<(Id, &'a str), Errno> {
        self.split(self.base, path, &mut 0)
    }

    /// Returns the file at a path; does not follow a link at its end.
    fn at(&self, path: &str) -> Result<Id, Errno> {
        let (dir, name) = self.place(path)?;
        self.child(dir, name)?.ok_or(Errno::NOENT)
    }

    /// Returns directory and name at the end of a path, links followed, and the file there, if any.
    fn end(&self, path: &str) -> Result<(Id, String, Option<Id>), Errno> {
        let mut links = 0;
        let (dir, name) = self.split(self.base, path, &mut links)?;
        let id = self.child(dir, name)?;
        match id.map(|id| &self.node(id).body) {
            Some(Body::Link(target)) => {
                let (dir, name) = self.follow(dir, target, &mut links)?;
                let id = self.child(dir, &name)?;
                Ok((dir, name, id))
            }
            _ => Ok((dir, name.to_owned(), id)),
        }
    }

    fn followed(&self, path: &str) -> Result<Id, Errno> {
        if path == "." {
            return Ok(self.base);
        }
        self.end(path)?.2.ok_or(Errno::NOENT)
    }

    /// Returns directory and name of a path at which nothing exists yet.
    fn fresh<'a>(&self, path: &'a str) -> Result<(Id, &'a str), Errno> {
        let (dir, name) = self.place(path)?;
        match self.child(dir, name)? {
            Some(_) => Err(Errno::EXIST),
            None => Ok((dir, name)),
        }
    }

    /// Makes a file in a directory.
    fn make(&mut self, dir: Id, name: &str, body: Body, kind: u32, mode: u16) -> Id {
        let id = self.make_unnamed(dir, body, kind, mode);
        self.insert(dir, name, id);
        id
    }

    /// Makes a file that inherits group, mode and ACLs from a directory, without a name.
    fn make_unnamed(&mut self, dir: Id, body: Body, kind: u32, mode: u16) -> Id {
        let id = self.add(body, kind, mode);
        let parent = self.node(dir);
        let (gid, setgid, inherited) = (
            parent.gid,
            parent.mode & 0o2000 != 0,
            parent.default_acl.clone(),
        );
        let inherits = parent.marked && matches!(kind, S_IFREG | S_IFDIR);
        let node = self.touch(id);
        node.marked = inherits;
        if setgid {
            node.gid = gid;
            node.mode |= if kind == S_IFDIR { 0o2000 } else { 0 };
        }
        if let Some(mut acl) = inherited.filter(|_| kind != S_IFLNK) {
            node.default_acl = if kind == S_IFDIR {
                Some(acl.clone())
            } else {
                None
            };
            node.mode = acl.masquerade(node.mode);
            node.acl = Some(acl).filter(|a| !a.is_mode_only());
        }
        id
    }

    fn create(&mut self, path: &str, mode: u16, exclusive: bool) -> Outcome {
        if exclusive {
            let (dir, name) = self.fresh(path)?;
            self.make(dir, name, Body::File(Sparse::default()), S_IFREG, mode);
            return Ok(Reply::Done);
        }
        let (dir, name, id) = self.end(path)?;
        match id {
            Some(id) => {
                self.check_regular(id)?;
                self.close_of(id);
            }
            None => drop(self.make(dir, &name, Body::File(Sparse::default()), S_IFREG, mode)),
        }
        Ok(Reply::Done)
    }

    /// Checks that the file can be opened for reading and writing.
    fn check_regular(&self, id: Id) -> Result<(), Errno> {
        match self.node(id).body {
            Body::File(_) => Ok(()),
            Body::Dir { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::NXIO),
        }
    }

    fn link(&mut self, old: &str, new: &str) -> Outcome {
        let id = self.at(old)?;
        let (dir, name) = self.fresh(new)?;
        if self.is_dir(id) {
            return Err(Errno::PERM);
        }
        self.touch(id).nlink += 1;
        self.insert(dir, name, id);
        Ok(Reply::Done)
    }

    fn link_slot(&mut self, slot: u8, new: &str) -> Outcome {
        let id = self.slot(slot)?;
        let (dir, name) = self.fresh(new)?;
        let node = self.node(id);
        if node.nlink == 0 && !node.nameable {
            return Err(Errno::NOENT);
        }
        let node = self.touch(id);
        node.nlink += 1;
        node.nameable = false;
        self.insert(dir, name, id);
        Ok(Reply::Done)
    }

    fn unlink(&mut self, path: &str, dir_wanted: bool) -> Outcome {
        let (dir, name) = self.place(path)?;
        let id = self.child(dir, name)?.ok_or(Errno::NOENT)?;
        match (self.is_dir(id), dir_wanted) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            (true, true) if !self.names(id)?.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.remove(dir, name);
        self.drop_link(id);
        Ok(Reply::Done)
    }

    /// Whether `id` is `below` or a directory above it.
    fn holds(&self, id: Id, below: Id) -> bool {
        let mut at = below;
        while at != id && at != ROOT {
            at = self.parent(at);
        }
        at == id
    }

    fn rename(&mut self, old: &str, new: &str, how: RenameHow) -> Outcome {
        let (old_dir, old_name) = self.place(old)?;
        let (new_dir, new_name) = self.place(new)?;
        let moved = self.child(old_dir, old_name)?.ok_or(Errno::NOENT)?;
        let target = self.child(new_dir, new_name)?;
        let exchange = how == RenameHow::Exchange;
        match target {
            Some(_) if how == RenameHow::NoReplace => return Err(Errno::EXIST),
            None if exchange => return Err(Errno::NOENT),
            _ => {}
        }
        if old_dir != new_dir && self.holds(moved, new_dir) {
            return Err(Errno::INVAL);
        }
        if old_dir != new_dir && target.is_some_and(|t| self.holds(t, old_dir)) {
            return Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            });
        }
        if target == Some(moved) {
            return Ok(Reply::Done);
        }
        if let Some(target) = target.filter(|_| !exchange) {
            match (self.is_dir(moved), self.is_dir(target)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.names(target)?.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        if target.is_some() && !exchange {
            // A file that takes another file's name gets places for its data.
            let step = self.step;
            self.touch(moved).placed = step;
        }
        self.remove(old_dir, old_name);
        self.remove(new_dir, new_name);
        self.insert(new_dir, new_name, moved);
        match target {
            Some(target) if exchange => self.insert(old_dir, old_name, target),
            Some(target) => self.drop_link(target),
            None => {}
        }
        if how == RenameHow::Whiteout {
            self.make(old_dir, old_name, Body::Special(0, 0), S_IFCHR, 0);
        }
        Ok(Reply::Done)
    }

    fn slot(&self, slot: u8) -> Result<Id, Errno> {
        self.slots[usize::from(slot)].ok_or(Errno::BADF)
    }

    fn close(&mut self, slot: u8) -> Option<Id> {
        let id = self.slots[usize::from(slot)].take();
        id.inspect(|id| {
            self.close_of(*id);
            self.collect(*id);
        })
    }

    /// Closing a truncated file gives places to its new data.
    fn close_of(&mut self, id: Id) {
        let step = self.step;
        if let Some(node) = self.nodes.get_mut(&id)
            && std::mem::take(&mut node.is_cut)
        {
            node.placed = step;
        }
    }

    fn open(&mut self, slot: u8, path: &str, truncate: bool) -> Outcome {
        self.close(slot);
        let id = self.followed(path)?;
        self.check_regular(id)?;
        self.slots[usize::from(slot)] = Some(id);
        if truncate {
            self.resize(id, 0);
        }
        Ok(Reply::Done)
    }

    fn tmpfile(&mut self, slot: u8, path: &str, mode: u16) -> Outcome {
        self.close(slot);
        let dir = self.followed(path)?;
        self.names(dir)?;
        let id = self.make_unnamed(dir, Body::File(Sparse::default()), S_IFREG, mode);
        let node = self.touch(id);
        (node.nlink, node.nameable) = (0, true);
        self.slots[usize::from(slot)] = Some(id);
        Ok(Reply::Done)
    }

    fn truncate(&mut self, path: &str, size: u64) -> Outcome {
        let id = self.followed(path)?;
        match self.node(id).body {
            Body::File(_) => self.resize(id, size),
            Body::Dir { .. } => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        Ok(Reply::Done)
    }

    fn stat(&self, path: &str) -> Outcome {
        let node = self.node(self.at(path)?);
        Ok(Reply::Stat(Stat {
            mode: node.kind | u32::from(node.mode),
            uid: node.uid,
            gid: node.gid,
            nlink: node.nlink,
            size: node.size(),
        }))
    }

    fn readlink(&self, path: &str) -> Outcome {
        match &self.node(self.at(path)?).body {
            Body::Link(target) => Ok(Reply::Bytes(target.clone().into_bytes())),
            _ => Err(Errno::INVAL),
        }
    }

    fn readdir(&self, path: &str) -> Outcome {
        let names = self.names(self.followed(path)?)?;
        let kind = |id: &Id| (self.node(*id).kind >> 12) as u8;
        Ok(Reply::Names(
            names
                .iter()
                .map(|(name, id)| (name.clone().into_bytes(), kind(id)))
                .collect(),
        ))
    }

    fn remount(&mut self) -> Outcome {
        self.cut_off();
        self.vouched = Vouched::all(self.step);
        self.synced = Synced::All;
        Ok(Reply::Done)
    }

    /// Applies a power cut: nothing is open or staged any more.
    pub fn cut_off(&mut self) {
        self.drop_groups();
        for slot in 0..SLOTS {
            self.close(slot);
        }
    }

    /// Returns the tree below the base directory.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut ids = BTreeMap::new();
        let mut todo = vec![(Vec::new(), self.base)];
        while let Some((path, id)) = todo.pop() {
            if let Body::Dir { names, .. } = &self.node(id).body {
                todo.extend(
                    names
                        .iter()
                        .map(|(name, child)| (join(&path, name.as_bytes()), *child)),
                );
            }
            ids.insert(path.clone(), id);
            tree.insert(path, self.node(id).facts());
        }
        name_links(&mut tree, &ids);
        tree
    }

    /// Returns the file at a path of [`tree`](Self::tree).
    pub fn id(&self, path: &[u8]) -> Option<Id> {
        if path.is_empty() {
            return Some(self.base);
        }
        self.at(std::str::from_utf8(path).ok()?).ok()
    }

    /// Returns the pages of a file that may differ from zero, by their number in the file.
    pub fn pages_of(&self, id: Id) -> impl Iterator<Item = u64> {
        let content = match self.nodes.get(&id).map(|node| &node.body) {
            Some(Body::File(content)) => Some(content),
            _ => None,
        };
        content
            .into_iter()
            .flat_map(|content| content.pages().map(|(at, _)| at))
    }

    /// Returns a page of a file: `None` if there is no such regular file, `Some(None)` if the page
    /// was never written and is zero.
    pub fn page_of(&self, id: Id, index: u64) -> Option<Option<&[u8]>> {
        match &self.nodes.get(&id)?.body {
            Body::File(content) => Some(content.page(index)),
            _ => None,
        }
    }
}

impl Node {
    fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size(),
            Body::Link(target) => target.len() as u64,
            _ => 0,
        }
    }

    fn facts(&self) -> Facts {
        let mut pages = Pages::new();
        if let Body::File(content) = &self.body {
            content
                .pages()
                .for_each(|(at, page)| note_pages(&mut pages, at, page));
        }
        Facts {
            mode: self.kind | u32::from(self.mode),
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            device: match self.body {
                Body::Special(major, minor) => (major, minor),
                _ => (0, 0),
            },
            size: self.size(),
            target: if let Body::Link(target) = &self.body {
                Some(target.clone().into_bytes())
            } else {
                None
            },
            pages,
            xattrs: self.all_xattrs(),
            same_as: Vec::new(),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            blocks: match &self.body {
                Body::File(_) => {
                    let mut runs = Vec::new();
                    self.blocks.iter().for_each(|n| add_run(&mut runs, *n, 1));
                    Some(runs)
                }
                _ => None,
            },
        }
    }
}

impl World for Model {
    fn name(&self) -> String {
        "model".to_owned()
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        self.step += 1;
        self.vouched = Vouched::default();
        self.synced = Synced::Nothing;
        match op {
            Op::Create {
                path,
                mode,
                exclusive,
            } => self.create(path, *mode, *exclusive),
            Op::Mkdir { path, mode } => {
                let (dir, name) = self.fresh(path)?;
                self.make(
                    dir,
                    name,
                    Body::Dir {
                        names: BTreeMap::new(),
                        parent: dir,
                    },
                    S_IFDIR,
                    *mode,
                );
                Ok(Reply::Done)
            }
            Op::Mknod {
                path,
                mode,
                special,
            } => {
                let (dir, name) = self.fresh(path)?;
                let (major, minor) = special.device();
                let body = Body::Special(major, minor);
                self.make(dir, name, body, special.kind(), *mode);
                Ok(Reply::Done)
            }
            Op::Symlink { target, path } => {
                let (dir, name) = self.fresh(path)?;
                self.make(dir, name, Body::Link(target.clone()), S_IFLNK, 0o777);
                Ok(Reply::Done)
            }
            Op::Link { old, new } => self.link(old, new),
            Op::LinkSlot { slot, new } => self.link_slot(*slot, new),
            Op::Unlink { path } => self.unlink(path, false),
            Op::Rmdir { path } => self.unlink(path, true),
            Op::Rename { old, new, how } => self.rename(old, new, *how),
            Op::Open {
                slot,
                path,
                truncate,
            } => self.open(*slot, path, *truncate),
            Op::Tmpfile { slot, path, mode } => self.tmpfile(*slot, path, *mode),
            Op::Close { slot } => self.close(*slot).map(|_| Reply::Done).ok_or(Errno::BADF),
            Op::Write {
                slot,
                offset,
                payload,
                durable,
            } => {
                let reply = self.write(*slot, Some(*offset), *payload)?;
                match durable {
                    Durable::No => {}
                    Durable::Data => drop(self.fdatasync(*slot)?),
                    Durable::All => drop(self.fsync(*slot)?),
                }
                Ok(reply)
            }
            Op::Append { slot, payload } => self.write(*slot, None, *payload),
            Op::Read { slot, offset, len } => {
                let id = self.slot(*slot)?;
                Ok(Reply::Bytes(self.content(id).read(*offset, *len as usize)))
            }
            Op::Truncate { path, size } => self.truncate(path, *size),
            Op::Ftruncate { slot, size } => {
                let id = self.slot(*slot)?;
                self.resize(id, *size);
                Ok(Reply::Done)
            }
            Op::Fallocate {
                slot,
                how,
                offset,
                len,
            } => self.fallocate(*slot, *how, *offset, *len),
            Op::SetXattr {
                path,
                name,
                value,
                how,
            } => self.set_xattr(path, name, *value, *how),
            Op::GetXattr { path, name } => self.get_xattr(path, name),
            Op::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Op::ListXattr { path } => self.list_xattr(path),
            Op::SetAcl { path, default, acl } => self.set_acl(path, *default, acl.as_ref()),
            Op::Chmod { path, mode } => self.chmod(path, *mode),
            Op::Chown { path, uid, gid } => self.chown(path, *uid, *gid),
            Op::Utimes { path, atime, mtime } => self.utimes(path, *atime, *mtime),
            Op::Stat { path } => self.stat(path),
            Op::Readlink { path } => self.readlink(path),
            Op::Readdir { path } => self.readdir(path),
            Op::Fsync { slot } => self.fsync(*slot),
            Op::Fdatasync { slot } => self.fdatasync(*slot),
            Op::FsyncDir { path } => self.fsync_dir(path),
            Op::Sync => {
                self.vouched = Vouched::all(self.step);
                self.synced = Synced::All;
                Ok(Reply::Done)
            }
            Op::Commit => {
                self.vouched = Vouched::all(self.step);
                Ok(Reply::Done)
            }
            Op::Expire => {
                let step = self.step;
                self.nodes.values_mut().for_each(|node| node.placed = step);
                Ok(Reply::Done)
            }
            Op::Fill { .. } => Ok(Reply::Done),
            Op::GroupBegin => self.begin_group(),
            Op::GroupSwitch => self.switch_groups(),
            Op::GroupDo(op) => self.group_do(op),
            Op::GroupWrite {
                slot,
                offset,
                payload,
            } => self.stage(*slot, *offset, *payload),
            Op::GroupRead { slot, offset, len } => self.read_staged(*slot, *offset, *len as usize),
            Op::GroupCommit { lazy } => self.commit_group(*lazy),
            Op::GroupAbort => self.abort_group(),
            Op::Remount | Op::Crash => self.remount(),
            Op::Checkpoint => {
                self.vouched = Vouched::all(self.step);
                self.synced = Synced::All;
                Ok(Reply::Done)
            }
            Op::Clock(how) => self.set_clock(*how),
            Op::Mark { path, on } => self.mark(path, *on),
            Op::Store {
                slot,
                offset,
                payload,
            } => self.store(*slot, *offset, *payload),
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => self.copy((*from, *from_offset), (*to, *to_offset), *len),
        }
    }
}
