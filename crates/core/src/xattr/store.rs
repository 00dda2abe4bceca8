//! Where attributes lie: in the inode behind its fields as long as they fit, else in one block.
//!
//! A change builds the new list of a place and writes the place as a whole. The block is written
//! first: only it can fail for want of space, and then nothing has changed yet. A block that
//! several inodes share is never rewritten. An inode that changes its attributes gets a block of
//! its own, or joins another block that has exactly the attributes it wants.

use std::cmp::Ordering;

use smallvec::SmallVec;
use stetfs_format::width::{low32, u32_as_usize};
use stetfs_format::xattr::{
    MAX_REFCOUNT, ValueInode, Xattr, XattrArea, XattrBlock, block_hash, encode_block, encode_inode,
    fits_block, fits_inode, set_refcount,
};
use stetfs_format::{BlockNo, Geometry, InodeFlags, LBlock, Place};
use stetfs_journal::Handle;
use stetfs_media::{BlockRef, Class};

use super::shared::Known;
use crate::alloc::Source;
use crate::changes::write_changed;
use crate::error::{Error, Inconsistent, Result};
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState};
use crate::types::SetXattr;
use crate::volume::Volume;

/// Credits of a change: the inode, a new block with bitmap and descriptor, an old block with bitmap
/// and descriptor, and another block to share.
pub(crate) const CREDITS: u32 = 8;

/// The longest value that any file system takes, in bytes (XATTR_SIZE_MAX).
pub(super) const VALUE_MAX: usize = 65_536;

/// A change of one attribute.
pub(crate) struct Change<'a> {
    /// The index of its name's prefix.
    pub(crate) index: u8,
    /// Its name without the prefix.
    pub(crate) name: &'a [u8],
    /// Its new value; `None` removes it.
    pub(crate) value: Option<&'a [u8]>,
    /// Whether the attribute must exist, must not, or either.
    pub(crate) how: SetXattr,
    /// The caller may use root's blocks.
    pub(crate) privileged: bool,
}

/// Returns the value of an attribute, from the inode or else from the block.
pub(crate) fn find(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    index: u8,
    name: &[u8],
) -> Result<Option<Vec<u8>>> {
    let mut value = None;
    each(vol, inode, st, |attribute| {
        if attribute.index == index && attribute.name == name {
            value = Some(attribute.value.to_vec());
        }
    })?;
    Ok(value)
}

/// Passes every attribute of the inode to a function.
///
/// # Errors
/// Damage; [`Inconsistent::ValueInode`].
pub(super) fn each(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    mut show: impl FnMut(Xattr<'_>),
) -> Result<()> {
    if vol.geo.inode_size() > stetfs_format::inode::GOOD_OLD_INODE_SIZE {
        let table = vol.journal.read(inode.slot.block, Class::InodeTable)?;
        let at = u32_as_usize(inode.slot.offset);
        let slot = &table[at..at + vol.geo.inode_size()];
        let area = XattrArea::in_inode(slot, &st.raw, &vol.geo)
            .map_err(|e| e.at(Place::Inode(inode.ino)))?;
        each_in(vol, inode, area, &mut show)?;
    }
    if st.raw.file_acl.0 != 0 {
        let raw = vol.journal.read(st.raw.file_acl, Class::Xattr)?;
        let area = decode(vol, inode, st.raw.file_acl, &raw)?.area();
        each_in(vol, inode, area, &mut show)?;
    }
    Ok(())
}

fn each_in(
    vol: &Volume,
    inode: &Inode,
    area: XattrArea<'_>,
    show: &mut impl FnMut(Xattr<'_>),
) -> Result<()> {
    for (attribute, outside) in area.iter_with_inodes() {
        match outside {
            None => show(attribute),
            Some(outside) => {
                let value = value_of(vol, inode, outside)?;
                let value = &value[..];
                show(Xattr { value, ..attribute });
            }
        }
    }
    Ok(())
}

/// Reads a value that lies in an inode of its own. Only volumes that are not written have such.
fn value_of(vol: &Volume, owner: &Inode, at: ValueInode) -> Result<Vec<u8>> {
    let damage = || Inconsistent::ValueInode {
        owner: owner.ino,
        ino: at.ino,
    };
    if at.ino == owner.ino || u32_as_usize(at.size) > VALUE_MAX {
        return Err(damage().into());
    }
    let inode = match vol.iget_if_used(at.ino)? {
        Some(inode) => inode,
        None => return Err(damage().into()),
    };
    let st = inode.state.read();
    let is_one = st.is_reg() && st.raw.flags.contains(InodeFlags::EA_INODE);
    if !is_one || st.raw.is_inline() || st.raw.size != u64::from(at.size) {
        return Err(damage().into());
    }
    let mut value = Vec::new();
    for lblk in (0..vol.end_block(st.raw.size).0).map(LBlock) {
        let run = mapping::lookup(vol, &inode, &st, lblk, 1)?;
        if run.state != MapState::Written {
            return Err(damage().into());
        }
        value.extend_from_slice(&vol.journal.read(run.pblk, Class::Xattr)?);
    }
    value.truncate(u32_as_usize(at.size));
    let hash = low32(st.raw.atime.sec.cast_unsigned());
    if hash != ValueInode::hash(&value, &vol.geo) {
        return Err(damage().into());
    }
    Ok(value)
}

fn decode<'r>(
    vol: &Volume,
    inode: &Inode,
    block: BlockNo,
    raw: &'r [u8],
) -> Result<XattrBlock<'r>> {
    let decoded = XattrBlock::decode(raw, block, &vol.geo);
    Ok(decoded.map_err(|e| e.at(Place::InodeBlock(inode.ino, block)))?)
}

