//! Directory blocks: entries one behind the other, filling the block.
//!
//! An entry's `rec_len` reaches to the next entry, so that removing one lengthens the
//! one before it (or zeroes its inode, when it is the first). With `metadata_csum` a
//! block ends in a checksum that is dressed as an empty entry of 12 bytes.
//! Interior blocks of hash trees look like one empty entry: see [`htree`](crate::htree).
//!
//! [`DirBlock`] reads; the functions behind it edit a scratch copy of a block and say
//! which bytes they changed. The checksum is stale until [`write_checksum`].
//!
//! Source: kernel `Documentation/filesystems/ext4/directory.rst`.

use std::ops::Range;

use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::inode::FileType;
use crate::layout::{Le16, Le32, U8, layout};
use crate::num::InodeNo;
use crate::width::must_fit;

/// Most bytes of a name.
pub const MAX_NAME_LEN: usize = 255;
/// Bytes of an entry before its name.
const HEADER_SIZE: usize = 8;
/// Bytes of the smallest entry.
const MIN_REC_LEN: usize = 12;
/// Bytes of the checksum's entry.
const TAIL_SIZE: usize = 12;
/// `det_reserved_ft`: the file type that marks the checksum's entry.
const TAIL_FILE_TYPE: u8 = 0xde;

layout! {
    /// The head of an entry; the name follows. Without `filetype` the upper byte of a
    /// 16-bit `name_len` (always 0) stands in the place of `file_type`.
    pub DIRENT_LAYOUT = "Directory entry", HEADER_SIZE, {
        0x0 Le32, INODE = "inode";
        0x4 Le16, REC_LEN = "rec_len";
        0x6 U8, NAME_LEN = "name_len";
        0x7 U8, FILE_TYPE = "file_type";
    }
}

mod tail {
    use super::{Le16, Le32, TAIL_SIZE, U8, layout};

    layout! {
        /// The checksum at the end of a block, dressed as an entry.
        pub DIRENT_TAIL_LAYOUT = "Directory block tail", TAIL_SIZE, {
            0x0 Le32, ZERO1 = "det_reserved_zero1";
            0x4 Le16, REC_LEN = "det_rec_len";
            0x6 U8, ZERO2 = "det_reserved_zero2";
            0x7 U8, FILE_TYPE = "det_reserved_ft";
            0x8 Le32, CHECKSUM = "det_checksum";
        }
    }

    /// Whether these bytes look like a tail.
    pub(super) fn is_at_end(tail: &[u8]) -> bool {
        ZERO1.get(tail) == 0
            && usize::from(REC_LEN.get(tail)) == TAIL_SIZE
            && ZERO2.get(tail) == 0
            && FILE_TYPE.get(tail) == super::TAIL_FILE_TYPE
    }

    pub(super) fn init(tail: &mut [u8]) {
        tail.fill(0);
        REC_LEN.put(tail, super::must_fit(TAIL_SIZE));
        FILE_TYPE.put(tail, super::TAIL_FILE_TYPE);
    }

    pub(super) const CHECKSUM_FIELD: Le32 = CHECKSUM;
}

pub use tail::DIRENT_TAIL_LAYOUT;

/// Bytes that an entry with a name of `name_len` needs.
#[inline]
pub const fn rec_len(name_len: usize) -> usize {
    (HEADER_SIZE + name_len + 3) & !3
}

/// Bytes of a block that entries fill: all but the checksum.
#[inline]
pub const fn body_size(geometry: &Geometry) -> usize {
    geometry.block_size() - if geometry.metadata_csum { TAIL_SIZE } else { 0 }
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where it begins in the block.
    pub offset: usize,
    /// Where the entry before it begins; `None` for the first.
    pub previous: Option<usize>,
    /// The inode that it names; 0 when the entry is free.
    pub inode: InodeNo,
    /// Bytes to the next entry.
    pub rec_len: usize,
    /// The type that it claims; `None` when it claims none, as always without `filetype`.
    pub file_type: Option<FileType>,
    /// The name: 1 to 255 bytes, unless the entry is free.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Whether the entry is free.
    #[inline]
    pub const fn is_free(&self) -> bool {
        self.inode.0 == 0
    }
}

