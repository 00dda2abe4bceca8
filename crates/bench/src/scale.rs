//! Scale: what an operation costs on a volume with many files, many open files, or many clients.
//!
//! Each directory has the same number of files. Each size is grown from the one before. Then the
//! volume is unmounted and mounted, so that nothing is in a cache, and names are chosen at random.
//! What is found is compared with what was made.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::mem;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use stetfs_testkit::rng::Rng;

use crate::systems::{Running, memory_kib};

const BLOCK: usize = 4096;

/// How much is done for each figure.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Bytes in a file.
    pub bytes: usize,
    /// Files in a directory.
    pub per_directory: u64,
    /// Number of names that are looked up.
    pub samples: u64,
    /// Seconds that clients work.
    pub seconds: u64,
}

/// A figure: what was done, its unit, and how much of it.
pub type Figure = (&'static str, &'static str, f64);

/// Returns how many files this process may have open beside those it needs itself, with the limit
/// raised as far as the system allows.
fn descriptors() -> Result<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let all = rustix::process::Rlimit {
        current: now.maximum,
        ..now
    };
    setrlimit(Resource::Nofile, all).context("as many open files as the limit allows")?;
    let most = now.maximum.unwrap_or(u64::MAX);
    ensure!(
        most > 2 * OWN,
        "this process may have only {most} files open"
    );
    Ok(most - OWN)
}

/// Number of descriptors that are left for other things.
const OWN: u64 = 1000;

/// A process that holds files open and does nothing else: `cat`, which waits for the end of its
/// input.
struct Holder(Child);

impl Holder {
    fn of(files: Vec<File>) -> Result<Self> {
        for file in &files {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?;
        }
        let mut cat = Command::new("cat");
        let cat = cat.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        Ok(Self(cat.context("cat, to hold open files")?))
    }

    fn end(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait()?;
        ensure!(
            status.success(),
            "cat, which held open files, ended with {status}"
        );
        Ok(())
    }
}

/// A mounted system and the files on it.
pub struct Population<'a> {
    running: &'a mut Running,
    scale: Scale,
    count: u64,
    rng: Rng,
}

impl<'a> Population<'a> {
    /// A population without files.
    pub fn new(running: &'a mut Running, scale: Scale) -> Self {
        let rng = Rng::new(42);
        Self {
            running,
            scale,
            count: 0,
            rng,
        }
    }

    fn directory(&self, number: u64) -> PathBuf {
        let dir = self.running.dir();
        dir.join(format!("d{}", number / self.scale.per_directory))
    }

    fn file(&self, number: u64) -> PathBuf {
        self.directory(number).join(format!("file-{number}"))
    }

    /// Returns the numbers of `samples` random files.
    fn sample(&mut self, samples: u64) -> Vec<u64> {
        (0..samples).map(|_| self.rng.below(self.count)).collect()
    }

    /// Makes files until there are `to` of them.
    ///
    /// # Errors
    /// Of the file system.
    pub fn grow(&mut self, to: u64) -> Result<Figure> {
        let content = vec![b'x'; self.scale.bytes];
        let start = Instant::now();
        let from = self.count;
        for number in from..to {
            if number.is_multiple_of(self.scale.per_directory) {
                fs::create_dir(self.directory(number))?;
            }
            let path = self.file(number);
            let created = File::create(&path).and_then(|mut file| file.write_all(&content));
            created.with_context(|| path.display().to_string())?;
        }
        rustix::fs::syncfs(File::open(self.running.dir())?)?;
        self.count = to;
        let spent = start.elapsed().as_secs_f64();
        Ok(("create", "op/s", (to - from) as f64 / spent))
    }

    /// Measures what operations cost among these files.
    ///
    /// # Errors
    /// Of the file system; something that is not as it was made.
    pub fn measure(&mut self) -> Result<Vec<Figure>> {
        let mounting = self.running.remount()?;
        let mut figures = vec![("mount", "s", mounting.as_secs_f64())];
        let numbers = self.sample(self.scale.samples);
        let start = Instant::now();
        for &number in &numbers {
            let path = self.file(number);
            let found = fs::symlink_metadata(&path);
            let found = found.with_context(|| path.display().to_string())?;
            ensure!(
                found.len() == self.scale.bytes as u64,
                "{} has {} bytes",
                path.display(),
                found.len()
            );
        }
        let rate = |count: usize, start: Instant| count as f64 / start.elapsed().as_secs_f64();
        figures.push(("stat", "op/s", rate(numbers.len(), start)));
        let (mut names, start) = (0, Instant::now());
        while names < numbers.len() {
            let number = self.rng.below(self.count);
            let dir = self.directory(number);
            let found = fs::read_dir(&dir)?.count();
            let first = number - number % self.scale.per_directory;
            let made = (self.count - first).min(self.scale.per_directory);
            ensure!(found as u64 == made, "{} has {found} names", dir.display());
            names += found;
        }
        figures.push(("list", "names/s", rate(names, start)));
        let numbers = self.sample(self.scale.samples.div_ceil(4));
        let start = Instant::now();
        for &number in &numbers {
            let path = self.directory(number).join("new");
            File::create_new(&path)?;
            fs::remove_file(&path)?;
        }
        figures.push(("create + unlink", "op/s", rate(numbers.len(), start)));
        let numbers = self.sample(self.scale.samples.div_ceil(20));
        let start = Instant::now();
        for &number in &numbers {
            let file = OpenOptions::new().write(true).open(self.file(number))?;
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            file.sync_all()?;
        }
        figures.push(("chmod + fsync", "op/s", rate(numbers.len(), start)));
        figures.extend(self.memory()?);
        Ok(figures)
    }

