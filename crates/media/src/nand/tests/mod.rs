//! The parts against an independent model, and every rule of theirs broken once.

mod chance;
mod crash;
mod device;
mod file;
mod misuse;
mod model;
mod units;

use super::*;
use crate::tag::{Cause, Class, Tag};

const TAG: Tag = Tag::new(Class::Data, Cause::Home);

/// JFTL's part without flaws, with 6 blocks of 4 pages.
const SMALL: NandPart = NandPart {
    geometry: NandGeometry {
        pages_per_block: 4,
        blocks: 6,
        ..parts::JFTL.geometry
    },
    ..parts::JFTL.flawless()
};

/// Makes a directory for files, in memory if possible, because closing a part waits for its medium.
fn directory() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}

/// Returns the data and spare area that belong to a number and to no other; leaves the bad block
/// mark alone.
fn content(part: &NandPart, n: u64) -> (Vec<u8>, Vec<u8>) {
    let bytes = |len: u32, salt: u64| -> Vec<u8> {
        let byte = |i: u64| crate::sim::scramble(n << 20 ^ salt ^ i).to_le_bytes()[3];
        (0..u64::from(len)).map(byte).collect()
    };
    let mut spare = bytes(part.geometry.spare_bytes, 1 << 60);
    spare[part.geometry.bad_mark as usize] = 0xff;
    (bytes(part.geometry.page_bytes, 0), spare)
}

/// Programs a page with the content that belongs to `n`.
fn program(nand: &impl Nand, part: &NandPart, page: u32, n: u64) -> Result<(), NandError> {
    let (data, spare) = content(part, n);
    nand.program(PageNo(page), &data, &spare, TAG)
}

/// The result of a read, with the bytes even if it is an error.
struct Read {
    result: Result<Corrected, NandError>,
    data: Vec<u8>,
    spare: Vec<u8>,
}

fn read(nand: &impl Nand, page: u32) -> Read {
    let geometry = nand.geometry();
    let mut data = vec![0x5a; geometry.page_bytes as usize];
    let mut spare = vec![0x5a; geometry.spare_bytes as usize];
    let result = nand.read(PageNo(page), &mut data, &mut spare, TAG);
    Read {
        result,
        data,
        spare,
    }
}

impl Read {
    fn is(&self, expected: &(Vec<u8>, Vec<u8>)) -> bool {
        (&self.data, &self.spare) == (&expected.0, &expected.1)
    }

    fn is_erased(&self) -> bool {
        self.result == Ok(Corrected::default())
            && self.data.iter().chain(&self.spare).all(|b| *b == 0xff)
    }
}
