//! `stetfs mounts`: what is mounted here, with the scheme and its mode, which no list of the system
//! shows. Each server is asked; one that does not answer delays nobody for long.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::Value;
use stetfs_fuse::mountinfo::{self, MountEntry};
use stetfs_fuse::question::Question;
use stetfs_media::lock_holder;

use crate::args::Mounts;
use crate::below::front;
use crate::failure::{Explain, Failure, Result};
use crate::mount::Server;
use crate::mounts::{mounted_above, resolved};
use crate::output;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Row {
    image: PathBuf,
    dir: PathBuf,
    /// The type, as the kernel names it: `fuse.stetfs`, or `fuseblk.stetfs` if sync(2) reaches the
    /// mount.
    kind: String,
    read_only: bool,
    /// What is wrong, with `--check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// The server's answer, if this user may ask it and it answers.
    #[serde(flatten)]
    server: Option<Said>,
}

#[derive(Serialize)]
struct Said {
    scheme: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    options: String,
    /// The server's version and process, unless the kernel serves the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u64>,
}

impl Said {
    /// Describes the mount of the kernel's ext4 on the device that is exported in `dir`.
    fn of_kernel(above: &MountEntry, dir: &Path) -> Option<Self> {
        let options = above.options.clone();
        let data = options
            .split(',')
            .find_map(|word| word.strip_prefix("data="));
        Some(Self {
            scheme: front::scheme_in(dir)?,
            data: data.map(str::to_owned),
            options,
            version: None,
            pid: None,
        })
    }

    /// Describes the mount of a server by its statistics.
    fn in_stats(stats: &Value) -> Option<Self> {
        let server = Server::in_stats(stats).ok()?;
        let of_server = &stats["server"];
        Some(Self {
            scheme: server.options.core.scheme.clone(),
            data: server.options.core.data.clone(),
            options: server.in_words,
            version: of_server["version"].as_str().map(str::to_owned),
            pid: of_server["pid"].as_u64(),
        })
    }
}

pub(crate) fn run(args: &Mounts) -> Result<()> {
    let all = mountinfo::mounts().during(|| "the list of mounts".to_owned())?;
    // With the mount that the kernel has on a device of ours, which is shown instead.
    let ours = all.iter().filter(|entry| entry.is_stetfs());
    let mut ours: Vec<(&MountEntry, Option<&MountEntry>)> = ours
        .map(|entry| (entry, mounted_above(&all, &entry.dir)))
        .collect();
    let checked: Vec<PathBuf> = args
        .check
        .iter()
        .flatten()
        .map(|dir| resolved(dir))
        .collect();
    if !checked.is_empty() {
        ours.retain(|(entry, above)| checked.contains(&above.unwrap_or(entry).dir));
    }
    let asked: Vec<_> = ours
        .iter()
        .map(|(entry, _)| Question::ask(&entry.dir))
        .collect();
    let answers = asked.into_iter().map(|question| {
        // A server that answered this question will answer the next one.
        question.is_ok_and(|mut question| question.is_answered(PATIENCE))
    });
    let rows = ours.iter().zip(answers).map(|(&(entry, above), answers)| {
        let shown = above.unwrap_or(entry);
        let stats = answers.then(|| ask(&entry.dir));
        let server = match (above, &stats) {
            (Some(above), _) => Said::of_kernel(above, &entry.dir),
            (None, Some(Ok(stats))) => Said::in_stats(stats),
            (None, _) => None,
        };
        Row {
            image: entry.image(),
            dir: shown.dir.clone(),
            problem: args.check.as_ref().and_then(|_| {
                let of_server = problem(entry, stats.as_ref());
                of_server.or_else(|| above.and_then(front::problem))
            }),
            kind: shown.kind.clone(),
            read_only: shown.has("ro"),
            server,
        }
    });
    let rows: Vec<Row> = rows.collect();
    show(args, &rows)?;
    let missing = checked
        .iter()
        .filter(|dir| rows.iter().all(|row| row.dir != **dir));
    let missing = missing.map(|dir| (dir, "no stetfs volume is mounted here"));
    let wrong = rows
        .iter()
        .filter_map(|row| Some((&row.dir, row.problem.as_deref()?)));
    let mut result = Ok(());
    for (dir, what) in missing.chain(wrong) {
        Failure::new(what).context(dir.display()).tell();
        result = Err(Failure::said());
    }
    result
}

/// Says what is wrong with a mounted volume; `stats` are missing if the server does not answer.
fn problem(entry: &MountEntry, stats: Option<&io::Result<Value>>) -> Option<String> {
    let dir = entry.dir.display();
    let Some(stats) = stats else {
        let process =
            lock_holder(&entry.image()).map(|holder| format!(" (process {})", holder.pid));
        return Some(format!(
            "its server{} does not answer",
            process.unwrap_or_default()
        ));
    };
    let stats = match stats {
        Ok(stats) => stats,
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            return Some(format!("its server is dead: stetfs umount {dir}"));
        }
        Err(e) => return Some(format!("its server cannot be asked: {e}")),
    };
    if let Some(why) = stats["stopped"].as_str() {
        return Some(format!("nothing is written any more: {why}"));
    }
    (stats["has_errors"] == true)
        .then(|| "damage was found: unmount it, and stetfs fsck IMAGE".to_owned())
}

fn show(args: &Mounts, rows: &[Row]) -> Result<()> {
    if args.json {
        #[derive(Serialize)]
        struct All<'a> {
            mounts: &'a [Row],
        }
        return output::json(&All { mounts: rows });
    }
    if rows.is_empty() {
        return Ok(());
    }
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header([
            "image",
            "mounted on",
            "scheme",
            "data=",
            "access",
            "version",
        ]);
    for row in rows {
        let said = row.server.as_ref();
        table.add_row([
            row.image.display().to_string().as_str(),
            row.dir.display().to_string().as_str(),
            said.map_or("?", |said| said.scheme.as_str()),
            said.and_then(|said| said.data.as_deref()).unwrap_or("-"),
            if row.read_only { "ro" } else { "rw" },
            said.and_then(|said| said.version.as_deref()).unwrap_or("-"),
        ]);
    }
    output::line(table.trim_fmt())
}

/// Returns the statistics of the server of the mount on `dir`.
fn ask(dir: &Path) -> io::Result<Value> {
    Ok(serde_json::from_str(&stetfs_fuse::query_stats(dir)?)?)
}
