//! Chance: which blocks are bad, when other blocks go bad, and which bits are wrong.
//!
//! Everything is a function of the part's seed and of what happened to the block. So the same
//! requests have the same luck, also when a part is rebuilt from its tape, and a page that was read
//! wrong is read wrong again. The code uses only additions, multiplications and divisions of IEEE
//! numbers, which are the same on every machine.
//!
//! | what | rule |
//! |---|---|
//! | bad from the factory, or bad before the endurance is reached | a draw for each block against the part's shares. A block that goes bad early also draws an erase count, evenly from 1 to the endurance, and whether from then on erasing fails or programming one of the pages |
//! | bad after the endurance E | at n erases, erasing fails with a chance of 0.7 (n - E) / E^2; programming the pages, taken together, fails with the same chance. Of the blocks that live to E, one half lives to 2 E |
//! | wrong bits of a codeword | Poisson's distribution with the mean bits * rate; the draw is fixed while the page is programmed, the rate rises |
//! | rate of wrong bits | fresh + (worn - fresh) w^2 + disturb w r, where w = erases / E, and r counts the reads of the block since its erase |
//!
//! Measurements show that errors grow with the erases, and in proportion to reads, the more steeply
//! the more a block is worn (Mielke and others, IRPS 2008; Cai and others, DSN 2015). The square,
//! and the rule for the time after the endurance, are this model's.

use stetfs_format::nand::NandPart;
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_format::width::{low32, nearest_f64, u64_as_usize, usize_as_u64};

use crate::sim::scramble;

/// The kinds of draws; each is independent of the others.
#[derive(Clone, Copy)]
pub(super) enum Draw {
    Life = 1,
    LifeErases,
    LifePage,
    EraseFails,
    ProgramFails,
    WrongBits,
    WrongBitAt,
    Tear,
    Deceived,
    HalfErased,
}

impl Draw {
    #[expect(
        clippy::as_conversions,
        reason = "the discriminant is a part of the seed"
    )]
    const fn number(self) -> u64 {
        self as u64
    }
}

/// Returns 64 random bits, always the same for the same arguments.
pub(super) fn draw(seed: u64, what: Draw, of: [u64; 3]) -> u64 {
    of.into_iter()
        .fold(scramble(seed ^ what.number() << 56), |x, n| scramble(x ^ n))
}

/// Returns the bits of [`draw`] as a number from 0 up to, but not including, 1.
fn draw_unit(seed: u64, what: Draw, of: [u64; 3]) -> f64 {
    nearest_f64(draw(seed, what, of) >> 11) / nearest_f64(1u64 << 53)
}

/// The fate of a block from its birth.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    FactoryBad,
    Early,
    Full,
}

fn life(part: &NandPart, block: BlockAddr) -> Life {
    let wear = &part.wear;
    let lot = draw(part.seed, Draw::Life, [block.0.into(), 0, 0]) % 1_000_000;
    let factory = u64::from(wear.factory_bad_ppm);
    if lot < factory && block.0 != 0 {
        Life::FactoryBad
    } else if (factory..factory + u64::from(wear.early_bad_ppm)).contains(&lot) {
        Life::Early
    } else {
        Life::Full
    }
}

/// Whether a block is bad from the factory.
pub(super) fn is_factory_bad(part: &NandPart, block: BlockAddr) -> bool {
    life(part, block) == Life::FactoryBad
}

/// What can no longer be done in a block whose short life has ended: erase it, or program this
/// page.
enum End {
    Erase,
    Page(u32),
}

fn early_end(part: &NandPart, block: BlockAddr, erases: u32) -> Option<End> {
    if life(part, block) != Life::Early {
        return None;
    }
    let of = [block.0.into(), 0, 0];
    let endurance = u64::from(part.wear.endurance_erases);
    let last = 1 + draw(part.seed, Draw::LifeErases, of) % endurance;
    if u64::from(erases) < last {
        return None;
    }
    let lot = draw(part.seed, Draw::LifePage, of);
    Some(if lot & 1 == 0 {
        End::Erase
    } else {
        End::Page(low32((lot >> 1) % u64::from(part.geometry.pages_per_block)))
    })
}

