//! filebench's personalities of servers (github.com/filebench/filebench, commit ca9b7afe,
//! workloads/fileserver.f, webproxy.f, varmail.f).
//!
//! A set of files is there, of which four in five exist (`prealloc=80`). Their sizes are drawn from
//! a gamma distribution with the personality's mean and a shape of 1.5, filebench's default.
//! Directories are nested so deep that one holds `dir_width` entries on average. Each thread goes
//! through the personality's list of operations again and again:
//!
//! - *create* opens a file of the set that does not exist, *open* one that does, *delete* removes
//!   one that does; no thread takes a file that another one has open;
//! - *write whole* writes as many bytes as the file has in the set, *read whole* reads all bytes of
//!   the file, both in pieces of `iosize`;
//! - *append* writes 1 to `append_bytes` bytes at the end.
//!
//! The lab's threads take turns, an operation each, so that the calls are the same on every
//! machine. They begin one after the other, so that they are always spread over the list, as
//! free-running threads are after a while. If all were at the same place, all would append and then
//! all would sync, and the first sync would do the work of all. On a mount they are real threads
//! ([`Filebench::thread`]). Operations are counted as filebench does, one for each line of the
//! list. Where filebench runs for a time, here each thread goes through its list `loops` times.

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rand_distr::{Distribution, Gamma};
use serde::Serialize;
use stetfs_format::InodeNo;

use super::content::Content;
use super::contract::Workload;
use super::dice::Dice;
use super::session::Session;
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

/// A kind of server.
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
    /// Every personality.
    pub const ALL: [Self; 3] = [Self::Fileserver, Self::Webproxy, Self::Varmail];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Webproxy => "webproxy",
            Self::Varmail => "varmail",
        }
    }

    /// The list of operations of a thread.
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
    /// The personality.
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
    /// `iosize`: bytes of a piece in which files are written and read whole, 1 MiB in all three.
    pub piece_bytes: u32,
    /// How often each thread goes through its list.
    pub loops: u32,
    /// Seed of everything random.
    pub seed: u64,
}

/// `iosize` of all three, and the most that it may be.
const PIECE: u32 = 1 << 20;
/// `prealloc` of all three, percent.
const EXISTING: u64 = 80;
/// filebench's `filesizegamma`.
const SHAPE: f64 = 1.5;

