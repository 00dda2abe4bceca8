//! How much a row has to do, and what it did.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How much work a row does: seconds for timed rows, a divisor for counted ones.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Seconds of each timed row.
    pub seconds: u64,
    /// Counted rows do `1/shrink` of their work.
    pub shrink: u64,
}

/// What a row did.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The figure.
    pub rate: f64,
    /// Number of times that it did what the figure counts, if known.
    pub count: Option<u64>,
    /// Bytes that it wrote, if known.
    pub written: Option<u64>,
}

impl Done {
    /// The rate of something that was done `count` times since `start`.
    pub(crate) fn rate(count: u64, start: Instant) -> Self {
        Self::spent(count, start.elapsed())
    }

    pub(crate) fn spent(count: u64, time: Duration) -> Self {
        Self {
            rate: count as f64 / time.as_secs_f64(),
            count: Some(count),
            written: None,
        }
    }

    /// Adds the number of bytes that it wrote.
    pub(crate) fn writing(self, bytes: u64) -> Self {
        Self {
            written: Some(bytes),
            ..self
        }
    }
}

/// Makes `dirs` directories of `files` files each, all with this content.
pub(crate) fn make_tree(root: &Path, dirs: u64, files: u64, content: &[u8]) -> Result<()> {
    fs::create_dir(root)?;
    for d in 0..dirs {
        let dir = root.join(format!("d{d}"));
        fs::create_dir(&dir)?;
        for f in 0..files {
            let path = dir.join(format!("file-{f}"));
            let made = File::create(&path).and_then(|mut file| file.write_all(content));
            made.with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