/// The attributes of one place, borrowed from it.
pub(super) type List<'a> = SmallVec<[Xattr<'a>; 8]>;

/// The attributes of an inode, by where they lie.
pub(super) struct Lists<'a> {
    pub(super) inside: List<'a>,
    pub(super) outside: List<'a>,
}

/// The places that a change writes.
#[derive(Clone, Copy)]
pub(super) struct Written {
    inside: bool,
    pub(super) outside: bool,
}

impl<'a> Lists<'a> {
    /// Makes a change. Returns which places to write; `None` when the attribute has this value
    /// already. Do not use these lists after `None` or an error.
    ///
    /// # Errors
    /// `Exists`, `NoData` as `how` demands; `NoSpace` when it does not fit.
    pub(super) fn make(
        &mut self,
        change: &Change<'a>,
        raw: &stetfs_format::Inode,
        geo: &Geometry,
    ) -> Result<Option<Written>> {
        let was_inside = take(&mut self.inside, change);
        let was_outside = take(&mut self.outside, change);
        let old = was_inside.or(was_outside);
        match (change.how, old) {
            (SetXattr::Create, Some(_)) => return Err(Error::Exists),
            (SetXattr::Replace, None) => return Err(Error::NoData),
            _ if old == change.value => return Ok(None),
            _ => {}
        }
        let (mut inside, mut outside) = (was_inside.is_some(), was_outside.is_some());
        if let Some(value) = change.value {
            let new = Xattr {
                index: change.index,
                name: change.name,
                value,
            };
            if fits_inode(self.inside.iter().copied().chain([new]), raw, geo) {
                self.inside.push(new);
                inside = true;
            } else if fits_block(self.outside.iter().copied().chain([new]), geo) {
                self.outside.push(new);
                outside = true;
            } else {
                return Err(Error::NoSpace);
            }
        }
        Ok(Some(Written { inside, outside }))
    }
}

/// Copies of the inode's slot and of its block of attributes.
pub(super) struct Places {
    slot: SmallVec<[u8; 256]>,
    block: Option<BlockRef>,
}

impl Places {
    pub(super) fn read(vol: &Volume, inode: &Inode, st: &InodeState) -> Result<Self> {
        Ok(Self {
            slot: vol.read_slot(inode)?,
            block: match st.raw.file_acl {
                BlockNo(0) => None,
                block => Some(vol.journal.read(block, Class::Xattr)?),
            },
        })
    }

    pub(super) fn lists(&self, vol: &Volume, inode: &Inode, st: &InodeState) -> Result<Lists<'_>> {
        let area = XattrArea::in_inode(&self.slot, &st.raw, &vol.geo);
        let area = area.map_err(|e| e.at(Place::Inode(inode.ino)))?;
        let outside = match &self.block {
            None => List::new(),
            Some(raw) => decode(vol, inode, st.raw.file_acl, raw)?
                .area()
                .iter()
                .collect(),
        };
        Ok(Lists {
            inside: area.iter().collect(),
            outside,
        })
    }
}

/// Takes the attribute of `change` out of a list. Returns its value, if it was there.
fn take<'a>(list: &mut List<'a>, change: &Change<'_>) -> Option<&'a [u8]> {
    let at = list
        .iter()
        .position(|x| x.index == change.index && x.name == change.name)?;
    Some(list.remove(at).value)
}

/// Changes one attribute. Returns false if it has this value already. The caller holds the inode's
/// lock for writing, and stores the inode.
///
/// # Errors
/// `Exists`, `NoData` as `how` demands; `NoSpace` when it does not fit or no block is free. Nothing
/// was changed then.
pub(crate) fn change(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    change: Change<'_>,
) -> Result<bool> {
    let places = Places::read(vol, inode, st)?;
    let mut lists = places.lists(vol, inode, st)?;
    let Some(written) = lists.make(&change, &st.raw, &vol.geo)? else {
        return Ok(false);
    };
    if written.outside {
        write_block(vol, h, inode, st, &mut lists.outside, change.privileged)?;
    }
    if written.inside {
        let raw = &st.raw;
        vol.write_slot(h, inode, |slot| {
            encode_inode(slot, &lists.inside, raw, &vol.geo);
            raw.encode_into(slot, inode.ino, &vol.geo);
        })?;
        inode.note_change(h, true);
    }
    inode.forget_acls();
    Ok(true)
}