impl Filebench {
    /// Takes the parameters of filebench's own files.
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
            piece_bytes: PIECE,
            loops,
            seed,
        }
    }

    /// The length of a piece.
    fn piece(&self) -> Result<usize> {
        ensure!(
            (1..=PIECE).contains(&self.piece_bytes),
            "pieces of {} bytes: from 1 to {PIECE}",
            self.piece_bytes
        );
        Ok(self.piece_bytes as usize)
    }

    /// Operations of a run, counted as filebench does.
    pub fn operations(&self) -> u64 {
        let list = self.personality.operations().len() as u64;
        u64::from(self.threads) * u64::from(self.loops) * list
    }

    /// Makes or finds (by `get`) the set's directories that files are in, level by level until the
    /// last has room for all files.
    fn dirs<C: Calls>(
        &self,
        calls: &mut C,
        get: fn(&mut C, &C::Dir, &str) -> Result<C::Dir>,
    ) -> Result<Vec<C::Dir>> {
        let root = calls.top();
        let mut level = vec![get(calls, &root, "bigfileset")?];
        let wanted = self.files.div_ceil(self.dir_width) as usize;
        while level.len() < wanted {
            let next = wanted.min(level.len() * self.dir_width as usize);
            level = (0..next)
                .map(|n| get(calls, &level[n % level.len()], &format!("{n:08}")))
                .collect::<Result<_>>()?;
        }
        Ok(level)
    }

    /// Makes the set and those of its files that exist.
    ///
    /// # Errors
    /// Those of the volume; there are fewer files than the threads need.
    pub fn make<C: Calls>(&self, calls: &mut C) -> Result<FileSet<C::Dir>> {
        let free = u64::from(self.files) * (100 - EXISTING) / 100;
        ensure!(
            self.dir_width >= 2 && u64::from(self.threads) < free,
            "{} threads on {} files, {} in a directory",
            self.threads,
            self.files,
            self.dir_width
        );
        let dirs = self.dirs(calls, C::mkdir)?;
        let set = FileSet::new(self, dirs);
        let piece = self.piece()?;
        let mut content = Content::new(self.seed, piece);
        let files = set.files.lock().clone();
        for (n, file) in files.iter().enumerate().filter(|(_, file)| file.exists) {
            let (dir, name) = set.place(n);
            let mut made = calls.create(dir, &name)?;
            write_all(calls, &mut made, file.bytes, (&mut content, piece))?;
            calls.close(made)?;
            calls.tell(n as u64, files.len() as u64);
        }
        Ok(set)
    }

    /// Runs all threads to the end, in turns.
    fn drive<C: Calls>(&self, calls: &mut C, set: &FileSet<C::Dir>) -> Result<()> {
        let list = self.personality.operations();
        let mut driver = Driver::new(self, 3, calls, set);
        let mut open: Vec<Option<Opened<C>>> = (0..self.threads).map(|_| None).collect();
        let (length, threads) = (list.len() as u64, u64::from(self.threads));
        let turns = u64::from(self.loops) * length;
        for turn in 0..turns + length {
            for (thread, opened) in (0..).zip(&mut open) {
                let begins = thread * length / threads;
                let Some(at) = turn.checked_sub(begins).filter(|at| *at < turns) else {
                    continue;
                };
                let operation = list[(at % length) as usize];
                driver
                    .step(operation, opened)
                    .with_context(|| format!("{operation:?} in turn {turn}"))?;
            }
            driver.calls.tell(turn, turns + length);
        }
        Ok(())
    }

    /// Runs one thread to its end.
    ///
    /// # Errors
    /// Those of the volume; there are fewer files than the threads need.
    pub fn thread<C: Calls>(
        &self,
        number: u32,
        calls: &mut C,
        set: &FileSet<C::Dir>,
    ) -> Result<()> {
        let seed = u64::from(number) << 8;
        let mut driver = Driver::new(self, seed, calls, set);
        let mut opened = None;
        for turn in 0..self.loops {
            for operation in self.personality.operations() {
                driver
                    .step(*operation, &mut opened)
                    .with_context(|| format!("{operation:?}, thread {number}, turn {turn}"))?;
            }
        }
        Ok(())
    }
}

/// The calls that threads make.
pub trait Calls {
    /// A directory.
    type Dir;
    /// An open file.
    type File;

    /// The directory that the set is made in.
    fn top(&self) -> Self::Dir;

    /// Makes a directory.
    ///
    /// # Errors
    /// Those of the volume, here and below.
    fn mkdir(&mut self, parent: &Self::Dir, name: &str) -> Result<Self::Dir>;

    /// Makes a file and opens it.
    ///
    /// # Errors
    /// As above.
    fn create(&mut self, dir: &Self::Dir, name: &str) -> Result<Self::File>;

    /// Opens a file.
    ///
    /// # Errors
    /// As above.
    fn open(&mut self, dir: &Self::Dir, name: &str) -> Result<Self::File>;

    /// Deletes a file.
    ///
    /// # Errors
    /// As above.
    fn remove(&mut self, dir: &Self::Dir, name: &str) -> Result<()>;

    /// Asks for a file's attributes.
    ///
    /// # Errors
    /// As above.
    fn stat(&mut self, dir: &Self::Dir, name: &str) -> Result<()>;

