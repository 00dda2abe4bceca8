//! A scheme below the journal of the file system that is mounted: the file system is our own with
//! jbd2, and writes what the kernel's ext4 could write.

use std::fmt;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use stetfs::clock::Clock;
use stetfs::{Media, MountOptions, open_alone};
use stetfs_below::{Below, BelowError, BelowOptions};
use stetfs_media::{Errno, MediaError, Op};
use stetfs_scheme::{About, RecoveryReport};
use stetfs_schemes::{SCHEMES, find};
use stetfs_testkit::world::library::Front;

/// The scheme below, with its options.
#[derive(Clone)]
pub struct Lower {
    /// The scheme.
    pub scheme: &'static About,
    /// Its own options.
    pub more: Vec<String>,
}

impl Lower {
    /// From its name and its options: `stet,log=jbd2`.
    ///
    /// # Errors
    /// There is no such scheme; the options cannot be parsed.
    pub fn parse(text: &str) -> Result<Self> {
        let mut words = text.split(',');
        let scheme = about(words.next().unwrap_or_default())?;
        let more: Vec<_> = words.map(str::to_owned).collect();
        MountOptions::parse(&more.join(","))?;
        Ok(Self { scheme, more })
    }

    fn options(&self) -> MountOptions {
        MountOptions {
            scheme: self.scheme.name.to_owned(),
            ..MountOptions::parse(&format!("memory=8M,{}", self.more.join(",")))
                .expect("options that were parsed before")
        }
    }
}

impl fmt::Display for Lower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme.name)?;
        self.more.iter().try_for_each(|word| write!(f, ",{word}"))
    }
}

/// The scheme of this name.
///
/// # Errors
/// There is none; its names then.
pub(super) fn about(name: &str) -> Result<&'static About> {
    let found = find(name).map_err(|error| {
        let names: Vec<_> = SCHEMES.iter().map(|s| s.about.name).collect();
        anyhow!("{error}; there are {}", names.join(", "))
    })?;
    Ok(found.about)
}

/// The device below, which a mount opens and an unmount closes.
pub(super) struct LowerFront {
    options: MountOptions,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Arc<Below>>,
    /// The next crash of the file system is one of the device too.
    both_die: bool,
}

impl LowerFront {
    pub(super) fn new(lower: &Lower, clock: Clock) -> Self {
        Self {
            options: lower.options(),
            clock,
            state: Mutex::default(),
        }
    }
}

impl Front for LowerFront {
    fn open(&self, media: &Media) -> stetfs::Result<(Media, Option<RecoveryReport>)> {
        let mut state = self.state.lock();
        if let Some(below) = &state.open {
            return Ok((below.clone().into(), Some(RecoveryReport::default())));
        }
        let alone = open_alone(media, &self.options)?;
        let report = alone.opened.report.clone();
        let options = BelowOptions {
            // As little as can be, so that contents are dropped all the time.
            memory: 0,
            background: false,
            clock: self.clock.clone(),
            ..BelowOptions::default()
        };
        let below = Below::new(alone, options).map_err(error)?;
        let below = state.open.insert(Arc::new(below)).clone();
        Ok((below.into(), Some(report)))
    }

    fn close(&self) -> stetfs::Result<()> {
        let closed = self.state.lock().open.take();
        closed.map_or(Ok(()), |below| below.finish().map_err(error))
    }

    /// By turns the file system dies alone, and with the device.
    fn crash(&self) {
        let mut state = self.state.lock();
        if state.both_die {
            state.open = None;
        }
        state.both_die = !state.both_die;
    }
}

fn error(error: BelowError) -> stetfs::Error {
    match error {
        BelowError::Volume(error) => error,
        BelowError::Media(error) => error.into(),
        BelowError::Scheme(error) => error.into(),
        BelowError::Journal(error) => error.into(),
        BelowError::NoJournal | BelowError::Lost { .. } | BelowError::Overwritten { .. } => {
            MediaError::Io {
                op: Op::Write,
                offset: 0,
                len: 0,
                source: Errno::IO,
            }
            .into()
        }
    }
}
