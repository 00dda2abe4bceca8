//! One block of entries: finds a name or room for one, and computes the bytes that an insertion or
//! a removal changes.
//!
//! A block is a chain of records that fills the block up to its end (with `metadata_csum`, up to
//! the 12-byte tail that holds the checksum). A record is as long as its `rec_len` says. A record
//! with inode 0 is free; a record may be longer than its name needs, and the rest of it is free
//! too. The searches here check only what keeps them inside the block and brings them to an end.
//! The rest was checked when the block was first read.

use smallvec::SmallVec;
use stetfs_format::InodeNo;
use stetfs_format::bytes::{read_u16le, read_u32le, read_u64le, write_u16le, write_u32le};
use stetfs_format::dirent::rec_len;
use stetfs_format::width::{high32, low8, low16, low32, must_fit, must_fit_u16};

/// Bytes of a record before its name.
pub(crate) const HEADER: usize = 8;

/// The shortest record, in bytes.
const SHORTEST: usize = 12;

/// The chain of records is broken at this offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) usize);

/// A name that a search found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The offset of its record.
    pub(crate) offset: usize,
    /// The offset of the record before it; `None` for the block's first record.
    pub(crate) previous: Option<usize>,
    /// Its inode.
    pub(crate) ino: InodeNo,
    /// Its file type as stored.
    pub(crate) file_type: u8,
}

/// A record as the searches see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) offset: usize,
    pub(crate) ino: u32,
    pub(crate) rec_len: usize,
    pub(crate) name_len: usize,
    pub(crate) file_type: u8,
}

impl Record {
    /// Reads the record at `offset` of a chain that ends at `end`.
    #[inline]
    pub(crate) fn read(block: &[u8], offset: usize, end: usize) -> Result<Self, Broken> {
        if offset + SHORTEST > end {
            return Err(Broken(offset));
        }
        let header = read_u64le(block, offset);
        let lengths = high32(header);
        let record = Self {
            offset,
            ino: low32(header),
            rec_len: usize::from(low16(lengths)),
            name_len: usize::from(low8(lengths >> 16)),
            file_type: low8(lengths >> 24),
        };
        let fits = record.rec_len >= rec_len(record.name_len).max(SHORTEST)
            && record.rec_len.is_multiple_of(4)
            && record.rec_len <= end - offset;
        if fits {
            Ok(record)
        } else {
            Err(Broken(offset))
        }
    }

    /// The name.
    #[inline]
    pub(crate) fn name<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        &block[self.offset + HEADER..self.offset + HEADER + self.name_len]
    }

    /// Bytes of the record that are not spare: 0 for a free record.
    pub(crate) fn used(&self) -> usize {
        if self.ino == 0 {
            0
        } else {
            rec_len(self.name_len)
        }
    }

    /// The next record's offset.
    pub(crate) fn next(&self) -> usize {
        self.offset + self.rec_len
    }
}

/// The records of a block, from its start.
pub(crate) fn records(block: &[u8], end: usize) -> impl Iterator<Item = Result<Record, Broken>> {
    let mut at = Some(0);
    std::iter::from_fn(move || {
        let offset = at.filter(|&offset| offset < end)?;
        let record = Record::read(block, offset, end);
        at = record.as_ref().ok().map(Record::next);
        Some(record)
    })
}

/// A name, prepared for comparison with many names: their last eight bytes differ sooner than their
/// first.
struct Wanted<'a> {
    name: &'a [u8],
    last: u64,
    mask: u64,
}

impl<'a> Wanted<'a> {
    fn new(name: &'a [u8]) -> Self {
        let tail = &name[name.len().saturating_sub(8)..];
        let mut last = [0; 8];
        last[8 - tail.len()..].copy_from_slice(tail);
        let mask = match tail.len() {
            0 => 0,
            n => u64::MAX << (8 * (8 - n)),
        };
        Self {
            name,
            last: u64::from_le_bytes(last),
            mask,
        }
    }

    #[inline]
    fn is(&self, block: &[u8], record: &Record) -> bool {
        record.name_len == self.name.len()
            && read_u64le(block, record.offset + record.name_len) & self.mask == self.last
            && record.ino != 0
            && record.name(block) == self.name
    }
}

/// Returns the entry `name`; `None` when the block does not have it.
pub(crate) fn find(block: &[u8], end: usize, name: &[u8]) -> Result<Option<Hit>, Broken> {
    find_or_room(block, end, name, usize::MAX).map(|(hit, _)| hit)
}

/// Returns the entry `name`, and the first record on the way to it with `need` spare bytes.
#[inline]
pub(crate) fn find_or_room(
    block: &[u8],
    end: usize,
    name: &[u8],
    need: usize,
) -> Result<(Option<Hit>, Option<usize>), Broken> {
    let wanted = Wanted::new(name);
    let mut previous = None;
    let mut room = None;
    let mut offset = 0;
    while offset < end {
        let record = Record::read(block, offset, end)?;
        if wanted.is(block, &record) {
            let hit = Hit {
                offset,
                previous,
                ino: InodeNo(record.ino),
                file_type: record.file_type,
            };
            return Ok((Some(hit), room));
        }
        if room.is_none() && record.rec_len - record.used() >= need {
            room = Some(offset);
        }
        previous = Some(offset);
        offset = record.next();
    }
    Ok((None, room))
}

/// Returns the first record with `need` spare bytes.
pub(crate) fn room(block: &[u8], end: usize, need: usize) -> Result<Option<usize>, Broken> {
    for record in records(block, end) {
        let record = record?;
        if record.rec_len - record.used() >= need {
            return Ok(Some(record.offset));
        }
    }
    Ok(None)
}

