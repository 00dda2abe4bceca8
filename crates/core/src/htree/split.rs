//! How a hash tree grows. A full leaf is split in two by hash, a full index block likewise. A full
//! root gets a level below it.
//!
//! Order of changes, all in one handle: the new block is allocated and gets its whole content; the
//! old block loses what moved; the parent gets the new pair. Each step leaves a tree in which every
//! name is found, so running out of space between two steps does no harm.

use smallvec::SmallVec;
use stetfs_format::dirent::{self, NewEntry as Record};
use stetfs_format::htree::max_indirect_levels;
use stetfs_format::{
    BlockNo, DirBlock as Leaf, DxBlockMut, DxEntry, HashVersion, InodeFlags, InodeNo, LBlock,
};
use stetfs_journal::Handle;
use stetfs_media::{BlockRef, Class};

use super::{CONTINUED, Node, Path, probe};
use crate::alloc::Source;
use crate::changes::write_changed;
use crate::dir::block::{Dir, DirBlock, NewEntry, append, put};
use crate::dir::leaf::Changes;
use crate::error::{Error, Inconsistent, Result};
use crate::inode::{Inode, InodeState};
use crate::volume::Volume;

/// A split: its handle, and the directory that grows.
struct Split<'a> {
    vol: &'a Volume,
    h: &'a Handle,
    inode: &'a Inode,
    st: &'a mut InodeState,
    seed: u32,
    source: Source,
}

/// A name of a leaf that is being split.
struct Name<'b> {
    hash: u32,
    offset: usize,
    record: Record<'b>,
}

/// Adds a name whose leaf may have no room. The tree grows as far as needed.
pub(crate) fn insert(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    entry: NewEntry<'_>,
) -> Result<()> {
    // Each round but the last splits one block: at most one a level, and one more when the tree
    // gets a new level.
    for _ in 0..max_indirect_levels(&vol.geo) + 4 {
        let dir = Dir::open(vol, inode, st)?;
        let path = probe(dir, |hasher| hasher.hash(entry.name).major)?;
        let block = dir.read_leaf(path.leaf)?;
        if let Some(offset) = dir.room_in(&block, entry.name)? {
            let pblk = block.pblk;
            drop((block, path));
            return put(vol, h, inode, st, (pblk, offset), entry);
        }
        let full = path.nodes[path.nodes.len() - 1].pairs(dir)?.is_full();
        let seed = dir.seed();
        let mut split = Split {
            vol,
            h,
            inode,
            st,
            seed,
            source: entry.source,
        };
        if full {
            split.split_index(path)?
        } else {
            split.split_leaf(path, block)?
        }
    }
    Err(Inconsistent::IndexAstray {
        ino: inode.ino,
        hash: 0,
    }
    .into())
}

/// Turns a directory of one full linear block into an indexed one (`make_indexed_dir`). The names
/// move to block 1, and block 0 becomes a root with that one leaf.
pub(crate) fn make_indexed(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    source: Source,
) -> Result<()> {
    let dir = Dir::open(vol, inode, st)?;
    let seed = dir.seed();
    let old = dir.read_leaf(LBlock(0))?;
    let (parent, records) = names_behind_dots(dir, &old)?;
    let mut leaf = vec![0; vol.geo.block_size()];
    dirent::fill(&mut leaf, records, &vol.geo);
    dirent::write_checksum(&mut leaf, seed, &vol.geo);
    let (lblk, _) = append(vol, h, inode, st, &leaf, source)?;

    let version = HashVersion::of_code(vol.dirs.default_version).unwrap_or(HashVersion::HalfMd4);
    let mut root = vec![0; vol.geo.block_size()];
    DxBlockMut::init_root(&mut root, inode.ino, parent, version, lblk, &vol.geo)
        .write_checksum(seed, &vol.geo);
    write_dir(h, old, &root)?;
    st.raw.flags.insert(InodeFlags::INDEX);
    Ok(())
}

