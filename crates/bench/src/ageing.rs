//! Ageing: what random overwrites make of a file, in extents and in the speed of reading it.
//!
//! One file of a part of a volume, written in order. Then 4 KiB at random places of it, every byte
//! changed, with an fsync after so many, until the volume's size was written so many times over. On
//! XFS, which overwrites in place, the file has a reflinked copy, taken anew each time that the
//! volume's size was written, so that it has to copy on write. What is read is compared with what
//! was written.

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
    /// The file's part of it, in percent.
    pub share: u64,
    /// How often the volume's size is written.
    pub volumes: u64,
    /// Overwrites from one fsync to the next.
    pub sync_every: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub struct Aged {
    /// Extents a MiB of the file: as it was written in order, and at the end.
    pub extents: [f64; 2],
    /// MiB a second that it is read with, caches empty, likewise.
    pub read: [f64; 2],
    /// Overwrites a second.
    pub overwrites: f64,
}

const NAME: &str = "aged";

/// The file, and what each of its blocks begins with.
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

    /// Extents a MiB, and MiB a second.
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

/// Takes a copy that shares all blocks with the file, in the place of the one before.
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
/// What the file system says; a block that is read back wrong.
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
