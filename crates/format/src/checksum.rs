//! The three checksums of ext4 and JBD2, and the longer one of stetfs's own logs.
//!
//! All are chained the kernel's way: the result of one call is the seed of the
//! next, nothing is inverted at the start or the end.
//!
//! Under `cfg(fuzzing)`, which cargo-fuzz sets, every checksum is the same, so that a fuzzer
//! reaches the code behind the checks. A finding may then not show with real checksums; but an
//! attacker can compute those.

use crc_fast::{CrcAlgorithm, Digest};

use crate::width::{low32, must_fit_u16};

/// CRC-32C (Castagnoli) of `bytes` as the kernel's `crc32c(seed, ...)`: the
/// checksum of `metadata_csum` and of JBD2's checksums v2 and v3.
#[inline]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    if cfg!(fuzzing) {
        return 0x5a5a;
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, seed.into());
    digest.update(bytes);
    !low32(digest.finalize())
}

/// Returns the value to XOR with a content's [`crc32c`] when a part of the content changes from
/// `old` to `new` and `behind` bytes follow that part.
///
/// The checksum is linear. If two contents differ in one part, their checksums differ by the
/// checksum of the difference with zeros behind it, whatever the rest is. Each zero bit multiplies
/// it by x. This takes 30 ns; a checksum of 4 KiB that are not in the processor's cache takes ten
/// times as long.
///
/// # Panics
/// When `old` and `new` differ in length.
pub fn crc32c_change(old: &[u8], new: &[u8], behind: usize) -> u32 {
    assert_eq!(old.len(), new.len(), "a change of length");
    if cfg!(fuzzing) {
        return 0;
    }
    let mut difference = 0;
    for (old, new) in old.chunks(64).zip(new.chunks(64)) {
        let mut bytes = [0; 64];
        let differences = old.iter().zip(new).map(|(a, b)| a ^ b);
        bytes
            .iter_mut()
            .zip(differences)
            .for_each(|(to, d)| *to = d);
        difference = crc32c(difference, &bytes[..old.len()]);
    }
    let mut behind = behind;
    while behind >= POWERS * POWERS {
        difference = multiplied(difference, X_LONG[POWERS - 1]);
        behind -= (POWERS - 1) * POWERS;
    }
    let difference = multiplied(difference, X_LONG[behind / POWERS]);
    multiplied(difference, X_SHORT[behind % POWERS])
}

/// The Castagnoli polynomial, reflected as its checksums are: the highest bit is the coefficient
/// of 1.
const CASTAGNOLI: u32 = 0x82f6_3b78;
/// Powers of x in each of two tables.
const POWERS: usize = 64;
/// x^8n.
const X_SHORT: [u32; POWERS] = powers(8);
/// x^8n for multiples of [`POWERS`].
const X_LONG: [u32; POWERS] = powers(8 * POWERS);

/// The powers of x whose exponents are multiples of `bits`, from x^0 on.
const fn powers(bits: usize) -> [u32; POWERS] {
    let mut table = [1 << 31; POWERS];
    let mut i = 1;
    while i < POWERS {
        let (mut power, mut bit) = (table[i - 1], 0);
        while bit < bits {
            power = times_x(power);
            bit += 1;
        }
        table[i] = power;
        i += 1;
    }
    table
}

const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (CASTAGNOLI & 0u32.wrapping_sub(a & 1))
}

/// The product of two polynomials modulo Castagnoli's.
fn multiplied(a: u32, b: u32) -> u32 {
    let (mut product, mut b) = (0, b);
    for bit in (0..32).rev() {
        product ^= b & 0u32.wrapping_sub(a >> bit & 1);
        b = times_x(b);
    }
    product
}

/// CRC-32 (polynomial 0x04c11db7, most significant bit first) as the kernel's
/// `crc32_be(seed, ...)`: JBD2's checksum v1 of a whole transaction.
#[inline]
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    if cfg!(fuzzing) {
        return 0x5a5a;
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Mpeg2, seed.into());
    digest.update(bytes);
    low32(digest.finalize())
}

