//! A scheme below the kernel's own ext4, beside the kernel alone: what reaches the medium until the
//! last call has returned, and what comes home after that.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use stetfs::{Media, MountOptions, open_alone};
use stetfs_below::{Below, BelowOptions, WRITE_THROUGH};
use stetfs_media::{BlockDev, RamDev};
use stetfs_powercut::kernel::served::Served;

use super::device::{Account, Recorder};
use super::{JOURNAL_MIB, Job, Plan, Program, VOLUME_MIB, host, on_ours, on_served, variety};
use crate::system::Volume;

/// Options of the kernel's mount in each run: nothing happens by the clock.
const QUIET: &str = "noatime,noinit_itable,commit=300";

/// The kernel's ext4 in a mode, alone or above a scheme.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name: the mode, and the scheme.
    pub name: String,
    /// The mode, as `data=` has it.
    pub mode: String,
    /// The scheme below; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scheme: String,
}

/// What a run has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The column's name.
    pub column: String,
    /// The workload's name.
    pub job: String,
    /// Until the last call has returned.
    pub durable: Account,
    /// From then on, until the volume is unmounted and everything is home.
    pub home: Account,
}

/// All runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sheet {
    /// The kernel's version.
    pub kernel: String,
    /// Seed of everything random.
    pub seed: u64,
    /// The systems.
    pub columns: Vec<Column>,
    /// The workloads.
    pub jobs: Vec<Job>,
    /// Each system with each workload.
    pub runs: Vec<Run>,
}

impl Column {
    /// The modes that are compared, alone and with `stet` below.
    pub fn all() -> Vec<Self> {
        let of = |mode: &str, scheme: &str| Self {
            name: match scheme {
                "" => mode.to_owned(),
                scheme => format!("{mode}/{scheme}"),
            },
            mode: mode.to_owned(),
            scheme: scheme.to_owned(),
        };
        let modes = ["journal", "ordered"];
        let both = modes.map(|mode| [of(mode, ""), of(mode, "stet")]);
        both.into_iter().flatten().collect()
    }

    /// As `front=kernel` has it: each write is durable when it is answered if the journal takes
    /// everything.
    fn writes_through(&self) -> bool {
        self.mode == "journal" && !self.scheme.is_empty()
    }

    fn options(&self) -> String {
        let mut words = vec![format!("{QUIET},data={}", self.mode)];
        if self.writes_through() {
            words.extend(WRITE_THROUGH.map(str::to_owned));
        }
        words.join(",")
    }

    fn below(&self, dev: &Arc<Recorder>) -> Result<Option<Arc<Below>>> {
        if self.scheme.is_empty() {
            return Ok(None);
        }
        let options = MountOptions::parse(&format!("scheme={}", self.scheme))?;
        let alone = open_alone(&Media::from(dev.clone()), &options)?;
        let how = BelowOptions {
            write_through: self.writes_through(),
            ..BelowOptions::default()
        };
        Ok(Some(Arc::new(Below::new(alone, how)?)))
    }

    fn run(&self, job: &Job, program: &Program<'_>, seed: u64) -> Result<Run> {
        let volume = Volume::make(variety(""), VOLUME_MIB, JOURNAL_MIB)?;
        let dev = Recorder::new(RamDev::from_image(&volume.image().to_bytes()))?;
        let below = self.below(&dev)?;
        let top: Arc<dyn BlockDev> = match &below {
            Some(below) => below.clone(),
            None => dev.clone(),
        };
        let served = Served::new(top, "stetfs-lab")?;
        let options = self.options();
        let mount = || served.mount("ext4", &options);
        let begins = || drop(dev.take());
        let durable = on_served(&served, &mount, program, seed, begins, || dev.take())?;
        drop(served);
        if let Some(below) = below {
            below.finish()?;
        }
        Ok(Run {
            column: self.name.clone(),
            job: job.name.clone(),
            durable,
            home: dev.take(),
        })
    }
}

