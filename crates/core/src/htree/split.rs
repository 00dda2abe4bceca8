//! How a hash tree grows: a full leaf is split in two by hash, a full index block likewise, a full root gets a level below it.
//!
//! Order of changes: the new block is allocated and given its whole content, then the old one loses what
//! moved, then the parent gets the new pair; all in one handle. Each step leaves a tree in which every
//! name is found, so running out of space between two of them harms nothing.

use smallvec::SmallVec;
use stetfs_format::bytes::{read_u16le, write_u16le, write_u32le};
use stetfs_format::checksum::crc32c;
use stetfs_format::inode::InodeFlags;
use stetfs_format::{BlockNo, LBlock};
use stetfs_journal::Handle;
use stetfs_media::{BlockRef, Class};

use super::{
    CONTINUED, INFO_LEVELS, INFO_VERSION, NODE_ENTRIES, Node, PAIR, Path, ROOT_ENTRIES, hash,
    limit, probe,
};
use crate::alloc::Source;
use crate::dir::leaf::{self, Changes, Record};
use crate::dir::{self, Dir, DirBlock, NewEntry, append, chain_end, finish_leaf};
use crate::error::{Error, Inconsistent, Result};
use crate::inode::{Inode, InodeState, changed_ranges};
use crate::volume::Volume;

/// Adds a name for which its leaf may have no room, growing the tree as far as needed.
pub(crate) fn insert(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    entry: NewEntry<'_>,
) -> Result<()> {
    // Each round but the last splits one index block, so a tree of the most levels needs this many.
    for _ in 0..=vol.dirs.levels_max + 1 {
        let dir = Dir::open(vol, inode, st)?;
        let mut major = 0;
        let path = probe(dir, |version| {
            major = hash(vol, version, entry.name).major;
            major
        })?;
        let block = dir.read_leaf(path.leaf())?;
        let need = leaf::rec_len(entry.name.len());
        let room =
            leaf::room(&block.bytes, chain_end(vol), need).map_err(|b| dir.broken(&block, b))?;
        if let Some(offset) = room {
            let place = dir::Place::Room {
                pblk: block.pblk,
                offset,
            };
            drop((block, path));
            return dir::insert(vol, h, inode, st, place, entry);
        }
        if path.nodes[path.nodes.len() - 1].is_full(vol) {
            split_index(vol, h, inode, st, path, entry.source)?;
        } else {
            split_leaf(vol, h, inode, st, (path, block), entry.source)?;
        }
    }
    Err(Inconsistent::IndexAstray {
        ino: inode.ino,
        hash: 0,
    }
    .into())
}

/// Turns a directory of one full linear block into an indexed one (`make_indexed_dir`): the names move to block 1, block 0
/// becomes a root with that one leaf.
pub(crate) fn make_indexed(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    source: Source,
) -> Result<()> {
    let seed = dir::seed(vol, inode, st);
    let dir = Dir::open(vol, inode, st)?;
    let old = dir.read_leaf(LBlock(0))?;
    let names = names_behind_dots(dir, &old)?;
    let mut leaf = vec![0; vol.geo.block_size()];
    pack(&old.bytes, &names, &mut leaf, chain_end(vol));
    finish_leaf(vol, seed, &mut leaf);
    let (lblk, _) = append(vol, h, inode, st, &leaf, source)?;

    let mut root = old.bytes.to_vec();
    let dotdot = leaf::rec_len(1);
    write_u16le(
        &mut root,
        dotdot + 4,
        (vol.geo.block_size() - dotdot) as u16,
    );
    root[ROOT_ENTRIES - PAIR..ROOT_ENTRIES].fill(0);
    root[INFO_VERSION] = vol.dirs.default_version;
    root[INFO_VERSION + 1] = PAIR as u8;
    write_pairs(vol, &mut root, ROOT_ENTRIES, &[(0, lblk.0)]);
    if vol.geo.metadata_csum {
        let tail = root.len() - PAIR;
        root[tail..].fill(0);
    }
    write_index(vol, h, seed, old, ROOT_ENTRIES, &mut root)?;
    st.raw.flags.insert(InodeFlags::INDEX);
    Ok(())
}

/// The records of block 0 but "." and "..", which must come first.
fn names_behind_dots(dir: Dir<'_>, block: &DirBlock) -> Result<SmallVec<[Record; 128]>> {
    let mut records: SmallVec<[Record; 128]> = SmallVec::new();
    for record in leaf::records(&block.bytes, dir.end()) {
        records.push(record.map_err(|b| dir.broken(block, b))?);
    }
    let is = |i: usize, offset: usize, name: &[u8]| {
        records
            .get(i)
            .is_some_and(|r| r.offset == offset && r.name(&block.bytes) == name)
    };
    if !is(0, 0, b".") || !is(1, leaf::rec_len(1), b"..") {
        return Err(Inconsistent::NoDotDot(dir.inode.ino).into());
    }
    records.drain(..2);
    records.retain(|r| r.ino != 0);
    Ok(records)
}

