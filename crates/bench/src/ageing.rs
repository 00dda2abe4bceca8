//! Ageing: what random overwrites do to a file, in extents and in the speed of reading it.
//!
//! One file takes a part of a volume and is written in order. Then 4 KiB at random places of it are
//! overwritten, every byte changed, with an fsync after every few overwrites, until the volume's
//! size has been written several times. On XFS, which overwrites in place, the file has a reflinked
//! copy, so that XFS has to copy on write. The copy is made anew each time the volume's size has
//! been written. What is read is compared with what was written.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::systems::{Running, System};
use stetfs_testkit::rng::Rng;

const BLOCK: u64 = 4096;
const CHUNK: usize = 1 << 20;

/// What is done to the file.
#[derive(Clone, Copy, Debug)]
pub struct Ageing {
    /// The volume's size in MiB.
    pub volume_mib: u64,
    /// Percentage of the volume that the file takes.
    pub share: u64,
    /// Number of times that the volume's size is written.
    pub volumes: u64,
    /// Number of overwrites from one fsync to the next.
    pub sync_every: u64,
}

/// The result.
#[derive(Clone, Copy, Debug)]
pub struct Aged {
    /// Extents per MiB of the file: after it was written in order, and at the end.
    pub extents: [f64; 2],
    /// Speed of reading in MiB per second, with empty caches, at the same two moments.
    pub read: [f64; 2],
    /// Overwrites per second.
    pub overwrites: f64,
}

const NAME: &str = "aged";

/// The file, and the number with which each of its blocks begins.
struct Subject {
    numbers: Vec<u64>,
    rng: Rng,
    page: Vec<u8>,
}

impl Subject {
    fn page(&mut self, at: u64, number: u64) -> &[u8] {
        self.rng.fill(&mut self.page);
        self.page[..8].copy_from_slice(&number.to_le_bytes());
        self.numbers[usize::try_from(at).expect("in memory")] = number;
        &self.page
    }

    fn mib(&self) -> f64 {
        self.numbers.len() as f64 * BLOCK as f64 / CHUNK as f64
    }

    /// Returns extents per MiB, and MiB per second.
    fn measure(&self, running: &mut Running) -> Result<(f64, f64)> {
        let extents = running.extents(NAME)? as f64 / self.mib();
        let mut file = File::open(running.dir().join(NAME))?;
        let mut chunk = vec![0; CHUNK];
        let start = Instant::now();
        for (n, numbers) in self.numbers.chunks(CHUNK / BLOCK as usize).enumerate() {
            file.read_exact(&mut chunk[..numbers.len() * BLOCK as usize])?;
            for (number, page) in numbers.iter().zip(chunk.chunks(BLOCK as usize)) {
                ensure!(
                    page[..8] == number.to_le_bytes(),
                    "MiB {n} was read back wrong"
                );
            }
        }
        Ok((extents, self.mib() / start.elapsed().as_secs_f64()))
    }
}

/// Makes a copy that shares all blocks with the file; it replaces the copy before it.
fn clone(running: &Running) -> Result<()> {
    let copy = running.dir().join("copy");
    if copy.exists() {
        fs::remove_file(&copy)?;
    }
    let file = File::open(running.dir().join(NAME))?;
    rustix::fs::ioctl_ficlone(File::create(copy)?, file)?;
    Ok(())
}

/// Ages a file on a fresh volume.
///
/// # Errors
/// An error of the file system; a block that is read back wrong.
pub fn age(running: &mut Running, ageing: &Ageing) -> Result<Aged> {
    let volume = (ageing.volume_mib << 20) / BLOCK;
    let blocks = volume * ageing.share / 100;
    let mut subject = Subject {
        numbers: vec![0; usize::try_from(blocks)?],
        rng: Rng::new(23),
        page: vec![0; BLOCK as usize],
    };
    let mut file = File::create(running.dir().join(NAME))?;
    for at in 0..blocks {
        file.write_all(subject.page(at, at))?;
    }
    file.sync_all()?;
    drop(file);
    let fresh = subject.measure(running)?;
    let reflinks = *running.system() == System::Xfs;
    let open = |running: &Running| {
        let mut options = OpenOptions::new();
        options.write(true).open(running.dir().join(NAME))
    };
    let file = open(running)?;
    let count = volume * ageing.volumes;
    let start = Instant::now();
    for n in 0..count {
        if reflinks && n % volume == 0 {
            clone(running)?;
        }
        let at = subject.rng.below(blocks);
        file.write_all_at(subject.page(at, blocks + n), at * BLOCK)?;
        if (n + 1) % ageing.sync_every == 0 {
            file.sync_data()?;
        }
    }
    file.sync_all()?;
    let overwrites = count as f64 / start.elapsed().as_secs_f64();
    drop(file);
    let aged = subject.measure(running)?;
    Ok(Aged {
        extents: [fresh.0, aged.0],
        read: [fresh.1, aged.1],
        overwrites,
    })
}
