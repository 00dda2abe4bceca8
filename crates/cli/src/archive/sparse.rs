//! The maps of sparse files in archives: which runs of bytes an archive has of a file. What is
//! between them is a hole.

use std::fs::File;
use std::os::unix::fs::FileExt;

use stetfs_format::width::usize_as_u64;
use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use crate::failure::{Failure, Result};

/// Bytes of a block of an archive.
pub(super) const BLOCK: usize = 512;

/// A run of bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Where it is in the file.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Where it is in the archive.
    pub(super) start: u64,
}

impl Piece {
    /// All bytes of a file that has some.
    pub(super) fn whole(start: u64, len: u64) -> Option<Self> {
        let offset = 0;
        (len > 0).then_some(Self { offset, len, start })
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

pub(super) fn bad_sparse_map() -> Failure {
    Failure::new("is a sparse file whose map is wrong")
}

/// Reads the map at the beginning of a sparse file's content: decimal numbers on lines of their
/// own, how many pieces there are, then offset and length of each; padded to 512 bytes. Source: GNU
/// tar's manual, "PAX Format, Version 1.0".
pub(super) fn sparse_map(file: &File, start: u64, len: u64, size: u64) -> Result<Vec<Piece>> {
    let mut numbers = Numbers::new(file, start, len);
    let mut map = Map::of(size);
    for _ in 0..numbers.next()? {
        map.add(numbers.next()?, numbers.next()?)?;
    }
    if map.total > numbers.end - numbers.at {
        return Err(bad_sparse_map());
    }
    Ok(map.placed(numbers.at))
}

/// The map of a sparse file in GNU's old format.
pub(super) struct OldMap {
    /// Bytes of the file.
    pub(super) size: u64,
    pub(super) pieces: Vec<Piece>,
    /// Where the content begins, behind the last block of the map.
    pub(super) content: u64,
}

/// Reads a map in GNU's old format: the header has one, and at `at`, behind it, are as many blocks
/// of it as it needs. The content has `len` bytes. Source: GNU tar's manual, "Old GNU Format".
pub(super) fn old_sparse_map(file: &File, header: &Header, at: u64, len: u64) -> Result<OldMap> {
    let header = header.as_gnu().ok_or_else(bad_sparse_map)?;
    let size = header.real_size()?;
    let mut map = Map::of(size);
    let mut add = |entries: &[GnuSparseHeader]| {
        let mut entries = entries.iter().filter(|entry| !entry.is_empty());
        entries.try_for_each(|entry| {
            // Each piece begins with a block.
            if !map.total.is_multiple_of(usize_as_u64(BLOCK)) && entry.length()? > 0 {
                return Err(bad_sparse_map());
            }
            map.add(entry.offset()?, entry.length()?)
        })
    };
    add(&header.sparse)?;
    let mut content = at;
    let mut is_extended = header.is_extended();
    while is_extended {
        let mut more = GnuExtSparseHeader::new();
        file.read_exact_at(more.as_mut_bytes(), content)?;
        content += usize_as_u64(BLOCK);
        add(more.sparse())?;
        is_extended = more.is_extended();
    }
    if map.total > len {
        return Err(bad_sparse_map());
    }
    Ok(OldMap {
        size,
        pieces: map.placed(content),
        content,
    })
}

/// The pieces of a sparse file while its map is read.
struct Map {
    /// Bytes of the file.
    size: u64,
    /// Each begins, until all are known, where its bytes are among those of all.
    pieces: Vec<Piece>,
    end: u64,
    total: u64,
}

impl Map {
    fn of(size: u64) -> Self {
        Self {
            size,
            pieces: Vec::new(),
            end: 0,
            total: 0,
        }
    }

    fn add(&mut self, offset: u64, len: u64) -> Result<()> {
        if offset < self.end || offset > self.size || len > self.size - offset {
            return Err(bad_sparse_map());
        }
        if len > 0 {
            self.pieces.push(Piece {
                offset,
                len,
                start: self.total,
            });
        }
        self.end = offset + len;
        self.total += len;
        Ok(())
    }

    /// The pieces, whose bytes begin there in the archive.
    fn placed(mut self, begin: u64) -> Vec<Piece> {
        for piece in &mut self.pieces {
            piece.start = piece.start.saturating_add(begin);
        }
        self.pieces
    }
}

/// The numbers of a map, which is read by blocks of 512 bytes.
struct Numbers<'a> {
    file: &'a File,
    /// Where the next block begins.
    at: u64,
    end: u64,
    block: [u8; BLOCK],
    /// Bytes of the block that were taken.
    taken: usize,
}

impl<'a> Numbers<'a> {
    fn new(file: &'a File, start: u64, len: u64) -> Self {
        Self {
            file,
            at: start,
            end: start.saturating_add(len),
            block: [0; BLOCK],
            taken: BLOCK,
        }
    }

    fn next(&mut self) -> Result<u64> {
        let mut number: u64 = 0;
        loop {
            if self.taken == BLOCK {
                if self.end - self.at < usize_as_u64(BLOCK) {
                    return Err(bad_sparse_map());
                }
                self.file.read_exact_at(&mut self.block, self.at)?;
                self.at += usize_as_u64(BLOCK);
                self.taken = 0;
            }
            let byte = self.block[self.taken];
            self.taken += 1;
            number = match byte {
                b'\n' => return Ok(number),
                b'0'..=b'9' => number
                    .checked_mul(10)
                    .and_then(|n| n.checked_add(u64::from(byte - b'0')))
                    .ok_or_else(bad_sparse_map)?,
                _ => return Err(bad_sparse_map()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Reads a map that is padded to a block, with 100 bytes behind it.
    fn pieces(map: &str, size: u64) -> Result<Vec<(u64, u64, u64)>> {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes = map.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(BLOCK) + 100, 0);
        file.write_all(&bytes).unwrap();
        let found = sparse_map(&file, 0, usize_as_u64(bytes.len()), size)?;
        let piece = |piece: &Piece| (piece.offset, piece.len, piece.start);
        Ok(found.iter().map(piece).collect())
    }

    #[test]
    fn the_map_of_a_sparse_file() {
        let found = pieces("3\n10\n5\n100\n3\n200\n0\n", 200).unwrap();
        assert_eq!(found, [(10, 5, 512), (100, 3, 517)]);
        assert_eq!(pieces("0\n", 1 << 60).unwrap(), []);
        for (map, why) in [
            ("", "no number"),
            ("x\n", "no digit"),
            ("99999999999999999999\n", "beyond 64 bits"),
            ("18446744073709551615\n0\n1\n", "more pieces than there are"),
            ("2\n10\n5\n14\n3\n", "one over the other"),
            ("1\n190\n11\n", "beyond the end"),
            ("1\n18446744073709551615\n2\n", "beyond 64 bits in the end"),
            ("1\n0\n101\n", "more bytes than there are"),
        ] {
            assert!(pieces(map, 200).is_err(), "{why}");
        }
    }
}
