//! `stetfs stats`: the live counters of a mounted volume.
//!
//! The server returns them as JSON (`stetfs_fuse::query_stats`): the core's `Stats`, and `server`.
//! Only those that have a table of their own are known here; the other counters are shown under
//! their own names.

use std::io::ErrorKind;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

mod counters;
mod prometheus;
pub(crate) mod wear;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value};
use stetfs_format::width::nearest_f64;
use stetfs_fuse::mountinfo;
use stetfs_media::{Cause, Class, MeterSnapshot, Tag};

use crate::answer;
use crate::args::Stats;
use crate::below::front;
use crate::failure::{EXIT_USAGE, Explain, Failure, Result};
use crate::output;
use crate::size::{Size, rounded_down};
use counters::{Action, Cache, Counters, Nvm};
use prometheus::Metrics;

/// With `--watch`, the header is repeated after this many lines.
const HEADER_EVERY: u32 = 20;

pub(crate) fn run(args: &Stats) -> Result<()> {
    let (seconds, dir) = pause_and_dir(args)?;
    if args.prometheus {
        return export(dir, args.from.as_deref());
    }
    let source = Source::of(dir, args.from.as_deref())?;
    match seconds {
        Some(seconds) => watch(&source, args.json, seconds),
        None if args.json => output::json(&source.json()?),
        None => print(&source.read()?),
    }
}

/// Prints the counters of a volume for a monitoring system, or those of all mounted volumes. One
/// that does not answer is named, and the others are printed.
fn export(dir: Option<&Path>, from: Option<&Path>) -> Result<()> {
    let mut metrics = Metrics::default();
    if dir.is_some() || from.is_some() {
        metrics.add(&Source::of(dir, from)?.read()?);
    } else {
        let mounted = mountinfo::mounts().during(|| "the list of mounts".to_owned())?;
        for entry in mounted.iter().filter(|entry| entry.is_stetfs()) {
            match Source::Mount(&entry.dir).read() {
                Ok(counters) => metrics.add(&counters),
                Err(failure) => eprintln!("stetfs: {failure}"),
            }
        }
    }
    output::line(metrics.text().trim_end())
}

/// Reads `--watch mnt` and `--watch 2 mnt`: the word after the option is the number of seconds if
/// it is a number, and else the mount point.
fn pause_and_dir(args: &Stats) -> Result<(Option<f64>, Option<&Path>)> {
    let dir = args.dir.as_deref();
    let Some(word) = args.watch.as_deref() else {
        return Ok((None, dir));
    };
    let number = word.to_str().and_then(|word| word.parse().ok());
    match (number, dir) {
        (Some(seconds), dir) => Ok((Some(seconds), dir)),
        (None, None) => Ok((Some(1.0), Some(Path::new(word)))),
        (None, Some(_)) => {
            let word = word.to_string_lossy();
            Err(Failure::new(format!("--watch {word}: not a number of seconds")).exit(EXIT_USAGE))
        }
    }
}

/// Where the counters come from.
enum Source<'a> {
    /// The server of the mounted volume in which this path is.
    Mount(&'a Path),
    /// A file with counters that `--json` printed.
    File(&'a Path),
}

impl<'a> Source<'a> {
    fn of(dir: Option<&'a Path>, from: Option<&'a Path>) -> Result<Self> {
        match (dir, from) {
            (_, Some(file)) => Ok(Self::File(file)),
            (Some(dir), None) => Ok(Self::Mount(dir)),
            (None, None) => Err(Failure::new("no mount point was given").exit(2)),
        }
    }

    fn text(&self) -> Result<String> {
        match self {
            Self::File(file) => std::fs::read_to_string(file).during(|| file.display().to_string()),
            Self::Mount(dir) => {
                let exported = front::exported_below(dir);
                let place = exported.as_deref().unwrap_or(dir);
                answer::wait(place, answer::PATIENCE)?;
                stetfs_fuse::query_stats(place)
                    .map_err(|e| match e.kind() {
                        ErrorKind::Unsupported => Failure::from(e),
                        _ => Failure::from(e).context(dir.display()),
                    })
                    .or_advise(|| "the mounted volumes are: stetfs mounts".to_owned())
            }
        }
    }

    fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.text()?).during(|| "the counters".to_owned())
    }

    fn read(&self) -> Result<Counters> {
        serde_json::from_str(&self.text()?).during(|| "the counters".to_owned())
    }
}

