//! How much a row is asked to do, and what came of it.

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
    /// How often it did what the figure counts, if that is known.
    pub count: Option<u64>,
    /// Bytes that it wrote, if that is known.
    pub written: Option<u64>,
}

impl Done {
    /// So often since `start`.
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

    /// It wrote so many bytes.
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