/// Returns the chance that an erase, or programming all pages, fails in a block with this many
/// erases.
fn worn_out(part: &NandPart, erases: u32) -> f64 {
    let endurance = f64::from(part.wear.endurance_erases);
    let beyond = f64::from(erases.saturating_sub(part.wear.endurance_erases));
    0.7 * beyond / endurance / endurance
}

/// Whether the `erases`-th erase of the block fails.
pub(super) fn erase_fails(part: &NandPart, block: BlockAddr, erases: u32) -> bool {
    let worn_out = worn_out(part, erases);
    let of = [block.0.into(), erases.into(), 0];
    matches!(early_end(part, block, erases), Some(End::Erase))
        || (worn_out > 0.0 && draw_unit(part.seed, Draw::EraseFails, of) < worn_out)
}

/// Whether programming a page fails in a block with this many erases.
pub(super) fn program_fails(part: &NandPart, page: PageNo, erases: u32) -> bool {
    let geometry = &part.geometry;
    let worn_out = worn_out(part, erases) / f64::from(geometry.pages_per_block);
    let of = [page.0.into(), erases.into(), 0];
    let early = early_end(part, geometry.block_of(page), erases);
    matches!(early, Some(End::Page(index)) if index == geometry.index_of(page))
        || (worn_out > 0.0 && draw_unit(part.seed, Draw::ProgramFails, of) < worn_out)
}

/// A page as it was programmed, and what has happened to it since.
#[derive(Clone, Copy)]
pub(super) struct Aged {
    pub(super) page: PageNo,
    /// Erases of its block.
    pub(super) erases: u32,
    /// Reads of its block since the last erase.
    pub(super) reads: u32,
}

impl Aged {
    /// The share of wrong bits.
    fn rate(self, part: &NandPart) -> f64 {
        let per_bit = |per_pbit: u64| nearest_f64(per_pbit) / 1e15;
        let wear = &part.wear;
        let fresh = per_bit(wear.fresh_errors_per_pbit);
        let worn = per_bit(wear.worn_errors_per_pbit);
        let disturb = per_bit(wear.disturb_errors_per_pbit);
        let w = f64::from(self.erases) / f64::from(wear.endurance_erases);
        let rate = fresh + (worn - fresh) * w * w + disturb * w * f64::from(self.reads);
        rate.clamp(0.0, 0.5)
    }

    /// How many bits are wrong in codeword `index` of the page, which has `bits` bits.
    pub(super) fn wrong_bits(self, part: &NandPart, index: u32, bits: u32) -> u32 {
        let mean = self.rate(part) * f64::from(bits);
        if mean == 0.0 {
            return 0;
        }
        let of = [self.page.0.into(), self.erases.into(), index.into()];
        poisson(mean, draw_unit(part.seed, Draw::WrongBits, of)).min(bits)
    }

