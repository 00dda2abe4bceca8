//! Extended attributes: in the inode behind its extra fields, and in one block.
//!
//! Both places hold a list of entries, ended by four zero bytes, and values that grow
//! from the other end towards it. In the inode a magic precedes the list and value
//! offsets count from the first entry; in a block a header precedes it, offsets count from
//! the block's start, and entries are sorted so that equal sets of attributes make equal
//! blocks, which inodes may then share (`h_refcount`).
//!
//! [`XattrArea`] reads; [`encode_inode`] and [`encode_block`] write a whole place from a
//! list.
//!
//! Source: kernel `Documentation/filesystems/ext4/attributes.rst`.

use std::cmp::Ordering;
use std::ops::Range;

use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::inode::{GOOD_OLD_INODE_SIZE, Inode};
use crate::layout::{Le16, Le32, U8, layout};
use crate::num::{BlockNo, InodeNo};
use crate::width::{must_fit, u32_as_usize};

/// `h_magic`, in both places.
pub const XATTR_MAGIC: u32 = 0xea02_0000;
/// Inodes that may share a block (`EXT4_XATTR_REFCOUNT_MAX`).
pub const MAX_REFCOUNT: u32 = 1024;
/// Most bytes of a name without its prefix.
pub const MAX_NAME_LEN: usize = 255;

/// Bytes of the magic in an inode.
const IBODY_HEADER_SIZE: usize = 4;
const BLOCK_HEADER_SIZE: usize = 32;
/// Bytes of an entry before its name.
const ENTRY_SIZE: usize = 16;
/// Zero bytes that end the list.
const END_SIZE: usize = 4;

layout! {
    /// The header of an attribute block.
    pub XATTR_HEADER_LAYOUT = "Extended attribute block header", BLOCK_HEADER_SIZE, {
        0x00 Le32, MAGIC = "h_magic";
        0x04 Le32, REFCOUNT = "h_refcount";
        0x08 Le32, BLOCKS = "h_blocks";
        0x0c Le32, HASH = "h_hash";
        0x10 Le32, CHECKSUM = "h_checksum";
    }
}

layout! {
    /// The head of an entry; the name follows, padded to four bytes.
    pub XATTR_ENTRY_LAYOUT = "Extended attribute entry", ENTRY_SIZE, {
        0x0 U8, E_NAME_LEN = "e_name_len";
        0x1 U8, E_NAME_INDEX = "e_name_index";
        0x2 Le16, E_VALUE_OFFS = "e_value_offs";
        0x4 Le32, E_VALUE_INUM = "e_value_inum";
        0x8 Le32, E_VALUE_SIZE = "e_value_size";
        0xc Le32, E_HASH = "e_hash";
    }
}

/// Index and prefix of each kind of name. A kind whose prefix ends in a point takes a
/// suffix; the others are whole names.
const PREFIXES: [(u8, &[u8]); 8] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (5, b"lustre."),
    (6, b"security."),
    (8, b"system.richacl"),
    (7, b"system."),
];

/// Index of `user.` names.
pub const INDEX_USER: u8 = 1;
/// Index of the access control list.
pub const INDEX_POSIX_ACL_ACCESS: u8 = 2;
/// Index of the default access control list.
pub const INDEX_POSIX_ACL_DEFAULT: u8 = 3;
/// Index of `trusted.` names.
pub const INDEX_TRUSTED: u8 = 4;
/// Index of `security.` names.
pub const INDEX_SECURITY: u8 = 6;

/// Index of `system.` names: `data` is content that lies in the inode (`inline_data`).
pub const INDEX_SYSTEM: u8 = 7;

/// Splits a full name into index and suffix; `None` when no index fits it.
pub fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|(index, prefix)| {
        let suffix = name.strip_prefix(*prefix)?;
        (suffix.is_empty() != prefix.ends_with(b".")).then_some((*index, suffix))
    })
}

