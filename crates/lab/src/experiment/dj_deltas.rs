//! Figures 4 and 5 of the Delta Journaling paper: how small compressors make the difference of a
//! block of 4 KiB, and how long that takes.
//!
//! The paper does not say what its blocks held. The lab makes two kinds of difference, each at
//! levels from 0 to 100 percent of the bits. In the first, pieces of 8 to 64 bytes differ in
//! *every* bit, which is the best case for a compressor. In the second, such pieces get *new
//! values*, so that half of their bits differ, as when programs write. Above 50 percent the second
//! kind is the complement: a block that was inverted except for some bytes.
//!
//! Besides the compressors of volumes there are gzip's deflate, LZ4, LZF and LZW, as in the paper,
//! and Zstandard. FastLZ has no maintained crate.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use compcol::vec::decompress_to_vec_capped;
use compcol::{Algorithm, Encoder, lzf::Lzf, lzw::Lzw};
use miniz_oxide::inflate;
use stetfs_schemes::delta::{COMPRESSORS, Compressor, difference};

use super::kind::Experiment;
use super::report::{Report, Said, Swept, Table};
use super::setting::Setting;
use stetfs_testkit::rng::Rng;

pub(super) const SIZES: Experiment = Experiment {
    id: "dj-fig4",
    title: "how small compressors make the difference of a 4 KiB block",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 4",
    scale: 1.0,
    has_real_time: false,
    is_small: true,
    run: super::kind::Run::Own(sizes),
};

pub(super) const TIMES: Experiment = Experiment {
    id: "dj-fig5",
    title: "how long compressors take for the difference of a 4 KiB block",
    paper: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014, Figure 5",
    scale: 1.0,
    has_real_time: true,
    is_small: false,
    run: super::kind::Run::Own(times),
};

const BLOCK: usize = 4096;
/// Percent of the bits that differ.
const LEVELS: [u64; 11] = [1, 5, 10, 20, 25, 50, 75, 80, 90, 95, 99];
/// Blocks of each kind and level.
const BLOCKS: u64 = 64;

/// A compressor.
enum Squeezer {
    /// One that volumes use.
    Ours(&'static dyn Compressor),
    /// LZ4's block format.
    Lz4,
    /// Zstandard at its quickest ordinary level.
    Zstandard,
    /// Deflate without gzip's frame, at level 6 as gzip has it.
    Deflate,
    Lzf,
    Lzw,
}

impl Squeezer {
    /// Every compressor; the paper's choice first.
    fn all() -> Vec<Self> {
        let [lzo, ranges] = COMPRESSORS.map(Self::Ours);
        let (lz4, zstd, deflate) = (Self::Lz4, Self::Zstandard, Self::Deflate);
        vec![lzo, lz4, zstd, deflate, ranges, Self::Lzf, Self::Lzw]
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Ours(with) => with.name(),
            Self::Lz4 => "lz4",
            Self::Zstandard => "zstd",
            Self::Deflate => "deflate",
            Self::Lzf => "lzf",
            Self::Lzw => "lzw",
        }
    }

    fn compress(&self, delta: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Ours(with) => with.compress(delta, out),
            Self::Lz4 => {
                out.resize(lz4_flex::block::get_maximum_output_size(delta.len()), 0);
                let made = lz4_flex::block::compress_into(delta, out);
                out.truncate(made.expect("there is room"));
            }
            Self::Zstandard => {
                *out = zstd::bulk::compress(delta, 1).expect("memory is all that it takes");
            }
            Self::Deflate => *out = miniz_oxide::deflate::compress_to_vec(delta, 6),
            Self::Lzf => compress_with::<Lzf>(delta, out),
            Self::Lzw => compress_with::<Lzw>(delta, out),
        }
    }

    fn decompress(&self, small: &[u8], len: usize) -> Option<Vec<u8>> {
        match self {
            Self::Ours(with) => {
                let mut back = Vec::new();
                with.decompress(small, len, &mut back).then_some(back)
            }
            Self::Lz4 => {
                let mut back = vec![0; len];
                let made = lz4_flex::block::decompress_into(small, &mut back).ok()?;
                (made == len).then_some(back)
            }
            Self::Zstandard => zstd::bulk::decompress(small, len).ok(),
            Self::Deflate => inflate::decompress_to_vec_with_limit(small, len).ok(),
            Self::Lzf => decompress_to_vec_capped::<Lzf>(small, len as u64).ok(),
            Self::Lzw => decompress_to_vec_capped::<Lzw>(small, len as u64).ok(),
        }
    }
}