fn print(counters: &Counters) -> Result<()> {
    let text = |key: &str| {
        counters
            .server
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or("?")
            .to_owned()
    };
    let number = |key: &str| {
        counters
            .server
            .get(key)
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let uptime = number("uptime_s");
    if !counters.server.is_empty() {
        let (image, dir) = (text("image"), text("dir"));
        let transport = match text("transport").as_str() {
            "uring" => "requests by io_uring",
            _ => "requests by /dev/fuse",
        };
        let scheme = &counters.scheme;
        output::line(format_args!(
            "{image} on {dir}, scheme {scheme}, {transport}, up {uptime} s\n{}\n",
            counters.medium
        ))?;
        let deaths = number("deaths");
        if deaths > 0 {
            output::line(format_args!(
                "servers of this mount that have died before this one: {deaths} (-o survive; the \
                    system log says when)\n"
            ))?;
        }
    }
    output::line(written_table("the device", &counters.device).trim_fmt())?;
    output::line("")?;
    output::line(summary(counters))?;
    if let Some(line) = further("the device", &counters.device) {
        output::line(line)?;
    }
    output::line("")?;
    if let Some(Nvm { medium, traffic }) = &counters.nvm {
        const WHERE: &str = "the memory beside it";
        output::line(format_args!("{medium}\n"))?;
        output::line(written_table(WHERE, traffic).trim_fmt())?;
        output::line("")?;
        if let Some(line) = further(WHERE, traffic) {
            output::line(line)?;
        }
        if let Some(cache) = &counters.cache {
            output::line(in_cache(cache, traffic, commits(counters)))?;
        }
        output::line("")?;
    }
    if counters.actions.iter().any(|action| action.taken > 0) {
        output::line(format_args!("{}\n", actions_table(&counters.actions)))?;
    }
    line_of("journal", &counters.journal)?;
    line_of("volume", &counters.volume)?;
    match counters.server.get("requests") {
        Some(Value::Object(requests)) => line_of("requests", requests),
        _ => Ok(()),
    }
}

/// Makes the table of bytes written: the rows say what they are, the columns why they were written.
fn written_table(medium: &str, device: &MeterSnapshot) -> Table {
    let written = |class, cause| device.of(Tag::new(class, cause)).write_bytes;
    let causes: Vec<Cause> = Cause::ALL
        .into_iter()
        .filter(|c| device.by_cause(*c).write_bytes > 0)
        .collect();
    let cell = |bytes: u64| {
        if bytes == 0 {
            "-".to_owned()
        } else {
            Size(bytes).to_string()
        }
    };
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let heads = causes.iter().map(|c| words(c.name()));
    table.set_header(
        [format!("written to {medium}")]
            .into_iter()
            .chain(heads)
            .chain(["all".to_owned()]),
    );
    for class in Class::ALL
        .into_iter()
        .filter(|c| device.by_class(*c).write_bytes > 0)
    {
        let cells = causes.iter().map(|cause| cell(written(class, *cause)));
        let all = cell(device.by_class(class).write_bytes);
        table.add_row([words(class.name())].into_iter().chain(cells).chain([all]));
    }
    let sums = causes
        .iter()
        .map(|cause| cell(device.by_cause(*cause).write_bytes));
    let total = cell(device.total().write_bytes);
    table.add_row(["all".to_owned()].into_iter().chain(sums).chain([total]));
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Shows what programs wrote and read beside what the device wrote and read.
fn summary(counters: &Counters) -> String {
    let (user, device) = (counters.bytes_written, counters.device.total());
    let ratio = if user == 0 {
        String::new()
    } else {
        format!(
            " ({:.2} times)",
            nearest_f64(device.write_bytes) / nearest_f64(user)
        )
    };
    format!(
        "programs wrote {}, the device received {}{ratio} in {} writes and {} flushes\nprograms \
            read {}, the device delivered {}",
        Size(user),
        Size(device.write_bytes),
        device.writes,
        counters.device.total_flushes() + counters.device.total_durable_writes(),
        Size(counters.bytes_read),
        Size(device.read_bytes),
    )
}

/// Makes the table of the scheme's choices for blocks of data that have a home, with the expected
/// cost of each choice for one such block.
fn actions_table(actions: &[Action]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let each = actions.iter().map(|action| format!("as {}", action.name));
    let heads = ["overwritten blocks", "taken"].map(str::to_owned);
    table.set_header(heads.into_iter().chain(each));
    for action in actions.iter().filter(|action| action.taken > 0) {
        let costs = action.bytes_by_each.iter();
        let costs = costs.map(|(_, bytes)| Size(bytes / action.taken).to_string());
        let head = [action.name.clone(), action.taken.to_string()];
        table.add_row(head.into_iter().chain(costs));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Describes what the cache has done and what a commit costs in it.
fn in_cache(cache: &Cache, traffic: &MeterSnapshot, commits: u64) -> String {
    let share = |part: u64, all: u64| match all {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", nearest_f64(part) * 100.0 / nearest_f64(all)),
    };
    let (reads, dirty) = (cache.hits + cache.misses, cache.dirty);
    let lines: u64 = [Cause::Log, Cause::CommitRecord]
        .map(|cause| traffic.by_cause(cause).lines)
        .iter()
        .sum();
    let fences = traffic.fences(Cause::Log) + traffic.fences(Cause::CommitRecord);
    let a_commit = |n: u64| nearest_f64(n) / nearest_f64(commits.max(1));
    format!(
        "its cache: {} of {} blocks in use, {dirty} ({}) not home; hit rate {} ({} of the hits on \
            such blocks); {} evicted, {} written home, {} copied to be changed\na commit: {:.1} \
            cache lines, {:.1} fences",
        cache.cached,
        cache.blocks,
        share(dirty, cache.cached),
        share(cache.hits, reads),
        share(cache.dirty_hits, cache.hits),
        cache.evictions,
        cache.written_home,
        cache.cow_copies,
        a_commit(lines),
        a_commit(fences),
    )
}

fn commits(counters: &Counters) -> u64 {
    let commits = counters.journal.get("commits").and_then(Value::as_u64);
    commits.unwrap_or(0)
}

/// Describes counters that only some devices have, and the time of requests; leaves out zeros.
fn further(medium: &str, device: &MeterSnapshot) -> Option<String> {
    let counts = [
        (device.total().lines, "cache lines written back"),
        (device.total_fences(), "fences"),
        (device.total_erases(), "blocks erased"),
    ];
    let mut parts: Vec<String> = counts
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect();
    let busy_ns = device.total_busy_ns();
    if busy_ns > 0 {
        parts.push(format!("requests took {:.3} s", nearest_f64(busy_ns) / 1e9));
    }
    (!parts.is_empty()).then(|| format!("on {medium}: {}", parts.join(", ")))
}

/// Prints `name: key value, key value`, without zeros.
fn line_of(name: &str, counters: &Map<String, Value>) -> Result<()> {
    let shown = counters
        .iter()
        .filter(|(_, value)| **value != 0 && **value != false);
    let list: Vec<String> = shown
        .map(|(key, value)| match value {
            Value::Bool(true) => words(key),
            Value::Number(n) if key.ends_with("_bytes") => {
                format!("{} {}", words(key), Size(n.as_u64().unwrap_or_default()))
            }
            Value::String(s) => format!("{} {s}", words(key)),
            other => format!("{} {other}", words(key)),
        })
        .collect();
    if list.is_empty() {
        return Ok(());
    }
    output::line(format_args!("{name}: {}", list.join(", ")))
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

fn watch(source: &Source<'_>, json: bool, seconds: f64) -> Result<()> {
    let pause = Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|p| *p >= Duration::from_millis(10))
        .ok_or_else(|| {
            Failure::new("--watch needs a number of seconds of at least 0.01").exit(2)
        })?;
    if json {
        loop {
            output::json_line(&source.json()?)?;
            sleep(pause);
        }
    }
    let mut before = (Instant::now(), source.read()?);
    for i in 0u32.. {
        if i % HEADER_EVERY == 0 {
            output::line(
                "   commits/s   flushes/s   written/s         log  checkpoint        home   all \
                    writes   (bytes a second)",
            )?;
        }
        sleep(pause);
        let now = (Instant::now(), source.read()?);
        output::line(rates(&before.1, &now.1, (now.0 - before.0).as_secs_f64()))?;
        before = now;
    }
    Ok(())
}

fn rates(before: &Counters, now: &Counters, seconds: f64) -> String {
    let per_second = |n: u64| rounded_down(nearest_f64(n) / seconds);
    let device = now.device.clone() - &before.device;
    let bytes = |n| Size(per_second(n)).to_string();
    let log =
        device.by_cause(Cause::Log).write_bytes + device.by_cause(Cause::CommitRecord).write_bytes;
    let flushes = device.total_flushes() + device.total_durable_writes();
    format!(
        "{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>13}",
        per_second(commits(now).saturating_sub(commits(before))),
        per_second(flushes),
        bytes(now.bytes_written.saturating_sub(before.bytes_written)),
        bytes(log),
        bytes(device.by_cause(Cause::Checkpoint).write_bytes),
        bytes(device.by_cause(Cause::Home).write_bytes),
        bytes(device.total().write_bytes),
    )
}
