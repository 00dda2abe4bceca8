//! `stetfs wear`: what wears the device below a mounted volume, and how long it would last.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use rustix::fs::{CWD, Dir, Mode, OFlags, fstat, openat};
use serde::Serialize;
use serde_json::Value;
use stetfs_format::width::{nearest_f64, usize_as_u64};
use stetfs_fuse::mountinfo;
use stetfs_fuse::wrote::{Count, Known, OfFile, Program, Wrote};
use stetfs_media::MeterSnapshot;

use super::counters::Counters;
use super::{Source, written_table};
use crate::args::Wear;
use crate::failure::{Explain, Failure, Result};
use crate::output;
use crate::progress;
use crate::shown::shown;
use crate::size::{Size, rounded_down};

const DAY: f64 = 86_400.0;
const YEAR: f64 = 365.25 * DAY;
/// Bytes of a terabyte, as datasheets have it.
const TB: f64 = 1e12;
/// Programs and files in the tables for people.
const SHOWN: usize = 10;

/// Asks the server who writes; `None` if it serves no files.
fn writers(dir: &Path) -> Result<Option<Wrote>> {
    match stetfs_fuse::query_writers(dir) {
        Ok(wrote) => Ok(Some(wrote)),
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(None),
        Err(e) => Err(Failure::from(e).context(dir.display())),
    }
}

/// A file, and who writes to it.
#[derive(Serialize)]
struct File {
    /// One of its names; `None` if none was found.
    path: Option<String>,
    /// Its number, if it has no name.
    inode: Option<u64>,
    #[serde(flatten)]
    count: Count,
    programs: Vec<Program>,
}

