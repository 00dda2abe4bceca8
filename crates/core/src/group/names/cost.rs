//! What the steps of a group take: credits (each block counted once), and new blocks.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use stetfs_format::dirent::{MAX_NAME_LEN, rec_len};
use stetfs_format::width::must_fit_u32;
use stetfs_format::{BlockNo, InodeNo, LBlock};

use crate::dir;
use crate::dir::block::Dir;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::namei::{self, LINK_MAX};
use crate::orphan;
use crate::volume::Volume;

/// The superblock.
const BASE_CREDITS: u32 = 1;

/// What the steps take: credits, and new blocks of directories.
#[derive(Default)]
pub(super) struct Cost {
    /// Blocks of the inode table, and of attributes.
    pub(super) blocks: BTreeSet<BlockNo>,
    /// How many times a block of attributes is written; each time may need a new block.
    pub(super) rewrites: u32,
    dirs: BTreeMap<InodeNo, Growth>,
    /// The sum over all directories.
    in_dirs: InDir,
    /// The most that one step's operation may ask for, in credits, if no directory grows.
    asks: u32,
    /// How many inodes the group made. They are orphans until the commit.
    pub(super) made: u32,
    rest: u32,
}

/// What the steps do to a directory's blocks.
#[derive(Default)]
struct Growth {
    /// The number of blocks that it has.
    blocks: u32,
    /// Entries that are changed, added or removed.
    changed: u32,
    /// Names that are added, each with its block.
    added: Vec<(LBlock, Vec<u8>)>,
    leaves: BTreeMap<LBlock, Leaf>,
    /// How many new leaves the added names may cause.
    splits: u32,
    /// Subdirectories added, less those removed.
    subdirs: i32,
}

/// What the added names take of one block of entries.
#[derive(Default)]
struct Leaf {
    /// The longest piece of free space in it, in bytes.
    room: usize,
    names: u32,
    bytes: usize,
}

/// Blocks that directories take: credits, and new blocks.
#[derive(Clone, Copy, Default)]
struct InDir {
    credits: u32,
    new: u32,
}

/// What a step does to a directory.
pub(super) struct Entries<'a> {
    pub(super) dir: &'a Inode,
    /// The name that the step adds.
    pub(super) added: Option<&'a [u8]>,
    pub(super) subdirs: i32,
}

impl<'a> Entries<'a> {
    pub(super) fn add(dir: &'a Inode, name: &'a [u8], subdirs: i32) -> Self {
        let added = Some(name);
        Self {
            dir,
            added,
            subdirs,
        }
    }

    pub(super) fn other(dir: &'a Inode, subdirs: i32) -> Self {
        Self {
            dir,
            added: None,
            subdirs,
        }
    }
}

impl Leaf {
    /// At most how many times the leaf splits. Only a full leaf splits. Each half then has room for
    /// another half block of names, less two of the longest.
    fn splits(&self, vol: &Volume) -> u32 {
        // Names that fit into the longest piece fit, wherever the block's other names are.
        if self.bytes <= self.room {
            return 0;
        }
        let half = vol.geo.block_size() / 2;
        let half = half.saturating_sub(2 * rec_len(MAX_NAME_LEN)).max(64);
        self.names.min(1 + must_fit_u32(self.bytes / half))
    }
}

impl Growth {
    fn of(vol: &Volume, dir: &Inode) -> Self {
        let size = dir.state.read().raw.size;
        let blocks = u32::try_from(vol.blocks_for(size)).unwrap_or(u32::MAX);
        Self {
            blocks,
            ..Self::default()
        }
    }

    /// Computes everything anew from the directory as it is now.
    fn look(&mut self, vol: &Volume, dir: &Inode) -> Result<()> {
        let now = Self {
            changed: self.changed,
            subdirs: self.subdirs,
            ..Self::of(vol, dir)
        };
        let names = std::mem::replace(self, now).added;
        names
            .into_iter()
            .try_for_each(|(_, name)| self.add(vol, dir, name))
    }

    fn make(&mut self, vol: &Volume, change: &Entries<'_>) -> Result<()> {
        if let Some(name) = change.added {
            self.add(vol, change.dir, name.to_vec())?;
        }
        self.changed += 1;
        self.subdirs += change.subdirs;
        Ok(())
    }

    /// Takes back the last change.
    fn unmake(&mut self, vol: &Volume, change: &Entries<'_>) {
        self.changed -= 1;
        self.subdirs -= change.subdirs;
        if change.added.is_some()
            && let Some((at, name)) = self.added.pop()
            && let Some(leaf) = self.leaves.get_mut(&at)
        {
            let before = leaf.splits(vol);
            leaf.names -= 1;
            leaf.bytes -= rec_len(name.len());
            self.splits = self.splits + leaf.splits(vol) - before;
        }
    }

    fn add(&mut self, vol: &Volume, dir: &Inode, name: Vec<u8>) -> Result<()> {
        let _shared = dir.lock.read();
        let st = dir.state.read();
        let dir = Dir::open(vol, dir, &st)?;
        let at = dir::leaf_for(dir, &name)?;
        let leaf = match self.leaves.entry(at) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            btree_map::Entry::Vacant(new) => new.insert(Leaf {
                room: dir::room_at(dir, at)?,
                ..Leaf::default()
            }),
        };
        let before = leaf.splits(vol);
        leaf.names += 1;
        leaf.bytes += rec_len(name.len());
        self.splits = self.splits + leaf.splits(vol) - before;
        self.added.push((at, name));
        Ok(())
    }

    /// The new blocks that the directory may need: leaves, and blocks of the index.
    fn new_blocks(&self) -> u32 {
        match self.splits {
            0 => 0,
            splits => splits + splits / 64 + 3,
        }
    }

    fn takes(&self, vol: &Volume) -> InDir {
        let changed = self.changed.min(self.blocks);
        let new = self.new_blocks();
        let credits = match new {
            0 => changed,
            // Each new block and the index block above it; bitmaps and descriptors; the map.
            new => changed + 2 * new + 2 * new.min(vol.geo.groups_count()) + 8,
        };
        InDir { credits, new }
    }
}

