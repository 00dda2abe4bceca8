//! Measures how the cost of an operation grows with the number of files, of open files and of
//! clients: stetfs and the kernel's ext4 by turns, on the same kind of device, with charts. See
//! `bench-scale --help`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use stetfs_bench::report::Report;
use stetfs_bench::scale::{Figure, Population, Scale};
use stetfs_bench::systems::{Bench, How, Medium, Running, System, Tables};
use stetfs_chart::{Chart, Series};
use stetfs_testkit::host;

/// What an operation costs on a volume with many files, many open files or many clients: stetfs
/// beside the kernel's ext4. Needs root (device, mount).
#[derive(Parser)]
struct Args {
    /// Systems to measure: kernel-MODE (data=MODE), stetfs-MODE, or stetfs-SCHEME
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "stetfs-journal,stetfs-stet,kernel-journal"
    )]
    systems: Vec<String>,
    /// Numbers of files, ascending
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10000,100000,1000000,10000000"
    )]
    files: Vec<u64>,
    /// Numbers of open files; none above the number of files
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000")]
    open: Vec<u64>,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    clients: Vec<u64>,
    /// Size of the volume in GiB; it is sparse
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// Bytes in each file
    #[arg(long, default_value_t = 0)]
    bytes: usize,
    /// Files in each directory
    #[arg(long, default_value_t = 10_000)]
    per_directory: u64,
    /// Names that are looked up for each figure
    #[arg(long, default_value_t = 20_000)]
    samples: u64,
    /// Seconds that clients work for each figure
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// More mount options for stetfs, comma separated
    #[arg(long, default_value = "")]
    stetfs_options: String,
    /// The stetfs program [default: beside this program]
    #[arg(long)]
    stetfs: Option<PathBuf>,
    /// Keep the volume on the disk (in TMPDIR) instead of in memory
    #[arg(long)]
    disk: bool,
    /// Write every figure to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw the charts into this directory, as SVG and PNG
    #[arg(long)]
    charts: Option<PathBuf>,
}

fn system(name: &str) -> Result<System> {
    let kernel = name.strip_prefix("kernel-").map(str::to_owned);
    let stetfs = name.strip_prefix("stetfs-").map(str::to_owned);
    let how = |name: String| match stetfs_schemes::find(&name) {
        Ok(_) => How::Scheme(name),
        Err(_) => How::Mode(name),
    };
    let stetfs = stetfs.map(|name| System::Stetfs(how(name)));
    let found = kernel.map(System::Kernel).or(stetfs);
    found.with_context(|| format!("no system is called {name}, see --help"))
}

/// What the figures of a row are about.
const FILES: &str = "files";
const OPEN: &str = "open files";
const CLIENTS: &str = "clients";

fn measure(args: &Args, bench: &Bench, name: &str, report: &mut Report) -> Result<()> {
    let system = system(name)?;
    let is_served = matches!(system, System::Stetfs(_));
    host::needs(true, is_served, &["mke2fs", "e2fsck"]).map_err(|m| anyhow::anyhow!("{m}"))?;
    let scale = Scale {
        bytes: args.bytes,
        per_directory: args.per_directory.max(1),
        samples: args.samples.max(1),
        seconds: args.seconds,
    };
    let mut add = |of: &str, number: u64, figures: Vec<Figure>| {
        for (what, unit, value) in figures {
            println!("{name}, {number} {of}: {what} {value:.1} {unit}");
            report.add(&format!("{what}, {number} {of}"), unit, name, value);
        }
    };
    let mut running = Running::start(&system, bench)?;
    let mut population = Population::new(&mut running, scale);
    for &files in &args.files {
        add(FILES, files, vec![population.grow(files)?]);
        add(FILES, files, population.measure()?);
    }
    for &open in &args.open {
        add(OPEN, open, population.open(open)?);
    }
    for &clients in &args.clients {
        add(CLIENTS, clients, population.clients(clients)?);
    }
    running.stop()
}

