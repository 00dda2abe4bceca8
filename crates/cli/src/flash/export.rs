//! `stetfs nand export`: a part's logical device for other programs.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use stetfs_below::Snoop;
use stetfs_ftl::{Ftl, MountOptions};
use stetfs_media::BlockDev;
use stetfs_media::nand::NandFile;

use crate::args::NandExport;
use crate::export::{self, Exported};
use crate::failure::{Explain, Result};

/// Bytes of heap for the requests that a layer has at once.
const HEAP: usize = 4 << 20;

pub(crate) fn run(args: &NandExport, verbose: u8) -> Result<()> {
    let mut words: Vec<OsString> = ["nand", "export"].map(OsString::from).into();
    words.push(format!("--snoop-table={}", args.snoop_table).into());
    words.extend(args.snoop.then(|| "--snoop".into()));
    words.extend(args.synchronous.then(|| "--synchronous".into()));
    export::run(&args.file, &args.how, words, verbose, |file| {
        open(file, args)
    })
}

/// Mounts the layer.
fn open(file: &Path, args: &NandExport) -> Result<Exported> {
    let nand = NandFile::options()
        .synchronous(args.synchronous)
        .open(file)?;
    let options = MountOptions {
        checkpoint_at_end: true,
        ..MountOptions::default()
    };
    let ftl = Ftl::mount(Arc::new(nand), options);
    let ftl = Arc::new(ftl.during(|| file.display().to_string())?);
    let snoop = if args.snoop {
        Some(Arc::new(Snoop::new(ftl.clone(), args.snoop_table)?))
    } else {
        None
    };
    let dev: Arc<dyn BlockDev> = match &snoop {
        Some(snoop) => snoop.clone(),
        None => ftl.clone(),
    };
    let layer = ftl.clone();
    let shown = file.display().to_string();
    Ok(Exported {
        dev,
        heap: HEAP,
        // Behind one lock.
        threads: 1,
        stats: Box::new(move || stats(&layer, snoop.as_deref())),
        close: Box::new(move || ftl.close().during(|| shown)),
    })
}

fn stats(ftl: &Ftl, snoop: Option<&Snoop>) -> serde_json::Value {
    let layer = ftl.stats();
    json!({
        "layer": {
            "host_pages": layer.host_pages,
            "gc_pages": layer.gc_pages,
            "map_pages": layer.map_pages,
            "remapped_pages": layer.remapped_pages,
        },
        "snoop": snoop.map(Snoop::stats),
    })
}