    /// Writes all the bytes.
    ///
    /// # Errors
    /// As above.
    fn write(&mut self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Writes all the bytes at the end.
    ///
    /// # Errors
    /// As above.
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> Result<()>;

    /// Reads bytes; fewer than asked for only at the end.
    ///
    /// # Errors
    /// As above.
    fn read(&mut self, file: &mut Self::File, offset: u64, out: &mut [u8]) -> Result<usize>;

    /// Makes a file durable.
    ///
    /// # Errors
    /// As above.
    fn fsync(&mut self, file: &mut Self::File) -> Result<()>;

    /// Closes a file.
    ///
    /// # Errors
    /// As above.
    fn close(&mut self, file: Self::File) -> Result<()>;

    /// Called with the number of operations done and their total.
    fn tell(&self, _done: u64, _of: u64) {}
}

impl Calls for Session<'_> {
    type Dir = InodeNo;
    type File = InodeNo;

    fn top(&self) -> InodeNo {
        self.root()
    }

    fn mkdir(&mut self, parent: &InodeNo, name: &str) -> Result<InodeNo> {
        Session::mkdir(self, *parent, name)
    }

    fn create(&mut self, dir: &InodeNo, name: &str) -> Result<InodeNo> {
        Session::create(self, *dir, name)
    }

    fn open(&mut self, dir: &InodeNo, name: &str) -> Result<InodeNo> {
        Session::open(self, *dir, name)
    }

    fn remove(&mut self, dir: &InodeNo, name: &str) -> Result<()> {
        Session::remove(self, *dir, name)
    }

    fn stat(&mut self, dir: &InodeNo, name: &str) -> Result<()> {
        Session::stat(self, *dir, name)
    }

    fn write(&mut self, file: &mut InodeNo, offset: u64, bytes: &[u8]) -> Result<()> {
        Session::write(self, *file, offset, bytes)
    }

    fn append(&mut self, file: &mut InodeNo, bytes: &[u8]) -> Result<()> {
        Session::append(self, *file, bytes)
    }

    fn read(&mut self, file: &mut InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        Session::read(self, *file, offset, out)
    }

    fn fsync(&mut self, file: &mut InodeNo) -> Result<()> {
        Session::fsync(self, *file)
    }

    fn close(&mut self, file: InodeNo) -> Result<()> {
        Session::close(self, file)
    }

    fn tell(&self, done: u64, of: u64) {
        Session::tell(self, done, of);
    }
}

/// A file of the set.
#[derive(Clone, Debug)]
struct File {
    /// Bytes by the set; what appends add is not noted.
    bytes: u64,
    exists: bool,
    is_open: bool,
}

/// Files, some of which exist.
pub struct FileSet<D> {
    dirs: Vec<D>,
    files: Mutex<Vec<File>>,
}

/// A file that a thread has open.
struct Opened<C: Calls> {
    number: usize,
    file: C::File,
}

impl<D> FileSet<D> {
    /// Makes the set, the same for the same parameters; nothing is on the volume yet.
    fn new(bench: &Filebench, dirs: Vec<D>) -> Self {
        let mut rng = Rng::new(bench.seed);
        let sizes = Gamma::new(SHAPE, bench.mean_file_bytes as f64 / SHAPE);
        let sizes = sizes.expect("a mean of more than 0");
        let files = (0..bench.files).map(|_| File {
            bytes: (sizes.sample(&mut Dice(&mut rng)) as u64).max(1),
            exists: rng.chance(EXISTING),
            is_open: false,
        });
        let files = Mutex::new(files.collect());
        Self { dirs, files }
    }

    fn place(&self, n: usize) -> (&D, String) {
        (&self.dirs[n % self.dirs.len()], format!("{n:08}"))
    }

    /// Takes a file that exists, or one that does not, and that nobody has open.
    fn pick(&self, exists: bool, rng: &mut Rng, take: impl FnOnce(&mut File)) -> Result<usize> {
        let mut files = self.files.lock();
        let start = rng.below(files.len() as u64) as usize;
        let mut all = (start..files.len()).chain(0..start);
        let found = all.find(|&n| files[n].exists == exists && !files[n].is_open);
        let found = found.with_context(|| {
            let which = if exists { "exists" } else { "does not exist" };
            format!("no file of the set is left that {which}")
        })?;
        take(&mut files[found]);
        Ok(found)
    }
}

