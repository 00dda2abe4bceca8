//! Scheme `jftl` on an image file on XFS and Btrfs, where a remap is a clone: killed processes,
//! power cuts of the host, small blocks, and hosts that cannot clone.
//!
//! The power cut is XFS's own (XFS_IOC_GOINGDOWN without a flush of its log, by `xfs_io -c
//! shutdown`). From then on nothing reaches the medium, and the next mount of the XFS finds what
//! had been made durable.
//!
//! The number of a step determines what it writes: step `n` fills a range of one file, drawn from
//! `n`, with `n`, and syncs. A process does that and prints each number when it is confirmed; the
//! judge draws the same ranges.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use stetfs::{Caller, Fs, MountOptions, OpenFlags, open_device};
use stetfs_testkit::host::{KernelMount, needs, run, scratch};
use stetfs_testkit::image::{EXT4_1K, EXT4_4K, Variety, check, replay};
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

const BLOCK: u64 = 4096;
/// The file's blocks, and the longest range.
const BLOCKS: u64 = 1024;
const LONGEST: u64 = 64;
const NAME: &[u8] = b"file";
const OPTIONS: &str = "scheme=jftl,data=journal,noatime";

/// A host file system on a loop device.
struct Host {
    // Fields are dropped in this order.
    mount: Option<KernelMount>,
    kind: &'static str,
    dir: tempfile::TempDir,
}

impl Host {
    fn new(kind: &'static str) -> Result<Self> {
        let dir = scratch()?;
        let medium = dir.path().join("medium");
        File::create(&medium)?.set_len(400 << 20)?;
        run(
            &format!("mkfs.{kind}"),
            &["-q".as_ref(), "-f".as_ref(), medium.as_os_str()],
        )?;
        fs::create_dir(dir.path().join("host"))?;
        let mut host = Self {
            mount: None,
            kind,
            dir,
        };
        host.mount()?;
        Ok(host)
    }

    fn mount(&mut self) -> Result<()> {
        let (medium, on) = (self.dir.path().join("medium"), self.dir.path().join("host"));
        self.mount = Some(KernelMount::new(self.kind, &medium, &on, "noatime")?);
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        self.mount.take().map_or(Ok(()), KernelMount::unmount)
    }

    fn image(&self) -> std::path::PathBuf {
        self.dir.path().join("host/image")
    }

    /// Cuts the power: everything that is not durable is lost.
    fn cut(&mut self) -> Result<()> {
        let at = self.dir.path().join("host");
        run(
            "xfs_io",
            &[
                "-x".as_ref(),
                "-c".as_ref(),
                "shutdown".as_ref(),
                at.as_os_str(),
            ],
        )?;
        Ok(())
    }
}

fn mount(image: &Path, options: &str) -> Result<Fs> {
    let options = MountOptions::parse(options)?;
    Ok(Fs::mount(open_device(image, &options, false)?, options)?.0)
}

/// Returns the first block of step `n` and the number of blocks.
fn range(seed: u64, n: u64) -> (u64, u64) {
    let mut rng = Rng::new(seed ^ n << 32);
    let len = 1 + rng.below(LONGEST);
    (rng.below(BLOCKS - len + 1), len)
}

fn content(n: u64, len: u64) -> Vec<u8> {
    n.to_le_bytes().repeat((len * BLOCK / 8) as usize)
}

/// Makes a volume with the file, all of it as step 0 leaves it.
fn make(host: &Host, variety: Variety) -> Result<()> {
    let image = host.image();
    variety.make(&image, 48, 4)?;
    let fs = mount(&image, OPTIONS)?;
    let c = Caller::root();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let ino = fs.create(&c, fs.root(), NAME, 0o644, rw)?.ino;
    for at in (0..BLOCKS).step_by(LONGEST as usize) {
        fs.write(&c, ino, at * BLOCK, &content(0, LONGEST))?;
    }
    fs.release(ino)?;
    fs.unmount()?;
    Ok(())
}