/// What stands before the suffix of names with this index; `None` when the index is not known.
pub fn prefix(index: u8) -> Option<&'static [u8]> {
    PREFIXES
        .iter()
        .find(|(known, _)| *known == index)
        .map(|(_, prefix)| *prefix)
}

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// Kind of the name: see [`prefix`].
    pub index: u8,
    /// The name without its prefix.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The inode in which an attribute's value lies (`ea_inode`), in its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueInode {
    /// Its number.
    pub ino: InodeNo,
    /// The length of the value, in bytes.
    pub size: u32,
}

impl ValueInode {
    /// The checksum that such an inode has of its value, in its time of access (the kernel's
    /// `ext4_xattr_inode_hash`).
    pub fn hash(value: &[u8], geometry: &Geometry) -> u32 {
        crc32c(geometry.csum_seed, value)
    }
}

impl Xattr<'_> {
    /// As a block sorts: by index, then by length of the name, then by its bytes.
    pub fn order(&self, index: u8, name: &[u8]) -> Ordering {
        self.index
            .cmp(&index)
            .then(self.name.len().cmp(&name.len()))
            .then_with(|| self.name.cmp(name))
    }

    fn size(&self) -> usize {
        entry_size(self.name.len()) + padded(self.value.len())
    }
}

const fn padded(size: usize) -> usize {
    (size + 3) & !3
}

const fn entry_size(name_len: usize) -> usize {
    padded(ENTRY_SIZE + name_len)
}

/// A place that holds attributes and was checked.
#[derive(Clone, Copy, Debug)]
pub struct XattrArea<'a> {
    /// What value offsets count from.
    base: &'a [u8],
    /// Where the first entry lies in `base`.
    first: usize,
}

