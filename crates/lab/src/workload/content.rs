//! Content to be written: cheap, the same for a seed, and no word is like the one that it
//! overwrites.
//!
//! iozone writes the same pattern in every pass. A scheme that compares a block with its old
//! content would then have nothing to log, which the benchmark does not mean to measure. So here
//! each pass has content of its own.

use stetfs_testkit::rng::Rng;

/// Bytes of the pool, beside the longest piece.
const POOL: usize = 1 << 20;
/// Bytes of a word, the unit that schemes compare.
const WORD: usize = 8;

/// A pool of random words, from which pieces are taken.
pub struct Content {
    pool: Vec<u8>,
    longest: usize,
    rng: Rng,
}

impl Content {
    /// Makes a pool for pieces of at most `longest` bytes.
    pub fn new(seed: u64, longest: usize) -> Self {
        let mut rng = Rng::new(seed);
        let mut pool = vec![0; POOL + longest.next_multiple_of(WORD)];
        rng.fill(&mut pool);
        Self { pool, longest, rng }
    }

    /// Returns a piece of `len` bytes for this pass. In the pass before and after, the word at the
    /// same place is another one, because pieces of odd passes begin at odd words.
    ///
    /// # Panics
    /// It is longer than the longest.
    pub fn piece(&mut self, pass: u64, len: usize) -> &[u8] {
        assert!(len <= self.longest, "{len} bytes of {}", self.longest);
        let pairs = (POOL / WORD / 2) as u64;
        let word = 2 * self.rng.below(pairs) + pass % 2;
        let at = word as usize * WORD;
        &self.pool[at..at + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_stays_as_it_was() {
        let mut content = Content::new(7, 4096);
        for _ in 0..200 {
            let old = content.piece(0, 4096).to_vec();
            let new = content.piece(1, 4096);
            assert!(old.chunks(8).zip(new.chunks(8)).all(|(a, b)| a != b));
        }
        assert_eq!(
            Content::new(7, 64).piece(0, 64),
            Content::new(7, 64).piece(0, 64)
        );
    }
}
