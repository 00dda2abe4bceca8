//! `stetfs mounts`: what is mounted here, with the scheme and its mode, which no list of the system
//! shows. Each server is asked; one that does not answer delays nobody for long.

use std::path::{Path, PathBuf};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use stetfs_fuse::mountinfo::{self, MountEntry};
use stetfs_fuse::question::Question;

use crate::args::Mounts;
use crate::below::front;
use crate::failure::{Explain, Result};
use crate::mount::Server;
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
        })
    }
}

pub(crate) fn run(args: &Mounts) -> Result<()> {
    let all = mountinfo::mounts().during(|| "the list of mounts".to_owned())?;
    let ours: Vec<&MountEntry> = all.iter().filter(|entry| entry.is_stetfs()).collect();
    let asked: Vec<_> = ours.iter().map(|entry| Question::ask(&entry.dir)).collect();
    let answers = asked.into_iter().map(|question| {
        // A server that answered this question will answer the next one.
        question.is_ok_and(|mut question| question.is_answered(PATIENCE))
    });
    let rows = ours.iter().zip(answers).map(|(entry, answers)| {
        // If the kernel has a mount on a device of ours, list that one.
        let above = front::mounted_above(&all, &entry.dir);
        let shown = above.unwrap_or(entry);
        let server = match above {
            Some(above) => Said::of_kernel(above, &entry.dir),
            None => answers.then(|| ask(&entry.dir)).flatten(),
        };
        Row {
            image: entry.image(),
            dir: shown.dir.clone(),
            kind: shown.kind.clone(),
            read_only: shown.has("ro"),
            server,
        }
    });
    let rows: Vec<Row> = rows.collect();
    if args.json {
        #[derive(Serialize)]
        struct All {
            mounts: Vec<Row>,
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
        .set_header(["image", "mounted on", "scheme", "data=", "access"]);
    for row in &rows {
        let said = row.server.as_ref();
        table.add_row([
            row.image.display().to_string().as_str(),
            row.dir.display().to_string().as_str(),
            said.map_or("?", |said| said.scheme.as_str()),
            said.and_then(|said| said.data.as_deref()).unwrap_or("-"),
            if row.read_only { "ro" } else { "rw" },
        ]);
    }
    output::line(table.trim_fmt())
}

/// Returns the answer of the server of the mount on `dir`.
fn ask(dir: &Path) -> Option<Said> {
    let server = Server::of(dir).ok()?;
    Some(Said {
        scheme: server.options.core.scheme.clone(),
        data: server.options.core.data.clone(),
        options: server.in_words,
    })
}
