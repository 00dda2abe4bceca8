//! The difference between a block and its previous version, and its compression.
//!
//! Source: Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, sections III.B and III.C.
//! The paper compares FastLZ, gzip, LZF, LZ4, LZO and LZW, and takes LZO. The lab compares them too
//! (`dj-fig4`). Volumes have two compressors: LZO, and one that leaves out runs of zeros.

mod lzo;

use stetfs_format::width::must_fit_u16;
use stetfs_scheme::{Result, SchemeError};

/// Sets `out` to the exclusive or of a block and its previous version, and returns the number of
/// bits that differ. All three slices have the same length, a multiple of 8.
pub fn difference(before: &[u8], now: &[u8], out: &mut [u8]) -> u64 {
    stetfs_sys::xor_into(before, now, out)
}

/// A compressor of deltas. Its format must stay readable as long as volumes have it.
pub trait Compressor: Send + Sync {
    /// Returns its name as a mount option.
    fn name(&self) -> &'static str;

    /// Returns its number on the medium.
    fn number(&self) -> u8;

    /// Sets `out` to `delta`, compressed.
    fn compress(&self, delta: &[u8], out: &mut Vec<u8>);

    /// Sets `out`, which is empty, to a delta of `len` bytes. Returns false if
    /// [`compress`](Self::compress) does not make `bytes` of any delta.
    fn decompress(&self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> bool;
}

/// Every compressor; the first is the paper's choice.
pub static COMPRESSORS: [&dyn Compressor; 2] = [&Lzo, &ZeroRuns];

/// Numbers and names of compressors of older versions, which no other compressor may get.
const FORMER: [(u8, &str); 3] = [(2, "lz4"), (3, "zstd"), (4, "deflate")];

/// Returns the compressor with this number on a medium.
///
/// # Errors
/// [`SchemeError::Unusable`]: there is none; the message says what to do.
pub fn compressor(number: u8) -> Result<&'static dyn Compressor> {
    let mut all = COMPRESSORS.into_iter();
    if let Some(found) = all.find(|found| found.number() == number) {
        return Ok(found);
    }
    let mut former = FORMER.into_iter();
    Err(SchemeError::Unusable(
        match former.find(|(theirs, _)| *theirs == number) {
            Some((_, name)) => format!(
                "its region has deltas compressed by {name}, which this stetfs cannot read: mount \
                    and unmount the volume with one that takes compress={name}"
            ),
            None => format!(
                "its region has deltas of compressor {number}, which this stetfs does not know: \
                    mount and unmount the volume with the stetfs that wrote them"
            ),
        },
    ))
}

/// True when an older version had this compressor.
pub fn is_former(name: &str) -> bool {
    FORMER.iter().any(|(_, former)| *former == name)
}

/// LZO1X.
struct Lzo;

impl Compressor for Lzo {
    fn name(&self) -> &'static str {
        "lzo"
    }

    fn number(&self) -> u8 {
        1
    }

    fn compress(&self, delta: &[u8], out: &mut Vec<u8>) {
        lzo::compress(delta, out);
    }

    fn decompress(&self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
        compcol::lzo::block::decode_block(bytes, out, len).is_ok() && out.len() == len
    }
}

/// Leaves out runs of zeros. Its format: pairs of two numbers of 2 bytes, the number of zeros and
/// the number of bytes that follow, and these bytes. Zeros at the end are left out. Up to as many
/// zeros as a pair has bytes are stored like other bytes.
struct ZeroRuns;

/// Bytes of a pair.
const PAIR: usize = 4;

impl Compressor for ZeroRuns {
    fn name(&self) -> &'static str {
        "ranges"
    }

    fn number(&self) -> u8 {
        5
    }

    fn compress(&self, delta: &[u8], out: &mut Vec<u8>) {
        out.clear();
        let mut done = 0;
        while let Some(skip) = delta[done..].iter().position(|byte| *byte != 0) {
            let skip = skip.min(usize::from(u16::MAX));
            let first = done + skip;
            let mut end = first;
            let mut at = first;
            while at < delta.len() && at - first < usize::from(u16::MAX) && at - end <= PAIR {
                at += 1;
                if delta[at - 1] != 0 {
                    end = at;
                }
            }
            out.extend(must_fit_u16(skip).to_le_bytes());
            out.extend(must_fit_u16(end - first).to_le_bytes());
            out.extend_from_slice(&delta[first..end]);
            done = end;
        }
    }

    fn decompress(&self, mut bytes: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
        out.reserve(len);
        while let Some((pair, rest)) = bytes.split_first_chunk::<PAIR>() {
            let [skip, count] = [[pair[0], pair[1]], [pair[2], pair[3]]]
                .map(|number| usize::from(u16::from_le_bytes(number)));
            if count > rest.len() || out.len() + skip + count > len {
                return false;
            }
            out.resize(out.len() + skip, 0);
            out.extend_from_slice(&rest[..count]);
            bytes = &rest[count..];
        }
        out.resize(len, 0);
        bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn deltas() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![4 => Just(0u8), 1 => any::<u8>(), 1 => Just(0xff)];
        let run = (byte, 1..200usize).prop_map(|(byte, n)| vec![byte; n]);
        let noise = proptest::collection::vec(any::<u8>(), 1..100);
        let piece = prop_oneof![3 => run, 1 => noise];
        proptest::collection::vec(piece, 0..60).prop_map(|pieces| {
            let mut all = pieces.concat();
            all.resize(4096, 0);
            all
        })
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(delta in deltas()) {
            for with in COMPRESSORS {
                let mut small = Vec::new();
                with.compress(&delta, &mut small);
                let mut back = Vec::new();
                prop_assert!(with.decompress(&small, delta.len(), &mut back), "{}", with.name());
                prop_assert_eq!(&back, &delta, "{}", with.name());
            }
        }

        #[test]
        fn damage_is_no_panic(
            delta in deltas(),
            at in any::<usize>(),
            bits in 1u8..,
            cut in any::<usize>(),
        ) {
            for with in COMPRESSORS {
                let mut small = Vec::new();
                with.compress(&delta, &mut small);
                if small.is_empty() {
                    continue;
                }
                let at = at % small.len();
                small[at] ^= bits;
                small.truncate(1 + cut % small.len());
                let mut back = Vec::new();
                if with.decompress(&small, delta.len(), &mut back) {
                    prop_assert_eq!(back.len(), delta.len(), "{}", with.name());
                }
            }
        }
    }

    #[test]
    fn numbers_are_for_ever() {
        let numbers = COMPRESSORS.map(|with| (with.number(), with.name()));
        assert_eq!(numbers, [(1, "lzo"), (5, "ranges")]);
        assert_eq!(FORMER, [(2, "lz4"), (3, "zstd"), (4, "deflate")]);
    }

    #[test]
    fn what_cannot_be_read_has_a_name_and_a_way_out() {
        for (number, name) in numbers_not_read() {
            let error = compressor(number).map(drop).expect_err("it is not here");
            let error = error.to_string();
            assert!(error.contains(name) && error.contains("unmount"), "{error}");
        }
        assert!(compressor(1).is_ok() && compressor(5).is_ok());
    }

    fn numbers_not_read() -> impl Iterator<Item = (u8, &'static str)> {
        let unknown = [
            (0, "compressor 0"),
            (6, "compressor 6"),
            (255, "compressor 255"),
        ];
        FORMER.into_iter().chain(unknown)
    }
}
