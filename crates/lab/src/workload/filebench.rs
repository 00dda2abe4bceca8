//! filebench's personalities of servers (github.com/filebench/filebench, commit ca9b7afe,
//! workloads/fileserver.f, webproxy.f, varmail.f).
//!
//! A set of files is there, of which four in five exist (`prealloc=80`); their sizes are drawn from
//! a gamma distribution with the mean that the personality names and a shape of 1.5, filebench's
//! default, as deep in directories as it takes that one holds `dir_width` on average. Each thread
//! goes through the personality's list of operations again and again:
//!
//! - *create* opens a file of the set that does not exist, *open* one that does, *delete* removes
//!   one that does; a file that a thread has open is not taken by another one;
//! - *write whole* writes as much as the set says that the file has, *read whole* as much as there
//!   is, both in pieces of 1 MiB;
//! - *append* writes 1 to `append_bytes` bytes at the end.
//!
//! The threads take turns, an operation each: the calls are then the same on every machine.
//! Operations are counted as filebench does, one for each line of the list. Where filebench runs
//! for a time, here each thread goes through its list `loops` times.

use anyhow::{Context, Result, ensure};
use rand_distr::{Distribution, Gamma};
use serde::Serialize;
use stetfs_format::InodeNo;

use super::{Content, Session, Workload};
use stetfs_testkit::rng::Rng;

/// A line of a personality's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// createfile.
    Create,
    /// openfile.
    Open,
    /// closefile.
    Close,
    /// writewholefile.
    WriteWhole,
    /// readwholefile.
    ReadWhole,
    /// appendfilerand.
    Append,
    /// fsync.
    Fsync,
    /// deletefile.
    Delete,
    /// statfile.
    Stat,
}

use Operation::{Append, Close, Create, Delete, Fsync, Open, ReadWhole, Stat, WriteWhole};

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Personality {
    /// Files are made, appended to, read whole and deleted.
    Fileserver,
    /// Files are replaced, and each then read whole five times.
    Webproxy,
    /// Mails are written, each synced, and read.
    Varmail,
}

impl Personality {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Fileserver, Self::Webproxy, Self::Varmail];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Webproxy => "webproxy",
            Self::Varmail => "varmail",
        }
    }

    /// What a thread does.
    pub const fn operations(self) -> &'static [Operation] {
        match self {
            Self::Fileserver => &[
                Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete,
                Stat,
            ],
            Self::Webproxy => &[
                Delete, Create, Append, Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
                Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
            ],
            Self::Varmail => &[
                Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close, Open,
                ReadWhole, Close,
            ],
        }
    }
}

/// A personality with its parameters.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Filebench {
    /// Which.
    pub personality: Personality,
    /// `nfiles`.
    pub files: u32,
    /// `meandirwidth`.
    pub dir_width: u32,
    /// `meanfilesize`, bytes.
    pub mean_file_bytes: u64,
    /// `nthreads`.
    pub threads: u32,
    /// `meanappendsize` or `meaniosize`: the most bytes of an append.
    pub append_bytes: u32,
    /// How often each thread goes through its list.
    pub loops: u32,
    /// What is drawn from.
    pub seed: u64,
}

/// `iosize` of all three.
const PIECE: usize = 1 << 20;
/// `prealloc` of all three, percent.
const EXISTING: u64 = 80;
/// filebench's `filesizegamma`.
const SHAPE: f64 = 1.5;

impl Filebench {
    /// With the parameters of filebench's own files.
    pub fn new(personality: Personality, loops: u32, seed: u64) -> Self {
        let (files, dir_width, mean_file_bytes, threads) = match personality {
            Personality::Fileserver => (10_000, 20, 128 << 10, 50),
            Personality::Webproxy => (10_000, 1_000_000, 16 << 10, 100),
            Personality::Varmail => (1_000, 1_000_000, 16 << 10, 16),
        };
        Self {
            personality,
            files,
            dir_width,
            mean_file_bytes,
            threads,
            append_bytes: 16 << 10,
            loops,
            seed,
        }
    }

    /// Operations of a run, counted as filebench does.
    pub fn operations(&self) -> u64 {
        let list = self.personality.operations().len() as u64;
        u64::from(self.threads) * u64::from(self.loops) * list
    }

    /// The set's directories that files are in, each made or found by `get`, level by level until
    /// the last has room for all.
    fn dirs(
        &self,
        session: &mut Session<'_>,
        get: fn(&mut Session<'_>, InodeNo, &str) -> Result<InodeNo>,
    ) -> Result<Vec<InodeNo>> {
        let root = session.root();
        let mut level = vec![get(session, root, "bigfileset")?];
        let wanted = self.files.div_ceil(self.dir_width) as usize;
        while level.len() < wanted {
            let next = wanted.min(level.len() * self.dir_width as usize);
            level = (0..next)
                .map(|n| get(session, level[n % level.len()], &format!("{n:08}")))
                .collect::<Result<_>>()?;
        }
        Ok(level)
    }

    /// Runs all threads to the end.
    ///
    /// # Errors
    /// Of the volume; there are fewer files than the threads need.
    pub fn drive(&self, session: &mut Session<'_>, set: &mut FileSet) -> Result<()> {
        let list = self.personality.operations();
        let mut driver = Driver {
            rng: Rng::new(self.seed ^ 3),
            content: Content::new(self.seed ^ 4, PIECE),
            buffer: vec![0; PIECE],
            append_bytes: self.append_bytes,
            session,
            set,
        };
        let mut open: Vec<Option<Opened>> = (0..self.threads).map(|_| None).collect();
        let turns = u64::from(self.loops) * list.len() as u64;
        for turn in 0..turns {
            let operation = list[(turn % list.len() as u64) as usize];
            for opened in &mut open {
                driver
                    .step(operation, opened)
                    .with_context(|| format!("{operation:?} in turn {turn}"))?;
            }
            driver.session.tell(turn, turns);
        }
        Ok(())
    }
}

/// A file of the set.
#[derive(Clone, Debug)]
struct File {
    /// As the set says; what appends add is not noted.
    bytes: u64,
    exists: bool,
    is_open: bool,
}

/// Files, of which some exist.
pub struct FileSet {
    dirs: Vec<InodeNo>,
    files: Vec<File>,
}

/// A file that a thread has open.
struct Opened {
    file: usize,
    ino: InodeNo,
}

impl FileSet {
    /// The same each time for the same parameters; nothing is on the volume yet.
    fn new(bench: &Filebench) -> Self {
        let mut rng = Rng::new(bench.seed);
        let sizes = Gamma::new(SHAPE, bench.mean_file_bytes as f64 / SHAPE);
        let sizes = sizes.expect("a mean of more than 0");
        let files = (0..bench.files).map(|_| File {
            bytes: (sizes.sample(&mut rng) as u64).max(1),
            exists: rng.chance(EXISTING),
            is_open: false,
        });
        Self {
            dirs: Vec::new(),
            files: files.collect(),
        }
    }