impl<'a> XattrArea<'a> {
    /// The attributes inside an inode; `raw` is the whole inode. Empty when
    /// there are none.
    ///
    /// They are valid if and only if: 1. every entry ends before the end of the list and
    /// has a name (or is all prefix) without a zero; 2. every value lies inside the place
    /// behind the list; 3. no value is in an inode of its own, unless the volume has `ea_inode`.
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Xattr`.
    pub fn in_inode(raw: &'a [u8], inode: &Inode, geometry: &Geometry) -> Result<Self, Corrupt> {
        let area = inode_range(inode, geometry).and_then(|range| raw.get(range));
        let Some(area) = area.filter(|area| MAGIC.get(area) == XATTR_MAGIC) else {
            return Ok(Self {
                base: &[0; END_SIZE],
                first: 0,
            });
        };
        let area = Self {
            base: &area[IBODY_HEADER_SIZE..],
            first: 0,
        };
        area.check(geometry)?;
        Ok(area)
    }

    /// All attributes of the place.
    pub fn iter(&self) -> Entries<'a> {
        Entries {
            area: *self,
            offset: self.first,
        }
    }

    /// All attributes of the place, each with the inode in which its value lies, if it does: then
    /// the attribute has no value here.
    pub fn iter_with_inodes(&self) -> impl Iterator<Item = (Xattr<'a>, Option<ValueInode>)> {
        let mut entries = self.iter();
        std::iter::from_fn(move || {
            let entry = entries.area.base.get(entries.offset..)?;
            let xattr = entries.next()?;
            let ino = InodeNo(E_VALUE_INUM.get(entry));
            let size = E_VALUE_SIZE.get(entry);
            Some((xattr, (ino.0 != 0).then_some(ValueInode { ino, size })))
        })
    }

    /// The value of an attribute.
    pub fn get(&self, index: u8, name: &[u8]) -> Option<&'a [u8]> {
        self.iter()
            .find(|entry| entry.index == index && entry.name == name)
            .map(|entry| entry.value)
    }

    /// Whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn is_end(&self, offset: usize) -> bool {
        Le32(offset).get(self.base) == 0
    }

    fn check(&self, geometry: &Geometry) -> Result<(), Corrupt> {
        let size = self.base.len();
        let mut end = self.first;
        loop {
            if end + END_SIZE > size {
                return Err(Corrupt::XattrUnended(end));
            }
            if self.is_end(end) {
                break;
            }
            end = self.check_entry(end, geometry)?;
        }
        let values = end + END_SIZE..size;
        let mut offset = self.first;
        while offset < end {
            offset = self.check_value(offset, &values)?;
        }
        Ok(())
    }

    /// Checks the entry at `offset`, and returns where the next one lies.
    fn check_entry(&self, offset: usize, geometry: &Geometry) -> Result<usize, Corrupt> {
        let rest = &self.base[offset..];
        if rest.len() < ENTRY_SIZE {
            return Err(Corrupt::XattrUnended(offset));
        }
        let name_len = usize::from(E_NAME_LEN.get(rest));
        let Some(name) = rest.get(ENTRY_SIZE..ENTRY_SIZE + name_len) else {
            return Err(Corrupt::XattrUnended(offset));
        };
        // Only a name that is all prefix may be empty here.
        let whole = prefix(E_NAME_INDEX.get(rest)).is_some_and(|prefix| !prefix.ends_with(b"."));
        if name.contains(&0) || name.is_empty() && !whole {
            return Err(Corrupt::XattrName(offset));
        }
        if E_VALUE_INUM.get(rest) != 0 && !geometry.ea_inode {
            return Err(Corrupt::XattrInode {
                offset,
                ino: E_VALUE_INUM.get(rest),
            });
        }
        Ok(offset + entry_size(name_len))
    }

    fn check_value(&self, offset: usize, values: &Range<usize>) -> Result<usize, Corrupt> {
        let entry = &self.base[offset..];
        let size = E_VALUE_SIZE.get(entry);
        let start = usize::from(E_VALUE_OFFS.get(entry));
        let fits = usize::try_from(size)
            .ok()
            .and_then(|size| start.checked_add(size))
            .is_some_and(|end| padded(end) <= values.end);
        let is_here = size > 0 && E_VALUE_INUM.get(entry) == 0;
        if is_here && (!fits || start < values.start) {
            return Err(Corrupt::XattrValue {
                offset,
                start,
                size,
            });
        }
        Ok(offset + entry_size(E_NAME_LEN.get(entry).into()))
    }
}

/// Iterator over the attributes of a place, in the order of the disk.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    area: XattrArea<'a>,
    offset: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Xattr<'a>;

    fn next(&mut self) -> Option<Xattr<'a>> {
        if self.area.is_end(self.offset) {
            return None;
        }
        let entry = &self.area.base[self.offset..];
        let name_len = usize::from(E_NAME_LEN.get(entry));
        self.offset += entry_size(name_len);
        let start = usize::from(E_VALUE_OFFS.get(entry));
        let size = match E_VALUE_INUM.get(entry) {
            0 => u32_as_usize(E_VALUE_SIZE.get(entry)),
            _ => 0,
        };
        Some(Xattr {
            index: E_NAME_INDEX.get(entry),
            name: &entry[ENTRY_SIZE..ENTRY_SIZE + name_len],
            value: if size == 0 {
                &[]
            } else {
                &self.area.base[start..start + size]
            },
        })
    }
}

/// Where attributes lie in an inode, their magic included; `None` when it has no room.
pub fn inode_range(inode: &Inode, geometry: &Geometry) -> Option<Range<usize>> {
    let range = inode.xattr_offset()..geometry.inode_size();
    // An inode without extra fields has no attributes either: the kernel makes room
    // for both at once.
    (inode.xattr_offset() > GOOD_OLD_INODE_SIZE && range.len() >= IBODY_HEADER_SIZE + END_SIZE)
        .then_some(range)
}

/// Whether the attributes fit into an inode.
pub fn fits_inode<'x>(
    xattrs: impl IntoIterator<Item = Xattr<'x>>,
    inode: &Inode,
    geometry: &Geometry,
) -> bool {
    let needed: usize = xattrs.into_iter().map(|xattr| xattr.size()).sum();
    inode_range(inode, geometry)
        .is_some_and(|range| needed <= range.len() - IBODY_HEADER_SIZE - END_SIZE)
}

/// Whether the attributes fit into a block.
pub fn fits_block<'x>(xattrs: impl IntoIterator<Item = Xattr<'x>>, geometry: &Geometry) -> bool {
    let needed: usize = xattrs.into_iter().map(|xattr| xattr.size()).sum();
    needed <= geometry.block_size() - BLOCK_HEADER_SIZE - END_SIZE
}

/// Writes the attributes into a scratch copy of an inode, replacing those it has.
/// Without any, the place becomes zero. The inode's checksum is stale until
/// [`Inode::encode_into`].
///
/// # Panics
/// When they do not fit: see [`fits_inode`].
pub fn encode_inode(raw: &mut [u8], xattrs: &[Xattr<'_>], inode: &Inode, geometry: &Geometry) {
    let Some(range) = inode_range(inode, geometry) else {
        assert!(xattrs.is_empty(), "no room for attributes in the inode");
        return;
    };
    let area = &mut raw[range];
    area.fill(0);
    if !xattrs.is_empty() {
        MAGIC.put(area, XATTR_MAGIC);
        // In an inode, entries have no hash.
        write_list(&mut area[IBODY_HEADER_SIZE..], 0, xattrs, |_| 0);
    }
}

/// Writes entries from `first` on and their values from the end. The caller has made sure that they
/// fit.
fn write_list(
    base: &mut [u8],
    first: usize,
    xattrs: &[Xattr<'_>],
    hash: impl Fn(&Xattr<'_>) -> u32,
) {
    let (mut offset, mut values) = (first, base.len());
    for xattr in xattrs {
        assert!(
            xattr.name.len() <= MAX_NAME_LEN,
            "attribute name is too long"
        );
        let free = values - offset - END_SIZE;
        assert!(xattr.size() <= free, "attributes do not fit");
        values -= padded(xattr.value.len());
        base[values..values + xattr.value.len()].copy_from_slice(xattr.value);
        let entry = &mut base[offset..];
        E_NAME_LEN.put(entry, must_fit(xattr.name.len()));
        E_NAME_INDEX.put(entry, xattr.index);
        E_VALUE_OFFS.put(
            entry,
            if xattr.value.is_empty() {
                0
            } else {
                must_fit(values)
            },
        );
        E_VALUE_INUM.put(entry, 0);
        E_VALUE_SIZE.put(entry, must_fit(xattr.value.len()));
        E_HASH.put(entry, hash(xattr));
        entry[ENTRY_SIZE..ENTRY_SIZE + xattr.name.len()].copy_from_slice(xattr.name);
        offset += entry_size(xattr.name.len());
    }
}

/// An attribute block.
#[derive(Clone, Copy, Debug)]
pub struct XattrBlock<'a> {
    /// Inodes that share it.
    pub refcount: u32,
    /// Hash of all attributes; 0 forbids sharing.
    pub hash: u32,
    area: XattrArea<'a>,
}

impl<'a> XattrBlock<'a> {
    /// Decodes the attribute block at `block`.
    ///
    /// It is valid if and only if: 1. it has the magic, says that it is of one
    /// block, and at least one inode refers to it; 2. its checksum fits; 3. its list is valid as in
    /// [`XattrArea::in_inode`].
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Xattr`.
    pub fn decode(raw: &'a [u8], block: BlockNo, geometry: &Geometry) -> Result<Self, Corrupt> {
        let (needed, found) = (geometry.block_size(), raw.len());
        if needed != found {
            return Err(Corrupt::TooShort {
                record: "attribute block",
                needed,
                found,
            });
        }
        if MAGIC.get(raw) != XATTR_MAGIC {
            return Err(Corrupt::XattrMagic(MAGIC.get(raw)));
        }
        if BLOCKS.get(raw) != 1 {
            return Err(Corrupt::XattrBlocks(BLOCKS.get(raw)));
        }
        let refcount = REFCOUNT.get(raw);
        if refcount == 0 || refcount > MAX_REFCOUNT {
            return Err(Corrupt::XattrRefcount(refcount));
        }
        if geometry.metadata_csum {
            let (stored, computed) = (CHECKSUM.get(raw), checksum_of(raw, block, geometry));
            if stored != computed {
                return Err(Corrupt::XattrChecksum { stored, computed });
            }
        }
        let area = XattrArea {
            base: raw,
            first: BLOCK_HEADER_SIZE,
        };
        area.check(geometry)?;
        Ok(Self {
            refcount,
            hash: HASH.get(raw),
            area,
        })
    }

