//! fio with one job that reads and writes blocks at random
//! (`fio --rw=randrw --bs=4k --rwmixread=N --norandommap`, fio.readthedocs.io).
//!
//! Each operation reads or writes one block at a random place of the file; `read_percent` in 100
//! are reads. The file is there, written from the beginning to the end. As many operations as are
//! measured run first, so that caches hold what they hold in the long run, as with fio's
//! `ramp_time`.
//! run, as fio does with `ramp_time`.

use anyhow::{Result, ensure};
use serde::Serialize;
use stetfs_format::InodeNo;

use super::content::Content;
use super::contract::Workload;
use super::session::Session;
use stetfs_testkit::rng::Rng;

/// A job with its parameters.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Fio {
    /// Bytes of the file (`size`).
    pub file_bytes: u64,
    /// Bytes of a block (`bs`).
    pub block_bytes: u32,
    /// Reads in 100 operations (`rwmixread`).
    pub read_percent: u8,
    /// Operations (`number_ios`).
    pub operations: u64,
    /// Writes before an fsync (`fsync`), on average where it is no whole number; 0: no fsync.
    pub fsync_every: f64,
    /// Seed of places and contents (`randseed`).
    pub seed: u64,
}

const NAME: &str = "fio.0.0";
/// Bytes of a write that lays the file out.
const LAYING_OUT: usize = 128 << 10;

/// What a job did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Done {
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Syncs.
    pub fsyncs: u64,
}

impl Fio {
    /// Runs the operations and returns how many were of which kind.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn drive(&self, session: &mut Session<'_>, seed: u64) -> Result<Done> {
        let ino = session.open(session.root(), NAME)?;
        let len = self.block_bytes as usize;
        let (mut rng, mut content) = (Rng::new(seed), Content::new(seed ^ 1, len));
        let (mut out, mut done) = (vec![0; len], Done::default());
        let blocks = self.file_bytes / u64::from(self.block_bytes);
        for n in 0..self.operations {
            let at = rng.below(blocks) * u64::from(self.block_bytes);
            if rng.chance(self.read_percent.into()) {
                session.read(ino, at, &mut out)?;
                done.reads += 1;
            } else {
                session.write(ino, at, content.piece(n, len))?;
                done.writes += 1;
                let due = done.writes as f64 / self.fsync_every;
                if self.fsync_every > 0.0 && due >= (done.fsyncs + 1) as f64 {
                    session.fsync(ino)?;
                    done.fsyncs += 1;
                }
            }
            if n.is_multiple_of(1024) {
                session.tell(n, self.operations);
            }
        }
        session.close(ino)?;
        Ok(done)
    }

    fn lay_out(&self, session: &mut Session<'_>, ino: InodeNo) -> Result<()> {
        let mut content = Content::new(self.seed, LAYING_OUT);
        for at in (0..self.file_bytes).step_by(LAYING_OUT) {
            let len = LAYING_OUT.min((self.file_bytes - at) as usize);
            session.write(ino, at, content.piece(0, len))?;
            session.tell(at, self.file_bytes);
        }
        Ok(())
    }
}

impl Workload for Fio {
    fn name(&self) -> String {
        let kib = f64::from(self.block_bytes) / 1024.0;
        format!("fio randrw, {kib} KiB, {} % reads", self.read_percent)
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        ensure!(
            self.read_percent <= 100 && self.block_bytes > 0,
            "{} % reads of {} bytes",
            self.read_percent,
            self.block_bytes
        );
        let ino = session.create(session.root(), NAME)?;
        self.lay_out(session, ino)?;
        session.close(ino)?;
        session.sync()
    }

    /// In minutes, the original has read the whole file and filled the cache.
    fn warm(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = session.open(session.root(), NAME)?;
        let mut out = vec![0; LAYING_OUT];
        for at in (0..self.file_bytes).step_by(LAYING_OUT) {
            session.read(ino, at, &mut out)?;
        }
        session.close(ino)?;
        self.drive(session, self.seed ^ 2).map(drop)
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        self.drive(session, self.seed).map(drop)
    }
}