    /// Flips `count` bits of a codeword. They are always the same ones; a greater count adds more.
    pub(super) fn flip(self, part: &NandPart, index: u32, count: u32, codeword: &mut [u8]) {
        let of = [self.page.0.into(), self.erases.into(), index.into()];
        let lot = draw(part.seed, Draw::WrongBitAt, of);
        let bits = usize_as_u64(codeword.len()) * 8;
        let mut step = lot >> 32 | 1;
        while gcd(step, bits) != 1 {
            step += 2;
        }
        for n in 0..u64::from(count) {
            let bit = u64_as_usize(lot.wrapping_add(n.wrapping_mul(step)) % bits);
            codeword[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Makes of `bytes` what an interrupted program leaves: some of the zeros are missing. The
    /// result always differs from `bytes`.
    pub(super) fn tear(self, part: &NandPart, area: u64, bytes: &mut [u8]) {
        let of = |n: u64| [self.page.0.into(), self.erases.into(), area << 32 | n];
        let lot = |n: u64| draw(part.seed, Draw::Tear, of(n));
        let mut same = true;
        for (n, piece) in (0u64..).zip(bytes.chunks_mut(8)) {
            for (byte, more) in piece.iter_mut().zip(lot(n).to_le_bytes()) {
                same &= more & !*byte == 0;
                *byte |= more;
            }
        }
        if same {
            let at = u64_as_usize(lot(0) % usize_as_u64(bytes.len()));
            bytes[at] ^= 1;
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the number below which the share `u` of a Poisson distribution lies. It never falls when
/// the mean rises.
fn poisson(mean: f64, u: f64) -> u32 {
    // So far above any code's strength, the deviation from the mean (one part in twenty) does not
    // matter.
    if mean > 400.0 {
        #[expect(
            clippy::as_conversions,
            reason = "rounds down, and at most to `u32::MAX`"
        )]
        return mean as u32;
    }
    let mut chance = exp_negative(mean);
    let mut below = chance;
    let mut count = 0;
    // Rounding can leave the sum below a share near 1; then further terms add nothing.
    while below <= u && (f64::from(count) < mean || below + chance > below) {
        count += 1;
        chance *= mean / f64::from(count);
        below += chance;
    }
    count
}

/// Returns e^-x for x from 0 to 400, to nine digits: the series for x / 1024, squared ten times.
fn exp_negative(x: f64) -> f64 {
    let y = x / 1024.0;
    let mut term = 1.0;
    let mut sum = 1.0;
    for n in 1..12 {
        term *= -y / f64::from(n);
        sum += term;
    }
    (0..10).fold(sum, |power, _| power * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_and_distribution() {
        for x in [0.0, 1e-12, 0.3, 1.0, 4.32, 50.0, 399.0_f64] {
            let (ours, theirs) = (exp_negative(x), (-x).exp());
            assert!((ours / theirs - 1.0).abs() < 1e-9, "{x}: {ours} {theirs}");
        }
        // A share of 1 - e^-m (1 + m) of the draws has two or more.
        let mean = 0.5_f64;
        let at_least_two = 1.0 - (-mean).exp() * (1.0 + mean);
        assert_eq!(poisson(mean, 1.0 - at_least_two - 1e-9), 1);
        assert_eq!(poisson(mean, 1.0 - at_least_two + 1e-9), 2);
        assert_eq!(poisson(mean, 0.0), 0);
        let near_one = 1.0 - f64::EPSILON;
        assert!((500..700).contains(&poisson(399.0, near_one)));
        assert!((2..5).contains(&poisson(1e-6, near_one)));
        assert_eq!(poisson(1e5, 0.3), 100_000);
    }

    #[test]
    fn more_errors_with_the_same_luck_are_the_same_and_others() {
        let part = crate::nand::parts::MLC;
        let aged = Aged {
            page: PageNo(77),
            erases: 3,
            reads: 0,
        };
        for len in [1, 448, 1024] {
            let [mut few, mut all] = [vec![0_u8; len], vec![0_u8; len]];
            aged.flip(&part, 2, 7, &mut few);
            aged.flip(&part, 2, len as u32 * 8, &mut all);
            assert_eq!(few.iter().map(|b| b.count_ones()).sum::<u32>(), 7);
            assert!(all.iter().all(|b| *b == 0xff));
        }
    }

    #[test]
    fn what_is_torn_is_not_what_it_was() {
        let part = crate::nand::parts::JFTL;
        for byte in 0..=255 {
            for (page, len) in [(1, 1), (2, 16), (3, 512)] {
                let aged = Aged {
                    page: PageNo(page),
                    erases: 3,
                    reads: 0,
                };
                let mut bytes = vec![byte; len];
                aged.tear(&part, 0, &mut bytes);
                assert_ne!(bytes, vec![byte; len]);
            }
        }
    }
}