/// Compresses in one piece, into memory that is already allocated.
fn compress_with<A: Algorithm<EncoderConfig = ()>>(delta: &[u8], out: &mut Vec<u8>) {
    let mut encoder = A::encoder_with(());
    out.resize(2 * delta.len() + 64, 0);
    let (most, _) = encoder.encode(delta, out).expect("there is room");
    assert_eq!(most.consumed, delta.len(), "there is room");
    let rest = encoder.finish(&mut out[most.written..]);
    let (rest, _) = rest.expect("there is room");
    out.truncate(most.written + rest.written);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    EveryBit,
    NewValues,
}

impl Kind {
    const ALL: [Self; 2] = [Self::EveryBit, Self::NewValues];

    fn name(self) -> &'static str {
        match self {
            Self::EveryBit => "every bit",
            Self::NewValues => "new values",
        }
    }

    /// Makes a difference of that level.
    fn delta(self, level: u64, rng: &mut Rng) -> Vec<u8> {
        let is_inverted = self == Self::NewValues && level > 50;
        let level = if is_inverted { 100 - level } else { level };
        let share = match self {
            Self::EveryBit => level,
            // Half of a random value's bits differ.
            Self::NewValues => 2 * level,
        };
        let mut delta = vec![0; BLOCK];
        let mut left = BLOCK * share as usize / 100;
        while left > 0 {
            let len = (8 + rng.below(57) as usize).min(left);
            let at = rng.below((BLOCK - len + 1) as u64) as usize;
            for byte in &mut delta[at..at + len] {
                if left > 0 && *byte == 0 {
                    *byte = match self {
                        Self::EveryBit => 0xff,
                        Self::NewValues => 1 + rng.below(255) as u8,
                    };
                    left -= 1;
                }
            }
        }
        if is_inverted {
            delta.iter_mut().for_each(|byte| *byte = !*byte);
        }
        delta
    }

    fn deltas(self, level: u64, seed: u64) -> Vec<Vec<u8>> {
        let mut rng = Rng::new(seed ^ level << 8 ^ self as u64);
        (0..BLOCKS).map(|_| self.delta(level, &mut rng)).collect()
    }
}

/// A table of one kind: a value for each compressor and level.
fn show(
    report: &mut Report,
    kind: Kind,
    (what, unit): (&str, &str),
    names: Vec<&str>,
    values: &[Vec<f64>],
) {
    let head = std::iter::once("differs".to_owned());
    let mut table = Table::new(
        format!("{what}, {unit}: bytes that differ in {}", kind.name()),
        head.chain(names.iter().map(|name| (*name).to_owned())),
    );
    for (n, level) in LEVELS.iter().enumerate() {
        let cells = values.iter().map(|of| format!("{:.0}", of[n]));
        table.row(format!("{level} %"), cells);
    }
    if unit == "bytes" {
        let quarter = ("a quarter of the block".to_owned(), BLOCK as f64 / 4.0);
        table.lines.push(quarter);
    }
    report.tables.push(table);
}

fn set_up(report: &mut Report) {
    let what = format!("{BLOCKS} blocks of {BLOCK} bytes for each kind and level");
    report.setup.push(("workload", what));
    report.notes.push(
        "of the paper's compressors gzip is here as deflate, LZ4, LZO, LZF and LZW (as in \
            compress(1)) as themselves; of FastLZ there is no crate that is \
         kept. No volume uses LZF and LZW"
            .to_owned(),
    );
}

/// A swept claim without points.
fn swept(claim: &str) -> Swept {
    Swept {
        claim: claim.to_owned(),
        value: 0,
        reached: Vec::new(),
        missed: Vec::new(),
    }
}

/// Notes whether a kind of difference reaches the swept claim.
fn note(swept: &mut Swept, kind: Kind, is_reached: bool) {
    let list = if is_reached {
        &mut swept.reached
    } else {
        &mut swept.missed
    };
    list.push(kind.name().to_owned());
}

