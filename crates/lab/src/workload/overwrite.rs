//! Blocks of a file that are overwritten, each with a chosen share of it changed: the synthetic
//! workloads and traces of the Delta Journaling paper.
//!
//! The paper says how large the differences are, but neither where they lie nor what is written.
//! Here one run of bytes changes in a block, at a random place and around the block's end; see
//! [`Change`] for the new bytes.

use anyhow::{Result, ensure};
use rand_distr::{Beta, Distribution, Uniform, Zipf};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stetfs_format::InodeNo;

use super::contract::Workload;
use super::dice::Dice;
use super::session::Session;
use stetfs_testkit::rng::Rng;

/// The share of each block that differs. As text a number, `zipf:3`, `bathtub:0.08` or `uniform`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Differences {
    /// This many percent of each block.
    Fixed(u32),
    /// Percent from 1 to 100; the chance of `p` is proportional to `p` to the power of minus this.
    Zipf(f64),
    /// Either very little or very much: the beta distribution, with both parameters this number,
    /// which is less than 1.
    Bathtub(f64),
    /// Each share is as likely as any other.
    Uniform,
}

impl Serialize for Differences {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(percent) => to.serialize_u32(*percent),
            Self::Zipf(exponent) => to.collect_str(&format_args!("zipf:{exponent}")),
            Self::Bathtub(shape) => to.collect_str(&format_args!("bathtub:{shape}")),
            Self::Uniform => to.serialize_str("uniform"),
        }
    }
}

impl<'de> Deserialize<'de> for Differences {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(from)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        let found = match text.split_once(':') {
            Some(("zipf", exponent)) => exponent.parse().ok().map(Self::Zipf),
            Some(("bathtub", shape)) => shape.parse().ok().map(Self::Bathtub),
            Some(_) => None,
            None if text == "uniform" => Some(Self::Uniform),
            None => text.parse().ok().map(Self::Fixed),
        };
        let wrong = format!("{text}: a percentage, zipf:EXPONENT, bathtub:SHAPE or uniform");
        found.ok_or_else(|| serde::de::Error::custom(wrong))
    }
}

impl Differences {
    /// The name in reports.
    pub fn name(self) -> String {
        match self {
            Self::Fixed(percent) => format!("{percent} %"),
            Self::Zipf(exponent) => format!("Zipf({exponent})"),
            Self::Bathtub(shape) => format!("bathtub({shape})"),
            Self::Uniform => "uniform".to_owned(),
        }
    }

    /// Shares between 0 and 1, drawn from `seed`.
    ///
    /// # Errors
    /// There is no such distribution.
    pub fn draw(self, seed: u64) -> Result<impl FnMut() -> f64> {
        let mut rng = Rng::new(seed);
        let mut of: Box<dyn FnMut(&mut Rng) -> f64> = match self {
            Self::Fixed(percent) => Box::new(move |_| f64::from(percent) / 100.0),
            Self::Zipf(exponent) => {
                let percent = Zipf::new(100.0, exponent)?;
                Box::new(move |rng| percent.sample(&mut Dice(rng)) / 100.0)
            }
            Self::Bathtub(shape) => {
                ensure!(shape < 1.0, "a bathtub of shape {shape}: less than 1");
                let share = Beta::new(shape, shape)?;
                Box::new(move |rng| share.sample(&mut Dice(rng)))
            }
            Self::Uniform => {
                let share = Uniform::new(0.0, 1.0)?;
                Box::new(move |rng| share.sample(&mut Dice(rng)))
            }
        };
        Ok(move || of(&mut rng))
    }
}

/// How bytes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Every bit is inverted: the share of bytes is the share of bits, and the difference is as
    /// regular as possible.
    Inverted,
    /// The bytes get random values, so that half of their bits differ. The share is that of bits,
    /// so twice as many bytes change.
    NewValues,
}

/// Which blocks are overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// One after the other, from the beginning again after the last.
    Sequential,
    /// At random, each as likely as any other.
    Random,
}

/// Overwrites of a file, a block a call.
#[derive(Clone, Debug)]
pub struct Overwrite {
    /// How much of a block changes.
    pub differences: Differences,
    /// How it changes.
    pub change: Change,
    /// Which blocks.
    pub order: Order,
    /// Blocks of the file.
    pub blocks: u64,
    /// Overwrites.
    pub overwrites: u64,
    /// Seed of contents, places and shares.
    pub seed: u64,
}

/// Bytes of a block.
pub const BLOCK: usize = 4096;
const NAME: &str = "overwritten";
/// Blocks of a call that prepares or warms.
const AT_ONCE: usize = 256;

/// A block to be overwritten, and the run of its bytes that changes, which may wrap around the
/// block's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The block.
    pub block: u64,
    /// Where the run begins.
    pub start: usize,
    /// Its length.
    pub len: usize,
}

impl Overwrite {
    /// Iterates over the overwrites.
    ///
    /// # Errors
    /// There is no such distribution.
    pub fn places(&self) -> Result<impl Iterator<Item = Place>> {
        let mut share = self.differences.draw(self.seed ^ 1)?;
        let mut rng = Rng::new(self.seed ^ 2);
        let bytes_a_share = match self.change {
            Change::Inverted => BLOCK as f64,
            Change::NewValues => 2.0 * BLOCK as f64,
        };
        let (order, blocks) = (self.order, self.blocks);
        Ok((0..self.overwrites).map(move |n| Place {
            block: match order {
                Order::Sequential => n % blocks,
                Order::Random => rng.below(blocks),
            },
            start: rng.below(BLOCK as u64) as usize,
            len: ((share() * bytes_a_share).round() as usize).clamp(1, BLOCK),
        }))
    }