impl Cost {
    pub(super) fn credits(&self, vol: &Volume) -> u32 {
        // An orphan that leaves the list changes its neighbour, which mostly is the group's as
        // well.
        let others = orphan::count(vol).saturating_sub(self.made);
        let neighbours = self.made.min(others);
        // Each with the bitmaps and descriptors of the groups of its new and its old block.
        let rewrites = self.rewrites + 4 * self.rewrites.min(vol.geo.groups_count());
        let blocks = must_fit_u32(self.blocks.len());
        BASE_CREDITS + blocks + rewrites + self.in_dirs.credits + neighbours + self.rest
    }

    pub(super) fn new_blocks(&self) -> u32 {
        self.in_dirs.new + self.rewrites
    }

    /// The most that the last of the operations may ask for, in credits.
    pub(super) fn asks(&self) -> u32 {
        match self.in_dirs.new {
            0 => self.asks,
            _ => self.asks + namei::GROW_CREDITS,
        }
    }

    /// Counts what a step takes. Returns what [`undo`](Self::undo) needs.
    pub(super) fn add(&mut self, vol: &Volume, takes: &Takes<'_>) -> Result<Undo> {
        let (xattrs, rewrites) = takes.xattrs;
        let mut made = 0;
        let added = takes.dirs.iter().try_for_each(|change| {
            let make = |growth: &mut Growth| {
                growth.make(vol, change)?;
                made += 1;
                check_subdirs(vol, change.dir, growth)
            };
            self.in_dir(vol, change.dir, make)
        });
        if let Err(error) = added {
            self.unmake(vol, &takes.dirs[..made]);
            return Err(error);
        }
        let inodes = takes.inodes.iter().copied();
        let inodes = inodes.chain(takes.dirs.iter().map(|change| change.dir));
        let blocks = inodes.map(|inode| inode.slot.block).chain(xattrs);
        let undo = Undo {
            blocks: blocks.filter(|b| self.blocks.insert(*b)).collect(),
            asks: self.asks,
        };
        self.rest += takes.rest;
        self.rewrites += rewrites;
        self.asks = undo.asks.max(takes.asks);
        Ok(undo)
    }

    /// Takes back the last step.
    pub(super) fn undo(&mut self, vol: &Volume, takes: &Takes<'_>, undo: Undo) {
        self.unmake(vol, takes.dirs);
        for block in undo.blocks {
            self.blocks.remove(&block);
        }
        self.rest -= takes.rest;
        self.rewrites -= takes.xattrs.1;
        self.asks = undo.asks;
    }

    fn unmake(&mut self, vol: &Volume, changes: &[Entries<'_>]) {
        for change in changes.iter().rev() {
            self.in_dir(vol, change.dir, |growth| growth.unmake(vol, change));
        }
    }

    /// Computes the directories' part anew from what they are now.
    pub(super) fn look<'d>(
        &mut self,
        vol: &Volume,
        dir_of: impl Fn(InodeNo) -> &'d Inode,
    ) -> Result<()> {
        for ino in self.dirs.keys().copied().collect::<Vec<_>>() {
            let dir = dir_of(ino);
            self.in_dir(vol, dir, |growth| {
                growth.look(vol, dir)?;
                check_subdirs(vol, dir, growth)
            })?;
        }
        Ok(())
    }

    /// Changes what a directory takes, and brings the sum up to date.
    fn in_dir<T>(&mut self, vol: &Volume, dir: &Inode, act: impl FnOnce(&mut Growth) -> T) -> T {
        let growth = self.dirs.entry(dir.ino);
        let growth = growth.or_insert_with(|| Growth::of(vol, dir));
        let before = growth.takes(vol);
        let done = act(growth);
        let now = growth.takes(vol);
        self.in_dirs = InDir {
            credits: self.in_dirs.credits + now.credits - before.credits,
            new: self.in_dirs.new + now.new - before.new,
        };
        done
    }
}

/// The state before a step.
pub(super) struct Undo {
    /// The blocks that the step was the first to count.
    blocks: Vec<BlockNo>,
    asks: u32,
}

/// What a step takes.
#[derive(Default)]
pub(super) struct Takes<'a> {
    /// The inodes that it changes, except directories.
    pub(super) inodes: &'a [&'a Inode],
    pub(super) dirs: &'a [Entries<'a>],
    /// The block of attributes that it writes, if any, and how many times.
    pub(super) xattrs: (Option<BlockNo>, u32),
    /// Credits for other blocks.
    pub(super) rest: u32,
    /// The credits that its operation asks for.
    pub(super) asks: u32,
}

fn check_subdirs(vol: &Volume, dir: &Inode, growth: &Growth) -> Result<()> {
    match u16::try_from(growth.subdirs) {
        Ok(more @ 1..LINK_MAX) => namei::check_dir_links(vol, &dir.state.read(), more),
        Ok(LINK_MAX..) => Err(Error::TooManyLinks),
        _ => Ok(()),
    }
}