/// The values of a compressor, one for each level.
fn of<'v>(with: &str, names: &[&str], values: &'v [Vec<f64>]) -> &'v [f64] {
    let at = names.iter().position(|name| *name == with);
    &values[at.expect("it is one of them")]
}

fn sizes(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&SIZES, setting);
    set_up(&mut report);
    let squeezers = Squeezer::all();
    let names: Vec<&str> = squeezers.iter().map(Squeezer::name).collect();
    let mut swept = swept("dj-fig4-lzo-under-a-quarter");
    for (n, kind) in Kind::ALL.into_iter().enumerate() {
        (setting.progress)(kind.name(), n as u64, 2);
        let values = mean_sizes(kind, &squeezers, setting.seed)?;
        let is_below = compare_with_a_quarter(&mut report, kind, &values[0]);
        note(&mut swept, kind, is_below);
        let sum = |with: &str| of(with, &names, &values).iter().sum::<f64>();
        let (gzip, lzo) = (sum("deflate"), sum("lzo"));
        report
            .compare(
                format!("gzip makes less of it than LZO ({})", kind.name()),
                Said::at_most("less", 1.0 - f64::EPSILON),
                gzip / lzo,
                format!("{:.2} of LZO's", gzip / lzo),
            )
            .because("it is not so here");
        show(
            &mut report,
            kind,
            ("compressed size", "bytes"),
            names.clone(),
            &values,
        );
    }
    report.swept.push(swept);
    Ok(report)
}

/// Returns the mean size of a compressed difference, for each compressor and level.
fn mean_sizes(kind: Kind, squeezers: &[Squeezer], seed: u64) -> Result<Vec<Vec<f64>>> {
    let mut values = vec![Vec::new(); squeezers.len()];
    for level in LEVELS {
        let deltas = kind.deltas(level, seed);
        for (with, of) in squeezers.iter().zip(&mut values) {
            let total: Result<usize> = deltas.iter().map(|delta| size(with, delta)).sum();
            of.push(total? as f64 / BLOCKS as f64);
        }
    }
    Ok(values)
}

/// Compares LZO's sizes at levels far from the middle with a quarter of the block. Returns true if
/// they are smaller.
fn compare_with_a_quarter(report: &mut Report, kind: Kind, lzo: &[f64]) -> bool {
    let quarter = BLOCK as f64 / 4.0;
    let far = LEVELS
        .iter()
        .zip(lzo)
        .filter(|(level, _)| !(25..=75).contains(*level));
    let largest = far.map(|(_, size)| *size).fold(0.0, f64::max);
    report
        .compare(
            format!(
                "below 25 % and above 75 %, LZO makes less than a quarter of the block ({})",
                kind.name()
            ),
            Said::at_most("< 1,024 bytes", quarter),
            largest,
            format!("at most {largest:.0}"),
        )
        .because(
            "a quarter of the bits is half of the bytes, and new bytes have nothing to compress",
        );
    largest < quarter
}

fn size(with: &Squeezer, delta: &[u8]) -> Result<usize> {
    let mut small = Vec::new();
    with.compress(delta, &mut small);
    let is_back = with
        .decompress(&small, delta.len())
        .is_some_and(|back| back == delta);
    ensure!(is_back, "{} does not give back what it took", with.name());
    Ok(small.len())
}

/// Rounds, of which only the quickest counts: others were disturbed.
const ROUNDS: usize = 9;

fn times(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&TIMES, setting);
    set_up(&mut report);
    if !setting.real_time {
        report
            .notes
            .push("not measured: without real time there is nothing to show".to_owned());
        return Ok(report);
    }
    let mut names = vec!["xor and count"];
    let squeezers = Squeezer::all();
    names.extend(squeezers.iter().map(Squeezer::name));
    let mut swept = swept("dj-fig5-lzo-best-tradeoff");
    for (n, kind) in Kind::ALL.into_iter().enumerate() {
        (setting.progress)(kind.name(), n as u64, 2);
        let values = quickest_times(kind, &squeezers, setting.seed);
        let all = |with: &str| of(with, &names, &values).iter().sum::<f64>();
        for with in ["deflate", "lzw"] {
            let times = all(with) / all("lzo");
            report
                .compare(
                    format!("{with} takes longer than LZO ({})", kind.name()),
                    Said::at_least("longer", 1.0).within(-0.1),
                    times,
                    format!("{times:.1} times"),
                )
                .because("it is not so here");
        }
        let sizes = all_sizes(kind, &squeezers, setting.seed)?;
        let is_best = compare_with_the_best(&mut report, kind, &sizes, all)?;
        note(&mut swept, kind, is_best);
        show(
            &mut report,
            kind,
            ("time to compress a block", "ns"),
            names.clone(),
            &values,
        );
    }
    report.swept.push(swept);
    Ok(report)
}