    /// Returns the first content of the file.
    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.blocks as usize * BLOCK];
        Rng::new(self.seed).fill(&mut content);
        content
    }

    fn change(&self, block: &mut [u8], place: Place, rng: &mut Rng) {
        for at in place.start..place.start + place.len {
            let byte = &mut block[at % BLOCK];
            *byte = match self.change {
                Change::Inverted => !*byte,
                Change::NewValues => rng.next_u64() as u8,
            };
        }
    }

    fn file(session: &mut Session<'_>) -> Result<InodeNo> {
        session.open(session.root(), NAME)
    }
}

impl Workload for Overwrite {
    fn name(&self) -> String {
        let order = match self.order {
            Order::Sequential => "in sequence",
            Order::Random => "at random",
        };
        let change = match self.change {
            Change::Inverted => "",
            Change::NewValues => ", new values",
        };
        format!(
            "{} overwrites of 4 KiB of a file of {} MiB, {order}, difference {}{change}",
            self.overwrites,
            (self.blocks * BLOCK as u64) >> 20,
            self.differences.name(),
        )
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = session.create(session.root(), NAME)?;
        for (n, piece) in self.content().chunks(AT_ONCE * BLOCK).enumerate() {
            session.write(ino, (n * AT_ONCE * BLOCK) as u64, piece)?;
        }
        session.close(ino)
    }

    /// The blocks were read before: the paper keeps them in memory, and does not read them from
    /// flash.
    fn warm(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = Self::file(session)?;
        let mut block = vec![0; BLOCK];
        for n in 0..self.blocks {
            session.read(ino, n * BLOCK as u64, &mut block)?;
        }
        session.close(ino)
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = Self::file(session)?;
        let mut content = self.content();
        let mut rng = Rng::new(self.seed ^ 3);
        for (n, place) in self.places()?.enumerate() {
            let at = place.block as usize * BLOCK;
            let block = &mut content[at..at + BLOCK];
            self.change(block, place, &mut rng);
            session.write(ino, at as u64, block)?;
            if n.is_multiple_of(1024) {
                session.tell(n as u64, self.overwrites);
            }
        }
        session.close(ino)
    }
}

#[cfg(test)]
mod tests {
    use stetfs_schemes::delta::difference;

    use super::*;

    fn shares(differences: Differences) -> Vec<f64> {
        let mut draw = differences.draw(7).expect("a distribution");
        (0..100_000).map(|_| draw()).collect()
    }

    /// The share of those within `from..to`.
    fn within(shares: &[f64], from: f64, to: f64) -> f64 {
        let inside = shares.iter().filter(|share| (from..to).contains(*share));
        inside.count() as f64 / shares.len() as f64
    }

    #[test]
    fn shares_are_distributed_as_they_should_be() {
        let close = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 0.005, "{found}, not {expected}");
        };
        // By the formula: 1 / sum of n^-3 for n to 100, and an eighth of that.
        let zipf = shares(Differences::Zipf(3.0));
        close(within(&zipf, 0.0, 0.015), 0.8320);
        close(within(&zipf, 0.015, 0.025), 0.1040);
        // By integrating the density.
        let bathtub = shares(Differences::Bathtub(0.08));
        close(within(&bathtub, 0.25, 0.75), 0.0788);
        close(within(&bathtub, 0.0, 0.25), 0.4606);
        let uniform = shares(Differences::Uniform);
        for tenth in 0..10 {
            let from = f64::from(tenth) / 10.0;
            close(within(&uniform, from, from + 0.1), 0.1);
        }
        assert!(
            shares(Differences::Fixed(30))
                .iter()
                .all(|share| *share == 0.3)
        );
        assert!(Differences::Bathtub(1.0).draw(1).is_err());
    }

    fn some(order: Order, change: Change) -> Overwrite {
        Overwrite {
            differences: Differences::Fixed(10),
            change,
            order,
            blocks: 50,
            overwrites: 5000,
            seed: 3,
        }
    }

    #[test]
    fn places_are_the_same_for_a_seed() {
        let all = |work: &Overwrite| work.places().expect("places").collect::<Vec<_>>();
        for order in [Order::Sequential, Order::Random] {
            let work = some(order, Change::Inverted);
            assert_eq!(all(&work), all(&work));
            assert_ne!(
                all(&work),
                all(&Overwrite {
                    seed: 4,
                    ..work.clone()
                })
            );
            let mut times = [0; 50];
            for place in all(&work) {
                times[place.block as usize] += 1;
            }
            let most = times.iter().max().expect("blocks");
            match order {
                Order::Sequential => assert_eq!(times, [100; 50]),
                // A hundred each, and a deviation of ten.
                Order::Random => assert!(*most > 105 && *most < 150, "{times:?}"),
            }
        }
    }

    #[test]
    fn bits_differ_as_told() {
        for change in [Change::Inverted, Change::NewValues] {
            let work = some(Order::Sequential, change);
            let mut rng = Rng::new(1);
            let mut old = vec![0; BLOCK];
            rng.fill(&mut old);
            for place in work.places().expect("places").take(100) {
                let mut new = old.clone();
                work.change(&mut new, place, &mut rng);
                let bits = difference(&old, &new, &mut vec![0; BLOCK]) as f64;
                let share = bits / (8 * BLOCK) as f64;
                assert!((share - 0.1).abs() < 0.01, "{share}");
            }
        }
    }
}
