//! The difference of a block to its previous version, and how small it can be made.
//!
//! Source: Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, sections III.B and III.C.
//! The paper compares FastLZ, gzip, LZF, LZ4, LZO and LZW and takes LZO.

mod lzo;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};
use stetfs_format::width::must_fit_u16;

/// Sets `out` to the difference of a block to its previous version, their exclusive or, and returns
/// in how many bits they differ. All three have the same length, a multiple of 8.
pub fn difference(before: &[u8], now: &[u8], out: &mut [u8]) -> u64 {
    stetfs_sys::xor_into(before, now, out)
}

/// Something that makes deltas small. What it has made, it can undo as long as there are volumes.
pub trait Compressor: Send + Sync {
    /// Its name as a mount option.
    fn name(&self) -> &'static str;

    /// Its number on the medium.
    fn number(&self) -> u8;

    /// Sets `out` to `delta`, compressed.
    fn compress(&self, delta: &[u8], out: &mut Vec<u8>);

    /// Sets `out`, which is empty, to a delta of `len` bytes. False: these bytes are not what
    /// [`compress`](Self::compress) makes of one.
    fn decompress(&self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> bool;
}

/// Every compressor; the first is the paper's choice.
pub static COMPRESSORS: [&dyn Compressor; 5] = [&Lzo, &Lz4, &Zstandard, &Deflate, &ZeroRuns];

/// The compressor with this number.
pub fn compressor(number: u8) -> Option<&'static dyn Compressor> {
    COMPRESSORS
        .into_iter()
        .find(|found| found.number() == number)
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

/// LZ4's block format.
struct Lz4;

impl Compressor for Lz4 {
    fn name(&self) -> &'static str {
        "lz4"
    }

    fn number(&self) -> u8 {
        2
    }

    fn compress(&self, delta: &[u8], out: &mut Vec<u8>) {
        out.resize(lz4_flex::block::get_maximum_output_size(delta.len()), 0);
        let made = lz4_flex::block::compress_into(delta, out);
        out.truncate(made.expect("there is room for whatever comes out"));
    }

    fn decompress(&self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
        out.resize(len, 0);
        lz4_flex::block::decompress_into(bytes, out).is_ok_and(|made| made == len)
    }
}

/// Zstandard at its quickest ordinary level.
struct Zstandard;

impl Compressor for Zstandard {
    fn name(&self) -> &'static str {
        "zstd"
    }

    fn number(&self) -> u8 {
        3
    }

    fn compress(&self, delta: &[u8], out: &mut Vec<u8>) {
        let made = zstd::bulk::compress(delta, 1);
        *out = made.expect("memory is all that it takes");
    }

    fn decompress(&self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
        let made = zstd::bulk::decompress(bytes, len);
        made.is_ok_and(|made| {
            *out = made;
            out.len() == len
        })
    }
}

/// Deflate without gzip's frame, at level 6 as gzip has it.
struct Deflate;

impl Compressor for Deflate {
    fn name(&self) -> &'static str {
        "deflate"
    }

    fn number(&self) -> u8 {
        4
    }

    fn compress(&self, delta: &[u8], out: &mut Vec<u8>) {
        *out = miniz_oxide::deflate::compress_to_vec(delta, 6);
    }

    fn decompress(&self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
        out.resize(len, 0);
        let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let mut state = DecompressorOxide::new();
        let (status, _, made) = decompress(&mut state, bytes, out, 0, flags);
        status == TINFLStatus::Done && made == len
    }
}

/// Runs of zeros left out: pairs of two numbers of 2 bytes, how many zeros and how many bytes
/// follow, and these bytes. Zeros at the end are not named. A gap of fewer zeros than a pair costs
/// is not worth one.
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
        let expected = [
            (1, "lzo"),
            (2, "lz4"),
            (3, "zstd"),
            (4, "deflate"),
            (5, "ranges"),
        ];
        assert_eq!(numbers, expected);
    }
}