/// Returns nanoseconds to find a difference, then to compress it by each compressor, for each
/// level.
fn quickest_times(kind: Kind, squeezers: &[Squeezer], seed: u64) -> Vec<Vec<f64>> {
    let mut base = vec![0; BLOCK];
    Rng::new(seed).fill(&mut base);
    let mut values = vec![Vec::new(); 1 + squeezers.len()];
    for level in LEVELS {
        let deltas = kind.deltas(level, seed);
        let mut xor = vec![0; BLOCK];
        values[0].push(quickest_ns(&deltas, |delta| {
            black_box(difference(&base, delta, &mut xor));
        }));
        for (with, of) in squeezers.iter().zip(&mut values[1..]) {
            let mut small = Vec::new();
            of.push(quickest_ns(&deltas, |delta| {
                with.compress(delta, black_box(&mut small))
            }));
        }
    }
    values
}

/// Returns the name of each compressor and the bytes that it makes of all levels.
fn all_sizes(kind: Kind, squeezers: &[Squeezer], seed: u64) -> Result<Vec<(&str, f64)>> {
    let sum = |with: &Squeezer| {
        let deltas = LEVELS.iter().flat_map(|level| kind.deltas(*level, seed));
        let sizes = deltas.map(|delta| size(with, &delta));
        sizes.sum::<Result<usize>>()
    };
    let sizes = squeezers
        .iter()
        .map(|with| Ok((with.name(), sum(with)? as f64)));
    sizes.collect()
}

/// Compares LZO with the compressors that are better by a tenth in time and size. Returns true if
/// there is none.
fn compare_with_the_best(
    report: &mut Report,
    kind: Kind,
    sizes: &[(&str, f64)],
    time: impl Fn(&str) -> f64,
) -> Result<bool> {
    let lzo = sizes.iter().find(|(with, _)| *with == "lzo");
    let lzo_size = lzo.context("no LZO")?.1;
    let is_better =
        |(with, size): &&(&str, f64)| 1.1 * time(with) < time("lzo") && 1.1 * size < lzo_size;
    let better: Vec<_> = sizes
        .iter()
        .filter(is_better)
        .map(|(with, _)| *with)
        .collect();
    report
        .compare(
            format!(
                "no other is both quicker and smaller than LZO ({})",
                kind.name()
            ),
            Said::at_most("none", 0.0),
            better.len() as f64,
            if better.is_empty() {
                "none".to_owned()
            } else {
                better.join(", ")
            },
        )
        .because("it is not so here");
    Ok(better.is_empty())
}

/// Returns nanoseconds per delta: the average over all deltas in the quickest round.
fn quickest_ns(deltas: &[Vec<u8>], mut take: impl FnMut(&[u8])) -> f64 {
    let mut round = || {
        let start = Instant::now();
        deltas.iter().for_each(|delta| take(delta));
        start.elapsed().as_nanos() as f64 / deltas.len() as f64
    };
    (0..ROUNDS).map(|_| round()).fold(f64::MAX, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_have_their_level() {
        let zeros = vec![0; BLOCK];
        let mut out = vec![0; BLOCK];
        for kind in Kind::ALL {
            for level in LEVELS {
                for delta in kind.deltas(level, 3) {
                    let bits = difference(&zeros, &delta, &mut out) * 100 / (BLOCK as u64 * 8);
                    assert!(
                        bits.abs_diff(level) <= 2,
                        "{} {level} %: {bits}",
                        kind.name()
                    );
                }
            }
        }
    }
}
