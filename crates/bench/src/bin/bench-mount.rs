//! Measures mounts: the kernel's file systems, stetfs and the floor, by turns, with the same
//! workloads on the same kind of device. Prints medians of several rounds and ratios, and writes
//! JSON. See `bench-mount --help`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use stetfs_bench::done::{Done, Effort};
use stetfs_bench::report::Report;
use stetfs_bench::rows::{ROWS, Row};
use stetfs_bench::systems::{Bench, How, Medium, Running, System, Traffic};
use stetfs_testkit::host;

/// Mounts side by side: the kernel's ext4, XFS and Btrfs, stetfs, and a floor that keeps everything
/// in memory, with the same workloads on the same kind of device. Needs root (device, mount, cache
/// of names).
#[derive(Parser)]
struct Args {
    /// Kind of device under the kernel's file systems and stetfs
    #[arg(long, value_enum, default_value = "loop")]
    medium: Medium,
    /// Journaling modes (data=) to measure
    #[arg(long, value_delimiter = ',', default_value = "journal,ordered")]
    modes: Vec<String>,
    /// More columns for stetfs: schemes, each with its options after colons (ubj:cow=range). A
    /// scheme that has memory beside the volume gets a file in memory (--nvm)
    #[arg(long, value_delimiter = ',')]
    schemes: Vec<String>,
    /// Size of the memory beside a volume
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    nvm: u64,
    /// Schemes to measure below the kernel's ext4, written as for --schemes; jbd2 is the kernel's
    /// own journaling, passed on by a server of ours
    #[arg(long, value_delimiter = ',')]
    below: Vec<String>,
    /// Systems to measure: kernel (its ext4), xfs and btrfs (with their own defaults), stetfs,
    /// floor
    #[arg(long, value_delimiter = ',', default_value = "kernel,stetfs,floor")]
    systems: Vec<Whose>,
    /// Run only rows whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Number of rounds; the medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of each timed row
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Do 1/N of the work of counted rows
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    shrink: u64,
    /// Size of each volume
    #[arg(long, value_name = "MIB", default_value_t = 6144)]
    size: u64,
    /// The stetfs program [default: beside this program]
    #[arg(long)]
    stetfs: Option<PathBuf>,
    /// More mount options for stetfs, comma separated
    #[arg(long, default_value = "")]
    stetfs_options: String,
    /// Mount options for the floor, comma separated
    #[arg(long, default_value = "")]
    floor_options: String,
    /// Write every sample to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Whose {
    Kernel,
    Xfs,
    Btrfs,
    Stetfs,
    Floor,
}

impl Args {
    fn bench(&self, dir: &Path, disk: &Path) -> Result<Bench> {
        let beside = Bench::new(dir, disk, self.size)?;
        Ok(Bench {
            medium: self.medium,
            nvm_mib: self.nvm,
            stetfs: self.stetfs.clone().unwrap_or(beside.stetfs),
            stetfs_options: self.stetfs_options.clone(),
            floor_options: self.floor_options.clone(),
            ..beside
        })
    }

    fn effort(&self) -> Effort {
        Effort {
            seconds: self.seconds,
            shrink: self.shrink,
        }
    }

    fn schemes(&self) -> impl Iterator<Item = String> {
        self.schemes.iter().map(|scheme| scheme.replace(':', ","))
    }

    fn below(&self) -> impl Iterator<Item = String> {
        self.below.iter().map(|scheme| scheme.replace(':', ","))
    }

    fn rows(&self) -> impl Iterator<Item = &'static Row> {
        let wants = |row: &&Row| {
            self.rows.is_empty() || self.rows.iter().any(|part| row.name.contains(part))
        };
        ROWS.iter().filter(wants)
    }
}

fn columns(args: &Args) -> Vec<System> {
    let with = |whose| args.systems.contains(&whose);
    let mut systems = Vec::new();
    for mode in &args.modes {
        if with(Whose::Kernel) {
            systems.push(System::Kernel(mode.clone()));
        }
        if with(Whose::Stetfs) {
            systems.push(System::Stetfs(How::Mode(mode.clone())));
        }
        systems.extend(args.below().map(|scheme| System::Below {
            scheme,
            mode: mode.clone(),
        }));
    }
    systems.extend(args.schemes().map(How::Scheme).map(System::Stetfs));
    let alone = [
        (Whose::Xfs, System::Xfs),
        (Whose::Btrfs, System::Btrfs),
        (Whose::Floor, System::Floor),
    ];
    systems.extend(
        alone
            .into_iter()
            .filter_map(|(whose, system)| with(whose).then_some(system)),
    );
    systems
}