    /// Its attributes.
    pub fn area(&self) -> XattrArea<'a> {
        self.area
    }

    /// Checks the hash of every entry, as e2fsck does. Characters as signed and as
    /// unsigned are both right: kernels have written both.
    ///
    /// # Errors
    /// [`Corrupt::XattrHash`].
    pub fn check_hashes(&self) -> Result<(), Corrupt> {
        let mut offset = BLOCK_HEADER_SIZE;
        for xattr in self.area.iter() {
            let stored = E_HASH.get(&self.area.base[offset..]);
            if stored != entry_hash(&xattr) && stored != entry_hash_signed(&xattr) {
                return Err(Corrupt::XattrHash { offset, stored });
            }
            offset += entry_size(xattr.name.len());
        }
        Ok(())
    }
}

/// Makes the attribute block that will lie at `block`, whatever `raw` held. The attributes
/// must be [in order](Xattr::order).
///
/// # Panics
/// When they do not fit (see [`fits_block`]) or are not in order, or `raw` is not of
/// the block size.
pub fn encode_block(
    raw: &mut [u8],
    xattrs: &[Xattr<'_>],
    refcount: u32,
    block: BlockNo,
    geometry: &Geometry,
) {
    assert_eq!(raw.len(), geometry.block_size());
    let sorted = xattrs.is_sorted_by(|a, b| a.order(b.index, b.name) == Ordering::Less);
    assert!(sorted, "attributes are not in order");
    raw.fill(0);
    MAGIC.put(raw, XATTR_MAGIC);
    REFCOUNT.put(raw, refcount);
    BLOCKS.put(raw, 1);
    HASH.put(raw, block_hash(xattrs));
    write_list(raw, BLOCK_HEADER_SIZE, xattrs, entry_hash);
    write_checksum(raw, block, geometry);
}

/// Changes how many inodes share a block, in a scratch copy.
pub fn set_refcount(raw: &mut [u8], refcount: u32, block: BlockNo, geometry: &Geometry) {
    REFCOUNT.put(raw, refcount);
    write_checksum(raw, block, geometry);
}

fn write_checksum(raw: &mut [u8], block: BlockNo, geometry: &Geometry) {
    if geometry.metadata_csum {
        let checksum = checksum_of(raw, block, geometry);
        CHECKSUM.put(raw, checksum);
    }
}

fn checksum_of(raw: &[u8], block: BlockNo, geometry: &Geometry) -> u32 {
    let mut crc = crc32c(geometry.csum_seed, &block.0.to_le_bytes());
    crc = crc32c(crc, &raw[..CHECKSUM.0]);
    crc = crc32c(crc, &[0; 4]);
    crc32c(crc, &raw[CHECKSUM.end()..])
}

/// Hash of a whole block: equal for equal lists. 0 is the hash that forbids sharing.
pub fn block_hash(xattrs: &[Xattr<'_>]) -> u32 {
    let mut hash = 0u32;
    for xattr in xattrs {
        let entry = entry_hash(xattr);
        if entry == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ entry;
    }
    hash
}

fn entry_hash(xattr: &Xattr<'_>) -> u32 {
    hash_with(xattr, |byte| byte.into())
}

fn entry_hash_signed(xattr: &Xattr<'_>) -> u32 {
    hash_with(xattr, |byte| i32::from(byte.cast_signed()).cast_unsigned())
}

fn hash_with(xattr: &Xattr<'_>, character: impl Fn(u8) -> u32) -> u32 {
    let name = xattr
        .name
        .iter()
        .fold(0u32, |hash, &byte| hash.rotate_left(5) ^ character(byte));
    xattr.value.chunks(4).fold(name, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}