struct Driver<'d, C: Calls> {
    rng: Rng,
    content: Content,
    buffer: Vec<u8>,
    append_bytes: u32,
    calls: &'d mut C,
    set: &'d FileSet<C::Dir>,
}

impl<'d, C: Calls> Driver<'d, C> {
    fn new(bench: &Filebench, seed: u64, calls: &'d mut C, set: &'d FileSet<C::Dir>) -> Self {
        Self {
            rng: Rng::new(bench.seed ^ seed),
            // An append may be longer than a piece.
            content: Content::new(bench.seed ^ seed ^ 7, PIECE as usize),
            buffer: vec![0; bench.piece_bytes as usize],
            append_bytes: bench.append_bytes,
            calls,
            set,
        }
    }

    fn step(&mut self, operation: Operation, opened: &mut Option<Opened<C>>) -> Result<()> {
        match operation {
            Create | Open => {
                let exists = operation == Open;
                // A new file is open, so that nobody takes it, before it exists.
                let number = self
                    .set
                    .pick(exists, &mut self.rng, |file| file.is_open = true)?;
                let (dir, name) = self.set.place(number);
                let file = match operation {
                    Create => self.calls.create(dir, &name)?,
                    _ => self.calls.open(dir, &name)?,
                };
                self.set.files.lock()[number].exists = true;
                *opened = Some(Opened { number, file });
                return Ok(());
            }
            Delete => {
                let take = |file: &mut File| file.is_open = true;
                let number = self.set.pick(true, &mut self.rng, take)?;
                let (dir, name) = self.set.place(number);
                self.calls.remove(dir, &name)?;
                let file = &mut self.set.files.lock()[number];
                (file.exists, file.is_open) = (false, false);
                return Ok(());
            }
            Stat => {
                let take = |file: &mut File| file.is_open = true;
                let number = self.set.pick(true, &mut self.rng, take)?;
                let (dir, name) = self.set.place(number);
                self.calls.stat(dir, &name)?;
                self.set.files.lock()[number].is_open = false;
                return Ok(());
            }
            Close | WriteWhole | ReadWhole | Append | Fsync => {}
        }
        if operation == Close {
            let Opened { number, file } = opened.take().context("nothing is open")?;
            self.calls.close(file)?;
            self.set.files.lock()[number].is_open = false;
            return Ok(());
        }
        let Opened { number, file } = opened.as_mut().context("nothing is open")?;
        match operation {
            WriteWhole => {
                let bytes = self.set.files.lock()[*number].bytes;
                let piece = self.buffer.len();
                write_all(self.calls, file, bytes, (&mut self.content, piece))
            }
            ReadWhole => {
                let mut at = 0;
                loop {
                    let n = self.calls.read(file, at, &mut self.buffer)?;
                    at += n as u64;
                    if n < self.buffer.len() {
                        return Ok(());
                    }
                }
            }
            Append => {
                let len = 1 + self.rng.below(self.append_bytes.into()) as usize;
                self.calls.append(file, self.content.piece(0, len))
            }
            _ => self.calls.fsync(file),
        }
    }
}

fn write_all<C: Calls>(
    calls: &mut C,
    file: &mut C::File,
    bytes: u64,
    (content, piece): (&mut Content, usize),
) -> Result<()> {
    for at in (0..bytes).step_by(piece) {
        let len = piece.min((bytes - at) as usize);
        calls.write(file, at, content.piece(at / piece as u64, len))?;
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
        self.make(session)?;
        session.sync()
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let find =
            |session: &mut Session<'_>, parent: &InodeNo, name: &str| session.find(*parent, name);
        let dirs = self.dirs(session, find)?;
        self.drive(session, &FileSet::new(self, dirs))
    }
}