    /// Returns the memory of the server.
    fn memory(&self) -> Result<Option<Figure>> {
        let Some(server) = self.running.server() else {
            return Ok(None);
        };
        let kib = memory_kib(&server.to_string(), "VmRSS")? as f64;
        Ok(Some(("memory of the server", "MiB", kib / 1024.0)))
    }

    /// Measures what it costs to open this many files, and to use them while all are open.
    ///
    /// One process may have only so many files open. So this process opens them in parts, and hands
    /// each part but the last to a process that holds it. A part takes every n-th file, so that the
    /// files that are used lie among all.
    ///
    /// # Errors
    /// Of the file system; there are fewer files, or the system lets fewer be open.
    pub fn open(&mut self, files: u64) -> Result<Vec<Figure>> {
        ensure!(files <= self.count, "there are only {} files", self.count);
        let parts = files.div_ceil(descriptors()?);
        self.running.remount()?;
        let step = self.count / files;
        let open = |number: u64| {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .open(self.file(number * step))
        };
        let (mut spent, mut holders, mut opened) = (Duration::ZERO, Vec::new(), Vec::new());
        for part in 0..parts {
            if part > 0 {
                holders.push(Holder::of(mem::take(&mut opened))?);
            }
            let start = Instant::now();
            let numbers = (part..files).step_by(parts as usize);
            opened = numbers.map(open).collect::<std::io::Result<Vec<File>>>()?;
            spent += start.elapsed();
        }
        let mut figures = vec![("open", "op/s", files as f64 / spent.as_secs_f64())];
        let used = self.scale.samples.div_ceil(20);
        let mut page = [b'y'; BLOCK];
        let start = Instant::now();
        for number in 0..used {
            // Write new content each time: a scheme may notice what is already there.
            page[..8].copy_from_slice(&number.to_le_bytes());
            let file = &opened[self.rng.below(opened.len() as u64) as usize];
            file.write_all_at(&page, 0)?;
            file.sync_data()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        figures.push(("overwrite + fsync", "op/s", used as f64 / seconds));
        figures.extend(self.memory()?);
        // Restore the sizes that the next figure expects.
        for file in &opened {
            if file.metadata()?.len() != self.scale.bytes as u64 {
                file.set_len(self.scale.bytes as u64)?;
            }
        }
        holders.into_iter().try_for_each(Holder::end)?;
        Ok(figures)
    }

    /// Measures what this many clients do together.
    ///
    /// # Errors
    /// Of the file system.
    pub fn clients(&mut self, clients: u64) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        let dir = self.running.dir().join("clients");
        fs::create_dir_all(&dir)?;
        let page = [b'z'; BLOCK];
        let own = |client| dir.join(format!("{client}"));
        for client in 0..clients {
            fs::write(own(client), page)?;
        }
        rustix::fs::syncfs(File::open(&dir)?)?;
        let overwrite = |client: u64, number: u64, _: &mut Rng| -> Result<()> {
            let file = OpenOptions::new().write(true).open(own(client))?;
            file.write_all_at(&number.to_le_bytes(), 0)?;
            Ok(file.sync_data()?)
        };
        figures.push((
            "overwrite + fsync",
            "op/s",
            self.together(clients, overwrite)?,
        ));
        let create = |client: u64, number: u64, _: &mut Rng| -> Result<()> {
            let path = dir.join(format!("{client}-{number}"));
            File::create_new(&path)?;
            Ok(fs::remove_file(path)?)
        };
        figures.push(("create + unlink", "op/s", self.together(clients, create)?));
        self.running.remount()?;
        let stat = |_: u64, _: u64, rng: &mut Rng| -> Result<()> {
            let found = fs::symlink_metadata(self.file(rng.below(self.count)))?;
            ensure!(found.is_file(), "no file");
            Ok(())
        };
        figures.push(("stat", "op/s", self.together(clients, stat)?));
        fs::remove_dir_all(&dir)?;
        Ok(figures)
    }

    /// Returns operations per second of this many threads.
    fn together(
        &self,
        clients: u64,
        work: impl Fn(u64, u64, &mut Rng) -> Result<()> + Sync,
    ) -> Result<f64> {
        let ends = AtomicBool::new(false);
        let (ends, work) = (&ends, &work);
        let start = Instant::now();
        let done = thread::scope(|scope| {
            let client = |client| {
                move || -> Result<u64> {
                    let mut rng = Rng::new(client);
                    let mut done = 0;
                    while !ends.load(Relaxed) {
                        work(client, done, &mut rng)?;
                        done += 1;
                    }
                    Ok(done)
                }
            };
            let threads: Vec<_> = (0..clients).map(|n| scope.spawn(client(n))).collect();
            thread::sleep(Duration::from_secs(self.scale.seconds));
            ends.store(true, Relaxed);
            let mut sum = 0;
            for thread in threads {
                match thread.join() {
                    Ok(done) => sum += done?,
                    Err(_) => bail!("a client panicked"),
                }
            }
            Ok(sum)
        })?;
        Ok(done as f64 / start.elapsed().as_secs_f64())
    }
}