/// Gives the inode a block with these attributes; takes its block away when the list is empty.
fn write_block(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    list: &mut List<'_>,
    privileged: bool,
) -> Result<()> {
    let mut known = vol.shared_xattrs.lock();
    let old = st.raw.file_acl;
    if list.is_empty() {
        drop_reference(vol, h, inode, old, &mut known)?;
        return set_block(vol, st, BlockNo(0));
    }
    list.sort_unstable_by(|a, b| a.order(b.index, b.name));
    let hash = block_hash(list);
    if let Some(block) = share(vol, h, inode, list, hash, &mut known)? {
        if old.0 != 0 {
            drop_reference(vol, h, inode, old, &mut known)?;
        }
        return set_block(vol, st, block);
    }
    if old.0 != 0 {
        let raw = vol.journal.read(old, Class::Xattr)?;
        let (refcount, old_hash) = {
            let decoded = decode(vol, inode, old, &raw)?;
            (decoded.refcount, decoded.hash)
        };
        if refcount == 1 {
            known.forget(old_hash, old);
            let mut new = raw.to_vec();
            encode_block(&mut new, list, 1, old, &vol.geo);
            write_changed(h, (old, Class::Xattr), raw, 0, &new)?;
            known.insert(hash, old);
            return Ok(());
        }
    }
    let goal = vol.alloc.goal_of_inode(inode.ino, st.is_reg());
    let block = vol
        .alloc
        .allocate_one(h, goal, Source::Free { privileged })?;
    let mut new = vec![0; vol.geo.block_size()];
    encode_block(&mut new, list, 1, block, &vol.geo);
    h.create(block, Class::Xattr, &new)?;
    known.insert(hash, block);
    if old.0 != 0 {
        drop_reference(vol, h, inode, old, &mut known)?;
    }
    set_block(vol, st, block)
}

/// Adds a reference to a block that has exactly these attributes. Returns `None` if none is known.
fn share(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    list: &List<'_>,
    hash: u32,
    known: &mut Known,
) -> Result<Option<BlockNo>> {
    let Some(block) = known.find(hash) else {
        return Ok(None);
    };
    let raw = vol.journal.read(block, Class::Xattr)?;
    let refcount = {
        let decoded = decode(vol, inode, block, &raw)?;
        if decoded.refcount >= MAX_REFCOUNT || !decoded.area().iter().eq(list.iter().copied()) {
            return Ok(None);
        }
        decoded.refcount
    };
    let mut new = raw.to_vec();
    set_refcount(&mut new, refcount + 1, block, &vol.geo);
    write_changed(h, (block, Class::Xattr), raw, 0, &new)?;
    Ok(Some(block))
}

/// Drops one inode's reference to `block`. Dropping the last frees the block.
fn drop_reference(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    block: BlockNo,
    known: &mut Known,
) -> Result<()> {
    let raw = vol.journal.read(block, Class::Xattr)?;
    let (refcount, hash) = {
        let decoded = decode(vol, inode, block, &raw)?;
        (decoded.refcount, decoded.hash)
    };
    match refcount.cmp(&1) {
        Ordering::Greater => {
            let mut new = raw.to_vec();
            set_refcount(&mut new, refcount - 1, block, &vol.geo);
            write_changed(h, (block, Class::Xattr), raw, 0, &new)
        }
        _ => {
            known.forget(hash, block);
            drop(raw);
            vol.alloc.free(h, block, 1, Class::Xattr)
        }
    }
}

/// Sets the inode's block and counts its space; block 0 means none.
fn set_block(vol: &Volume, st: &mut InodeState, block: BlockNo) -> Result<()> {
    let sectors = vol.geo.block.sectors_of(1);
    let others = match st.raw.file_acl {
        BlockNo(0) => st.raw.blocks_512(&vol.geo),
        _ => st.raw.blocks_512(&vol.geo).saturating_sub(sectors),
    };
    let own = if block.0 == 0 { 0 } else { sectors };
    st.raw.file_acl = block;
    if st.raw.set_blocks_512(others + own, &vol.geo) {
        Ok(())
    } else {
        Err(Error::TooBig)
    }
}

/// Drops the reference to the inode's block, when the inode is freed. The caller stores the inode.
pub(crate) fn release_block(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
) -> Result<()> {
    if st.raw.file_acl.0 == 0 {
        return Ok(());
    }
    let mut known = vol.shared_xattrs.lock();
    drop_reference(vol, h, inode, st.raw.file_acl, &mut known)?;
    set_block(vol, st, BlockNo(0))
}
