//! Measures mounts: the kernel's ext4, stetfs and the floor on the same workloads and the same kind
//! of device, interleaved, medians of several rounds, ratios, JSON. See `bench-mount --help`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use stetfs_bench::report::Report;
use stetfs_bench::rows::{Done, Effort, ROWS, Row};
use stetfs_bench::systems::{Bench, How, Medium, Running, System, Tables, Traffic};
use stetfs_testkit::host;

const HELP: &str = "usage: bench-mount [options]
  --medium loop|disk|zram
                         the device under kernel and stetfs: a loop device on a file in memory or \
                         on the disk
                         (in TMPDIR), or zram (default loop)
  --modes LIST           journaling modes, comma separated (default journal,ordered)
  --schemes LIST         more columns for stetfs: schemes, comma separated, each with its options \
  behind colons
                         (ubj:cow=range); what has memory beside the volume gets a file in memory
  --nvm MIB              size of that (default 1024)
  --systems LIST         of kernel,stetfs,floor (default all)
  --rows LIST            only rows whose name contains one of these, comma separated
  --rounds N             medians of N (default 3)
  --seconds N            length of timed rows (default 5)
  --shrink N             counted rows do 1/N of their work (default 1)
  --size MIB             size of a volume (default 6144)
  --stetfs PROGRAM       default: beside this program
  --stetfs-options OPTS  more mount options for stetfs
  --floor-options OPTS   mount options for the floor
  --json FILE            writes every sample
Needs root (device, mount, name cache).";

struct Plan {
    bench: Bench,
    modes: Vec<String>,
    schemes: Vec<String>,
    systems: Vec<String>,
    rows: Vec<Row>,
    rounds: u32,
    effort: Effort,
    json: Option<PathBuf>,
}

fn list(text: &str) -> Vec<String> {
    text.split(',')
        .filter(|s| !s.is_empty())
        .map(str::to_owned)
        .collect()
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
            size_mib: 6144,
            tables: Tables::Written,
            nvm_mib: 1024,
            stetfs: here.join("stetfs"),
            floor: here.join("floor"),
            stetfs_options: String::new(),
            floor_options: String::new(),
        },
        modes: list("journal,ordered"),
        schemes: Vec::new(),
        systems: list("kernel,stetfs,floor"),
        rows: ROWS.to_vec(),
        rounds: 3,
        effort: Effort {
            seconds: 5,
            shrink: 1,
        },
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
            "--medium" if value == "loop" => plan.bench.medium = Medium::Loop,
            "--medium" if value == "disk" => plan.bench.medium = Medium::Disk,
            "--medium" if value == "zram" => plan.bench.medium = Medium::Zram,
            "--modes" => plan.modes = list(&value),
            "--schemes" => {
                let schemes = list(&value);
                plan.schemes = schemes.iter().map(|s| s.replace(':', ",")).collect();
            }
            "--nvm" => plan.bench.nvm_mib = value.parse()?,
            "--systems" => plan.systems = list(&value),
            "--rows" => {
                let wanted = list(&value);
                plan.rows
                    .retain(|row| wanted.iter().any(|w| row.name.contains(w.as_str())));
            }
            "--rounds" => plan.rounds = value.parse()?,
            "--seconds" => plan.effort.seconds = value.parse()?,
            "--shrink" => plan.effort.shrink = value.parse::<u64>()?.max(1),
            "--size" => plan.bench.size_mib = value.parse()?,
            "--stetfs" => plan.bench.stetfs = PathBuf::from(value),
            "--stetfs-options" => plan.bench.stetfs_options = value,
            "--floor-options" => plan.bench.floor_options = value,
            "--json" => plan.json = Some(PathBuf::from(value)),
            _ => bail!("unknown option {arg} {value}\n{HELP}"),
        }
    }
    Ok(Some(plan))
}

fn columns(plan: &Plan) -> Vec<System> {
    let with = |name: &str| plan.systems.iter().any(|s| s == name);
    let mut systems = Vec::new();
    for mode in &plan.modes {
        if with("kernel") {
            systems.push(System::Kernel(mode.clone()));
        }
        if with("stetfs") {
            systems.push(System::Stetfs(How::Mode(mode.clone())));
        }
    }
    let schemes = plan.schemes.iter().cloned().map(How::Scheme);
    systems.extend(schemes.map(System::Stetfs));
    if with("floor") {
        systems.push(System::Floor);
    }
    systems
}

/// What a row did, and what that took of others.
fn measure(plan: &Plan, system: &System, row: &Row) -> Result<(Done, Traffic)> {
    host::needs(true, *system != System::Kernel(String::new()), row.programs)
        .map_err(|m| anyhow::anyhow!("{m}"))?;
    let mut running = Running::start(system, &plan.bench)?;
    let done = (row.run)(&mut running, plan.effort)?;
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

fn ratios(plan: &Plan) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for mode in &plan.modes {
        pairs.push((format!("stetfs-{mode}"), format!("kernel-{mode}")));
        pairs.push((format!("stetfs-{mode}"), "floor".to_owned()));
    }
    for scheme in &plan.schemes {
        for mode in &plan.modes {
            pairs.push((format!("stetfs-{scheme}"), format!("kernel-{mode}")));
        }
    }
    pairs
}

fn print(plan: &Plan, report: &Report, systems: &[System]) {
    let names: Vec<String> = systems.iter().map(System::name).collect();
    let columns: Vec<&str> = names.iter().map(String::as_str).collect();
    let ratios = ratios(plan);
    let ratios: Vec<(&str, &str)> = ratios
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .filter(|(a, b)| columns.contains(a) && columns.contains(b))
        .collect();
    println!("{}", report.table(&columns, &ratios));
}

fn main() -> Result<()> {
    let scratch = host::scratch()?;
    let disk = tempfile::Builder::new().prefix("stetfs-lab-").tempdir()?;
    let Some(plan) = plan(scratch.path(), disk.path())? else {
        return Ok(());
    };
    let systems = columns(&plan);
    let mut report = Report::on([
        ("medium", format!("{:?}", plan.bench.medium)),
        ("nvm", format!("{} MiB", plan.bench.nvm_mib)),
        ("rounds", plan.rounds.to_string()),
        ("seconds", plan.effort.seconds.to_string()),
        ("shrink", plan.effort.shrink.to_string()),
    ])?;
    println!("{:?}", report.setting);
    for round in 1..=plan.rounds {
        for row in &plan.rows {
            for system in &systems {
                match measure(&plan, system, row) {
                    Ok(done) => add(&mut report, row, &system.name(), done),
                    Err(error) => {
                        let failure = format!("{} on {}: {error:#}", row.name, system.name());
                        eprintln!("{failure}");
                        report.failures.push(failure);
                    }
                }
            }
        }
        println!("after round {round} of {}:", plan.rounds);
        print(&plan, &report, &systems);
        if let Some(path) = &plan.json {
            fs::write(path, serde_json::to_string_pretty(&report)?)?;
        }
    }
    Ok(())
}