/// Checks the name of an entry in use, which begins at `offset`: at least 1 byte, no `/` and no
/// zero. As a part of a path, any other name would lead elsewhere.
///
/// # Errors
/// [`Corrupt::DirentNameEmpty`], [`Corrupt::DirentName`].
#[inline]
pub fn check_name(name: &[u8], offset: usize) -> Result<(), Corrupt> {
    if name.is_empty() {
        return Err(Corrupt::DirentNameEmpty { offset });
    }
    // The loop has no early exit, so that it compares many bytes at once.
    let is_bad = |bad, &byte: &u8| bad | (byte == b'/') | (byte == 0);
    if name.iter().fold(false, is_bad) {
        return Err(Corrupt::DirentName { offset });
    }
    Ok(())
}

/// Whether a name is "." or "..".
#[inline]
pub fn is_dot_or_dotdot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// A directory block that holds entries.
#[derive(Clone, Copy, Debug)]
pub struct DirBlock<'a> {
    raw: &'a [u8],
    body: usize,
    geometry: &'a Geometry,
}

impl<'a> DirBlock<'a> {
    /// Checks that there is a place for the checksum, where blocks have one.
    /// [`check_checksum`](Self::check_checksum) checks the checksum, for a block that comes from
    /// outside. Each entry is checked when it is reached.
    ///
    /// # Errors
    /// [`Corrupt::DirentTail`], [`Corrupt::TooShort`] when `raw` is not of the block size.
    #[inline]
    pub fn decode(raw: &'a [u8], geometry: &'a Geometry) -> Result<Self, Corrupt> {
        let (needed, found) = (geometry.block_size(), raw.len());
        if needed != found {
            return Err(Corrupt::TooShort {
                record: "directory block",
                needed,
                found,
            });
        }
        let body = body_size(geometry);
        if geometry.metadata_csum && !tail::is_at_end(&raw[body..]) {
            return Err(Corrupt::DirentTail);
        }
        Ok(Self {
            raw,
            body,
            geometry,
        })
    }

    /// Checks the checksum; `seed` is the directory's [`csum_seed`](crate::Inode::csum_seed).
    ///
    /// # Errors
    /// [`Corrupt::DirentChecksum`].
    pub fn check_checksum(&self, seed: u32) -> Result<(), Corrupt> {
        if !self.geometry.metadata_csum {
            return Ok(());
        }
        let stored = tail::CHECKSUM_FIELD.get(&self.raw[self.body..]);
        let computed = crc32c(seed, &self.raw[..self.body]);
        if stored == computed {
            Ok(())
        } else {
            Err(Corrupt::DirentChecksum { stored, computed })
        }
    }

