//! `stetfs mounts`: what is mounted here, with what no list of the system's shows: the scheme and
//! its mode. Each server is asked, and one that does not answer keeps nobody waiting.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use stetfs_fuse::mountinfo::{self, MountEntry};

use crate::args::Mounts;
use crate::failure::{Explain, Result};
use crate::mount::Server;
use crate::output;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Row {
    image: PathBuf,
    dir: PathBuf,
    /// As the kernel has it: `fuse.stetfs`, or `fuseblk.stetfs` where sync(2) reaches the mount.
    kind: String,
    read_only: bool,
    /// What the server says, if this user may ask it and it answers.
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

pub(crate) fn run(args: &Mounts) -> Result<()> {
    let all = mountinfo::mounts().during(|| "the list of mounts".to_owned())?;
    let ours: Vec<MountEntry> = all.into_iter().filter(MountEntry::is_stetfs).collect();
    let asked: Vec<_> = ours.iter().map(|entry| ask(&entry.dir)).collect();
    let rows = ours.iter().zip(asked).map(|(entry, answer)| Row {
        image: entry.image(),
        dir: entry.dir.clone(),
        kind: entry.kind.clone(),
        read_only: entry.has("ro"),
        server: answer.recv_timeout(PATIENCE).ok(),
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

/// Asks the server of the mount on `dir`.
fn ask(dir: &Path) -> mpsc::Receiver<Said> {
    let (tell, answer) = mpsc::channel();
    let dir = dir.to_owned();
    thread::spawn(move || {
        if let Ok(server) = Server::of(&dir) {
            let _ = tell.send(Said {
                scheme: server.options.core.scheme.clone(),
                data: server.options.core.data.clone(),
                options: server.in_words,
            });
        }
    });
    answer
}