/// Returns the names of block 0 behind "." and "..", which must come first, and the inode of "..".
fn names_behind_dots<'b>(
    dir: Dir<'b>,
    block: &'b DirBlock,
) -> Result<(InodeNo, SmallVec<[Record<'b>; 64]>)> {
    let corrupt = |e| dir.corrupt(block.lblk, e);
    let entries = Leaf::decode(&block.bytes, &dir.vol.geo)
        .map_err(corrupt)?
        .entries();
    let mut parent = None;
    let mut records = SmallVec::new();
    for (i, entry) in entries.enumerate() {
        let entry = entry.map_err(corrupt)?;
        match (i, entry.name) {
            (0, b".") => {}
            (1, b"..") => parent = Some(entry.inode),
            (0 | 1, _) => return Err(Inconsistent::NoDotDot(dir.inode.ino).into()),
            _ if entry.is_free() => {}
            _ => records.push(record(&entry)),
        }
    }
    let parent = parent.ok_or(Inconsistent::NoDotDot(dir.inode.ino))?;
    Ok((parent, records))
}

fn record<'b>(entry: &dirent::Entry<'b>) -> Record<'b> {
    Record {
        inode: entry.inode,
        file_type: entry.file_type,
        name: entry.name,
    }
}

impl Split<'_> {
    /// Splits the leaf of `path` in two by hash (`do_split`).
    fn split_leaf(&mut self, mut path: Path, old: DirBlock) -> Result<()> {
        let (vol, geo) = (self.vol, &self.vol.geo);
        let dir = Dir::open(vol, self.inode, self.st)?;
        let corrupt = |e| dir.corrupt(old.lblk, e);
        let mut names: SmallVec<[Name<'_>; 64]> = SmallVec::new();
        for entry in Leaf::decode(&old.bytes, geo).map_err(corrupt)?.entries() {
            let entry = entry.map_err(corrupt)?;
            if !entry.is_free() {
                let hash = path.hasher.hash(entry.name).major;
                names.push(Name {
                    hash,
                    offset: entry.offset,
                    record: record(&entry),
                });
            }
        }
        if names.len() < 2 {
            return Err(Inconsistent::LeafCannotSplit {
                ino: self.inode.ino,
                lblk: old.lblk,
            }
            .into());
        }
        names.sort_by_key(|name| (name.hash, name.offset));
        let at = split_point(&names, geo.block_size());
        let begins = names[at].hash;
        let continued = if begins == names[at - 1].hash {
            CONTINUED
        } else {
            0
        };
        // The names that stay keep their order, so that little of the block changes.
        names[..at].sort_by_key(|name| name.offset);

        let mut upper = vec![0; geo.block_size()];
        dirent::fill(&mut upper, names[at..].iter().map(|n| n.record), geo);
        dirent::write_checksum(&mut upper, self.seed, geo);
        let mut lower = vec![0; geo.block_size()];
        dirent::fill(&mut lower, names[..at].iter().map(|n| n.record), geo);
        dirent::write_checksum(&mut lower, self.seed, geo);
        drop(names);

        let (lblk, _) = self.append(&upper)?;
        write_dir(self.h, old, &lower)?;
        let node = path.nodes.pop().expect("a path has a node above its leaf");
        drop(path);
        self.insert_pair(
            node,
            DxEntry {
                hash: begins | continued,
                block: lblk,
            },
        )
    }

    /// Makes room above a full index block on `path`. Splits the highest full block whose parent
    /// has room; when even the root is full, moves its pairs one level down.
    fn split_index(&mut self, mut path: Path) -> Result<()> {
        let levels = path.nodes.len();
        let mut level = levels - 1;
        let dir = Dir::open(self.vol, self.inode, self.st)?;
        while level > 0 && path.nodes[level - 1].pairs(dir)?.is_full() {
            level -= 1;
        }
        if level == 0 && levels > usize::from(max_indirect_levels(&self.vol.geo)) {
            tracing::warn!("directory inode {}: the index is full", self.inode.ino);
            return Err(Error::NoSpace);
        }
        path.nodes.truncate(level + 1);
        let node = path.nodes.pop().expect("the chosen level");
        match path.nodes.pop() {
            None => self.deepen(node),
            Some(parent) => self.split_node(parent, node),
        }
    }

    /// Moves all pairs of the root into a new block below it.
    fn deepen(&mut self, node: Node) -> Result<()> {
        let geo = &self.vol.geo;
        let mut below = vec![0; geo.block_size()];
        let mut root = node.block.bytes.to_vec();
        let mut pairs = DxBlockMut::init_node(&mut below, LBlock(0), geo);
        DxBlockMut::edit_root(&mut root).push_down(&mut pairs, self.next_block());
        pairs.write_checksum(self.seed, geo);
        DxBlockMut::edit_root(&mut root).write_checksum(self.seed, geo);
        self.append(&below)?;
        write_dir(self.h, node.block, &root)
    }

    /// Moves the upper half of a node's pairs into a new block, and gives the parent a pair for it.
    fn split_node(&mut self, parent: Node, node: Node) -> Result<()> {
        let geo = &self.vol.geo;
        let mut upper = vec![0; geo.block_size()];
        let mut lower = node.block.bytes.to_vec();
        let mut pairs = DxBlockMut::init_node(&mut upper, LBlock(0), geo);
        let mut old = DxBlockMut::edit_node(&mut lower);
        let half = old.count() / 2;
        let begins = old.split_off(half, &mut pairs);
        pairs.write_checksum(self.seed, geo);
        old.write_checksum(self.seed, geo);
        let (lblk, _) = self.append(&upper)?;
        write_dir(self.h, node.block, &lower)?;
        self.insert_pair(
            parent,
            DxEntry {
                hash: begins,
                block: lblk,
            },
        )
    }

    /// Puts a pair behind the chosen one of a node that has room.
    fn insert_pair(&mut self, node: Node, entry: DxEntry) -> Result<()> {
        let mut new = node.block.bytes.to_vec();
        let mut pairs = match node.block.lblk {
            LBlock(0) => DxBlockMut::edit_root(&mut new),
            _ => DxBlockMut::edit_node(&mut new),
        };
        pairs.insert(node.at + 1, entry);
        pairs.write_checksum(self.seed, &self.vol.geo);
        write_dir(self.h, node.block, &new)
    }

    /// Where [`Split::append`] will put its block.
    fn next_block(&self) -> LBlock {
        self.vol.block_of(self.st.raw.size)
    }

    fn append(&mut self, content: &[u8]) -> Result<(LBlock, BlockNo)> {
        append(self.vol, self.h, self.inode, self.st, content, self.source)
    }
}

