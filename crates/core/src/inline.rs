//! Content that lies in the inode (`inline_data`): a file, the entries of a directory, or the
//! target of a symbolic link.
//!
//! The first 60 bytes are in `i_block`, the rest is the value of the attribute `system.data`, which
//! is there even when it is empty (`Documentation/filesystems/ext4/inlinedata.rst`,
//! `fs/ext4/inline.c`). In a directory, the first four bytes are the number of its parent; two
//! chains of records follow, one in each part, and there are no records of "." and "..".
//!
//! A file moves out to a block before its content changes (`unfold.rs`). A directory is changed
//! where it is, so removing a name needs no block. The searches see it as one block ([`block`]):
//! records of "." and "..", then the two chains. It moves out when a name does not fit (`dir.rs`).
//! Nothing new is put into inodes.

use stetfs_format::bytes::{read_u32le, write_u16le};
use stetfs_format::dirent::{self, check_name, is_dot_or_dotdot, rec_len};
use stetfs_format::width::must_fit_u16;
use stetfs_format::xattr::INDEX_SYSTEM;
use stetfs_format::{InodeFlags, InodeNo, LBlock};
use stetfs_journal::Handle;
use stetfs_media::{Block, BlockRef};

use crate::dir::leaf::{Changes, Record, records};
use crate::error::{Inconsistent, Result};
use crate::inode::{Inode, InodeState};
use crate::mapping;
use crate::types::SetXattr;
use crate::volume::Volume;
use crate::xattr::store::{self, Change};

/// Where the parent's number ends in `i_block`.
const PARENT_SIZE: usize = 4;

/// Where the first chain begins in the block that searches see, behind "." and "..".
const FIRST: usize = rec_len(1) + rec_len(2);

/// Where the second chain begins there.
const SECOND: usize = FIRST + 60 - PARENT_SIZE;

/// Offset of the inode number in the record of "..".
const DOTDOT: usize = rec_len(1);

/// The second part of the content.
fn second(vol: &Volume, inode: &Inode, st: &InodeState) -> Result<Vec<u8>> {
    let found = store::find(vol, inode, st, INDEX_SYSTEM, b"data")?;
    found.ok_or_else(|| Inconsistent::InlineData(inode.ino).into())
}

fn set_second(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    value: Option<&[u8]>,
) -> Result<()> {
    let change = Change {
        index: INDEX_SYSTEM,
        name: b"data",
        value,
        how: SetXattr::Replace,
        privileged: false,
    };
    store::change(vol, h, inode, st, change).map(drop)
}

/// Returns the content of a file or the target of a symbolic link. A file that was made longer by
/// truncate(2) has zeros behind it.
///
/// # Errors
/// [`Inconsistent::InlineData`].
pub(crate) fn content(vol: &Volume, inode: &Inode, st: &InodeState) -> Result<Vec<u8>> {
    let mut bytes = st.raw.block.to_vec();
    bytes.extend(second(vol, inode, st)?);
    bytes.truncate(usize::try_from(st.raw.size).unwrap_or(usize::MAX));
    // A block must be able to hold it.
    if bytes.len() > vol.geo.block_size() {
        return Err(Inconsistent::InlineData(inode.ino).into());
    }
    Ok(bytes)
}

/// Reads at `offset`; what lies beyond the content reads as zeros.
pub(crate) fn read(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    offset: usize,
    out: &mut [u8],
) -> Result<()> {
    let content = content(vol, inode, st)?;
    let found = content.get(offset..).unwrap_or_default();
    let (now, rest) = out.split_at_mut(found.len().min(out.len()));
    now.copy_from_slice(&found[..now.len()]);
    rest.fill(0);
    Ok(())
}

/// Removes the second part of the content, once the inode holds no content any more.
pub(crate) fn forget_second(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
) -> Result<()> {
    set_second(vol, h, inode, st, None)
}

