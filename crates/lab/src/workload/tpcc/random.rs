//! The random values of TPC-C, clauses 2.1.6 and 4.3.2.

use serde::Serialize;

use stetfs_testkit::rng::Rng;

/// The constants of NURand in a run (clause 2.1.6.1): one for each use, in the load and in the
/// transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Constants {
    /// C for last names while loading.
    pub last_load: u64,
    /// C for last names in transactions: 65 to 119 away from it, but neither 96 nor 112.
    pub last_run: u64,
    /// C for customers.
    pub customer: u64,
    /// C for items.
    pub item: u64,
}

/// A for last names.
pub(crate) const A_LAST: u64 = 255;
/// A for customers.
pub(crate) const A_CUSTOMER: u64 = 1023;
/// A for items.
pub(crate) const A_ITEM: u64 = 8191;

impl Constants {
    /// Draws the constants from a seed.
    pub fn draw(rng: &mut Rng) -> Self {
        let last_load = rng.below(A_LAST + 1);
        let last_run = loop {
            let c = rng.below(A_LAST + 1);
            if is_valid_delta(c.abs_diff(last_load)) {
                break c;
            }
        };
        Self {
            last_load,
            last_run,
            customer: rng.below(A_CUSTOMER + 1),
            item: rng.below(A_ITEM + 1),
        }
    }
}

/// Whether C for last names may change by this much between the load and the run.
pub(crate) fn is_valid_delta(delta: u64) -> bool {
    (65..=119).contains(&delta) && delta != 96 && delta != 112
}

/// A random number in `from..=to`.
pub(crate) fn uniform(rng: &mut Rng, from: u64, to: u64) -> u64 {
    from + rng.below(to - from + 1)
}

/// The non-uniform random number NURand(A, x, y) with the constant `c` (clause 2.1.6).
pub(crate) fn nurand(rng: &mut Rng, a: u64, c: u64, x: u64, y: u64) -> u64 {
    let mixed = uniform(rng, 0, a) | uniform(rng, x, y);
    (mixed + c) % (y - x + 1) + x
}

/// The last name of a number of 0 to 999 (clause 4.3.2.3).
pub(crate) fn last_name(number: u64) -> String {
    const SYLLABLES: [&str; 10] = [
        "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING",
    ];
    [number / 100, number / 10 % 10, number % 10]
        .map(|digit| SYLLABLES[digit as usize])
        .concat()
}

/// Random letters and digits, `from..=to` of them (clause 4.3.2.2).
pub(crate) fn a_string(rng: &mut Rng, from: u64, to: u64) -> String {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let len = uniform(rng, from, to);
    let letters = (0..len).map(|_| char::from(ALPHABET[rng.below(62) as usize]));
    letters.collect()
}

/// Random digits, `len` of them.
pub(crate) fn n_string(rng: &mut Rng, len: u64) -> String {
    let digits = (0..len).map(|_| char::from(b'0' + rng.below(10) as u8));
    digits.collect()
}

/// A ZIP code (clause 4.3.2.7).
pub fn zip(rng: &mut Rng) -> String {
    n_string(rng, 4) + "11111"
}

/// Random text about an item: one in ten is original (clause 4.3.3.1).
pub(crate) fn item_data(rng: &mut Rng) -> String {
    const ORIGINAL: &str = "ORIGINAL";
    let mut data = a_string(rng, 26, 50);
    if rng.chance(10) {
        let at = rng.below((data.len() - ORIGINAL.len() + 1) as u64) as usize;
        data.replace_range(at..at + ORIGINAL.len(), ORIGINAL);
    }
    data
}

/// A random order of `1..=n`.
pub(crate) fn permutation(rng: &mut Rng, n: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (1..=n).collect();
    shuffle(rng, &mut all);
    all
}

/// Puts the items into a random order.
pub(crate) fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_syllables() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
        assert_eq!(last_name(999), "EINGEINGEING");
    }

    /// The distribution of NURand, counted out: with A a power of two less one, the OR of both
    /// numbers.
    #[test]
    fn nurand_has_its_distribution() {
        let (a, c, x, y) = (255, 123, 0, 999);
        let mut expected = vec![0u64; 1000];
        for left in 0..=a {
            for right in x..=y {
                expected[(((left | right) + c) % (y - x + 1) + x) as usize] += 1;
            }
        }
        let pairs: u64 = expected.iter().sum();
        let draws = 400_000;
        let mut rng = Rng::new(7);
        let mut found = vec![0u64; 1000];
        for _ in 0..draws {
            found[nurand(&mut rng, a, c, x, y) as usize] += 1;
        }
        // Pearson's statistic over the possible numbers. Its mean is how many these are; its
        // deviation is the root of twice that.
        let mut chi_squared = 0.0;
        let mut cells = 0.0;
        for (n, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
            let mean = expected as f64 * f64::from(draws) / pairs as f64;
            assert!(expected > 0 || found == 0, "{n} cannot be");
            if expected > 0 {
                chi_squared += (found as f64 - mean).powi(2) / mean;
                cells += 1.0;
            }
        }
        let limit = cells + 6.0 * f64::sqrt(2.0 * cells);
        assert!(chi_squared < limit, "{chi_squared} of {cells}");
        // The distribution is far from uniform, so the test can tell them apart.
        let most = expected.iter().max().expect("some");
        assert!(most * 1000 > pairs * 4, "{most} of {pairs}");
    }

    #[test]
    fn constants_obey_the_clause() {
        for seed in 0..2000 {
            let constants = Constants::draw(&mut Rng::new(seed));
            let delta = constants.last_run.abs_diff(constants.last_load);
            assert!(
                (65..=119).contains(&delta) && ![96, 112].contains(&delta),
                "seed {seed}"
            );
            assert!(constants.customer <= A_CUSTOMER && constants.item <= A_ITEM);
        }
    }

    #[test]
    fn one_item_in_ten_is_original() {
        let mut rng = Rng::new(3);
        let data: Vec<String> = (0..20_000).map(|_| item_data(&mut rng)).collect();
        assert!(data.iter().all(|d| (26..=50).contains(&d.len())));
        let original = data.iter().filter(|d| d.contains("ORIGINAL")).count();
        assert!((1_800..2_200).contains(&original), "{original}");
    }

    #[test]
    fn an_order_has_each_once() {
        let mut order = permutation(&mut Rng::new(1), 500);
        assert_ne!(order[..10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        order.sort_unstable();
        assert!(order.into_iter().eq(1..=500));
    }
}