    /// All entries, free ones too. Ends after the first error.
    #[inline]
    pub fn entries(&self) -> Entries<'a> {
        Entries {
            block: *self,
            offset: 0,
            previous: None,
        }
    }

    /// The entry that begins at `offset`.
    ///
    /// An entry is valid if and only if: 1. its `rec_len` is a multiple of 4, holds its name and
    /// ends inside the block, with nothing or room for a whole entry behind it; 2. its inode exists
    /// or is 0; 3. it has a name without `/` and zero bytes, unless it is free.
    /// [`check_entries`](Self::check_entries) checks where "." and ".." may stand.
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Dirent`.
    #[inline]
    pub fn entry_at(&self, offset: usize, previous: Option<usize>) -> Result<Entry<'a>, Corrupt> {
        let body = &self.raw[..self.body];
        // The smallest entry must fit before the end.
        let Some(head) = body.get(offset..).filter(|rest| rest.len() >= MIN_REC_LEN) else {
            return Err(Corrupt::DirentOverrun { offset });
        };
        let rec_len_here = usize::from(REC_LEN.get(head));
        let name_len = usize::from(NAME_LEN.get(head));
        if rec_len_here % 4 != 0 || rec_len_here < rec_len(name_len).max(MIN_REC_LEN) {
            return Err(Corrupt::DirentRecLen {
                offset,
                rec_len: rec_len_here,
                name_len,
            });
        }
        if rec_len_here > head.len() || (1..MIN_REC_LEN).contains(&(head.len() - rec_len_here)) {
            return Err(Corrupt::DirentOverrun { offset });
        }
        let inode = InodeNo(INODE.get(head));
        if inode.0 > self.geometry.inodes_count {
            return Err(Corrupt::DirentInode { offset, ino: inode });
        }
        let name = &head[HEADER_SIZE..HEADER_SIZE + name_len];
        if inode.0 != 0 {
            check_name(name, offset)?;
        }
        let file_type = if self.geometry.filetype {
            FileType::of_dirent_code(FILE_TYPE.get(head))
        } else {
            None
        };
        Ok(Entry {
            offset,
            previous,
            inode,
            rec_len: rec_len_here,
            file_type,
            name,
        })
    }

    /// Checks every entry, and that only the first two of a directory are "." and "..":
    /// `is_first` says that this is the directory's first block.
    ///
    /// # Errors
    /// As [`entry_at`](Self::entry_at); [`Corrupt::DirentDots`].
    pub fn check_entries(&self, is_first: bool) -> Result<(), Corrupt> {
        for (index, entry) in self.entries().enumerate() {
            let entry = entry?;
            let in_place = match entry.name {
                b"." => is_first && index == 0,
                b".." => is_first && index == 1,
                _ => true,
            };
            if !in_place && !entry.is_free() {
                return Err(Corrupt::DirentDots {
                    offset: entry.offset,
                });
            }
        }
        Ok(())
    }

    /// Finds the entry of this name. Entries before it are checked only as far as the search needs:
    /// rule 1 of [`entry_at`](Self::entry_at).
    ///
    /// # Errors
    /// As [`entry_at`](Self::entry_at).
    pub fn find(&self, name: &[u8]) -> Result<Option<Entry<'a>>, Corrupt> {
        let Some(&last) = name.last() else {
            return Ok(None);
        };
        let body = &self.raw[..self.body];
        let (mut offset, mut previous) = (0, None);
        while offset < body.len() {
            let Some((rec_len, name_len)) = step(body, offset) else {
                // Names the check that failed.
                return self.entry_at(offset, previous).map(|_| None);
            };
            // Names in a directory often differ at their end only.
            let start = offset + HEADER_SIZE;
            if name_len == name.len()
                && body[start + name_len - 1] == last
                && &body[start..start + name_len] == name
                && INODE.get(&body[offset..]) != 0
            {
                return self.entry_at(offset, previous).map(Some);
            }
            previous = Some(offset);
            offset += rec_len;
        }
        Ok(None)
    }

    /// Finds an entry that has room for a new one with a name of `name_len` bytes. Entries are
    /// checked as by [`find`](Self::find).
    ///
    /// # Errors
    /// As [`entry_at`](Self::entry_at).
    pub fn find_room(&self, name_len: usize) -> Result<Option<Slot>, Corrupt> {
        let needed = rec_len(name_len);
        let body = &self.raw[..self.body];
        let (mut offset, mut previous) = (0, None);
        while offset < body.len() {
            let Some((here, name_len)) = step(body, offset) else {
                return self.entry_at(offset, previous).map(|_| None);
            };
            // Whether it is free matters only where there may be enough room.
            if here >= needed {
                let is_free = INODE.get(&body[offset..]) == 0;
                let used = if is_free { 0 } else { rec_len(name_len) };
                if here - used >= needed {
                    return Ok(Some(Slot {
                        offset,
                        used,
                        rec_len: here,
                    }));
                }
            }
            previous = Some(offset);
            offset += here;
        }
        Ok(None)
    }

    /// Whether no entry but "." and ".." is in use.
    ///
    /// # Errors
    /// As [`entry_at`](Self::entry_at).
    pub fn is_empty(&self) -> Result<bool, Corrupt> {
        for entry in self.entries() {
            let entry = entry?;
            if !entry.is_free() && !is_dot_or_dotdot(entry.name) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// `rec_len` and the length of the name of the entry at `offset`, when a search can safely go on
/// with them. `None` exactly when rule 1 of [`entry_at`](DirBlock::entry_at) fails.
#[inline]
fn step(body: &[u8], offset: usize) -> Option<(usize, usize)> {
    let rest = body
        .get(offset..)
        .filter(|rest| rest.len() >= MIN_REC_LEN)?;
    let (here, name_len) = (
        usize::from(REC_LEN.get(rest)),
        usize::from(NAME_LEN.get(rest)),
    );
    let left = rest.len().checked_sub(here)?;
    let holds_name = here >= (HEADER_SIZE + name_len).max(MIN_REC_LEN);
    let ends_well = left == 0 || left >= MIN_REC_LEN;
    (here.is_multiple_of(4) && holds_name && ends_well).then_some((here, name_len))
}

/// Iterator over the entries of a block. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    block: DirBlock<'a>,
    offset: usize,
    previous: Option<usize>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Corrupt>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.block.body {
            return None;
        }
        let entry = self.block.entry_at(self.offset, self.previous);
        match &entry {
            Ok(found) => {
                self.previous = Some(self.offset);
                self.offset += found.rec_len;
            }
            Err(_) => self.offset = self.block.body,
        }
        Some(entry)
    }
}

/// Room for a new entry: behind the used part of an existing one, or in a free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where the existing entry begins.
    pub offset: usize,
    /// Bytes of it that are in use; 0 when it is free.
    pub used: usize,
    /// Bytes of it in all.
    pub rec_len: usize,
}

/// Puts a new entry into `slot`, which was found in the block that `raw` is a copy of. Returns
/// the bytes that changed.
///
/// # Panics
/// When the name is empty or too long, or the slot has no room for it.
pub fn insert(
    raw: &mut [u8],
    slot: Slot,
    ino: InodeNo,
    file_type: FileType,
    name: &[u8],
    geometry: &Geometry,
) -> Range<usize> {
    assert!(
        (1..=MAX_NAME_LEN).contains(&name.len()),
        "name of {} bytes",
        name.len()
    );
    assert!(
        slot.rec_len - slot.used >= rec_len(name.len()),
        "no room for the entry"
    );
    let offset = slot.offset + slot.used;
    if slot.used > 0 {
        REC_LEN.put(&mut raw[slot.offset..], must_fit(slot.used));
    }
    write_entry(
        &mut raw[offset..],
        slot.rec_len - slot.used,
        ino,
        file_type,
        name,
        geometry,
    );
    let start = if slot.used > 0 {
        slot.offset + REC_LEN.0
    } else {
        offset
    };
    start..offset + HEADER_SIZE + name.len()
}

fn write_entry(
    raw: &mut [u8],
    rec_len: usize,
    ino: InodeNo,
    file_type: FileType,
    name: &[u8],
    geometry: &Geometry,
) {
    INODE.put(raw, ino.0);
    REC_LEN.put(raw, must_fit(rec_len));
    NAME_LEN.put(raw, must_fit(name.len()));
    FILE_TYPE.put(
        raw,
        if geometry.filetype {
            file_type.dirent_code()
        } else {
            0
        },
    );
    raw[HEADER_SIZE..HEADER_SIZE + name.len()].copy_from_slice(name);
}

/// Removes an entry that was found in the block that `raw` is a copy of. Returns the bytes
/// that changed.
pub fn remove(raw: &mut [u8], entry: &Entry<'_>) -> Range<usize> {
    let Some(previous) = entry.previous else {
        INODE.put(&mut raw[entry.offset..], 0);
        return entry.offset..entry.offset + INODE.end();
    };
    let grown = entry.offset - previous + entry.rec_len;
    REC_LEN.put(&mut raw[previous..], must_fit(grown));
    previous + REC_LEN.0..previous + REC_LEN.end()
}

/// Makes an existing entry name another inode (rename over, ".." of a moved directory).
/// Returns the bytes that changed.
pub fn set_inode(
    raw: &mut [u8],
    offset: usize,
    ino: InodeNo,
    file_type: FileType,
    geometry: &Geometry,
) -> Range<usize> {
    let entry = &mut raw[offset..];
    INODE.put(entry, ino.0);
    if geometry.filetype {
        FILE_TYPE.put(entry, file_type.dirent_code());
    }
    offset..offset + HEADER_SIZE
}

/// Makes a block with one free entry.
///
/// # Panics
/// When `raw` is not of the block size.
pub fn init_empty(raw: &mut [u8], geometry: &Geometry) {
    assert_eq!(raw.len(), geometry.block_size());
    raw.fill(0);
    let body = body_size(geometry);
    REC_LEN.put(raw, must_fit(body));
    init_tail(raw, geometry);
}

/// Makes the first block of a new directory: "." and "..".
///
/// # Panics
/// When `raw` is not of the block size.
pub fn init_dot_dotdot(raw: &mut [u8], ino: InodeNo, parent: InodeNo, geometry: &Geometry) {
    init_empty(raw, geometry);
    let (dot, dotdot) = raw.split_at_mut(rec_len(1));
    let rest = body_size(geometry) - dot.len();
    write_entry(dot, rec_len(1), ino, FileType::Directory, b".", geometry);
    write_entry(dotdot, rest, parent, FileType::Directory, b"..", geometry);
}

/// An entry for [`fill`].
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// The inode that it names.
    pub inode: InodeNo,
    /// Its type; `None` when it is not known.
    pub file_type: Option<FileType>,
    /// Its name.
    pub name: &'a [u8],
}

/// Makes a block of these entries packed tight, the last one reaching to the end: what
/// a split of a leaf leaves.
///
/// # Panics
/// When they do not fit, or `raw` is not of the block size.
pub fn fill<'e>(
    raw: &mut [u8],
    entries: impl IntoIterator<Item = NewEntry<'e>>,
    geometry: &Geometry,
) {
    init_empty(raw, geometry);
    let body = body_size(geometry);
    let (mut offset, mut latest) = (0, None);
    for entry in entries {
        let size = rec_len(entry.name.len());
        assert!(size <= body - offset, "entries do not fit the block");
        let record = &mut raw[offset..];
        INODE.put(record, entry.inode.0);
        REC_LEN.put(record, must_fit(size));
        NAME_LEN.put(record, must_fit(entry.name.len()));
        let code = entry.file_type.map_or(0, FileType::dirent_code);
        FILE_TYPE.put(record, if geometry.filetype { code } else { 0 });
        record[HEADER_SIZE..HEADER_SIZE + entry.name.len()].copy_from_slice(entry.name);
        latest = Some(offset);
        offset += size;
    }
    if let Some(latest) = latest {
        REC_LEN.put(&mut raw[latest..], must_fit(body - latest));
    }
}

fn init_tail(raw: &mut [u8], geometry: &Geometry) {
    if geometry.metadata_csum {
        tail::init(&mut raw[body_size(geometry)..]);
    }
}

/// Makes the checksum of a block; `seed` is the directory's
/// [`csum_seed`](crate::Inode::csum_seed). Does nothing without `metadata_csum`.
/// Returns the bytes that changed.
pub fn write_checksum(raw: &mut [u8], seed: u32, geometry: &Geometry) -> Option<Range<usize>> {
    if !geometry.metadata_csum {
        return None;
    }
    let (body, tail) = raw.split_at_mut(body_size(geometry));
    tail::CHECKSUM_FIELD.put(tail, crc32c(seed, body));
    Some(body.len() + tail::CHECKSUM_FIELD.0..body.len() + TAIL_SIZE)
}