/// Runs a row; returns what it did and the traffic that this caused.
fn measure(bench: &Bench, effort: Effort, system: &System, row: &Row) -> Result<(Done, Traffic)> {
    host::needs(true, *system != System::Kernel(String::new()), row.programs)
        .map_err(|m| anyhow::anyhow!("{m}"))?;
    let mut running = Running::start(system, bench)?;
    let done = (row.run)(&mut running, effort)?;
    let traffic = running.traffic()?;
    running.stop()?;
    Ok((done, traffic))
}

fn add(report: &mut Report, row: &Row, column: &str, (done, traffic): (Done, Traffic)) {
    report.add(row.name, row.unit, column, done.rate);
    let each = done.count.filter(|count| *count > 0);
    let per = |n: Option<u64>, of: Option<u64>| Some(n? as f64 / of? as f64);
    let written = done.written.filter(|bytes| *bytes > 0);
    let more = [
        ("written", "B each", per(traffic.bytes, each)),
        ("written", "B a byte", per(traffic.bytes, written)),
        ("flushes", "each", per(traffic.flushes, each)),
        ("requests", "each", per(traffic.requests, each)),
    ];
    for (what, unit, value) in more {
        if let Some(value) = value {
            report.add(
                &format!("  {}: {what}, {unit}", row.name),
                "",
                column,
                value,
            );
        }
    }
}

fn ratios(args: &Args) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for scheme in args.below() {
        for mode in &args.modes {
            let ours = format!("below-{scheme}-{mode}");
            for other in &args.modes {
                pairs.push((ours.clone(), format!("kernel-{other}")));
                pairs.push((ours.clone(), format!("below-jbd2-{other}")));
            }
        }
    }
    let mut pair = |ours: &str, other: &str| pairs.push((format!("stetfs-{ours}"), other.into()));
    for mode in &args.modes {
        for other in [&format!("kernel-{mode}"), "xfs", "btrfs", "floor"] {
            pair(mode, other);
        }
    }
    for scheme in args.schemes() {
        for mode in &args.modes {
            pair(&scheme, &format!("kernel-{mode}"));
        }
        for other in ["xfs", "btrfs"] {
            pair(&scheme, other);
        }
    }
    pairs
}

fn print(args: &Args, report: &Report, systems: &[System]) {
    let names: Vec<String> = systems.iter().map(System::name).collect();
    let columns: Vec<&str> = names.iter().map(String::as_str).collect();
    let ratios = ratios(args);
    let ratios: Vec<(&str, &str)> = ratios
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .filter(|(a, b)| columns.contains(a) && columns.contains(b))
        .collect();
    println!("{}", report.table(&columns, &ratios));
}

fn main() -> Result<()> {
    let args = Args::parse();
    let scratch = host::scratch()?;
    let disk = tempfile::Builder::new().prefix("stetfs-lab-").tempdir()?;
    let bench = args.bench(scratch.path(), disk.path())?;
    let systems = columns(&args);
    let mut report = Report::on([
        ("medium", format!("{:?}", bench.medium)),
        ("nvm", format!("{} MiB", bench.nvm_mib)),
        ("rounds", args.rounds.to_string()),
        ("seconds", args.seconds.to_string()),
        ("shrink", args.shrink.to_string()),
    ])?;
    println!("{:?}", report.setting);
    for round in 1..=args.rounds {
        for row in args.rows() {
            for system in &systems {
                match measure(&bench, args.effort(), system, row) {
                    Ok(done) => add(&mut report, row, &system.name(), done),
                    Err(error) => {
                        let failure = format!("{} on {}: {error:#}", row.name, system.name());
                        eprintln!("{failure}");
                        report.failures.push(failure);
                    }
                }
            }
        }
        println!("after round {round} of {}:", args.rounds);
        print(&args, &report, &systems);
        if let Some(path) = &args.json {
            fs::write(path, serde_json::to_string_pretty(&report)?)?;
        }
    }
    Ok(())
}
