//! The workloads. Each runs on a mounted system. It returns one figure, of which more is better,
//! and how often it did something.
//!
//! fio, postmark, dbench and fs_mark are used where they are the natural tool. Servers and
//! databases are the lab's. The rest are loops of plain calls. A row has a time limit or a fixed
//! amount of work, never both, so that the figure is a plain quotient.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use stetfs_lab::workload::filebench::Personality;
use stetfs_lab::workload::sqlite::JournalMode;
use stetfs_testkit::rng::Rng;

use super::applications::{create_small, database, filebench, fs_mark, remove_small};
use super::databases::Load;
use super::done::{Done, Effort, make_tree};
use super::systems::Running;

const KIB4: usize = 4096;
const MIB: usize = 1 << 20;

/// One row of the report.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name, as given on the command line.
    pub name: &'static str,
    /// The unit of the figure.
    pub unit: &'static str,
    /// Programs that it runs.
    pub programs: &'static [&'static str],
    /// Does the work.
    pub run: fn(&mut Running, Effort) -> Result<Done>,
}

/// Every row, in the order of the report.
pub const ROWS: &[Row] = &[
    Row {
        name: "overwrite+fsync, 1 job",
        unit: "op/s",
        programs: &["fio"],
        run: |r, e| overwrite_fsync(r, e, 1),
    },
    Row {
        name: "overwrite+fsync, 2 jobs",
        unit: "op/s",
        programs: &["fio"],
        run: |r, e| overwrite_fsync(r, e, 2),
    },
    Row {
        name: "fio, 30 % reads, fsync",
        unit: "op/s",
        programs: &["fio"],
        run: |r, e| mix_fsync(r, e, 30),
    },
    Row {
        name: "fio, 50 % reads, fsync",
        unit: "op/s",
        programs: &["fio"],
        run: |r, e| mix_fsync(r, e, 50),
    },
    Row {
        name: "fio, 70 % reads, fsync",
        unit: "op/s",
        programs: &["fio"],
        run: |r, e| mix_fsync(r, e, 70),
    },
    Row {
        name: "fio, 100 % reads",
        unit: "op/s",
        programs: &["fio"],
        run: |r, e| mix_fsync(r, e, 100),
    },
    Row {
        name: "cached random writes, fsync",
        unit: "op/s",
        programs: &[],
        run: cached_writes,
    },
    Row {
        name: "sequential write",
        unit: "MiB/s",
        programs: &[],
        run: sequential_write,
    },
    Row {
        name: "sequential read",
        unit: "MiB/s",
        programs: &[],
        run: sequential_read,
    },
    Row {
        name: "create 4 KiB + fsync",
        unit: "op/s",
        programs: &[],
        run: create_fsync,
    },
    Row {
        name: "create + unlink",
        unit: "op/s",
        programs: &[],
        run: create_unlink,
    },
    Row {
        name: "stat, cached names",
        unit: "op/s",
        programs: &[],
        run: |r, e| stat(r, e, false),
    },
    Row {
        name: "stat, dropped names",
        unit: "op/s",
        programs: &[],
        run: |r, e| stat(r, e, true),
    },
    Row {
        name: "readdir + stat, 20 k names",
        unit: "names/s",
        programs: &[],
        run: readdir,
    },
    Row {
        name: "postmark",
        unit: "trans/s",
        programs: &["postmark"],
        run: postmark,
    },
    Row {
        name: "dbench 4",
        unit: "MB/s",
        programs: &["dbench"],
        run: dbench,
    },
    Row {
        name: "fs_mark",
        unit: "files/s",
        programs: &["fs_mark"],
        run: fs_mark,
    },
    Row {
        name: "fileserver",
        unit: "op/s",
        programs: &[],
        run: |r, e| filebench(r, e, Personality::Fileserver),
    },
    Row {
        name: "webproxy",
        unit: "op/s",
        programs: &[],
        run: |r, e| filebench(r, e, Personality::Webproxy),
    },
    Row {
        name: "varmail",
        unit: "op/s",
        programs: &[],
        run: |r, e| filebench(r, e, Personality::Varmail),
    },
    Row {
        name: "TPC-C, SQLite, DELETE",
        unit: "tx/s",
        programs: &[],
        run: |r, e| database(r, e, Load::TpcC, JournalMode::Delete),
    },
    Row {
        name: "TPC-C, SQLite, WAL",
        unit: "tx/s",
        programs: &[],
        run: |r, e| database(r, e, Load::TpcC, JournalMode::Wal),
    },
    Row {
        name: "TPC-C, SQLite, groups",
        unit: "tx/s",
        programs: &[],
        run: |r, e| database(r, e, Load::TpcC, JournalMode::Group),
    },
    Row {
        name: "100 B, SQLite, DELETE",
        unit: "tx/s",
        programs: &[],
        run: |r, e| database(r, e, Load::Update, JournalMode::Delete),
    },
    Row {
        name: "100 B, SQLite, groups",
        unit: "tx/s",
        programs: &[],
        run: |r, e| database(r, e, Load::Update, JournalMode::Group),
    },
    Row {
        name: "create 100 B",
        unit: "op/s",
        programs: &[],
        run: create_small,
    },
    Row {
        name: "rm -rf, 100 B",
        unit: "op/s",
        programs: &["rm"],
        run: remove_small,
    },
];