impl File {
    fn add(&mut self, program: Program) {
        self.count += program.count;
        match self
            .programs
            .iter_mut()
            .find(|there| there.name == program.name)
        {
            Some(there) => there.count += program.count,
            None => self.programs.push(program),
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    image: String,
    dir: String,
    scheme: String,
    /// The time that was measured.
    seconds: f64,
    /// Bytes that the device received.
    written: u64,
    /// Bytes that programs wrote.
    programs_wrote: u64,
    flushes: u64,
    tb_a_year: f64,
    /// How long a device of the endurance that was given lasts at this rate.
    years: Option<f64>,
    /// `None` if the kernel serves the files.
    programs: Option<Vec<Program>>,
    files: Option<Vec<File>>,
    #[serde(skip)]
    device: MeterSnapshot,
    #[serde(skip)]
    all: Count,
}

pub(crate) fn run(args: &Wear) -> Result<()> {
    let source = Source::of(Some(&args.dir), None)?;
    let seconds = args.seconds.map(Duration::try_from_secs_f64).transpose();
    let seconds =
        seconds.map_err(|_| Failure::new("--seconds needs a number of seconds").exit(2))?;
    if args.tbw.is_some_and(|tbw| !tbw.is_normal() || tbw < 0.0) {
        return Err(Failure::new("--tbw needs a number of terabytes").exit(2));
    }
    let mut before = None;
    if let Some(seconds) = seconds {
        before = Some((Instant::now(), source.read()?, writers(&args.dir)?));
        sleep(seconds);
    }
    let (now, writers) = (source.read()?, writers(&args.dir)?);
    let report = report(args, before, now, writers)?;
    if args.json {
        return output::json(&report);
    }
    print(args, &report)
}

/// What was counted, and when.
type Before = Option<(Instant, Counters, Option<Wrote>)>;

fn report(args: &Wear, before: Before, now: Counters, writers: Option<Wrote>) -> Result<Report> {
    let text = |key: &str| now.server.get(key).and_then(Value::as_str).unwrap_or("?");
    let uptime = now.server.get("uptime_s").and_then(Value::as_u64);
    let (image, dir) = (text("image").to_owned(), text("dir").to_owned());
    let (mut device, mut programs_wrote, mut writers) = (now.device, now.bytes_written, writers);
    let mut seconds = nearest_f64(uptime.unwrap_or(0).max(1));
    if let Some((since, then, wrote)) = before {
        seconds = since.elapsed().as_secs_f64();
        device = device - &then.device;
        programs_wrote = programs_wrote.saturating_sub(then.bytes_written);
        writers = writers.map(|now| now.since(&wrote.unwrap_or_default()));
    }
    let written = device.total().write_bytes;
    let per_second = nearest_f64(written) / seconds;
    let years = args.tbw.filter(|_| written > 0);
    let all = writers.as_ref().map_or(Count::default(), |all| all.all);
    let (programs, files) = match writers {
        Some(Wrote {
            programs, files, ..
        }) => (Some(programs), Some(named(files, &args.dir, args.json)?)),
        None => (None, None),
    };
    Ok(Report {
        image,
        dir,
        scheme: now.scheme,
        seconds,
        written,
        programs_wrote,
        flushes: device.total_flushes() + device.total_durable_writes(),
        tb_a_year: per_second * YEAR / TB,
        years: years.map(|tbw| tbw * TB / per_second / YEAR),
        programs,
        files,
        device,
        all,
    })
}

/// Finds names of files of the mount that `dir` is in, and puts together what is one file.
fn named(files: Vec<OfFile>, dir: &Path, quiet: bool) -> Result<Vec<File>> {
    let resolved = mountinfo::resolve(dir).during(|| dir.display().to_string())?;
    let entry = mountinfo::mount_of(&resolved).during(|| "the list of mounts".to_owned())?;
    let top = entry.map_or(resolved, |entry| entry.dir);
    let mut paths: HashMap<u64, Option<PathBuf>> = files
        .iter()
        .map(|of| (of.file.inode().into(), None))
        .collect();
    let form = "{spinner} looking for the names of files: {pos}";
    let bar = progress::bar(form, None, quiet);
    let found = find(&top, &mut paths, &mut |n| bar.inc(n));
    bar.finish_and_clear();
    found?;
    let mut named: Vec<File> = Vec::new();
    for OfFile { file, programs } in files {
        let path = paths.get(&file.inode().into()).and_then(Option::as_ref);
        let path = match &file {
            Known::Inode { .. } => path.cloned(),
            Known::Made { name, .. } => Some(path.map_or(name.into(), |dir| dir.join(name))),
        };
        let path = path.map(|path| shown(path.as_os_str().as_bytes()).to_string());
        let of_path = |file: &&mut File| path.is_some() && file.path == path;
        let file = match named.iter_mut().find(of_path) {
            Some(file) => file,
            None => named.push_mut(File {
                inode: path.is_none().then(|| file.inode().into()),
                path,
                count: Count::default(),
                programs: Vec::new(),
            }),
        };
        for program in programs {
            file.add(program);
        }
    }
    named.sort_by_key(|file| Reverse(file.count.weight()));
    Ok(named)
}

/// Goes through a tree until each inode has a name. What cannot be read is passed over: without a
/// name, a file is shown by its number. Nothing is changed, not even when a directory was last read
/// where the caller may have it so.
fn find(
    top: &Path,
    names: &mut HashMap<u64, Option<PathBuf>>,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |path: &Path| {
        openat(CWD, path, flags | OFlags::NOATIME, Mode::empty())
            .or_else(|_| openat(CWD, path, flags, Mode::empty()))
    };
    let stat = fstat(open(top)?)?;
    let device = stat.st_dev;
    let mut missing = names.len();
    if let Some(name) = names.get_mut(&stat.st_ino) {
        *name = Some(top.to_owned());
        missing -= 1;
    }
    let mut dirs = vec![top.to_owned()];
    while missing > 0
        && let Some(path) = dirs.pop()
    {
        let Ok(dir) = open(&path) else { continue };
        if fstat(&dir)?.st_dev != device {
            continue;
        }
        let Ok(entries) = Dir::new(dir) else { continue };
        let entries: Vec<_> = entries.flatten().collect();
        progress(usize_as_u64(entries.len()));
        for entry in entries {
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = || path.join(OsStr::from_bytes(name));
            if let Some(found @ None) = names.get_mut(&entry.ino()) {
                *found = Some(path());
                missing -= 1;
            }
            if entry.file_type().is_dir() {
                dirs.push(path());
            }
        }
    }
    Ok(())
}

fn print(args: &Wear, report: &Report) -> Result<()> {
    let Report {
        image, dir, scheme, ..
    } = report;
    let since = if args.seconds.is_some() {
        ""
    } else {
        " since it was mounted"
    };
    let time = span(report.seconds);
    output::line(format_args!(
        "{image} on {dir}, scheme {scheme}: {time}{since}"
    ))?;
    if report.written == 0 && report.all.is_none() {
        return output::line("nothing was written");
    }
    let a_day = rounded_down(nearest_f64(report.written) / report.seconds * DAY);
    let times = match report.programs_wrote {
        0 => String::new(),
        wrote => {
            let times = nearest_f64(report.written) / nearest_f64(wrote);
            format!("; {times:.2} times what programs wrote")
        }
    };
    let (written, a_day) = (Size(report.written), Size(a_day));
    output::line(format_args!(
        "the device received {written}, which is {a_day} a day, {} TB a year{times}",
        rounded(report.tb_a_year)
    ))?;
    if let (Some(tbw), Some(years)) = (args.tbw, report.years) {
        let lasts = span(years * YEAR);
        output::line(format_args!(
            "at this rate, {tbw} TB are written in {lasts}"
        ))?;
    }
    if let (Some(programs), Some(files)) = (&report.programs, &report.files) {
        output::line(format_args!("\n{}", programs_table(programs, report.all)))?;
        output::line(format_args!("\n{}", files_table(files)))?;
    } else {
        output::line("\nthe kernel serves the files: which programs write is not known here")?;
    }
    output::line(format_args!(
        "\n{}",
        written_table("the device", &report.device).trim_fmt()
    ))
}

fn programs_table(programs: &[Program], all: Count) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["program", "wrote", "syncs"]);
    let mut row = |name: &str, count: Count| {
        table.add_row([
            name.to_owned(),
            Size(count.bytes).to_string(),
            count.syncs.to_string(),
        ]);
    };
    let mut others = all;
    for program in programs.iter().take(SHOWN) {
        row(&program.name, program.count);
        others.bytes = others.bytes.saturating_sub(program.count.bytes);
        others.syncs = others.syncs.saturating_sub(program.count.syncs);
    }
    if !others.is_none() {
        row("others", others);
    }
    aligned(table)
}

