//! `stetfs below`, and mounts with `front=kernel`: a scheme below the kernel's ext4.
//!
//! - This file: the device.
//! - [`front`]: the device, a loop device on it, and the kernel's mount of that.

pub(crate) mod front;
mod slow;
mod stay;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stetfs::{MountOptions, open_alone};
use stetfs_below::{Below, BelowOptions};
use stetfs_media::BlockDev;
use stetfs_scheme::Opened;

use crate::args::BelowArgs;
use crate::export::{self, Exported};
use crate::failure::{EXIT_USAGE, Explain, Failure, Result};
use crate::image::{How, open_media};
use crate::part;
use slow::SlowFlush;

/// The scheme that passes everything on as it comes: the kernel's own journaling.
const PASSES: [&str; 2] = ["jbd2", "null"];

/// Bytes of heap for requests that are passed on.
const HEAP: usize = 4 << 20;

pub(crate) fn run(args: &BelowArgs, verbose: u8) -> Result<()> {
    part::check_writable(&args.image)?;
    let options = MountOptions::parse(&args.options.join(","));
    let options = options
        .map_err(Failure::from)
        .map_err(|f| f.exit(EXIT_USAGE))?;
    if args.write_through && passes(&options) {
        let scheme = &options.scheme;
        return Err(Failure::new(format!(
            "--write-through needs a scheme that journals, and {scheme} only passes writes on"
        ))
        .exit(EXIT_USAGE));
    }
    let mut words: Vec<OsString> = vec!["below".into()];
    if !args.options.is_empty() {
        words.extend(["-o".into(), args.options.join(",").into()]);
    }
    words.extend(args.write_through.then(|| "--write-through".into()));
    words.push(format!("--flush-us={}", args.flush_us).into());
    export::run(&args.image, &args.how, words, verbose, |image| {
        open(image, options, args)
    })
}

/// As many as processors, within reason: each has a buffer of its own.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(4))
}

/// Whether the scheme that is named passes everything on as it comes.
pub(crate) fn passes(options: &MountOptions) -> bool {
    options.names_scheme() && PASSES.contains(&options.scheme.as_str())
}

/// The device as it is: what comes is passed on.
fn passed_on(dev: Arc<dyn BlockDev>, scheme: String, words: String) -> Exported {
    let medium = dev.clone();
    Exported {
        dev,
        heap: HEAP,
        threads: threads(),
        stats: Box::new(move || {
            json!({
                "scheme": scheme,
                "options": words,
                "medium": medium.describe(),
                "device": medium.meter().snapshot(),
                "front": "kernel",
            })
        }),
        close: Box::new(|| Ok(())),
    }
}

fn open(image: &Path, options: MountOptions, args: &BelowArgs) -> Result<Exported> {
    let shown = || image.display().to_string();
    let mut media = open_media(image, &options, How::Writable)?;
    if args.flush_us > 0 {
        media.home = Arc::new(SlowFlush {
            below: media.home,
            flush: Duration::from_micros(args.flush_us.into()),
        });
    }
    let words = args.options.join(",");
    if passes(&options) {
        return Ok(passed_on(media.home, options.scheme, words));
    }
    let nvm = media.nvm.clone();
    let alone = open_alone(&media, &options).during(shown)?;
    for warning in &alone.warnings {
        eprintln!("stetfs: {}: {warning}", image.display());
    }
    let how = BelowOptions {
        memory: options.memory / 4,
        write_through: args.write_through,
        ..BelowOptions::default()
    };
    let below = Arc::new(Below::new(alone, how).during(shown)?);
    let (dev, seen) = (below.clone(), below.clone());
    let shown = image.display().to_string();
    Ok(Exported {
        dev,
        heap: HEAP + below.heap(),
        threads: threads(),
        stats: Box::new(move || {
            let Opened {
                about,
                scheme,
                dev,
                report,
                ..
            } = seen.opened();
            json!({
                "scheme": about.name,
                "options": words,
                "medium": dev.describe(),
                "device": dev.meter().snapshot(),
                "nvm": nvm.as_ref().map(|nvm| json!({
                    "medium": nvm.describe(),
                    "traffic": nvm.meter().snapshot(),
                })),
                "cache": scheme.cache().map(|cache| cache.stats()),
                "actions": scheme.actions(),
                "journal": seen.stats(),
                "stopped": seen.stopped(),
                "recovery": report,
                "front": "kernel",
            })
        }),
        close: Box::new(move || below.finish().during(|| shown)),
    })
}
