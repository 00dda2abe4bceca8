//! Recovery of Shortcut-JFS takes as long as its log is, not as its volume is (section III.B of the
//! paper). So does stet's.

use anyhow::{Result, ensure};
use serde::Serialize;
use stetfs_media::{Cause, MeterSnapshot};

use super::report::{Chart, Report, Said, Series, Table};
use super::{Experiment, Setting};
use crate::system::{
    ADP_S, Bed, EXT3, EXT3_4K, Medium, MountCost, PCM, STET_IN_MEMORY, System, Volume,
};
use crate::workload::{Content, Durable, Session, Tell};
use stetfs_testkit::rng::Rng;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shortcut-recovery",
    title: "recovery time after a crash by the size of the log and of the volume",
    paper: "Lee, Yoo, Jang, Bahn, MSST 2012, section III.B",
    scale: 1.0,
    has_real_time: true,
    run,
};

const SYSTEMS: [System; 3] = [EXT3, ADP_S, STET_IN_MEMORY];
const VOLUMES: [u64; 2] = [1 << 30, 8 << 30];
const LOGS: [u64; 5] = [0, 8 << 20, 16 << 20, 32 << 20, 64 << 20];
/// Shortcut-JFS checkpoints when a quarter of the journal is full: the longest log must be less.
const JOURNAL: u64 = 320 << 20;
/// The file that is written to.
const FILE: u64 = 64 << 20;
/// Half a block: what adp-s still logs.
const WRITE: usize = 2048;
const MEMORY_MIB: u64 = 512;

/// A recovery.
struct Recovered {
    system: &'static str,
    volume: u64,
    log: u64,
    /// Bytes that had been written to the log.
    logged: u64,
    cost: MountCost,
}

impl Recovered {
    fn recovery_read(&self) -> u64 {
        self.cost.device.by_cause(Cause::Recovery).read_bytes
    }

    fn elapsed_ns(&self) -> u64 {
        self.cost.virtual_ns.unwrap_or(self.cost.real_ns)
    }
}

/// The same in the report.
#[derive(Debug, Serialize)]
pub struct RecoveryRun {
    /// The system's name.
    pub system: &'static str,
    /// The medium's name.
    pub medium: &'static str,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Bytes that had been written to the log.
    pub log_bytes: u64,
    /// Mounting, with the recovery.
    pub mount: MountCost,
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    report.setup = vec![
        (
            "log",
            "filled by random writes of 2 KiB (half a block), each durable, into a file of 64 \
            MiB; then a crash"
                .to_owned(),
        ),
        (
            "volumes",
            "ext3, blocks of 4 KiB, journal of 320 MiB: Shortcut-JFS checkpoints when a \
            quarter of it is full"
                .to_owned(),
        ),
        (
            "time",
            "of the whole mount; a log of 0 is a clean mount".to_owned(),
        ),
    ];
    let volumes = VOLUMES
        .into_iter()
        .map(|bytes| setting.volume(EXT3_4K, bytes, JOURNAL));
    let volumes: Vec<_> = volumes.collect::<Result<_>>()?;
    for medium in setting.media(PCM) {
        report.measured_on(medium);
        let mut all = Vec::new();
        for system in SYSTEMS {
            for volume in &volumes {
                for log in LOGS {
                    all.push(recover(setting, system, medium, volume, log)?);
                }
            }
        }
        show(&mut report, medium, &all);
        for system in SYSTEMS {
            check(&mut report, medium, system, &all);
        }
        report
            .recoveries
            .extend(all.into_iter().map(|r| RecoveryRun {
                system: r.system,
                medium: medium.name(),
                volume_bytes: r.volume,
                log_bytes: r.logged,
                mount: r.cost,
            }));
    }
    Ok(report)
}

fn recover(
    setting: &Setting<'_>,
    system: System,
    medium: Medium,
    volume: &Volume,
    log: u64,
) -> Result<Recovered> {
    let log_bytes = match log {
        0 => 0,
        _ => setting.scaled(log, 4096)?,
    };
    let what = format!(
        "{} on {}: {} MiB of log, {} MiB of volume",
        system.name,
        medium.name(),
        log_bytes >> 20,
        volume.mib
    );
    let tell = |done, of| (setting.progress)(&what, done, of);
    tell(0, 1);
    let mut bed = Bed::new(system, medium, volume, MEMORY_MIB)?;
    let file_bytes = setting.scaled(FILE, 4096)?;
    make_file(&bed, file_bytes, setting.seed)?;
    bed.remount()?;
    let logged = fill_log(&bed, log_bytes, file_bytes, setting.seed, &tell)?;
    match log_bytes {
        0 => bed.remount()?,
        _ => bed.crash()?,
    }
    let cost = bed.mount_cost().clone();
    ensure!(
        cost.report.recovery.was_needed == (log_bytes > 0),
        "{what}: {:?}",
        cost.report.recovery
    );
    Ok(Recovered {
        system: system.name,
        volume: volume.mib << 20,
        log: log_bytes,
        logged,
        cost,
    })
}

const NAME: &str = "file";

fn make_file(bed: &Bed, bytes: u64, seed: u64) -> Result<()> {
    const PIECE: u64 = 128 << 10;
    let mut session = Session::new(bed.fs(), bed.time(), Durable::EXT3, &|_, _| {});
    let ino = session.create(session.root(), NAME)?;
    let mut content = Content::new(seed, PIECE as usize);
    for at in (0..bytes).step_by(PIECE as usize) {
        let len = PIECE.min(bytes - at) as usize;
        session.write(ino, at, content.piece(0, len))?;
    }
    session.close(ino)
}