fn files_table(files: &[File]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["file", "written", "syncs", "by"]);
    for file in files.iter().take(SHOWN) {
        let path = match (&file.path, file.inode) {
            (Some(path), _) => path.clone(),
            (None, inode) => format!("inode {}, without a name", inode.unwrap_or(0)),
        };
        let programs: Vec<&str> = file.programs.iter().map(|program| &*program.name).collect();
        table.add_row([
            path,
            Size(file.count.bytes).to_string(),
            file.count.syncs.to_string(),
            programs.join(", "),
        ]);
    }
    aligned(table)
}

/// Sets the numbers to the right.
fn aligned(mut table: Table) -> String {
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i == 1 || i == 2 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Three digits or so.
fn rounded(n: f64) -> String {
    match n {
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 1.0 => format!("{n:.1}"),
        n => format!("{n:.3}"),
    }
}

/// A time in the unit that fits.
fn span(seconds: f64) -> String {
    const UNITS: [(f64, &str); 4] = [
        (YEAR, "years"),
        (DAY, "days"),
        (3600.0, "hours"),
        (60.0, "minutes"),
    ];
    let unit = UNITS.iter().find(|(length, _)| seconds >= 2.0 * length);
    let (length, name) = unit.unwrap_or(&(1.0, "seconds"));
    format!("{:.1} {name}", seconds / length)
}