/// Makes a chart for each kind of figure: what an operation takes, over the number of files, open
/// files or clients.
fn charts(args: &Args, report: &Report) -> Vec<Chart> {
    let axes = [
        (FILES, &args.files),
        (OPEN, &args.open),
        (CLIENTS, &args.clients),
    ];
    let mut charts = Vec::new();
    for (of, numbers) in axes {
        let first = format!(", {} {of}", numbers[0]);
        for what in report
            .order
            .iter()
            .filter_map(|row| row.strip_suffix(&first))
        {
            let unit = report.units.get(&format!("{what}{first}"));
            let unit = unit.map_or("", String::as_str);
            let is_rate = unit.ends_with("/s");
            let value = |system: &str, number: &u64| {
                let value = report.median(&format!("{what}, {number} {of}"), system)?;
                Some(if is_rate { 1e6 / value } else { value })
            };
            let series = args.systems.iter().map(|system| Series {
                name: system.clone(),
                values: numbers.iter().map(|number| value(system, number)).collect(),
                ..Series::default()
            });
            let name = format!("scale {what} {of}").replace(" + ", " ");
            charts.push(Chart {
                name: name.replace(' ', "-"),
                title: format!("{what}, by {of}"),
                unit: if is_rate { "us each" } else { unit }.to_owned(),
                groups: numbers.iter().map(u64::to_string).collect(),
                series: series.collect(),
                ..Chart::default()
            });
        }
    }
    charts
}

fn check(args: &Args) -> Result<()> {
    let lists = [&args.files, &args.open, &args.clients];
    ensure!(
        lists.iter().all(|list| list.iter().all(|n| *n > 0)),
        "nothing to measure: give files and clients"
    );
    ensure!(
        lists
            .iter()
            .all(|list| !list.is_empty() && list.is_sorted()),
        "numbers ascend"
    );
    let most = *args.files.last().unwrap_or(&0);
    ensure!(
        args.open.iter().all(|open| *open <= most),
        "more files would be open than there are, {most}: see --open"
    );
    args.systems
        .iter()
        .try_for_each(|name| system(name).map(drop))
}

fn run(args: &Args, dir: &Path, disk: &Path) -> Result<()> {
    let beside = Bench::new(dir, disk, args.size << 10)?;
    let bench = Bench {
        medium: if args.disk {
            Medium::Disk
        } else {
            Medium::Loop
        },
        tables: Tables::Sparse,
        stetfs: args.stetfs.clone().unwrap_or(beside.stetfs),
        stetfs_options: args.stetfs_options.clone(),
        ..beside
    };
    let mut report = Report::on([
        ("medium", format!("{:?}", bench.medium)),
        ("volume", format!("{} GiB, sparse", args.size)),
        ("bytes in a file", args.bytes.to_string()),
        ("files in a directory", args.per_directory.to_string()),
    ])?;
    println!("{:?}", report.setting);
    for name in &args.systems {
        if let Err(error) = measure(args, &bench, name, &mut report) {
            let failure = format!("{name}: {error:#}");
            eprintln!("{failure}");
            report.failures.push(failure);
        }
        if let Some(path) = &args.json {
            fs::write(path, serde_json::to_string_pretty(&report)?)
                .with_context(|| path.display().to_string())?;
        }
    }
    let columns: Vec<&str> = args.systems.iter().map(String::as_str).collect();
    let peer = columns.iter().find(|name| name.starts_with("kernel-"));
    let pairs = columns.iter().filter(|name| name.starts_with("stetfs-"));
    let ratios: Vec<(&str, &str)> = pairs.filter_map(|name| Some((*name, *peer?))).collect();
    println!("{}", report.table(&columns, &ratios));
    if let Some(dir) = &args.charts {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        for file in stetfs_chart::write_all(&charts(args, &report), dir)? {
            println!("{}", file.display());
        }
    }
    ensure!(report.failures.is_empty(), "not everything was measured");
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    check(&args)?;
    let scratch = host::scratch()?;
    let disk = tempfile::Builder::new().prefix("stetfs-lab-").tempdir()?;
    run(&args, scratch.path(), disk.path())
}
