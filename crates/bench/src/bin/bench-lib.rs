//! Measures the library without FUSE: a volume on a block device in memory, or with `dax` in memory
//! as such, beside the kernel's ext4 with `data=journal` on a loop device over memory. Also
//! measures SQLite on both, and the mount of a large volume. See `bench-lib --help`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use stetfs::{Caller, Fs, MountOptions, OpenFlags};
use stetfs_bench::databases;
use stetfs_bench::library::{KernelBed, LibraryBed, ROWS};
use stetfs_bench::report::Report;
use stetfs_bench::systems::memory_kib;
use stetfs_media::FileOptions;
use stetfs_testkit::host::{needs, run, scratch};

/// Mount options of the library's columns.
const LIBRARY: [&str; 4] = [
    "data=journal",
    "data=ordered",
    "scheme=stet",
    "scheme=stet,dax,durability=process",
];

/// The library without FUSE: a volume on a block device in memory, or with `dax` in memory as such,
/// beside the kernel's ext4 with data=journal on a loop device over memory. The kernel's column
/// needs root; without root it is left out.
#[derive(Parser)]
struct Args {
    /// Number of rounds; the medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of each timed row
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Add a column for the library with these mount options; may be given several times
    #[arg(long, value_name = "OPTIONS", default_values = LIBRARY)]
    library: Vec<String>,
    /// Run only rows whose name contains one of these; "mount" is the large volume
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Number of files on the large volume
    #[arg(long, default_value_t = 1_000_000)]
    files: u32,
    /// Size of the large volume
    #[arg(long, value_name = "GIB", default_value_t = 16)]
    size: u64,
    /// Write every sample to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only mount the large volume in this image, and print what that took
    #[arg(long, value_name = "IMAGE", hide = true)]
    mount_only: Option<PathBuf>,
}

impl Args {
    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|part| row.contains(part))
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(image) = &args.mount_only {
        return mount_only(image);
    }
    let mut report = Report::default();
    let kernel = needs(true, false, &["mke2fs"]);
    if let Err(missing) = &kernel {
        report
            .failures
            .push(format!("the kernel's column: {missing}"));
    }
    for round in 1..=args.rounds {
        for row in ROWS.iter().filter(|row| args.wants(row.name)) {
            for options in &args.library {
                let bed = LibraryBed::new(options)?;
                let done = (row.library)(&bed, args.seconds)?;
                report.add(row.name, row.unit, options, done);
                bed.finish()?;
            }
            if kernel.is_ok() {
                let bed = KernelBed::new("journal")?;
                report.add(
                    row.name,
                    row.unit,
                    "kernel-journal",
                    (row.kernel)(&bed, args.seconds)?,
                );
                bed.finish()?;
            }
        }
        databases(&args, kernel.is_ok(), &mut report)?;
        println!("after round {round} of {}:", args.rounds);
        let library = args.library.iter().map(String::as_str);
        let ratios: Vec<_> = library
            .clone()
            .map(|name| (name, "kernel-journal"))
            .collect();
        let columns: Vec<&str> = library.chain(["kernel-journal"]).collect();
        println!("{}", report.table(&columns, &ratios));
    }
    if args.wants("mount") {
        large_volume(&args)?;
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

/// Runs the rows of SQLite on each system.
fn databases(args: &Args, has_kernel: bool, report: &mut Report) -> Result<()> {
    for row in databases::ROWS.iter().filter(|row| args.wants(row.name)) {
        for options in &args.library {
            let bed = LibraryBed::new(options)?;
            let figures = row.library(&bed, args.seconds)?;
            figures.report(row, options, report);
            bed.finish()?;
        }
        if has_kernel {
            let bed = KernelBed::new("journal")?;
            let figures = row.kernel(&bed, args.seconds)?;
            figures.report(row, "kernel-journal", report);
            bed.finish()?;
        }
    }
    Ok(())
}

/// Fills a large volume, unmounts it, and has another process mount it.
fn large_volume(args: &Args) -> Result<()> {
    let dir = scratch()?;
    let image = dir.path().join("large");
    std::fs::File::create(&image)?.set_len(args.size << 30)?;
    let inodes = (args.files + 100_000).to_string();
    run(
        "mke2fs",
        &[
            "-q",
            "-F",
            "-t",
            "ext4",
            "-N",
            &inodes,
            &image.to_string_lossy(),
        ],
    )?;
    let dev = FileOptions::default().open(&image)?;
    let (fs, _) = Fs::mount(Arc::new(dev), MountOptions::parse("data=journal")?)?;
    let (c, start) = (Caller::root(), Instant::now());
    const IN_A_DIRECTORY: u32 = 1000;
    for d in 0..args.files.div_ceil(IN_A_DIRECTORY) {
        let dir = fs
            .mkdir(&c, fs.root(), format!("d{d}").as_bytes(), 0o755)?
            .ino;
        for f in 0..IN_A_DIRECTORY.min(args.files - d * IN_A_DIRECTORY) {
            let made = fs.create(
                &c,
                dir,
                format!("file-{f}").as_bytes(),
                0o644,
                OpenFlags::WRITE,
            )?;
            fs.release(made.ino)?;
        }
    }
    fs.unmount()?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "large volume: {} files created and unmounted in {seconds:.1} s",
        args.files
    );
    drop(fs);
    for _ in 0..args.rounds {
        let out = Command::new(std::env::current_exe()?)
            .arg("--mount-only")
            .arg(&image)
            .output()?;
        ensure!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        print!("{}", String::from_utf8_lossy(&out.stdout));
    }
    Ok(())
}

/// Returns the private memory of this process, in KiB.
fn private_kib() -> Result<u64> {
    memory_kib("self", "RssAnon")
}

fn mount_only(image: &Path) -> Result<()> {
    let before = private_kib()?;
    let start = Instant::now();
    let dev = FileOptions::default().open(image)?;
    let (fs, report) = Fs::mount(Arc::new(dev), MountOptions::default())?;
    let mounted = start.elapsed();
    ensure!(!report.recovery.was_needed, "the volume was not clean");
    let after = private_kib()?;
    let c = Caller::root();
    let first = fs.resolve(&c, b"/d0/file-0", true).is_ok();
    let looked = start.elapsed();
    fs.unmount()?;
    println!(
        "large volume: mounted in {:.1} ms, {} KiB of memory; first lookup {} after {:.1} ms",
        mounted.as_secs_f64() * 1e3,
        after.saturating_sub(before),
        if first { "answered" } else { "failed" },
        looked.as_secs_f64() * 1e3
    );
    Ok(())
}