/// Counts how often `work` is done in the time of a timed row.
fn timed(effort: Effort, mut work: impl FnMut(u64) -> Result<()>) -> Result<Done> {
    let limit = Duration::from_secs(effort.seconds);
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < limit {
        work(count)?;
        count += 1;
    }
    Ok(Done::rate(count, start))
}

/// Runs fio: random overwrites of 4 KiB of a written file, 64 MiB for each job, with an fsync after
/// each.
fn overwrite_fsync(running: &mut Running, effort: Effort, jobs: u32) -> Result<Done> {
    let how = ["--rw=randwrite", "--size=64m", "--overwrite=1"];
    fio(running, effort, &how, &["write"], jobs)
}

/// Runs fio: reads and overwrites of 4 KiB at random places of a written file of 256 MiB, with an
/// fsync after each write.
fn mix_fsync(running: &mut Running, effort: Effort, reads: u32) -> Result<Done> {
    let share = format!("--rwmixread={reads}");
    let how = ["--rw=randrw", "--size=256m", "--overwrite=1", &share];
    fio(running, effort, &how, &["read", "write"], 1)
}

/// Returns operations per second of these kinds, all of 4 KiB, with an fsync after each write.
fn fio(
    running: &mut Running,
    effort: Effort,
    how: &[&str],
    kinds: &[&str],
    jobs: u32,
) -> Result<Done> {
    let directory = format!("--directory={}", running.dir().display());
    let fio = |more: &[&str]| -> Result<Output> {
        let out = Command::new("fio")
            .args(["--name=random", "--bs=4k", "--fsync=1"])
            .args(how)
            .args([
                "--ioengine=psync",
                "--time_based",
                "--group_reporting",
                "--output-format=json",
                "--randseed=7",
            ])
            .arg(format!("--numjobs={jobs}"))
            .arg(format!("--runtime={}", effort.seconds))
            .arg(&directory)
            .args(more)
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(out.status.success(), "fio ended with {}", out.status);
        Ok(out)
    };
    fio(&["--create_only=1"])?;
    rustix::fs::syncfs(File::open(running.dir())?)?;
    running.begin()?;
    let out = fio(&[])?;
    let text = String::from_utf8_lossy(&out.stdout);
    let json: serde_json::Value =
        serde_json::from_str(&text[text.find('{').context("fio printed no JSON")?..])?;
    let job = &json["jobs"][0];
    let rate = |kind: &&str| {
        let rate = job[kind]["iops"].as_f64();
        rate.with_context(|| format!("fio reported no {kind}/iops"))
    };
    let count = kinds.iter().map(|kind| job[kind]["total_ios"].as_u64());
    Ok(Done {
        rate: kinds.iter().map(rate).sum::<Result<f64>>()?,
        count: count.sum(),
        written: job["write"]["io_bytes"].as_u64(),
    })
}