/// Does the steps from `first` on, until the process or the volume dies.
fn work(image: &Path, seed: u64, first: u64) -> Result<()> {
    let fs = mount(image, OPTIONS)?;
    let c = Caller::root();
    let ino = fs.lookup(&c, fs.root(), NAME)?.ino;
    let mut out = std::io::stdout();
    for n in first.. {
        let (at, len) = range(seed, n);
        fs.write(&c, ino, at * BLOCK, &content(n, len))?;
        fs.fsync(ino, false)?;
        out.write_all(format!("confirmed {n}\n").as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// No test of its own: the other tests start it as a process.
#[test]
fn worker() {
    let Ok(image) = std::env::var("STETFS_LAB_REFLINK_IMAGE") else {
        return;
    };
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let (seed, first) = (
        number("STETFS_LAB_REFLINK_SEED"),
        number("STETFS_LAB_REFLINK_FIRST"),
    );
    let worked = work(
        Path::new(&image),
        seed.expect("a seed"),
        first.expect("a step"),
    );
    println!("ended {:#}", worked.expect_err("there is no end of steps"));
}

struct Worker {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Worker {
    fn start(image: &Path, seed: u64, first: u64) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", "worker", "--nocapture"])
            .env("STETFS_LAB_REFLINK_IMAGE", image)
            .env("STETFS_LAB_REFLINK_SEED", seed.to_string())
            .env("STETFS_LAB_REFLINK_FIRST", first.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        Ok(Self { child, lines })
    }

    /// Returns the next step that the process confirms; None if it has ended.
    fn next(&mut self) -> Result<Option<u64>> {
        for line in self.lines.by_ref() {
            let line = line?;
            if let Some((_, n)) = line.split_once("confirmed ") {
                return Ok(Some(n.parse()?));
            }
        }
        Ok(None)
    }
}

/// Returns the last step in the file. It must be `confirmed` or the one after, each as a whole.
fn judge(fs: &Fs, seed: u64, confirmed: u64) -> Result<u64> {
    let ino = fs.lookup(&Caller::root(), fs.root(), NAME)?.ino;
    let mut is = vec![0; (BLOCKS * BLOCK) as usize];
    ensure!(fs.read(ino, 0, &mut is)? == is.len(), "the file is shorter");
    let mut expected = content(0, BLOCKS);
    let mut apply = |n| {
        let (at, len) = range(seed, n);
        let (from, to) = ((at * BLOCK) as usize, ((at + len) * BLOCK) as usize);
        expected[from..to].copy_from_slice(&content(n, len));
        expected == is
    };
    let mut fits = (1..=confirmed).fold(false, |_, n| apply(n)) || confirmed == 0;
    let mut last = confirmed;
    if !fits {
        last += 1;
        fits = apply(last);
    }
    if !fits {
        let wrong = expected
            .chunks(BLOCK as usize)
            .zip(is.chunks(BLOCK as usize))
            .position(|(a, b)| a != b);
        let at = wrong.unwrap_or(0);
        let word =
            |of: &[u8]| u64::from_le_bytes(of[at * BLOCK as usize..][..8].try_into().expect("8"));
        anyhow::bail!(
            "block {at} holds step {} and not {}, confirmed were {confirmed}",
            word(&is),
            word(&expected)
        );
    }
    Ok(last)
}

/// Lets a worker run for a while and ends it by `end`, several times. All that it confirmed must be
/// there.
fn ended_by(
    kind: &'static str,
    rounds: u64,
    end: impl Fn(&mut Host, &mut Worker) -> Result<()>,
) -> Result<()> {
    let mut host = Host::new(kind)?;
    make(&host, EXT4_4K)?;
    let seed = 5;
    let mut confirmed = 0;
    for round in 0..rounds {
        let mut worker = Worker::start(&host.image(), seed, confirmed + 1)?;
        let steps = 20 + Rng::new(round).below(60);
        for _ in 0..steps {
            confirmed = worker.next()?.context("it ended by itself")?;
        }
        // At a random moment.
        std::thread::sleep(Duration::from_micros(Rng::new(round).below(20_000)));
        end(&mut host, &mut worker)?;
        while let Some(n) = worker.next()? {
            confirmed = n;
        }
        worker.child.wait()?;
        if kind == "xfs" {
            host.unmount()?;
            host.mount()?;
        }
        // Recover with stetfs, or with a program that knows nothing of remaps.
        if round % 2 == 1 {
            replay(&host.image()).context("replay by e2fsck")?;
        }
        let fs = mount(&host.image(), OPTIONS).context("recovery")?;
        confirmed = judge(&fs, seed, confirmed).with_context(|| format!("round {round}"))?;
        fs.unmount()?;
        drop(fs);
        check(&host.image()).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

fn kill(_: &mut Host, worker: &mut Worker) -> Result<()> {
    Ok(worker.child.kill()?)
}

fn result(of: Result<()>) {
    if let Err(error) = of {
        panic!("{error:#}");
    }
}

#[test]
fn killed_on_xfs() {
    skip_unless!(needs(true, false, &["mke2fs", "e2fsck", "mkfs.xfs"]));
    result(ended_by("xfs", 3, kill));
}

#[test]
fn killed_on_btrfs() {
    skip_unless!(needs(true, false, &["mke2fs", "e2fsck", "mkfs.btrfs"]));
    result(ended_by("btrfs", 2, kill));
}

#[test]
fn power_cuts_of_xfs() {
    skip_unless!(needs(
        true,
        false,
        &["mke2fs", "e2fsck", "mkfs.xfs", "xfs_io"]
    ));
    result(ended_by("xfs", 4, |host, _| host.cut()));
}

#[test]
fn blocks_smaller_than_the_hosts_are_remapped_where_they_fit() {
    skip_unless!(needs(true, false, &["mke2fs", "e2fsck", "mkfs.xfs"]));
    result((|| {
        let host = Host::new("xfs")?;
        make(&host, EXT4_1K)?;
        let options = MountOptions::parse(OPTIONS)?;
        let (fs, report) = Fs::mount(open_device(&host.image(), &options, false)?, options)?;
        ensure!(
            report.warnings.iter().any(|w| w.contains("1024")),
            "{:?}",
            report.warnings
        );
        let c = Caller::root();
        let ino = fs.lookup(&c, fs.root(), NAME)?.ino;
        for n in 1..40 {
            let (at, len) = range(1, n);
            fs.write(&c, ino, at * BLOCK, &content(n, len))?;
            fs.fsync(ino, false)?;
        }
        judge(&fs, 1, 39)?;
        fs.unmount()?;
        drop(fs);
        check(&host.image())
    })());
}

#[test]
fn nothing_long_is_copied_home() {
    skip_unless!(needs(true, false, &["mke2fs", "e2fsck", "mkfs.xfs"]));
    result((|| {
        let host = Host::new("xfs")?;
        make(&host, EXT4_4K)?;
        for (remap, most) in [("on", 100), ("off", u64::MAX)] {
            let fs = mount(&host.image(), &format!("{OPTIONS},remap={remap}"))?;
            ensure!(fs.stats().remaps == (remap == "on").then_some("reflink"));
            let c = Caller::root();
            let ino = fs.lookup(&c, fs.root(), NAME)?.ino;
            for n in 0..64 {
                fs.write(&c, ino, n % 16 * LONGEST * BLOCK, &content(n, LONGEST))?;
                fs.fsync(ino, false)?;
            }
            fs.unmount()?;
            let home =
                stetfs_media::Tag::new(stetfs_media::Class::Data, stetfs_media::Cause::Checkpoint);
            let copied = fs.stats().device.of(home).write_bytes / BLOCK;
            ensure!(
                copied <= most && (remap == "on" || copied > 500),
                "remap={remap}: {copied} blocks"
            );
            drop(fs);
            check(&host.image())?;
        }
        Ok(())
    })());
}

#[test]
fn a_host_without_reflinks_is_refused_by_name() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    result((|| {
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let image = dir.path().join("image");
        EXT4_4K.make(&image, 48, 4)?;
        let refused = mount(&image, OPTIONS)
            .err()
            .context("it was mounted")?
            .to_string();
        ensure!(
            refused.contains("jftl") && refused.contains("reflink") && refused.contains("image"),
            "{refused}"
        );
        Ok(())
    })());
}