/// CRC-64 (the NVMe specification's polynomial): the checksum of stetfs's own logs.
#[inline]
pub fn crc64(seed: u64, bytes: &[u8]) -> u64 {
    if cfg!(fuzzing) {
        return 0x5a5a;
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, seed);
    digest.update(bytes);
    !digest.finalize()
}

/// CRC-16 (polynomial 0x8005 reflected) as the kernel's `crc16(seed, ...)`:
/// the descriptor checksum of `gdt_csum`.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    if cfg!(fuzzing) {
        return 0x5a5a;
    }
    bytes.iter().fold(seed, |crc, &byte| {
        (crc >> 8) ^ CRC16_TABLE[usize::from((crc ^ u16::from(byte)) & 0xff)]
    })
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = must_fit_u16(i);
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xa001
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, straight from the polynomial.
    fn crc32c_by_bits(seed: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(seed, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                if crc & 1 == 1 {
                    (crc >> 1) ^ 0x82f6_3b78
                } else {
                    crc >> 1
                }
            })
        })
    }

    #[test]
    fn a_change_is_told_without_the_rest() {
        let mut bytes: Vec<u8> = (0..9000u32).map(|i| (i * i % 251) as u8).collect();
        for (seed, at, len) in [(0, 0, 1), (7, 8999, 1), (u32::MAX, 4000, 200), (9, 17, 64)] {
            for end in [at + len, 4300, 9000] {
                let end = end.max(at + len);
                let before = crc32c(seed, &bytes[..end]);
                let old = bytes[at..at + len].to_vec();
                bytes[at..at + len].iter_mut().for_each(|b| *b ^= 0x5a);
                let change = crc32c_change(&old, &bytes[at..at + len], end - at - len);
                assert_eq!(
                    before ^ change,
                    crc32c(seed, &bytes[..end]),
                    "{at} {len} {end}"
                );
            }
        }
    }

    fn crc32_be_by_bits(seed: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(seed, |crc, &byte| {
            (0..8).fold(crc ^ (u32::from(byte) << 24), |crc, _| {
                if crc >> 31 == 1 {
                    (crc << 1) ^ 0x04c1_1db7
                } else {
                    crc << 1
                }
            })
        })
    }

    #[test]
    fn published_check_values() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7); // CRC-32/MPEG-2
        assert_eq!(crc16(0, b"123456789"), 0xbb3d); // CRC-16/ARC
        assert_eq!(!crc64(!0, b"123456789"), 0xae8b_1486_0a79_9888); // CRC-64/NVME
        assert_eq!(crc64(crc64(5, b"1234"), b"56789"), crc64(5, b"123456789"));
    }

    #[test]
    fn every_length_and_seed_like_bit_by_bit() {
        let bytes: Vec<u8> = (0..1024u32).map(|i| ((i * 37) >> 3) as u8).collect();
        for length in (0..300).chain([511, 512, 1000, 1024]) {
            for seed in [0, 1, !0, 0x1234_5678] {
                assert_eq!(
                    crc32c(seed, &bytes[..length]),
                    crc32c_by_bits(seed, &bytes[..length])
                );
                assert_eq!(
                    crc32_be(seed, &bytes[..length]),
                    crc32_be_by_bits(seed, &bytes[..length])
                );
            }
        }
    }

    #[test]
    fn checksums_chain() {
        let (a, b) = (b"hello, ".as_slice(), b"world".as_slice());
        let whole = [a, b].concat();
        assert_eq!(crc32c(crc32c(7, a), b), crc32c(7, &whole));
        assert_eq!(crc32_be(crc32_be(7, a), b), crc32_be(7, &whole));
        assert_eq!(crc16(crc16(7, a), b), crc16(7, &whole));
    }
}
