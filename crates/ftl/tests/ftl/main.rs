//! The layer against a plain list of contents, through wear, bit errors, bad blocks and power cuts.

mod chance;
mod crash;
mod device;
mod hostile;
mod model;
mod wear;

use std::sync::Arc;

use stetfs_ftl::{Ftl, FtlOptions, MountOptions};
use stetfs_media::nand::{NandGeometry, NandPart, NandSim, parts};
use stetfs_media::{BlockDev, Cause, Class, JournalCopy, MediaError, RemapPair, Run, Tag};

use self::chance::Chance;

const TAG: Tag = Tag::new(Class::Data, Cause::Home);
const UUID: [u8; 16] = *b"a layer for test";
const PAGE: usize = 512;

/// JFTL's part with few blocks and few pages in each, without flaws.
const fn small(blocks: u32, pages_per_block: u32) -> NandPart {
    NandPart {
        geometry: NandGeometry {
            blocks,
            pages_per_block,
            ..parts::JFTL.geometry
        },
        ..parts::JFTL.flawless()
    }
}

/// Returns the page that belongs to a number; zeros for 0.
fn content(n: u64) -> Vec<u8> {
    chance::content(n, PAGE)
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        first: u64,
        contents: Vec<u64>,
    },
    Trim {
        first: u64,
        count: u64,
    },
    Zeros {
        first: u64,
        count: u64,
    },
    Remap {
        pairs: Vec<RemapPair>,
        journal: JournalCopy,
    },
    /// Writes runs of pages as a whole.
    Whole {
        runs: Vec<(u64, Vec<u64>)>,
    },
    Flush,
}

/// What a plain device would hold, and what a power cut may leave of it.
#[derive(Clone)]
struct Model {
    now: Vec<u64>,
    /// For each page, everything that it may hold after a cut; the last entry is its present
    /// content.
    may: Vec<Vec<u64>>,
    /// Whether writes wait for a flush.
    buffered: bool,
}

impl Model {
    fn new(pages: u64, buffered: bool) -> Self {
        Self {
            now: vec![0; pages as usize],
            may: vec![vec![0]; pages as usize],
            buffered,
        }
    }

    fn set(&mut self, page: u64, n: u64, durable: bool) {
        self.now[page as usize] = n;
        let may = &mut self.may[page as usize];
        if durable {
            may.clear();
        }
        may.push(n);
    }

    fn settle(&mut self) {
        for (may, now) in self.may.iter_mut().zip(&self.now) {
            *may = vec![*now];
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Write { first, contents } => {
                for (page, n) in (*first..).zip(contents) {
                    self.set(page, *n, !self.buffered);
                }
            }
            Step::Trim { first, count } => {
                (*first..first + count).for_each(|page| self.set(page, 0, false));
            }
            Step::Zeros { first, count } => {
                (*first..first + count).for_each(|page| self.set(page, 0, !self.buffered));
            }
            Step::Remap { pairs, journal } => {
                if self.buffered {
                    // A remap writes the buffer first. Trims may still wait.
                    self.settle_writes();
                }
                let held: Vec<u64> = pairs.iter().map(|p| self.now[p.journal as usize]).collect();
                if *journal == JournalCopy::Released {
                    pairs.iter().for_each(|p| self.set(p.journal, 0, true));
                }
                for (pair, n) in pairs.iter().zip(held) {
                    self.set(pair.home, n, true);
                }
            }
            Step::Whole { runs } => {
                if self.buffered {
                    self.settle();
                }
                for (first, contents) in runs {
                    for (page, n) in (*first..).zip(contents) {
                        self.set(page, *n, true);
                    }
                }
            }
            Step::Flush => self.settle(),
        }
    }

    /// Makes writes durable in the model; a trim may still be pending.
    fn settle_writes(&mut self) {
        for (may, now) in self.may.iter_mut().zip(&self.now) {
            if *now != 0 {
                *may = vec![*now];
            }
        }
    }
}