/// Gives the inode an empty map instead of the first part of its content. The caller stores it.
pub(crate) fn empty_map(vol: &Volume, st: &mut InodeState) {
    st.raw.flags.remove(InodeFlags::INLINE_DATA);
    mapping::init(&mut st.raw, &vol.geo);
    st.map_changes = st.map_changes.wrapping_add(1);
}

/// Forgets the content beyond the inode's size, which an interrupted truncate has left. The caller
/// stores the inode.
pub(crate) fn cut(vol: &Volume, h: &Handle, inode: &Inode, st: &mut InodeState) -> Result<()> {
    let size = usize::try_from(st.raw.size).unwrap_or(usize::MAX);
    let first = size.min(st.raw.block.len());
    st.raw.block[first..].fill(0);
    let mut value = second(vol, inode, st)?;
    value.truncate(size - first);
    set_second(vol, h, inode, st, Some(&value))
}

/// Returns a directory as one block, as the searches see it, and where its records end.
///
/// # Errors
/// [`Inconsistent`]: the second part is missing, or a chain does not end with its part; `Corrupt`
/// for a bad name.
pub(crate) fn block(vol: &Volume, inode: &Inode, st: &InodeState) -> Result<(BlockRef, usize)> {
    let second = second(vol, inode, st)?;
    let end = SECOND + second.len();
    let mut block = Block::zeroed(vol.geo.block_size());
    let bytes = block.bytes_mut();
    // One that moves out must fit.
    if end > dirent::body_size(&vol.geo) {
        return Err(Inconsistent::InlineData(inode.ino).into());
    }
    let (parent, first) = st.raw.block.split_at(PARENT_SIZE);
    let parent = InodeNo(read_u32le(parent, 0));
    dirent::init_dot_dotdot(bytes, inode.ino, parent, &vol.geo);
    write_u16le(bytes, DOTDOT + 4, must_fit_u16(rec_len(2)));
    bytes[FIRST..SECOND].copy_from_slice(first);
    bytes[SECOND..end].copy_from_slice(&second);
    bytes[end..].fill(0);
    for record in records(bytes, end).skip(2) {
        check_record(inode, bytes, record.map_err(|broken| broken.0))?;
    }
    Ok((BlockRef::new(block), end))
}

fn check_record(inode: &Inode, bytes: &[u8], record: Result<Record, usize>) -> Result<()> {
    let chain = |offset| Inconsistent::DirectoryChain {
        ino: inode.ino,
        lblk: LBlock(0),
        offset,
    };
    let record = record.map_err(chain)?;
    let offset = record.offset;
    if record.next() > SECOND && offset < SECOND {
        return Err(chain(offset).into());
    }
    if record.ino == 0 {
        return Ok(());
    }
    let name = record.name(bytes);
    check_name(name, offset)?;
    if is_dot_or_dotdot(name) {
        return Err(chain(offset).into());
    }
    Ok(())
}

/// Whether two offsets in [`block`] are in the same chain, so that one record can take over the
/// other's bytes.
pub(crate) fn are_together(a: usize, b: usize) -> bool {
    let chain = |offset| (offset >= FIRST, offset >= SECOND);
    chain(a) == chain(b)
}

/// Makes changes of [`block`] in the inode. The caller stores the inode.
pub(crate) fn change(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    changes: &Changes,
) -> Result<()> {
    let mut value = None;
    for (offset, bytes) in changes {
        let (part, at) = match *offset {
            DOTDOT => (&mut st.raw.block[..], 0),
            at if at < SECOND => (&mut st.raw.block[..], at - FIRST + PARENT_SIZE),
            at => {
                let value = match &mut value {
                    Some(value) => value,
                    none => none.insert(second(vol, inode, st)?),
                };
                (&mut value[..], at - SECOND)
            }
        };
        part[at..at + bytes.len()].copy_from_slice(bytes);
    }
    match value {
        Some(value) => set_second(vol, h, inode, st, Some(&value)),
        None => Ok(()),
    }
}