impl Sheet {
    /// Runs the workloads of a plan on each system; with names, only those that have one of them.
    /// Calls `tell` with what is done next.
    ///
    /// # Errors
    /// A name is unknown; something is missing on this machine; errors of a run; a signal came.
    pub fn measure(
        only: &[String],
        load: Option<&str>,
        seed: u64,
        tell: &dyn Fn(&str),
    ) -> Result<Self> {
        let (mut columns, mut jobs) = (Column::all(), Plan::whole()?.jobs);
        super::only(only, &mut columns, |column| &column.name, &mut jobs)?;
        if let Some(load) = load {
            jobs = vec![Job::yours(load)];
        }
        host::check("ext4")?;
        let mut runs = Vec::new();
        for job in &jobs {
            let workload = job.workload(seed)?;
            // The calls are those that our library is asked to make.
            let (_, lists) = on_ours("data=ordered", &*workload)?;
            let program = Program::of(&*workload, lists.as_ref())?;
            for column in &columns {
                let name = format!("{}, {}", column.name, job.name);
                tell(&name);
                runs.push(column.run(job, &program, seed).with_context(|| name)?);
            }
        }
        Ok(Self {
            kernel: super::sheet::release(),
            seed,
            columns,
            jobs,
            runs,
        })
    }

    /// Each number of each run: until the last call has returned, and after it.
    pub fn numbers(&self) -> impl Iterator<Item = (&Run, &'static str, u64, u64)> {
        self.runs.iter().flat_map(|run| {
            let (durable, home) = (run.durable.total(), run.home.total());
            [
                (run, "bytes", durable.bytes, home.bytes),
                (run, "requests", durable.requests, home.requests),
                (run, "flushes", run.durable.flushes, run.home.flushes),
            ]
        })
    }

    /// Returns the sheet as JSON, a run per line.
    ///
    /// # Errors
    /// None is known.
    pub fn json(&self) -> Result<String> {
        let text = serde_json::to_string(self)?;
        Ok(text.replace("{\"column\":", "\n{\"column\":") + "\n")
    }

    /// Returns every number as CSV.
    pub fn csv(&self) -> String {
        let mut text = "system,workload,number,durable,home\n".to_owned();
        for (run, number, durable, home) in self.numbers() {
            let _ = writeln!(text, "{},{},{number},{durable},{home}", run.column, run.job);
        }
        text
    }

    /// Makes the document.
    pub fn document(&self) -> String {
        let mut text = HEAD.replace("{kernel}", &self.kernel);
        self.table(
            &mut text,
            "KB until the last call has returned + after it",
            &|run, per| {
                let kb = |account: &Account| account.total().bytes as f64 / 1000.0 / per;
                format!("{} + {}", short(kb(&run.durable)), short(kb(&run.home)))
            },
        );
        self.table(&mut text, "Flushes; requests that write", &|run, per| {
            let each = |count: u64| match per {
                1.0 => count.to_string(),
                per => format!("{:.2}", count as f64 / per),
            };
            let both = |a: u64, b: u64| format!("{} + {}", each(a), each(b));
            let (durable, home) = (&run.durable, &run.home);
            format!(
                "{}; {}",
                both(durable.flushes, home.flushes),
                both(durable.total().requests, home.total().requests)
            )
        });
        text.push_str("\n<!-- end -->\n");
        text
    }

    /// A row for each workload, a column for each system.
    fn table(&self, text: &mut String, title: &str, cell: &dyn Fn(&Run, f64) -> String) {
        let names: Vec<_> = self.columns.iter().map(|column| &*column.name).collect();
        let _ = writeln!(text, "\n## {title}\n\n| | {} |", names.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(names.len() + 1));
        for job in &self.jobs {
            let runs = self.runs.iter().filter(|run| run.job == job.name);
            let cells: Vec<_> = runs.map(|run| cell(run, job.per as f64)).collect();
            let _ = writeln!(text, "| {} | {} |", job.name, cells.join(" | "));
        }
    }
}

/// A number with as many decimals as say something.
fn short(number: f64) -> String {
    match number {
        ..1.0 => format!("{number:.2}"),
        ..100.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

const HEAD: &str = "\
# A scheme below the kernel's ext4

<!-- made by stetfs lab below -->

`stetfs lab below --json docs/below.json --document docs/lab/below.md` measures this; it needs
root, `/dev/fuse` and loop devices. The same calls go to the ext4 of Linux {kernel}, alone and with
`stet` below it ([BELOW.md](../BELOW.md)), as `front=kernel` has it, each on a device of ours that
notes every request. Numbers are for an operation (of varmail and fileserver for all of it). The
first is what had reached the device when the last call, a sync(2), had returned; the second what
the unmount brought home. A request is a range in one piece, however it was cut; a write with forced
access is a write and a flush. The workloads are those of [kernel.md](kernel.md).
";
