//! The hashes that order the entries of an indexed directory.
//!
//! Source: kernel `Documentation/filesystems/ext4/directory.rst` ("Hash Tree
//! Directories") and its `fs/ext4/hash.c` for what the hashes are; half MD4 is a
//! shortened RFC 1320, TEA the Tiny Encryption Algorithm of Wheeler and Needham.

use crate::width::{low32, usize_as_u64};

/// The largest hash, halved: it means the end of a directory and is never given to a name.
const EOF_32BIT: u32 = 0x7fff_ffff;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashVersion {
    /// The first; weak.
    Legacy,
    /// MD4 with three rounds of eight; the default.
    HalfMd4,
    /// The Tiny Encryption Algorithm.
    Tea,
}

impl HashVersion {
    /// `hash_version` in a hash tree's root and `s_def_hash_version`. The codes 3 to
    /// 5, which say "unsigned" and exist in memory only, are accepted as 0 to 2.
    pub const fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            0 | 3 => Self::Legacy,
            1 | 4 => Self::HalfMd4,
            2 | 5 => Self::Tea,
            _ => return None,
        })
    }

    /// The code on disk.
    #[expect(
        clippy::as_conversions,
        reason = "the discriminants are the codes on disk"
    )]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// How a volume hashes the names of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher {
    /// The function.
    pub version: HashVersion,
    /// Characters are taken as unsigned: see
    /// [`Superblock::unsigned_hash`](crate::Superblock::unsigned_hash).
    pub unsigned: bool,
    /// `s_hash_seed`; all zero means the seed of MD4.
    pub seed: [u32; 4],
}

/// The hash of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirHash {
    /// Orders the entries; its lowest bit is 0.
    pub major: u32,
    /// Tells most names of one `major` apart; 0 with [`HashVersion::Legacy`].
    pub minor: u32,
}

impl Hasher {
    /// The hash of `name`.
    pub fn hash(&self, name: &[u8]) -> DirHash {
        let (major, minor) = match self.version {
            HashVersion::Legacy => (self.legacy(name), 0),
            HashVersion::HalfMd4 => self.half_md4(name),
            HashVersion::Tea => self.tea(name),
        };
        let mut major = major & !1;
        if major == EOF_32BIT << 1 {
            major = (EOF_32BIT - 1) << 1;
        }
        DirHash { major, minor }
    }

    fn character(&self, byte: u8) -> u32 {
        if self.unsigned {
            byte.into()
        } else {
            i32::from(byte.cast_signed()).cast_unsigned()
        }
    }

    fn seed(&self) -> [u32; 4] {
        if self.seed != [0; 4] {
            return self.seed;
        }
        [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut hash0, mut hash1) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for &byte in name {
            let mixed = hash0 ^ self.character(byte).wrapping_mul(7_152_373);
            let mut hash = hash1.wrapping_add(mixed);
            if hash & 0x8000_0000 != 0 {
                hash = hash.wrapping_sub(0x7fff_ffff);
            }
            hash1 = hash0;
            hash0 = hash;
        }
        hash0 << 1
    }

    fn half_md4(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.seed();
        for start in (0..name.len()).step_by(32) {
            half_md4_transform(&mut state, &self.words::<8>(&name[start..]));
        }
        (state[1], state[2])
    }

    fn tea(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.seed();
        for start in (0..name.len()).step_by(16) {
            tea_transform(&mut state, &self.words::<4>(&name[start..]));
        }
        (state[0], state[1])
    }

    /// The first `4 * N` bytes of `rest` as big-endian words, padded with words made of the length
    /// of `rest`.
    fn words<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let length = low32(usize_as_u64(rest.len()));
        let pad = length | length << 8;
        let pad = pad | pad << 16;
        let mut words = [pad; N];
        for (word, characters) in words.iter_mut().zip(rest.chunks(4)) {
            *word = characters.iter().fold(pad, |value, &byte| {
                self.character(byte).wrapping_add(value << 8)
            });
        }
        words
    }
}

fn half_md4_transform(state: &mut [u32; 4], input: &[u32; 8]) {
    const K2: u32 = 0x5a82_7999;
    const K3: u32 = 0x6ed9_eba1;
    let choose = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    let mut s = *state;
    // Each step changes one word and rotates the four by one place.
    let mut step = |f: &dyn Fn(u32, u32, u32) -> u32, word: u32, shift: u32| {
        let [a, b, c, d] = s;
        let mixed = a
            .wrapping_add(f(b, c, d))
            .wrapping_add(word)
            .rotate_left(shift);
        s = [d, mixed, b, c];
    };
    for (i, shift) in [0, 1, 2, 3, 4, 5, 6, 7]
        .into_iter()
        .zip([3, 7, 11, 19].into_iter().cycle())
    {
        step(&choose, input[i], shift);
    }
    for (i, shift) in [1, 3, 5, 7, 0, 2, 4, 6]
        .into_iter()
        .zip([3, 5, 9, 13].into_iter().cycle())
    {
        step(&majority, input[i].wrapping_add(K2), shift);
    }
    for (i, shift) in [3, 7, 2, 6, 1, 5, 0, 4]
        .into_iter()
        .zip([3, 9, 11, 15].into_iter().cycle())
    {
        step(&parity, input[i].wrapping_add(K3), shift);
    }
    for (word, mixed) in state.iter_mut().zip(s) {
        *word = word.wrapping_add(mixed);
    }
}

fn tea_transform(state: &mut [u32; 4], input: &[u32; 4]) {
    let [a, b, c, d] = *input;
    let (mut b0, mut b1, mut sum) = (state[0], state[1], 0u32);
    let mix = |half: u32, sum: u32, left: u32, right: u32| {
        (half << 4).wrapping_add(left) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(right)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        b0 = b0.wrapping_add(mix(b1, sum, a, b));
        b1 = b1.wrapping_add(mix(b0, sum, c, d));
    }
    state[0] = state[0].wrapping_add(b0);
    state[1] = state[1].wrapping_add(b1);
}