/// Carries out a step on a layer.
fn carry_out(ftl: &Ftl, step: &Step) -> Result<(), MediaError> {
    let bytes = |n: &u64| n * PAGE as u64;
    match step {
        Step::Write { first, contents } => {
            let pages: Vec<Vec<u8>> = contents.iter().map(|n| content(*n)).collect();
            let parts: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
            ftl.write_vectored_at(bytes(first), &parts, TAG)
        }
        Step::Trim { first, count } => ftl.discard(bytes(first), bytes(count)),
        Step::Zeros { first, count } => ftl.write_zeros(bytes(first), bytes(count), TAG),
        Step::Remap { pairs, journal } => {
            let remap = ftl.remap().expect("it can");
            remap.remap(pairs, *journal)
        }
        Step::Whole { runs } => {
            let pages: Vec<Vec<Vec<u8>>> = runs
                .iter()
                .map(|(_, contents)| contents.iter().map(|n| content(*n)).collect())
                .collect();
            let runs: Vec<Run<'_>> = runs
                .iter()
                .zip(&pages)
                .map(|((first, _), pages)| Run {
                    offset: bytes(first),
                    parts: pages.iter().map(Vec::as_slice).collect(),
                    tag: TAG,
                })
                .collect();
            ftl.atomic_write().expect("it can").write_whole(&runs)
        }
        Step::Flush => ftl.flush(Cause::Home),
    }
}

/// Draws a random step. Most steps fall on a few pages; a share of the pages at the end is the
/// journal.
fn any_step(chance: &mut Chance, ftl: &Ftl, number: u64) -> Step {
    let pages = pages_of(ftl);
    let place = |chance: &mut Chance| match chance.below(4) {
        0 => chance.below(pages),
        _ => chance.below(pages / 8 + 1),
    };
    let count_from = |chance: &mut Chance, first: u64| 1 + chance.below(6.min(pages - first));
    match chance.below(20) {
        0 => {
            let first = place(chance);
            Step::Trim {
                first,
                count: count_from(chance, first),
            }
        }
        1 => {
            let first = place(chance);
            Step::Zeros {
                first,
                count: count_from(chance, first),
            }
        }
        2..=5 => {
            let len = 1 + chance.below(12);
            let pairs = (0..len).map(|_| RemapPair {
                home: place(chance),
                journal: pages - 1 - chance.below(pages / 8 + 1).min(pages - 1),
            });
            let pairs = pairs.collect();
            let journal = match chance.below(3) {
                0 => JournalCopy::Kept,
                _ => JournalCopy::Released,
            };
            Step::Remap { pairs, journal }
        }
        6 => Step::Flush,
        7..=9 => {
            let mut runs: Vec<(u64, Vec<u64>)> = Vec::new();
            let mut most = ftl.atomic_write().expect("it can").max_sectors() as u64;
            for i in 0..1 + chance.below(4) {
                let first = place(chance);
                let count = count_from(chance, first).min(most);
                let mut taken = runs.iter().map(|(at, run)| *at..at + run.len() as u64);
                if taken.all(|run| run.end <= first || run.start >= first + count) {
                    most -= count;
                    let contents = (0..count).map(|n| number * 64 + i * 16 + n + 1).collect();
                    runs.push((first, contents));
                }
            }
            Step::Whole { runs }
        }
        kind => {
            let first = if kind < 12 {
                pages - 1 - chance.below(pages / 8 + 1).min(pages - 1)
            } else {
                place(chance)
            };
            let count = count_from(chance, first);
            Step::Write {
                first,
                contents: (0..count).map(|i| number * 64 + i + 1).collect(),
            }
        }
    }
}

fn pages_of(ftl: &Ftl) -> u64 {
    ftl.size() / PAGE as u64
}

/// Reads everything that a layer holds, page by page.
fn read_all(ftl: &Ftl) -> Result<Vec<Vec<u8>>, MediaError> {
    let mut all = vec![0; ftl.size() as usize];
    ftl.read_at(0, &mut all, TAG)?;
    Ok(all.chunks_exact(PAGE).map(<[u8]>::to_vec).collect())
}

/// Makes a layer, with room for more bad blocks than usual on parts that get some.
fn create(nand: &Arc<NandSim>, buffer: usize) -> Ftl {
    let mount = MountOptions {
        write_buffer_pages: buffer,
        ..MountOptions::default()
    };
    let mut options = FtlOptions::default();
    if nand.part().wear.early_bad_ppm > 0 {
        options.bad_blocks_percent = 20;
    }
    let made = Ftl::create(nand.clone(), UUID, &options, mount);
    made.expect("a layer")
}

fn mount(nand: &Arc<NandSim>) -> Ftl {
    let mounted = Ftl::mount(nand.clone(), MountOptions::default());
    mounted.expect("a layer")
}