/// The first name that moves, of names sorted by hash. The names from there on fill at most half a
/// block; if all names do, half of them move.
fn split_point(names: &[Name<'_>], block_size: usize) -> usize {
    let mut size = 0;
    for (i, name) in names.iter().enumerate().rev() {
        let used = dirent::rec_len(name.record.name.len());
        if size + used / 2 > block_size / 2 {
            return (i + 1).min(names.len() - 1);
        }
        size += used;
    }
    names.len() / 2
}

/// Writes the bytes of a directory's block that differ.
fn write_dir(h: &Handle, old: DirBlock, new: &[u8]) -> Result<()> {
    write_changed(h, (old.pblk, Class::Directory), old.bytes, 0, new)
}

/// Makes changes before the pairs of a root (in ".."), and updates its checksum.
pub(crate) fn apply(
    dir: Dir<'_>,
    h: &Handle,
    pblk: BlockNo,
    block: BlockRef,
    changes: &Changes,
) -> Result<()> {
    let mut new = block.to_vec();
    for (offset, bytes) in changes {
        new[*offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    DxBlockMut::edit_root(&mut new).write_checksum(dir.seed(), &dir.vol.geo);
    write_dir(
        h,
        DirBlock {
            lblk: LBlock(0),
            pblk,
            end: block.len(),
            bytes: block,
        },
        &new,
    )
}
