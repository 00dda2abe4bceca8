//! The virtual time that a processor takes for work that is counted.
//!
//! A profile stands for a machine that a paper names. `processors.json` has its figures in
//! microseconds, each with a source or the word *assumed*. After each call, they are multiplied by
//! what the file system and the media count anyway, so no scheme knows of them:
//!
//! | cost | for each |
//! |---|---|
//! | `call` | call of the workload |
//! | `copy` | 4 KiB that a call reads or writes |
//! | `handle` | handle of the journal: the file system's own work for a change |
//! | `wake` | commit: somebody sleeps, and is woken |
//! | `request` | request to a block device |
//! | `block` | 4 KiB of these |
//! | `compare` | block of which scheme dj looks for the difference |
//! | `compress` | difference that it makes small |

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// Whose processor is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Processor {
    /// Nobody's: time is that of the media alone.
    None,
    /// A telephone of two Cortex-A15, as Delta Journaling's may have been.
    #[serde(rename = "phone-2013")]
    Phone2013,
    /// A Core i3-2100, UBJ's.
    #[serde(rename = "i3-2011")]
    I3Of2011,
    /// A Xeon E5, Spindle's.
    #[serde(rename = "xeon-2019")]
    Xeon2019,
}

/// A figure of a profile.
#[derive(Clone, Debug, Deserialize)]
pub struct Figure {
    /// Microseconds.
    pub us: f64,
    /// The least that is plausible.
    pub low: f64,
    /// The most that is plausible.
    pub high: f64,
    /// Names of measured figures in the file.
    pub source: Vec<String>,
    /// How it follows from these, or that it is assumed.
    pub how: String,
}

/// A machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Profile {
    /// The paper's words for it.
    pub stands_for: String,
    /// What it may have been.
    pub machine: String,
    /// Figures by name of the cost.
    pub costs: BTreeMap<String, Figure>,
}

#[derive(Deserialize)]
struct Profiles {
    profiles: BTreeMap<String, Profile>,
}

static PROFILES: LazyLock<BTreeMap<String, Profile>> = LazyLock::new(|| {
    let all: Profiles = serde_json::from_str(include_str!("processors.json"))
        .expect("the file is part of the program");
    all.profiles
});

/// Work that takes a processor's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Calls.
    pub calls: u64,
    /// Bytes that calls read and wrote.
    pub copied: u64,
    /// Handles.
    pub handles: u64,
    /// Commits.
    pub commits: u64,
    /// Requests to a block device.
    pub requests: u64,
    /// Bytes of these requests.
    pub transferred: u64,
    /// Blocks compared.
    pub compared: u64,
    /// Differences made small.
    pub compressed: u64,
}

impl Work {
    /// Returns the work since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            copied: self.copied.saturating_sub(before.copied),
            handles: self.handles.saturating_sub(before.handles),
            commits: self.commits.saturating_sub(before.commits),
            requests: self.requests.saturating_sub(before.requests),
            transferred: self.transferred.saturating_sub(before.transferred),
            compared: self.compared.saturating_sub(before.compared),
            compressed: self.compressed.saturating_sub(before.compressed),
        }
    }
}

/// A profile's figures in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    call: f64,
    copy: f64,
    handle: f64,
    wake: f64,
    request: f64,
    block: f64,
    compare: f64,
    compress: f64,
}

impl Processor {
    /// Every processor.
    pub const ALL: [Self; 4] = [Self::None, Self::Phone2013, Self::I3Of2011, Self::Xeon2019];

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Phone2013 => "phone-2013",
            Self::I3Of2011 => "i3-2011",
            Self::Xeon2019 => "xeon-2019",
        }
    }

    /// Returns its figures; `None` where there is no processor.
    pub fn profile(self) -> Option<&'static Profile> {
        PROFILES.get(self.name())
    }

    /// Returns its costs, times a factor.
    pub fn costs(self, factor: f64) -> Costs {
        let of = |name: &str| {
            let figure = self.profile().and_then(|profile| profile.costs.get(name));
            figure.map_or(0.0, |figure| 1000.0 * factor * figure.us)
        };
        Costs {
            call: of("call"),
            copy: of("copy"),
            handle: of("handle"),
            wake: of("wake"),
            request: of("request"),
            block: of("block"),
            compare: of("compare"),
            compress: of("compress"),
        }
    }
}

impl Costs {
    /// Returns the nanoseconds for some work.
    pub fn of(&self, work: Work) -> u64 {
        let pages = |bytes: u64| bytes as f64 / 4096.0;
        let ns = self.call * work.calls as f64
            + self.copy * pages(work.copied)
            + self.handle * work.handles as f64
            + self.wake * work.commits as f64
            + self.request * work.requests as f64
            + self.block * pages(work.transferred)
            + self.compare * work.compared as f64
            + self.compress * work.compressed as f64;
        ns.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::{Processor, Work};

    /// A cost that is missing in the file would count as nothing, unnoticed.
    #[test]
    fn profiles_have_every_cost() {
        let names = [
            "call", "copy", "handle", "wake", "request", "block", "compare", "compress",
        ];
        for processor in Processor::ALL {
            let profile = processor.profile();
            assert_eq!(profile.is_none(), processor == Processor::None);
            let Some(profile) = profile else { continue };
            let found: Vec<_> = profile.costs.keys().map(String::as_str).collect();
            let mut wanted = names.to_vec();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{}", processor.name());
            for (name, figure) in &profile.costs {
                let is_said = !figure.source.is_empty() || figure.how.starts_with("assumed");
                let in_range = figure.low <= figure.us && figure.us <= figure.high;
                assert!(
                    is_said && in_range,
                    "{}, {name}: {figure:?}",
                    processor.name()
                );
            }
        }
    }

    #[test]
    fn work_is_charged_once() {
        let work = Work {
            calls: 2,
            copied: 8192,
            commits: 1,
            ..Work::default()
        };
        // Two calls of 0.23 us, two copies of 0.5 us, a wake-up of 3 us.
        assert_eq!(Processor::Xeon2019.costs(1.0).of(work), 460 + 1000 + 3000);
        assert_eq!(Processor::Xeon2019.costs(2.0).of(work), 2 * 4460);
        assert_eq!(Processor::None.costs(1.0).of(work), 0);
        assert_eq!(work.since(work), Work::default());
    }
}