    fn place(&self, n: usize) -> (InodeNo, String) {
        (self.dirs[n % self.dirs.len()], format!("{n:08}"))
    }

    /// One that exists or does not, and that nobody has open.
    fn pick(&self, exists: bool, rng: &mut Rng) -> Result<usize> {
        let start = rng.below(self.files.len() as u64) as usize;
        let all = (start..self.files.len()).chain(0..start);
        all.into_iter()
            .find(|&n| self.files[n].exists == exists && !self.files[n].is_open)
            .with_context(|| {
                format!(
                    "no file of the set is left that {}",
                    if exists { "exists" } else { "does not exist" }
                )
            })
    }
}

struct Driver<'d, 'f> {
    rng: Rng,
    content: Content,
    buffer: Vec<u8>,
    append_bytes: u32,
    session: &'d mut Session<'f>,
    set: &'d mut FileSet,
}

impl Driver<'_, '_> {
    fn step(&mut self, operation: Operation, opened: &mut Option<Opened>) -> Result<()> {
        match operation {
            Create | Open => {
                let file = self.set.pick(operation == Open, &mut self.rng)?;
                let (dir, name) = self.set.place(file);
                let ino = match operation {
                    Create => self.session.create(dir, &name)?,
                    _ => self.session.open(dir, &name)?,
                };
                self.set.files[file].exists = true;
                self.set.files[file].is_open = true;
                *opened = Some(Opened { file, ino });
                return Ok(());
            }
            Delete => {
                let file = self.set.pick(true, &mut self.rng)?;
                let (dir, name) = self.set.place(file);
                self.set.files[file].exists = false;
                return self.session.remove(dir, &name);
            }
            Stat => {
                let file = self.set.pick(true, &mut self.rng)?;
                let (dir, name) = self.set.place(file);
                return self.session.stat(dir, &name);
            }
            Close | WriteWhole | ReadWhole | Append | Fsync => {}
        }
        let Opened { file, ino } = opened.as_ref().context("nothing is open")?;
        let (file, ino) = (*file, *ino);
        match operation {
            WriteWhole => {
                let bytes = self.set.files[file].bytes;
                write_all(self.session, ino, bytes, &mut self.content)
            }
            ReadWhole => {
                let mut at = 0;
                loop {
                    let n = self.session.read(ino, at, &mut self.buffer)?;
                    at += n as u64;
                    if n < self.buffer.len() {
                        return Ok(());
                    }
                }
            }
            Append => {
                let len = 1 + self.rng.below(self.append_bytes.into()) as usize;
                self.session.append(ino, self.content.piece(0, len))
            }
            Fsync => self.session.fsync(ino),
            _ => {
                self.set.files[file].is_open = false;
                *opened = None;
                self.session.close(ino)
            }
        }
    }
}

fn write_all(
    session: &mut Session<'_>,
    ino: InodeNo,
    bytes: u64,
    content: &mut Content,
) -> Result<()> {
    for at in (0..bytes).step_by(PIECE) {
        let len = PIECE.min((bytes - at) as usize);
        session.write(ino, at, content.piece(at / PIECE as u64, len))?;
    }
    Ok(())
}

impl Workload for Filebench {
    fn name(&self) -> String {
        let kib = self.mean_file_bytes as f64 / 1024.0;
        format!(
            "filebench {}, {} files of {kib} KiB",
            self.personality.name(),
            self.files
        )
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        let free = u64::from(self.files) * (100 - EXISTING) / 100;
        ensure!(
            self.dir_width >= 2 && u64::from(self.threads) < free,
            "{} threads on {} files, {} in a directory",
            self.threads,
            self.files,
            self.dir_width
        );
        let mut set = FileSet::new(self);
        set.dirs = self.dirs(session, |session, parent, name| session.mkdir(parent, name))?;
        let mut content = Content::new(self.seed, PIECE);
        for n in (0..set.files.len()).filter(|&n| set.files[n].exists) {
            let (dir, name) = set.place(n);
            let ino = session.create(dir, &name)?;
            write_all(session, ino, set.files[n].bytes, &mut content)?;
            session.close(ino)?;
            session.tell(n as u64, set.files.len() as u64);
        }
        session.sync()
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let mut set = FileSet::new(self);
        set.dirs = self.dirs(session, |session, parent, name| session.find(parent, name))?;
        self.drive(session, &mut set)
    }
}
