//! The maps of sparse files in archives: which runs of bytes an archive has of a file. What is
//! between them is a hole.

use std::fs::File;
use std::os::unix::fs::FileExt;

use stetfs_format::width::usize_as_u64;

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

/// The pieces of a sparse file while its map is read.
pub(super) struct Map {
    /// Bytes of the file.
    size: u64,
    /// Each begins, until all are known, where its bytes are among those of all.
    pieces: Vec<Piece>,
    end: u64,
    total: u64,
}

impl Map {
    pub(super) fn of(size: u64) -> Self {
        Self {
            size,
            pieces: Vec::new(),
            end: 0,
            total: 0,
        }
    }

    pub(super) fn add(&mut self, offset: u64, len: u64) -> Result<()> {
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
    pub(super) fn placed(mut self, begin: u64) -> Vec<Piece> {
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
