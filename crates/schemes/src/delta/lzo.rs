//! An LZO1X compressor for differences. Every decompressor of LZO1X can read its output.
//!
//! Source of the format: the kernel's Documentation/staging/lzo.rst. Differences are runs of zeros
//! with other bytes between them. So it finds a run of equal bytes by a look at the byte before,
//! and looks up only other bytes in a table. The table is as small as a block, and costs little to
//! clear. (General compressors clear 32 KiB for each call, which takes them as long as all other
//! work.)

use stetfs_format::width::{low8, must_fit, must_fit_u16, must_fit_u32, u32_as_usize};

/// Entries of the table, as a power of two.
const TABLE_BITS: u32 = 12;
/// Bytes of a key of the table.
const WORD: usize = 4;
/// The longest distance of the short form.
const SHORT_DISTANCE: usize = 2048;
/// The longest distance of the long form.
const MOST_DISTANCE: usize = 16_384;
/// The number of misses after which the step grows by one.
const MISSES_A_STEP: usize = 32;

/// Sets `out` to `input` in LZO1X, with the end mark.
///
/// # Panics
/// It is longer than 64 KiB.
pub(super) fn compress(input: &[u8], out: &mut Vec<u8>) {
    assert!(input.len() <= 1 << 16, "a block of {} bytes", input.len());
    out.clear();
    // An entry that was never stored names place 0, which is compared like any other.
    let mut table = [0u16; 1 << TABLE_BITS];
    let mut writer = Writer {
        out,
        input,
        done: 0,
        last: None,
    };
    let (mut at, mut misses) = (0, 0);
    while let Some(word) = word(input, at) {
        let is_run = word == word.rotate_left(8);
        let from = match is_run {
            true if at > 0 && input[at - 1] == input[at] => Some(at - 1),
            // The next byte starts the copy, with this one as its source.
            true => None,
            false => {
                let hash = word.wrapping_mul(0x9e37_79b1) >> (u32::BITS - TABLE_BITS);
                let entry = &mut table[u32_as_usize(hash)];
                let from = usize::from(std::mem::replace(entry, must_fit_u16(at)));
                let is_same = from < at && self::word(input, from) == Some(word);
                (is_same && at - from <= MOST_DISTANCE).then_some(from)
            }
        };
        let Some(from) = from else {
            misses += usize::from(!is_run);
            at += if is_run {
                1
            } else {
                1 + misses / MISSES_A_STEP
            };
            continue;
        };
        misses = 0;
        let length = WORD + common(input, from + WORD, at + WORD);
        writer.copy(at, at - from, length);
        at += length;
    }
    writer.end();
}

/// Returns the word at `at`; `None` if fewer bytes are left.
fn word(input: &[u8], at: usize) -> Option<u32> {
    let bytes = input.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Returns how many bytes from `second` on equal those from `first` on. `first` is before `second`.
fn common(input: &[u8], first: usize, second: usize) -> usize {
    let (a, b) = (&input[first..], &input[second..]);
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let mut n = 0;
    for (a, b) in words {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return n + u32_as_usize(differ.trailing_zeros()) / 8;
        }
        n += 8;
    }
    let rest = a[n..].iter().zip(&b[n..]);
    n + rest.take_while(|(a, b)| a == b).count()
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    input: &'a [u8],
    /// The number of input bytes that were written.
    done: usize,
    /// The place in the output where the last copy has the number of literals behind it, up to 3.
    last: Option<usize>,
}

impl Writer<'_> {
    /// Writes the literals before `at`, then a copy of `length` bytes from `distance` back.
    fn copy(&mut self, at: usize, distance: usize, length: usize) {
        self.literals(at);
        let far = must_fit_u32(distance - 1);
        if length <= 8 && distance <= SHORT_DISTANCE {
            self.last = Some(self.out.len());
            let first = must_fit_u32(length - 1) << 5 | (far & 7) << 2;
            self.out.extend([low8(first), low8(far >> 3)]);
        } else {
            self.length(0x20, 31, length - 2);
            self.last = Some(self.out.len());
            self.out.extend([low8(far << 2), low8(far >> 6)]);
        }
        self.done = at + length;
    }

    fn literals(&mut self, until: usize) {
        let literals = &self.input[self.done..until];
        match (literals.len(), self.last) {
            (0, _) => return,
            (n @ 1..=238, None) => self.out.push(must_fit(17 + n)),
            (n @ 1..=3, Some(last)) => self.out[last] |= must_fit::<_, u8>(n),
            (n, _) => self.length(0, 15, n - 3),
        }
        self.out.extend_from_slice(literals);
        self.done = until;
    }

    /// Writes a length of at least 1: up to `most` in the byte of `what`, a longer one in bytes of
    /// its own.
    fn length(&mut self, what: u8, most: usize, length: usize) {
        if length <= most {
            self.out.push(what | must_fit::<_, u8>(length));
            return;
        }
        let more = length - most - 1;
        self.out.push(what);
        self.out.resize(self.out.len() + more / 255, 0);
        self.out.push(must_fit(more % 255 + 1));
    }

    fn end(mut self) {
        self.literals(self.input.len());
        self.out.extend([0x11, 0, 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::compress;

    fn round(input: &[u8]) -> Vec<u8> {
        let (mut small, mut back) = (Vec::new(), Vec::new());
        compress(input, &mut small);
        let read = compcol::lzo::block::decode_block(&small, &mut back, input.len());
        assert!(read.is_ok(), "{input:?}: {small:?}");
        assert!(back == input, "{input:?}: {small:?}, {back:?}");
        small
    }

    /// Literals and copies of all lengths at which the form changes, near and far.
    #[test]
    fn every_form_is_read_back() {
        let noise = |n: usize| (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
        for literals in [
            0, 1, 2, 3, 4, 5, 17, 18, 19, 20, 237, 238, 239, 273, 274, 528, 529,
        ] {
            for run in [
                0, 1, 4, 5, 8, 9, 10, 33, 34, 35, 288, 289, 290, 543, 544, 3000,
            ] {
                let run = std::iter::repeat_n(0, run);
                let piece: Vec<u8> = noise(literals).chain(run).collect();
                round(&piece);
                round(&[&[7; 30][..], &piece, &piece].concat());
            }
        }
        let far: Vec<u8> = noise(9)
            .chain(std::iter::repeat_n(0, 20_000))
            .chain(noise(9))
            .collect();
        round(&far);
        for distance in [2047, 2048, 2049, 16_383, 16_384, 16_385] {
            let between = std::iter::repeat_n(0, distance - 9);
            round(&noise(9).chain(between).chain(noise(9)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn runs_cost_a_few_bytes() {
        assert!(round(&[0; 4096]).len() <= 24);
        let mut block = [0; 4096];
        block[1000..1409].fill(0xff);
        assert!(round(&block).len() <= 40);
    }
}
