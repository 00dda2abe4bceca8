//! The seeded generator, for the distributions of `rand_distr`.

use std::convert::Infallible;

use rand::TryRng;
use stetfs_testkit::rng::Rng;

/// Draws from a generator.
pub(super) struct Dice<'r>(pub(super) &'r mut Rng);

impl TryRng for Dice<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.0.next_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(out);
        Ok(())
    }
}
