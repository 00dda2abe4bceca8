//! Measures the library without FUSE: a volume on a block device in memory, or with `dax` in memory
//! as such, beside the kernel's ext4 with `data=journal` on a loop device over memory; SQLite on
//! both; and what mounting a large volume takes. See `bench-lib --help`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use stetfs::{Caller, Fs, MountOptions, OpenFlags};
use stetfs_bench::databases;
use stetfs_bench::library::{KernelBed, LibraryBed, ROWS};
use stetfs_bench::report::Report;
use stetfs_bench::systems::memory_kib;
use stetfs_media::FileOptions;
use stetfs_testkit::host::{needs, run, scratch};

const HELP: &str = "usage: bench-lib [options]
  --rounds N      medians of N (default 3)
  --seconds N     length of timed rows (default 2)
  --library OPTS  a column of the library with these mount options; may be given several times \
  (default: data=journal, data=ordered, scheme=stet, scheme=stet,dax,durability=process)
  --rows LIST     only rows whose name contains one of these, comma separated; \"mount\" is the \
  large volume
  --files N       files on the large volume (default 1000000)
  --size GIB      size of the large volume (default 16)
  --json FILE     writes every sample
The kernel's column needs root; without, it is left out.";

/// Mount options of the library's columns.
const LIBRARY: [&str; 4] = [
    "data=journal",
    "data=ordered",
    "scheme=stet",
    "scheme=stet,dax,durability=process",
];

struct Plan {
    rounds: u32,
    seconds: u64,
    library: Vec<String>,
    rows: Option<Vec<String>>,
    files: u32,
    size_gib: u64,
    json: Option<PathBuf>,
}

impl Plan {
    fn wants(&self, row: &str) -> bool {
        self.rows
            .as_ref()
            .is_none_or(|rows| rows.iter().any(|r| row.contains(r.as_str())))
    }
}

fn plan(args: &mut impl Iterator<Item = String>) -> Result<Option<Plan>> {
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut plan = Plan {
        rounds: 3,
        seconds: 2,
        library: Vec::new(),
        rows: None,
        files: 1_000_000,
        size_gib: 16,
        json: None,
    };
    while let Some(arg) = args.next() {
        if arg == "--help" || arg == "-h" {
            println!("{HELP}");
            return Ok(None);
        }
        let value = args
            .next()
            .with_context(|| format!("{arg} takes a value, see --help"))?;
        match arg.as_str() {
            "--rounds" => plan.rounds = value.parse()?,
            "--seconds" => plan.seconds = value.parse()?,
            "--library" => plan.library.push(value),
            "--rows" => plan.rows = Some(list(&value)),
            "--files" => plan.files = value.parse()?,
            "--size" => plan.size_gib = value.parse()?,
            "--json" => plan.json = Some(PathBuf::from(value)),
            _ => bail!("unknown option {arg}\n{HELP}"),
        }
    }
    if plan.library.is_empty() {
        plan.library = LIBRARY.map(str::to_owned).to_vec();
    }
    Ok(Some(plan))
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    if std::env::args().nth(1).as_deref() == Some("--mount-only") {
        return mount_only(Path::new(&std::env::args().nth(2).context("an image")?));
    }
    let Some(plan) = plan(&mut args)? else {
        return Ok(());
    };
    let mut report = Report::default();
    let kernel = needs(true, false, &["mke2fs"]);
    if let Err(missing) = &kernel {
        report
            .failures
            .push(format!("the kernel's column: {missing}"));
    }
    for round in 1..=plan.rounds {
        for row in ROWS.iter().filter(|row| plan.wants(row.name)) {
            for options in &plan.library {
                let bed = LibraryBed::new(options)?;
                let done = (row.library)(&bed, plan.seconds)?;
                report.add(row.name, row.unit, options, done);
                bed.finish()?;
            }
            if kernel.is_ok() {
                let bed = KernelBed::new("journal")?;
                report.add(
                    row.name,
                    row.unit,
                    "kernel-journal",
                    (row.kernel)(&bed, plan.seconds)?,
                );
                bed.finish()?;
            }
        }
        databases(&plan, kernel.is_ok(), &mut report)?;
        println!("after round {round} of {}:", plan.rounds);
        let library = plan.library.iter().map(String::as_str);
        let ratios: Vec<_> = library
            .clone()
            .map(|name| (name, "kernel-journal"))
            .collect();
        let columns: Vec<&str> = library.chain(["kernel-journal"]).collect();
        println!("{}", report.table(&columns, &ratios));
    }
    if plan.wants("mount") {
        large_volume(&plan)?;
    }
    if let Some(path) = &plan.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

/// The rows of SQLite, on each system.
fn databases(plan: &Plan, has_kernel: bool, report: &mut Report) -> Result<()> {
    for row in databases::ROWS.iter().filter(|row| plan.wants(row.name)) {
        for options in &plan.library {
            let bed = LibraryBed::new(options)?;
            let figures = row.library(&bed, plan.seconds)?;
            figures.report(row, options, report);
            bed.finish()?;
        }
        if has_kernel {
            let bed = KernelBed::new("journal")?;
            let figures = row.kernel(&bed, plan.seconds)?;
            figures.report(row, "kernel-journal", report);
            bed.finish()?;
        }
    }
    Ok(())
}

/// Fills a large volume, unmounts it, and has another process mount it.
fn large_volume(plan: &Plan) -> Result<()> {
    let dir = scratch()?;
    let image = dir.path().join("large");
    std::fs::File::create(&image)?.set_len(plan.size_gib << 30)?;
    let inodes = (plan.files + 100_000).to_string();
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
    for d in 0..plan.files.div_ceil(IN_A_DIRECTORY) {
        let dir = fs
            .mkdir(&c, fs.root(), format!("d{d}").as_bytes(), 0o755)?
            .ino;
        for f in 0..IN_A_DIRECTORY.min(plan.files - d * IN_A_DIRECTORY) {
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
        plan.files
    );
    drop(fs);
    for _ in 0..plan.rounds {
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

/// Memory of this process that is its own, in KiB.
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