/// Writes `records` of `from` without gaps to the start of `to`; the last reaches to `end`. Behind it `to` keeps what it has.
fn pack(from: &[u8], records: &[Record], to: &mut [u8], end: usize) {
    if records.is_empty() {
        to[..leaf::HEADER].fill(0);
        write_u16le(to, 4, end as u16);
        return;
    }
    let mut at = 0;
    for (i, record) in records.iter().enumerate() {
        let bytes = leaf::HEADER + record.name_len;
        to[at..at + bytes].copy_from_slice(&from[record.offset..record.offset + bytes]);
        let last = i + 1 == records.len();
        let length = if last {
            end - at
        } else {
            leaf::rec_len(record.name_len)
        };
        write_u16le(to, at + 4, length as u16);
        at += length;
    }
}

/// Splits the leaf of `path` in two by hash (`do_split`).
fn split_leaf(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    (mut path, old): (Path, DirBlock),
    source: Source,
) -> Result<()> {
    let seed = dir::seed(vol, inode, st);
    let dir = Dir::open(vol, inode, st)?;
    let mut map: SmallVec<[(u32, Record); 128]> = SmallVec::new();
    for record in leaf::records(&old.bytes, dir.end()) {
        let record = record.map_err(|b| dir.broken(&old, b))?;
        if record.ino != 0 {
            map.push((
                hash(vol, path.version, record.name(&old.bytes)).major,
                record,
            ));
        }
    }
    if map.len() < 2 {
        return Err(Inconsistent::LeafCannotSplit {
            ino: inode.ino,
            lblk: old.lblk,
        }
        .into());
    }
    map.sort_by_key(|(hash, _)| *hash);
    let split = split_point(&map, vol.geo.block_size());
    let begins = map[split].0;
    let continued = if begins == map[split - 1].0 {
        CONTINUED
    } else {
        0
    };

    let mut upper = vec![0; vol.geo.block_size()];
    pack(
        &old.bytes,
        &in_block_order(&map[split..]),
        &mut upper,
        chain_end(vol),
    );
    finish_leaf(vol, seed, &mut upper);
    let (lblk, _) = append(vol, h, inode, st, &upper, source)?;

    let mut lower = old.bytes.to_vec();
    pack(
        &old.bytes,
        &in_block_order(&map[..split]),
        &mut lower,
        chain_end(vol),
    );
    finish_leaf(vol, seed, &mut lower);
    write_changed(h, old, &lower)?;

    let node = path.nodes.pop().expect("a path has a node above its leaf");
    drop(path);
    insert_pair(vol, h, seed, node, (begins + continued, lblk.0))
}

/// The first entry that moves, of entries sorted by hash: so many from the end that they fill at most half a
/// block, but when all of them do, half of the entries.
fn split_point(map: &[(u32, Record)], block_size: usize) -> usize {
    let mut size = 0;
    for (i, (_, record)) in map.iter().enumerate().rev() {
        let used = record.used();
        if size + used / 2 > block_size / 2 {
            return (i + 1).min(map.len() - 1);
        }
        size += used;
    }
    map.len() / 2
}

fn in_block_order(part: &[(u32, Record)]) -> SmallVec<[Record; 128]> {
    let mut records: SmallVec<[Record; 128]> = part.iter().map(|(_, r)| *r).collect();
    records.sort_unstable_by_key(|r| r.offset);
    records
}

/// Makes room above a full index block on `path`: the highest full one whose parent has room is split; when even
/// the root is full, its pairs move one level down.
fn split_index(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    mut path: Path,
    source: Source,
) -> Result<()> {
    let levels = path.nodes.len();
    let mut level = levels - 1;
    while level > 0 && path.nodes[level - 1].is_full(vol) {
        level -= 1;
    }
    if level == 0 && levels >= vol.dirs.levels_max {
        tracing::warn!("directory inode {}: the index is full", inode.ino);
        return Err(Error::NoSpace);
    }
    path.nodes.truncate(level + 1);
    let node = path.nodes.pop().expect("the chosen level");
    match path.nodes.pop() {
        None => deepen(vol, h, inode, st, node, source),
        Some(parent) => split_node(vol, h, inode, st, (parent, node), source),
    }
}

/// Moves all pairs of the root into a new block below it.
fn deepen(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    node: Node,
    source: Source,
) -> Result<()> {
    let seed = dir::seed(vol, inode, st);
    let lblk = append_node(vol, h, inode, st, &pairs(&node, 0..node.count), source)?;
    let mut root = node.block.bytes.to_vec();
    root[INFO_LEVELS] += 1;
    write_pairs(vol, &mut root, ROOT_ENTRIES, &[(0, lblk.0)]);
    write_index(vol, h, seed, node.block, ROOT_ENTRIES, &mut root)
}

