//! Measures how files age: stetfs and the kernel's file systems, by turns, with the same overwrites
//! on the same kind of device. Prints medians of several rounds and ratios, and writes JSON. See
//! `bench-ageing --help`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use stetfs_bench::ageing::{Aged, Ageing, age};
use stetfs_bench::report::Report;
use stetfs_bench::systems::{Bench, How, Medium, Running, System};
use stetfs_testkit::host;

/// How files age: stetfs and the kernel's file systems with the same overwrites on the same kind of
/// device. Needs root (device, mount).
#[derive(Parser)]
struct Args {
    /// Systems to measure. stet, stet-disk, stet-switch: stetfs with scheme=stet for flash, for a
    /// disk that turns, with every block switched; jbd2: stetfs with data=journal; ordered,
    /// journal: the kernel's ext4; xfs, with a reflinked copy of the file; btrfs
    #[arg(long, value_delimiter = ',', default_values = SYSTEMS,
        value_parser = PossibleValuesParser::new(SYSTEMS))]
    systems: Vec<String>,
    /// Number of times that the volume's size is written
    #[arg(long, value_name = "N", default_value_t = 2)]
    volumes: u64,
    /// Size of each volume
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    size: u64,
    /// Part of the volume that the file takes
    #[arg(long, value_name = "PERCENT", default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..=90))]
    share: u64,
    /// Numbers of overwrites from one fsync to the next; each number is a run of its own
    #[arg(long, value_delimiter = ',', default_value = "64,1",
        value_parser = clap::value_parser!(u64).range(1..))]
    sync_every: Vec<u64>,
    /// Number of rounds; the medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Kind of device
    #[arg(long, value_enum, default_value = "loop")]
    medium: Medium,
    /// The stetfs program [default: beside this program]
    #[arg(long)]
    stetfs: Option<PathBuf>,
    /// Write every sample to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The systems: the names on the command line, and what is mounted.
const SYSTEMS: [&str; 8] = [
    "stet",
    "stet-disk",
    "stet-switch",
    "jbd2",
    "ordered",
    "journal",
    "xfs",
    "btrfs",
];

/// The columns that others are compared with.
const PEERS: [&str; 2] = ["ordered", "xfs"];

fn system(name: &str) -> Result<System> {
    let scheme = |options: &str| System::Stetfs(How::Scheme(options.to_owned()));
    Ok(match name {
        "stet" => scheme("stet,medium=flash"),
        "stet-disk" => scheme("stet,medium=disk"),
        "stet-switch" => scheme("stet,stet=switch"),
        "jbd2" => System::Stetfs(How::Mode("journal".to_owned())),
        "ordered" | "journal" => System::Kernel(name.to_owned()),
        "xfs" => System::Xfs,
        "btrfs" => System::Btrfs,
        _ => bail!("no system is called {name}, see --help"),
    })
}

/// Returns the programs that a system needs.
fn programs(name: &str) -> &'static [&'static str] {
    match name {
        "xfs" => &["filefrag", "mkfs.xfs", "xfs_repair"],
        "btrfs" => &["filefrag", "mkfs.btrfs", "btrfs"],
        _ => &["filefrag", "mke2fs", "e2fsck"],
    }
}

fn measure(args: &Args, bench: &Bench, name: &str, sync_every: u64) -> Result<Aged> {
    let system = system(name)?;
    let is_served = matches!(system, System::Stetfs(_));
    host::needs(true, is_served, programs(name)).map_err(|m| anyhow::anyhow!("{m}"))?;
    let mut running = Running::start(&system, bench)?;
    let ageing = Ageing {
        volume_mib: args.size,
        share: args.share,
        volumes: args.volumes,
        sync_every,
    };
    let aged = age(&mut running, &ageing)?;
    running.stop()?;
    Ok(aged)
}

fn add(report: &mut Report, every: u64, name: &str, aged: &Aged) {
    let mut add =
        |row: &str, unit, value| report.add(&format!("{row}, sync {every}"), unit, name, value);
    add("extents, fresh", "/MiB", aged.extents[0]);
    add("extents, aged", "/MiB", aged.extents[1]);
    add("read, fresh", "MiB/s", aged.read[0]);
    add("read, aged", "MiB/s", aged.read[1]);
    add("read, aged over fresh", "", aged.read[1] / aged.read[0]);
    add("overwrites", "op/s", aged.overwrites);
}

fn print(args: &Args, report: &Report) {
    let columns: Vec<&str> = args.systems.iter().map(String::as_str).collect();
    let peers = PEERS.into_iter().filter(|peer| columns.contains(peer));
    let ratios: Vec<(&str, &str)> = peers
        .filter(|_| columns.contains(&"stet"))
        .map(|peer| ("stet", peer))
        .collect();
    println!("{}", report.table(&columns, &ratios));
}

fn main() -> Result<()> {
    let args = Args::parse();
    let scratch = host::scratch()?;
    let disk = tempfile::Builder::new().prefix("stetfs-lab-").tempdir()?;
    let beside = Bench::new(scratch.path(), disk.path(), args.size)?;
    let bench = Bench {
        medium: args.medium,
        stetfs: args.stetfs.clone().unwrap_or(beside.stetfs),
        ..beside
    };
    let mut report = Report::on([
        ("medium", format!("{:?}", bench.medium)),
        ("volume", format!("{} MiB", args.size)),
        ("file", format!("{} % of it", args.share)),
        ("overwrites", format!("{} volumes", args.volumes)),
        ("rounds", args.rounds.to_string()),
    ])?;
    println!("{:?}", report.setting);
    for round in 1..=args.rounds {
        for &every in &args.sync_every {
            for name in &args.systems {
                match measure(&args, &bench, name, every) {
                    Ok(aged) => add(&mut report, every, name, &aged),
                    Err(error) => {
                        let failure = format!("sync {every} on {name}: {error:#}");
                        eprintln!("{failure}");
                        report.failures.push(failure);
                    }
                }
            }
        }
        println!("after round {round} of {}:", args.rounds);
        print(&args, &report);
        if let Some(path) = &args.json {
            fs::write(path, serde_json::to_string_pretty(&report)?)?;
        }
    }
    Ok(())
}