/// The most spare bytes of any record.
pub(crate) fn longest_room(block: &[u8], end: usize) -> Result<usize, Broken> {
    records(block, end).try_fold(0, |longest, record| {
        let record = record?;
        Ok(longest.max(record.rec_len - record.used()))
    })
}

/// An offset in a block, and the bytes to write there.
pub(crate) type Change = (usize, SmallVec<[u8; 48]>);

/// The changes of one edit.
pub(crate) type Changes = SmallVec<[Change; 2]>;

/// Writes a record with a name into `out`, which is as long as the name needs.
fn encode(out: &mut [u8], ino: InodeNo, rec_len: usize, file_type: u8, name: &[u8]) {
    write_u32le(out, 0, ino.0);
    write_u16le(out, 4, must_fit_u16(rec_len));
    out[6] = must_fit(name.len());
    out[7] = file_type;
    out[HEADER..HEADER + name.len()].copy_from_slice(name);
}

/// Puts a name into the spare bytes of the record at `offset`, which [`find_or_room`] has found.
pub(crate) fn insert(
    block: &[u8],
    offset: usize,
    name: &[u8],
    ino: InodeNo,
    file_type: u8,
) -> Changes {
    let old_len = usize::from(read_u16le(block, offset + 4));
    let used = match read_u32le(block, offset) {
        0 => 0,
        _ => rec_len(usize::from(block[offset + 6])),
    };
    let mut changes = Changes::new();
    if used > 0 {
        changes.push((
            offset + 4,
            SmallVec::from_slice(&must_fit_u16(used).to_le_bytes()),
        ));
    }
    let mut record = SmallVec::from_elem(0, HEADER + name.len());
    encode(&mut record, ino, old_len - used, file_type, name);
    changes.push((offset + used, record));
    changes
}

/// Frees the record of `hit`: the record before it takes its bytes. The block's first record loses
/// its inode instead.
pub(crate) fn remove(block: &[u8], hit: &Hit) -> Changes {
    let mut changes = Changes::new();
    match hit.previous {
        Some(previous) => {
            let joined = read_u16le(block, previous + 4) + read_u16le(block, hit.offset + 4);
            changes.push((previous + 4, SmallVec::from_slice(&joined.to_le_bytes())));
        }
        None => changes.push((hit.offset, SmallVec::from_slice(&[0; 4]))),
    }
    changes
}

/// Points the name at `offset` to another inode.
pub(crate) fn replace(block: &[u8], offset: usize, ino: InodeNo, file_type: u8) -> Changes {
    let mut changes = Changes::new();
    changes.push((offset, SmallVec::from_slice(&ino.0.to_le_bytes())));
    if block[offset + 7] != file_type {
        changes.push((offset + 7, SmallVec::from_slice(&[file_type])));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(len: usize) -> Vec<u8> {
        let mut block = vec![0; len];
        write_u16le(&mut block, 4, len as u16);
        block
    }

    fn apply(block: &mut [u8], changes: Changes) {
        for (offset, bytes) in changes {
            block[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Inserts and removes names at random in one block, and compares it with a map.
    #[test]
    fn a_block_behaves_like_a_map() {
        let mut block = empty(1024);
        let mut model = std::collections::BTreeMap::new();
        let mut seed = 1u32;
        for step in 0..20_000u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (seed >> 8) % 60;
            let name = format!("{:0width$}", number, width = 1 + (number as usize * 7) % 40);
            let name = name.as_bytes();
            let (hit, room) = find_or_room(&block, 1024, name, rec_len(name.len())).unwrap();
            assert_eq!(hit.map(|h| h.ino.0), model.get(name).copied());
            match (hit, room) {
                (Some(hit), _) => {
                    apply(&mut block.clone(), remove(&block, &hit));
                    let changes = remove(&block, &hit);
                    apply(&mut block, changes);
                    model.remove(name);
                }
                (None, Some(room)) => {
                    let changes = insert(&block, room, name, InodeNo(step + 1), 1);
                    apply(&mut block, changes);
                    model.insert(name.to_vec(), step + 1);
                }
                (None, None) => {}
            }
            let listed: std::collections::BTreeMap<_, _> = records(&block, 1024)
                .map(|r| r.unwrap())
                .filter(|r| r.ino != 0)
                .map(|r| (r.name(&block).to_vec(), r.ino))
                .collect();
            assert_eq!(listed, model);
        }
    }

    #[test]
    fn broken_chains_are_noticed() {
        for bad in [0u16, 8, 10, 14, 1028] {
            let mut block = empty(1024);
            write_u16le(&mut block, 4, bad);
            assert_eq!(find(&block, 1024, b"x"), Err(Broken(0)), "rec_len {bad}");
        }
        let mut block = empty(1024);
        write_u16le(&mut block, 4, 1016);
        assert_eq!(find(&block, 1024, b"x"), Err(Broken(1016)));
    }

    #[test]
    fn short_and_long_names_are_compared_in_full() {
        let mut block = empty(1024);
        for (i, name) in ["a", "ab", "zab", "12345678", "x12345678", "y12345678"]
            .iter()
            .enumerate()
        {
            let name = name.as_bytes();
            assert_eq!(find(&block, 1024, name), Ok(None));
            let room = room(&block, 1024, rec_len(name.len())).unwrap().unwrap();
            let changes = insert(&block, room, name, InodeNo(i as u32 + 1), 1);
            apply(&mut block, changes);
            assert_eq!(
                find(&block, 1024, name).unwrap().unwrap().ino,
                InodeNo(i as u32 + 1)
            );
        }
    }
}
