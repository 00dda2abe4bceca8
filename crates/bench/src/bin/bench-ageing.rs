//! Measures how files age: stetfs and the kernel's file systems on the same overwrites and the same
//! kind of device, interleaved, medians of several rounds, ratios, JSON. See `bench-ageing --help`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use stetfs_bench::ageing::{Aged, Ageing, age};
use stetfs_bench::report::Report;
use stetfs_bench::systems::{Bench, How, Medium, Running, System, Tables};
use stetfs_testkit::host;

const HELP: &str = "usage: bench-ageing [options]
  --systems LIST         of stet, stet-disk, stet-switch, jbd2, ordered, journal, xfs, btrfs, all \
  by default, comma
                         separated: stetfs with scheme=stet for flash, for a disk that turns, with \
  every block
                         switched, and with data=journal; the kernel's ext4 in two modes, XFS with \
  a reflinked copy of
                         the file, Btrfs
  --volumes N            the volume's size is written N times (default 2)
  --size MIB             size of a volume (default 512)
  --share PERCENT        the file's part of the volume (default 30)
  --sync-every LIST      overwrites for each fsync, comma separated, a run each (default 64,1)
  --rounds N             medians of N (default 3)
  --medium loop|disk|zram
                         the device: a loop device on a file in memory or on the disk (in TMPDIR), \
  or zram (default loop)
  --stetfs PROGRAM       default: beside this program
  --json FILE            writes every sample
Needs root (device, mount).";

/// Their names on the command line, and what is mounted.
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

struct Plan {
    bench: Bench,
    systems: Vec<String>,
    ageing: Ageing,
    sync_every: Vec<u64>,
    rounds: u32,
    json: Option<PathBuf>,
}

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

/// The programs that a system needs.
fn programs(name: &str) -> &'static [&'static str] {
    match name {
        "xfs" => &["filefrag", "mkfs.xfs", "xfs_repair"],
        "btrfs" => &["filefrag", "mkfs.btrfs", "btrfs"],
        _ => &["filefrag", "mke2fs", "e2fsck"],
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|s| !s.is_empty())
}

fn plan(dir: &Path, disk: &Path) -> Result<Option<Plan>> {
    let here = std::env::current_exe()?
        .parent()
        .context("no directory of programs")?
        .to_owned();
    let mut plan = Plan {
        bench: Bench {
            dir: dir.to_owned(),
            disk: disk.to_owned(),
            medium: Medium::Loop,
            size_mib: 512,
            tables: Tables::Written,
            nvm_mib: 0,
            stetfs: here.join("stetfs"),
            floor: here.join("floor"),
            stetfs_options: String::new(),
            floor_options: String::new(),
        },
        systems: SYSTEMS.map(str::to_owned).to_vec(),
        ageing: Ageing {
            volume_mib: 512,
            share: 30,
            volumes: 2,
            sync_every: 0,
        },
        sync_every: vec![64, 1],
        rounds: 3,
        json: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--help" || arg == "-h" {
            println!("{HELP}");
            return Ok(None);
        }
        let value = args
            .next()
            .with_context(|| format!("{arg} takes a value, see --help"))?;
        match arg.as_str() {
            "--systems" => plan.systems = list(&value).map(str::to_owned).collect(),
            "--volumes" => plan.ageing.volumes = value.parse()?,
            "--size" => plan.ageing.volume_mib = value.parse()?,
            "--share" => plan.ageing.share = value.parse::<u64>()?.clamp(1, 90),
            "--sync-every" => {
                let every = list(&value).map(|n| Ok(n.parse::<u64>()?.max(1)));
                plan.sync_every = every.collect::<Result<_>>()?;
            }
            "--rounds" => plan.rounds = value.parse()?,
            "--medium" if value == "loop" => plan.bench.medium = Medium::Loop,
            "--medium" if value == "disk" => plan.bench.medium = Medium::Disk,
            "--medium" if value == "zram" => plan.bench.medium = Medium::Zram,
            "--stetfs" => plan.bench.stetfs = PathBuf::from(value),
            "--json" => plan.json = Some(PathBuf::from(value)),
            _ => bail!("unknown option {arg} {value}\n{HELP}"),
        }
    }
    plan.bench.size_mib = plan.ageing.volume_mib;
    plan.systems
        .iter()
        .try_for_each(|name| system(name).map(drop))?;
    Ok(Some(plan))
}

fn measure(plan: &Plan, name: &str, sync_every: u64) -> Result<Aged> {
    let system = system(name)?;
    let is_served = matches!(system, System::Stetfs(_));
    host::needs(true, is_served, programs(name)).map_err(|m| anyhow::anyhow!("{m}"))?;
    let mut running = Running::start(&system, &plan.bench)?;
    let ageing = Ageing {
        sync_every,
        ..plan.ageing
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

fn print(plan: &Plan, report: &Report) {
    let columns: Vec<&str> = plan.systems.iter().map(String::as_str).collect();
    let peers = PEERS.into_iter().filter(|peer| columns.contains(peer));
    let ratios: Vec<(&str, &str)> = peers
        .filter(|_| columns.contains(&"stet"))
        .map(|peer| ("stet", peer))
        .collect();
    println!("{}", report.table(&columns, &ratios));
}

fn main() -> Result<()> {
    let scratch = host::scratch()?;
    let disk = tempfile::Builder::new().prefix("stetfs-lab-").tempdir()?;
    let Some(plan) = plan(scratch.path(), disk.path())? else {
        return Ok(());
    };
    let ageing = &plan.ageing;
    let mut report = Report::on([
        ("medium", format!("{:?}", plan.bench.medium)),
        ("volume", format!("{} MiB", ageing.volume_mib)),
        ("file", format!("{} % of it", ageing.share)),
        ("overwrites", format!("{} volumes", ageing.volumes)),
        ("rounds", plan.rounds.to_string()),
    ])?;
    println!("{:?}", report.setting);
    for round in 1..=plan.rounds {
        for &every in &plan.sync_every {
            for name in &plan.systems {
                match measure(&plan, name, every) {
                    Ok(aged) => add(&mut report, every, name, &aged),
                    Err(error) => {
                        let failure = format!("sync {every} on {name}: {error:#}");
                        eprintln!("{failure}");
                        report.failures.push(failure);
                    }
                }
            }
        }
        println!("after round {round} of {}:", plan.rounds);
        print(&plan, &report);
        if let Some(path) = &plan.json {
            fs::write(path, serde_json::to_string_pretty(&report)?)?;
        }
    }
    Ok(())
}
