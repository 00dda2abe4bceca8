//! The lab's workloads of servers and databases, on a mount.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use stetfs_lab::workload::filebench::{Calls, Filebench, Personality};
use stetfs_lab::workload::sqlite::JournalMode;

use crate::databases::{Load, Loads, close, open};
use crate::done::{Done, Effort, make_tree};
use crate::systems::Running;

/// Runs a personality of filebench, with all its threads at once.
pub(crate) fn filebench(
    running: &mut Running,
    effort: Effort,
    personality: Personality,
) -> Result<Done> {
    // The kernel's ext4 takes some seconds for this number.
    let loops = match personality {
        Personality::Fileserver => 60,
        Personality::Webproxy => 160,
        Personality::Varmail => 1_000,
    };
    let shrink = u32::try_from(effort.shrink).unwrap_or(u32::MAX);
    let mut bench = Filebench::new(personality, loops / shrink, 42);
    bench.loops = bench.loops.max(1);
    bench.files = (bench.files / shrink).max(10 * bench.threads);
    let top = running.dir().join("filebench");
    fs::create_dir(&top)?;
    let written = AtomicU64::new(0);
    let calls = || OnMount {
        top: &top,
        written: &written,
    };
    let set = bench.make(&mut calls())?;
    running.begin()?;
    written.store(0, Relaxed);
    let start = Instant::now();
    thread::scope(|scope| {
        let (bench, set, calls) = (&bench, &set, &calls);
        let threads: Vec<_> = (0..bench.threads)
            .map(|number| scope.spawn(move || bench.thread(number, &mut calls(), set)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(done) => done,
                Err(_) => Err(anyhow!("a thread panicked")),
            })
    })?;
    let done = Done::rate(bench.operations(), start);
    Ok(done.writing(written.load(Relaxed)))
}

/// A directory of a mount.
struct OnMount<'a> {
    top: &'a Path,
    /// Bytes that were handed to writes.
    written: &'a AtomicU64,
}

impl OnMount<'_> {
    fn wrote(&self, bytes: &[u8]) {
        self.written.fetch_add(bytes.len() as u64, Relaxed);
    }
}

impl Calls for OnMount<'_> {
    type Dir = PathBuf;
    type File = File;

    fn top(&self) -> PathBuf {
        self.top.to_owned()
    }

    fn mkdir(&mut self, parent: &PathBuf, name: &str) -> Result<PathBuf> {
        let path = parent.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    fn create(&mut self, dir: &PathBuf, name: &str) -> Result<File> {
        let mut options = OpenOptions::new();
        options.create_new(true).read(true).append(true);
        Ok(options.open(dir.join(name))?)
    }

    fn open(&mut self, dir: &PathBuf, name: &str) -> Result<File> {
        let mut options = OpenOptions::new();
        Ok(options.read(true).append(true).open(dir.join(name))?)
    }

    fn remove(&mut self, dir: &PathBuf, name: &str) -> Result<()> {
        Ok(fs::remove_file(dir.join(name))?)
    }

    fn stat(&mut self, dir: &PathBuf, name: &str) -> Result<()> {
        fs::symlink_metadata(dir.join(name))?;
        Ok(())
    }

    /// Files are written whole, from the beginning; each piece goes to the present end.
    fn write(&mut self, file: &mut File, _offset: u64, bytes: &[u8]) -> Result<()> {
        self.append(file, bytes)
    }

    fn append(&mut self, file: &mut File, bytes: &[u8]) -> Result<()> {
        self.wrote(bytes);
        Ok(file.write_all(bytes)?)
    }

    fn read(&mut self, file: &mut File, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mut at = 0;
        while at < out.len() {
            match file.read_at(&mut out[at..], offset + at as u64)? {
                0 => break,
                n => at += n,
            }
        }
        Ok(at)
    }

    fn fsync(&mut self, file: &mut File) -> Result<()> {
        Ok(file.sync_all()?)
    }

    fn close(&mut self, file: File) -> Result<()> {
        drop(file);
        Ok(())
    }
}

/// Runs a load on SQLite.
pub(crate) fn database(
    running: &mut Running,
    effort: Effort,
    load: Load,
    journal: JournalMode,
) -> Result<Done> {
    let path = running.dir().join("bench.db");
    let loads = Loads::new(journal, 4, effort.shrink);
    let db = open(&path, JournalMode::Off, "OFF")?;
    loads.fill(load, &db)?;
    close(db)?;
    running.cool(&[&path])?;
    let db = open(&path, journal, "FULL")?;
    running.begin()?;
    let start = Instant::now();
    let transactions = loads.run(load, &db)?;
    let done = Done::rate(transactions, start);
    running.end()?;
    loads.check(load, &db)?;
    close(db)?;
    Ok(done)
}

/// Runs fs_mark: two threads, each in its own directory, write files of 4 KiB and sync each before
/// closing it.
pub(crate) fn fs_mark(running: &mut Running, effort: Effort) -> Result<Done> {
    let files = (10_000 / effort.shrink).max(1);
    let dir = running.dir().join("fs_mark");
    fs::create_dir(&dir)?;
    let log = tempfile::NamedTempFile::new()?;
    let start = Instant::now();
    let out = std::process::Command::new("fs_mark")
        .args(["-k", "-s", "4096", "-t", "2", "-S", "1", "-n"])
        .arg(files.to_string())
        .args(["-d", "fs_mark", "-l"])
        .arg(log.path())
        // fs_mark takes no path of 40 bytes, so it runs in the directory.
        .current_dir(running.dir())
        .output()?;
    let done = Done::rate(2 * files, start);
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    ensure!(
        out.status.success(),
        "fs_mark ended with {}: {text}",
        out.status
    );
    let made = fs::read_dir(&dir)?.count() as u64;
    ensure!(made == 2 * files, "fs_mark made {made} files: {text}");
    Ok(done.writing(2 * files * 4096))
}

/// The content of a small file.
const SMALL: [u8; 100] = [b's'; 100];

/// Makes 200,000 files of 100 bytes, a thousand in each directory; returns where, and how many.
fn make_small(running: &Running, effort: Effort) -> Result<(PathBuf, u64)> {
    let top = running.dir().join("small");
    let dirs = (200 / effort.shrink).max(1);
    make_tree(&top, dirs, 1000, &SMALL)?;
    Ok((top, 1000 * dirs))
}

/// Makes small files and syncs nothing.
pub(crate) fn create_small(running: &mut Running, effort: Effort) -> Result<Done> {
    let start = Instant::now();
    let (_, files) = make_small(running, effort)?;
    Ok(Done::rate(files, start).writing(files * SMALL.len() as u64))
}

/// Removes such files by `rm -rf`, after a sync.
pub(crate) fn remove_small(running: &mut Running, effort: Effort) -> Result<Done> {
    let (top, files) = make_small(running, effort)?;
    rustix::fs::syncfs(File::open(&top)?)?;
    running.begin()?;
    let start = Instant::now();
    let status = std::process::Command::new("rm")
        .arg("-rf")
        .arg(&top)
        .status()?;
    ensure!(
        status.success() && !top.exists(),
        "rm -rf ended with {status}"
    );
    Ok(Done::rate(files, start))
}