/// Makes a file of `mib` MiB of random bytes, synced.
fn fill(path: &Path, mib: usize) -> Result<File> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path)?;
    let mut chunk = vec![0; MIB];
    let mut rng = Rng::new(mib as u64);
    for _ in 0..mib {
        rng.fill(&mut chunk);
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Writes 4 KiB at random places of a written file of 256 MiB, then one fsync; all of it is timed.
fn cached_writes(running: &mut Running, effort: Effort) -> Result<Done> {
    const FILE_MIB: usize = 256;
    let writes = 65_536 / effort.shrink;
    let file = fill(&running.dir().join("cached"), FILE_MIB)?;
    let mut rng = Rng::new(11);
    let mut page = [0; KIB4];
    rng.fill(&mut page);
    running.begin()?;
    let start = Instant::now();
    for i in 0..writes {
        page[..8].copy_from_slice(&i.to_le_bytes());
        let at = rng.below((FILE_MIB * MIB / KIB4) as u64) * KIB4 as u64;
        file.write_all_at(&page, at)?;
    }
    file.sync_all()?;
    Ok(Done::rate(writes, start))
}

const SEQUENTIAL_MIB: u64 = 1024;

/// Writes 1 GiB in calls of 1 MiB into a new file, then one fsync; all of it is timed.
fn sequential_write(running: &mut Running, effort: Effort) -> Result<Done> {
    let mib = SEQUENTIAL_MIB / effort.shrink;
    let mut file = File::create(running.dir().join("sequential"))?;
    let mut chunk = vec![0; MIB];
    Rng::new(13).fill(&mut chunk);
    let start = Instant::now();
    for i in 0..mib {
        chunk[..8].copy_from_slice(&i.to_le_bytes());
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(Done::rate(mib, start))
}

/// Reads the same file in calls of 1 MiB, after the caches above the device were emptied.
fn sequential_read(running: &mut Running, effort: Effort) -> Result<Done> {
    let path = running.dir().join("sequential");
    sequential_write(running, effort)?;
    running.cool(&[&path])?;
    running.begin()?;
    let mut file = File::open(&path)?;
    let mut chunk = vec![0; MIB];
    let start = Instant::now();
    let mib = SEQUENTIAL_MIB / effort.shrink;
    for i in 0..mib {
        file.read_exact(&mut chunk)?;
        ensure!(chunk[..8] == i.to_le_bytes(), "MiB {i} was read back wrong");
    }
    Ok(Done::rate(mib, start))
}

/// Writes, syncs and closes a new file of 4 KiB, over and over in one directory.
fn create_fsync(running: &mut Running, effort: Effort) -> Result<Done> {
    let dir = running.dir().join("create");
    fs::create_dir(&dir)?;
    let mut page = [0; KIB4];
    Rng::new(17).fill(&mut page);
    timed(effort, |i| {
        let mut file = File::create(dir.join(format!("f{i}")))?;
        file.write_all(&page)?;
        file.sync_all()?;
        Ok(())
    })
}

/// Makes, closes and removes an empty file, over and over.
fn create_unlink(running: &mut Running, effort: Effort) -> Result<Done> {
    let dir = running.dir().join("pairs");
    fs::create_dir(&dir)?;
    timed(effort, |i| {
        let path = dir.join(format!("f{}", i % 1000));
        drop(File::create(&path)?);
        fs::remove_file(&path)?;
        Ok(())
    })
}

/// Empties the kernel's name and inode caches (of the whole machine; page caches stay).
fn drop_names() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").context("dropping cached names")
}

/// Calls stat for 10,000 files in random order: with cached names for as long as the timed row
/// lasts, or once for each after the names were dropped.
fn stat(running: &mut Running, effort: Effort, dropped: bool) -> Result<Done> {
    const DIRS: u64 = 20;
    const FILES: u64 = 500;
    let root = running.dir().join("tree");
    make_tree(&root, DIRS, FILES, b"")?;
    let mut rng = Rng::new(19);
    let mut paths: Vec<_> = (0..DIRS * FILES)
        .map(|i| root.join(format!("d{}/file-{}", i / FILES, i % FILES)))
        .collect();
    for i in (1..paths.len()).rev() {
        paths.swap(i, rng.below(i as u64 + 1) as usize);
    }
    running.begin()?;
    if !dropped {
        return timed(effort, |i| {
            fs::symlink_metadata(&paths[i as usize % paths.len()])?;
            Ok(())
        });
    }
    let (mut count, mut spent) = (0, Duration::ZERO);
    for _ in 0..4 {
        drop_names()?;
        let start = Instant::now();
        for path in &paths {
            fs::symlink_metadata(path)?;
        }
        spent += start.elapsed();
        count += paths.len() as u64;
    }
    Ok(Done::spent(count, spent))
}

/// Lists a directory of 20,000 files with the attributes of each, as `ls -l` does, after the names
/// were dropped.
fn readdir(running: &mut Running, _effort: Effort) -> Result<Done> {
    const FILES: u64 = 20_000;
    make_tree(&running.dir().join("large"), 1, FILES, b"")?;
    let dir = running.dir().join("large/d0");
    running.begin()?;
    let (mut count, mut spent) = (0, Duration::ZERO);
    for _ in 0..4 {
        drop_names()?;
        let start = Instant::now();
        let mut seen = 0;
        for entry in fs::read_dir(&dir)? {
            entry?.metadata()?;
            seen += 1;
        }
        ensure!(seen == FILES, "{seen} of {FILES} names were listed");
        spent += start.elapsed();
        count += seen;
    }
    Ok(Done::spent(count, spent))
}

/// Runs postmark: 500 files of 500 to 10,000 bytes, 20,000 transactions. Takes the wall clock of
/// the whole run, since its own figures have a resolution of a second.
fn postmark(running: &mut Running, effort: Effort) -> Result<Done> {
    let transactions = 20_000 / effort.shrink;
    let dir = running.dir().join("postmark");
    fs::create_dir(&dir)?;
    let script = format!(
        "set location {}\nset number 500\nset transactions {transactions}\nset size 500 10000\nset \
            seed 42\nrun\nquit\n",
        dir.display()
    );
    let start = Instant::now();
    let mut child = Command::new("postmark")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("postmark has no input")?
        .write_all(script.as_bytes())?;
    let out = child.wait_with_output()?;
    let result = Done::rate(transactions, start);
    let text = String::from_utf8_lossy(&out.stdout);
    ensure!(
        out.status.success() && !text.contains("Error"),
        "postmark: {text}"
    );
    Ok(result)
}

/// Runs dbench with four clients and its own load file.
fn dbench(running: &mut Running, effort: Effort) -> Result<Done> {
    let out = Command::new("dbench")
        .arg("-D")
        .arg(running.dir())
        .args(["-t", &(effort.seconds * 2).to_string(), "4"])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    ensure!(out.status.success(), "dbench: {text}");
    let line = text
        .lines()
        .find(|l| l.starts_with("Throughput"))
        .context("dbench gave no throughput")?;
    let rate = line.split_whitespace().nth(1);
    let rate = rate.and_then(|n| n.parse().ok());
    Ok(Done {
        rate: rate.context("dbench's throughput is no number")?,
        count: None,
        written: None,
    })
}