/// Writes until so much is in the log; how much it is.
fn fill_log(bed: &Bed, log_bytes: u64, file_bytes: u64, seed: u64, tell: Tell<'_>) -> Result<u64> {
    let before = bed.dev().meter().snapshot();
    let spent = || bed.dev().meter().snapshot() - &before;
    let mut session = Session::new(bed.fs(), bed.time(), Durable::EachWrite, tell);
    let ino = session.open(session.root(), NAME)?;
    let mut content = Content::new(seed ^ 1, WRITE);
    let mut rng = Rng::new(seed);
    let places = file_bytes / WRITE as u64;
    let mut written = 0;
    loop {
        let logged = log_of(&spent());
        if logged >= log_bytes {
            break;
        }
        let at = rng.below(places) * WRITE as u64;
        session.write(ino, at, content.piece(written, WRITE))?;
        written += 1;
        if written.is_multiple_of(512) {
            session.tell(logged, log_bytes);
        }
    }
    ensure!(
        spent().by_cause(Cause::Checkpoint).write_bytes == 0,
        "there was a checkpoint, so what is in the log is not known"
    );
    Ok(log_of(&spent()))
}

fn log_of(device: &MeterSnapshot) -> u64 {
    let of = |cause| device.by_cause(cause).write_bytes;
    of(Cause::Log) + of(Cause::CommitRecord)
}

fn show(report: &mut Report, medium: Medium, all: &[Recovered]) {
    let time = if medium == PCM {
        "virtual ms"
    } else {
        "real ms"
    };
    let mut table = Table::new(
        format!("recovery on {}", medium.name()),
        [
            "volume MiB",
            "system",
            "log MiB",
            "transactions",
            "MiB read by recovery",
            "MiB read by all of the mount",
            "MiB written",
            time,
        ],
    );
    let mib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 20));
    for r in all {
        let total = r.cost.device.total();
        let cells = [
            r.system.to_owned(),
            mib(r.logged),
            r.cost.report.recovery.transactions.to_string(),
            mib(r.recovery_read()),
            mib(total.read_bytes),
            mib(total.write_bytes),
            format!("{:.2}", r.elapsed_ns() as f64 / 1e6),
        ];
        table.row((r.volume >> 20).to_string(), cells);
    }
    report.tables.push(table);
    let mut logs: Vec<_> = all.iter().map(|r| r.log).collect();
    logs.sort_unstable();
    logs.dedup();
    let mut volumes: Vec<_> = all.iter().map(|r| r.volume).collect();
    volumes.sort_unstable();
    volumes.dedup();
    let mut series = Vec::new();
    for system in SYSTEMS {
        for &volume in &volumes {
            let of = |log: &u64| {
                let found = all
                    .iter()
                    .find(|r| (r.system, r.volume, r.log) == (system.name, volume, *log));
                found.map(|r| r.elapsed_ns() as f64 / 1e6)
            };
            series.push(Series {
                name: format!("{}, {} MiB", system.name, volume >> 20),
                values: logs.iter().map(of).collect(),
            });
        }
    }
    report.charts.push(Chart {
        name: format!("shortcut-recovery-{}", medium.name()),
        title: format!("Mount after a crash on {}", medium.name()),
        unit: time.to_owned(),
        groups: logs
            .iter()
            .map(|log| format!("{} MiB of log", log >> 20))
            .collect(),
        series,
        lines: Vec::new(),
    });
}

/// How far virtual times that should be alike may be apart: by what a mount reads more of a larger
/// volume.
const TOLERANCE: f64 = 0.05;

/// Bytes are judged on each medium, times where they are virtual: real ones differ by what else the
/// machine does.
fn check(report: &mut Report, medium: Medium, system: System, all: &[Recovered]) {
    let mine: Vec<_> = all.iter().filter(|r| r.system == system.name).collect();
    let smallest = mine.iter().map(|r| r.volume).min().unwrap_or(0);
    let (small, large): (Vec<&Recovered>, Vec<&Recovered>) =
        mine.iter().partition(|r| r.volume == smallest);
    let on = format!("{} on {}", system.name, medium.name());
    let (Some(most), Some(a_lot)) = (small.last(), large.last()) else {
        return;
    };
    let times = a_lot.volume / most.volume;
    let read = |r: &Recovered| r.recovery_read() as f64 / r.logged as f64;
    let bytes = read(a_lot) / read(most);
    report
        .compare(
            format!("{on}: bytes that recovery reads, {times} times the volume"),
            Said::figure("not by the volume", 1.0)
                .within(0.01)
                .less_is_better(),
            bytes,
            format!("{bytes:.3}x"),
        )
        .because("not known");
    if medium == Medium::Memory {
        return;
    }
    let ratio = a_lot.elapsed_ns() as f64 / most.elapsed_ns() as f64;
    report
        .compare(
            format!("{on}: time with the largest log, {times} times the volume"),
            Said::figure("not by the volume", 1.0)
                .within(TOLERANCE)
                .less_is_better(),
            ratio,
            format!("{ratio:.3}x"),
        )
        .because("not known");
    let half = small[small.len() - 2];
    let base = small[0].elapsed_ns() as f64;
    let growth = (most.elapsed_ns() as f64 - base) / (half.elapsed_ns() as f64 - base);
    // Less than twice where a block is in the log several times and only its newest copy is
    // written; stet reads most of what it reads from homes, each once.
    let most = 2.0 * (1.0 + TOLERANCE);
    let said = match system == STET_IN_MEMORY {
        true => Said::at_most("our aim: at most by the log", most),
        false => Said::range("by the log", 1.5, most).less_is_better(),
    };
    report
        .compare(
            format!("{on}: time over that of a clean mount, with twice the log"),
            said,
            growth,
            format!("{growth:.2}x"),
        )
        .because("not known");
}
