//! The trace of a trial: its changes on the media, in order, during one short list of operations, a
//! power cut, and the next mount. A `diff` of two traces compares two papers. `make traces` keeps
//! them in `results/traces`.
//!
//! A line is one change, as the media's tapes have it: the kind of change, first byte and bytes
//! (for a NAND part the page or the erase block), class and cause. Changes that go on where the one
//! before ended share a line, with their number; so does a store with the flush of its lines.
//! Changes of the memory beside the volume are indented.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use stetfs_media::sim::Keep;
use stetfs_scheme::{Ground, Registration, Trial};

use crate::media::Media;
use crate::target::Target;
use crate::workload::Workload;
use stetfs_testkit::ground::orders;
use stetfs_testkit::image::EXT4_1K;
use stetfs_testkit::world::World;

/// The operations: a file is made, filled, changed in a few bytes, renamed, overwritten and
/// deleted, and each step is synced.
const WORKLOAD: &str = "mkdir A 755; sync; begin
    create A/f 644; open @0 A/f; write @0 0 3000 11; fsync @0
    write @0 1500 100 12; fsync @0
    rename A/f A/g; fsyncdir A
    write @0 0 2048 13; fsync @0
    close @0; unlink A/g; sync";

/// Returns the directory of the traces in a source tree.
pub fn dir(root: &Path) -> PathBuf {
    root.join("results/traces")
}

/// Returns the file of a trial's trace.
pub fn file(root: &Path, trial: &Trial) -> PathBuf {
    dir(root).join(trial.name).with_extension("txt")
}

/// Returns the trials whose traces are kept: those with their own order of writes.
pub fn traced(scheme: &Registration) -> impl Iterator<Item = &'static Trial> {
    orders(scheme)
}

/// Returns the version of mke2fs, on which the places in traces depend.
///
/// # Errors
/// There is no mke2fs.
pub fn maker() -> Result<String> {
    let out = std::process::Command::new("mke2fs").arg("-V").output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    let first = said.lines().next().context("mke2fs says nothing")?;
    let words: Vec<_> = first.split_whitespace().take(2).collect();
    Ok(words.join(" "))
}

/// A change, or several of which each goes on where the one before ended.
struct Line {
    medium: usize,
    what: String,
    first: u64,
    len: u64,
    /// True if the length is shown.
    has_len: bool,
    tag: String,
    changes: u64,
}

impl Line {
    /// Parses a change as a tape prints it: `write 8192+4096 inode_table/log`, `program 77
    /// data/home`, `fence log`.
    fn new(medium: usize, shown: &str) -> Self {
        let (what, rest) = shown.split_once(' ').unwrap_or((shown, ""));
        let (place, tag) = rest.split_once(' ').unwrap_or((rest, ""));
        let (first, len) = place.split_once('+').unwrap_or((place, "1"));
        let number = first.parse().ok().zip(len.parse().ok());
        let (first, len) = number.unwrap_or((0, 0));
        Self {
            medium,
            what: what.to_owned(),
            first,
            len,
            has_len: place.contains('+'),
            tag: match number {
                Some(_) => tag.to_owned(),
                None => rest.to_owned(),
            },
            changes: 1,
        }
    }

    /// Takes in a change that goes on where this one ends, or the flush of this store.
    fn takes(&mut self, next: &Self) -> bool {
        let place = |line: &Self| (line.medium, line.first, line.len, line.has_len);
        let is_same = place(self) == place(next) && self.tag == next.tag;
        if self.what == "store" && next.what == "flush" && is_same {
            "store, flush".clone_into(&mut self.what);
            return true;
        }
        let is_alike = (self.medium, &self.what, &self.tag) == (next.medium, &next.what, &next.tag);
        let goes_on = self.len > 0 && self.first + self.len == next.first;
        if is_alike && goes_on {
            self.len += next.len;
            self.changes += 1;
        }
        is_alike && goes_on
    }

    fn show(&self, text: &mut String) {
        let indent = "    ".repeat(self.medium);
        let place = match (self.len, self.has_len) {
            (0, _) => String::new(),
            (len, true) => format!(" {}+{len}", self.first),
            (1, false) => format!(" {}", self.first),
            (len, false) => format!(" {}-{}", self.first, self.first + len - 1),
        };
        let times = match self.changes {
            1 => String::new(),
            n => format!(" x{n}"),
        };
        let tag = match self.tag.as_str() {
            "" => String::new(),
            tag => format!(" {tag}"),
        };
        let _ = writeln!(text, "  {indent}{}{place}{tag}{times}", self.what);
    }
}

/// A trace that is being written.
struct Trace {
    text: String,
    /// The number of changes in it.
    shown: u64,
}

impl Trace {
    /// Adds the changes since the last time, under a title.
    fn note(&mut self, title: &str, media: &Media) {
        let _ = writeln!(self.text, "{title}");
        let mut lines: Vec<Line> = Vec::new();
        for (medium, shown) in media.tapes().shown_since(self.shown) {
            let line = Line::new(medium, &shown);
            let is_taken = lines.last_mut().is_some_and(|last| last.takes(&line));
            if !is_taken {
                lines.push(line);
            }
        }
        lines.iter().for_each(|line| line.show(&mut self.text));
        self.shown = media.changes();
    }
}

/// Returns the trace of a trial on a small volume, the same each time.
///
/// # Errors
/// An operation fails.
pub fn trace(scheme: &Registration, trial: &Trial) -> Result<String> {
    let target = Target::of(scheme, trial, EXT4_1K);
    let workload = Workload::parse("trace", WORKLOAD)?;
    let media = Media::new(&target.contents()?);
    let on = match trial.ground {
        Ground::Block => "a block device",
        Ground::Memory => "memory",
        Ground::Flash => "a NAND part: pages and erase blocks",
        Ground::Nvram => "a block device; indented: NVRAM beside it",
        Ground::NvmCache => "a block device; indented: a cache in NVM beside it",
        Ground::Reflink => "a file on a host",
    };
    let options = trial.mount_options(scheme.about);
    let mut trace = Trace {
        text: format!(
            "# {trial}: -o {options}, on {on}\n# {}\n# volume: ext4, blocks of 1024; {}\n",
            scheme.about.source,
            maker()?
        ),
        shown: 0,
    };
    let (mut library, _) = target
        .mount(media.shown()?, target.options())
        .context("mounting")?;
    library.make_base()?;
    for op in &workload.setup {
        library.apply(op).with_context(|| op.to_string())?;
    }
    library.fs().sync()?;
    trace.shown = media.changes();
    for op in &workload.ops {
        library.apply(op).with_context(|| op.to_string())?;
        trace.note(&op.to_string(), &media);
    }
    drop(library);
    let tapes = media.tapes();
    let now = tapes.moment(media.changes()).context("the last moment")?;
    let media = Media::new(&now.contents(&Keep::None));
    trace.shown = 0;
    let mounted = target.mount(media.shown()?, target.options());
    let (mut library, _) = mounted.context("mounting what the power cut left")?;
    trace.note(
        "power cut, nothing that was not durable is left; mount",
        &media,
    );
    library.unmount().context("unmounting")?;
    trace.note("unmount", &media);
    Ok(trace.text)
}