/// Moves the upper half of a node's pairs into a new block, which the parent gets a pair for.
fn split_node(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    (parent, node): (Node, Node),
    source: Source,
) -> Result<()> {
    let seed = dir::seed(vol, inode, st);
    let half = node.count / 2;
    let begins = node.hash(half);
    let lblk = append_node(vol, h, inode, st, &pairs(&node, half..node.count), source)?;
    let mut lower = node.block.bytes.to_vec();
    write_u16le(&mut lower, node.entries + 2, half as u16);
    write_index(vol, h, seed, node.block, node.entries, &mut lower)?;
    insert_pair(vol, h, seed, parent, (begins, lblk.0))
}

fn pairs(node: &Node, range: std::ops::Range<usize>) -> Vec<(u32, u32)> {
    range
        .map(|at| (node.hash(at), node.child_at(at).0))
        .collect()
}

/// Adds an index block with these pairs; the hash of the first is the parent's to say.
fn append_node(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    pairs: &[(u32, u32)],
    source: Source,
) -> Result<LBlock> {
    let size = vol.geo.block_size();
    let mut block = vec![0; size];
    write_u16le(&mut block, 4, size as u16);
    write_pairs(vol, &mut block, NODE_ENTRIES, pairs);
    set_checksum(vol, dir::seed(vol, inode, st), NODE_ENTRIES, &mut block);
    append(vol, h, inode, st, &block, source).map(|(lblk, _)| lblk)
}

/// Fills an index block: limit, count and pairs.
fn write_pairs(vol: &Volume, block: &mut [u8], entries: usize, pairs: &[(u32, u32)]) {
    for (i, (hash, child)) in pairs.iter().enumerate() {
        write_u32le(block, entries + i * PAIR, *hash);
        write_u32le(block, entries + i * PAIR + 4, *child);
    }
    write_u16le(block, entries, limit(vol, entries) as u16);
    write_u16le(block, entries + 2, pairs.len() as u16);
}

/// Puts a pair behind the chosen one of a node that has room.
fn insert_pair(
    vol: &Volume,
    h: &Handle,
    seed: u32,
    node: Node,
    (hash, child): (u32, u32),
) -> Result<()> {
    let mut new = node.block.bytes.to_vec();
    let at = node.entries + (node.at + 1) * PAIR;
    let end = node.entries + node.count * PAIR;
    new.copy_within(at..end, at + PAIR);
    write_u32le(&mut new, at, hash);
    write_u32le(&mut new, at + 4, child);
    write_u16le(&mut new, node.entries + 2, (node.count + 1) as u16);
    write_index(vol, h, seed, node.block, node.entries, &mut new)
}

/// Brings an index block's checksum up to date and writes what differs from `old`.
fn write_index(
    vol: &Volume,
    h: &Handle,
    seed: u32,
    old: DirBlock,
    entries: usize,
    new: &mut [u8],
) -> Result<()> {
    set_checksum(vol, seed, entries, new);
    write_changed(h, old, new)
}

/// Writes what differs; lets the old content go first.
fn write_changed(h: &Handle, old: DirBlock, new: &[u8]) -> Result<()> {
    let ranges = changed_ranges(&old.bytes, new);
    let pblk = old.pblk;
    drop(old);
    for range in ranges {
        h.write(pblk, Class::Directory, range.start, &new[range])?;
    }
    Ok(())
}

/// Sets the checksum of an index block (`ext4_dx_csum`): of everything up to the last pair, of the tail's reserved field, and of a
/// zero in its own place.
fn set_checksum(vol: &Volume, seed: u32, entries: usize, block: &mut [u8]) {
    if vol.geo.metadata_csum {
        let tail = entries + limit(vol, entries) * PAIR;
        let sum = checksum(seed, entries, tail, block);
        write_u32le(block, tail + 4, sum);
    }
}

/// The checksum of an index block whose tail is at `tail`.
pub(super) fn checksum(seed: u32, entries: usize, tail: usize, block: &[u8]) -> u32 {
    let count = usize::from(read_u16le(block, entries + 2));
    let end = (entries + count * PAIR).min(tail);
    let sum = crc32c(seed, &block[..end]);
    let sum = crc32c(sum, &block[tail..tail + 4]);
    crc32c(sum, &[0; 4])
}

/// Makes changes before the pairs of a root (in ".."), and brings its checksum up to date.
pub(crate) fn apply(
    vol: &Volume,
    h: &Handle,
    seed: u32,
    pblk: BlockNo,
    block: BlockRef,
    changes: &Changes,
) -> Result<()> {
    let mut new = block.to_vec();
    for (offset, bytes) in changes {
        new[*offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    let old = DirBlock {
        lblk: LBlock(0),
        pblk,
        bytes: block,
    };
    write_index(vol, h, seed, old, ROOT_ENTRIES, &mut new)
}
