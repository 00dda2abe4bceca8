//! Which cuts are tried, and their names.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use stetfs_media::sim::Keep;

use super::judge::{Care, Judge};
use super::record::{Record, Setting};
use super::script::Script;
use crate::image::VARIETIES;
use crate::rng::Rng;
use crate::world::library::Library;

/// A moment and what of the pending writes got to the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many changes had been carried out.
    pub at: usize,
    /// Which pieces of the pending ones are there.
    pub keep: Keep,
}

/// A run, a cut in it, and perhaps a second cut during the recovery from the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The run.
    pub setting: Setting,
    /// The cut.
    pub cut: Cut,
    /// The cut during recovery.
    pub nested: Option<Cut>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting {
            variety,
            mode,
            script,
        } = self.setting;
        write!(
            f,
            "{}/{mode}/{}/{}/{}",
            variety.name,
            script.name(),
            self.cut.at,
            self.cut.keep
        )?;
        match &self.nested {
            Some(nested) => write!(f, "/{}/{}", nested.at, nested.keep),
            None => Ok(()),
        }
    }
}

/// The modes by name, as [`Setting::mode`] has them.
pub const MODES: [&str; 4] = ["journal", "ordered", "writeback", "null"];

impl FromStr for Case {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<_> = text.split('/').collect();
        let part = |i: usize| {
            parts
                .get(i)
                .copied()
                .ok_or_else(|| anyhow!("{text}: too short"))
        };
        let cut = |i: usize| {
            Ok::<_, anyhow::Error>(Cut {
                at: part(i)?.parse()?,
                keep: part(i + 1)?.parse()?,
            })
        };
        let variety = VARIETIES
            .into_iter()
            .find(|v| part(0).is_ok_and(|name| name == v.name));
        let mode = MODES
            .into_iter()
            .find(|m| part(1).is_ok_and(|name| name == *m));
        let setting = Setting {
            variety: variety.context("no such variety")?,
            mode: mode.context("no such mode")?,
            script: Script::parse(part(2)?).context("no such script")?,
        };
        let nested = if parts.len() > 5 { Some(cut(5)?) } else { None };
        Ok(Self {
            setting,
            cut: cut(3)?,
            nested,
        })
    }
}

/// How much of the space of cuts is visited.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// At most so many moments of a run, evenly spread with a random start; 0 for all of them.
    pub moments: usize,
    /// Random choices among the pending pieces at each moment, besides all and none.
    pub choices: u64,
    /// Every so manyth case is cut again during recovery; 0 for none.
    pub nest_every: usize,
    /// Every so manyth case must take writes afterwards; 0 for none.
    pub write_every: usize,
    /// Where the random choices come from.
    pub seed: u64,
}

/// What exploring found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Cases judged.
    pub judged: usize,
    /// Those in which something was wrong.
    pub wrong: Vec<(Case, String)>,
    /// Moments on the tape.
    pub moments: usize,
}

/// Explores one run. Stops after `limit` wrong cases.
///
/// # Errors
/// The run itself failed.
pub fn explore(record: &Record, effort: Effort, limit: usize) -> Result<Findings> {
    let scratch = crate::host::scratch()?;
    let file = scratch.path().join("crashed");
    let judge = Judge::new(record, &file);
    let mut findings = Findings {
        moments: record.tape.len() + 1,
        ..Findings::default()
    };
    let mut rng = Rng::new(effort.seed);
    let step = if effort.moments == 0 {
        1
    } else {
        findings.moments.div_ceil(effort.moments).max(1)
    };
    let start = rng.below(step as u64) as usize;
    for point in record.tape.crash_points().skip(start).step_by(step) {
        let mut keeps = vec![Keep::All, Keep::None];
        keeps.extend((0..effort.choices).map(|_| Keep::Random(rng.below(1 << 32))));
        if point.atoms().is_empty() {
            keeps.truncate(1);
        }
        for keep in keeps {
            findings.judged += 1;
            let nest = effort.nest_every > 0 && findings.judged.is_multiple_of(effort.nest_every);
            let writes =
                effort.write_every > 0 && findings.judged.is_multiple_of(effort.write_every);
            let mut case = Case {
                setting: record.setting,
                cut: Cut {
                    at: point.position(),
                    keep: keep.clone(),
                },
                nested: None,
            };
            let left = point.crash(&keep).image();
            let left = match nest {
                false => left,
                true => match cut_again(record, &mut case, left, &mut rng) {
                    Ok(left) => left,
                    Err(error) => {
                        findings.wrong.push((case, format!("{error:#}")));
                        continue;
                    }
                },
            };
            if let Err(error) = judge.judge(left, record.allowed(point.position()), Care { writes })
            {
                findings.wrong.push((case, format!("{error:#}")));
            }
            if findings.wrong.len() >= limit {
                return Ok(findings);
            }
        }
    }
    Ok(findings)
}

/// Cuts the power once more at a random moment of the recovery.
fn cut_again(
    record: &Record,
    case: &mut Case,
    left: stetfs_media::Image,
    rng: &mut Rng,
) -> Result<stetfs_media::Image> {
    let tape = recovery_tape(record, left)?;
    let at = rng.below(tape.len() as u64 + 1) as usize;
    let keep = match rng.below(4) {
        0 => Keep::All,
        1 => Keep::None,
        _ => Keep::Random(rng.below(1 << 32)),
    };
    case.nested = Some(Cut {
        at,
        keep: keep.clone(),
    });
    Ok(tape.crash_point(at).crash(&keep).image())
}

/// What recovering a volume does to the device, and unmounting it.
fn recovery_tape(record: &Record, left: stetfs_media::Image) -> Result<stetfs_media::sim::Tape> {
    let dev = std::sync::Arc::new(record.device(left));
    let (mut library, _) =
        Library::mount(dev.clone(), record.setting.options()).context("first recovery")?;
    library
        .unmount()
        .context("unmount after the first recovery")?;
    Ok(dev.tape())
}

/// Judges one case again.
///
/// # Errors
/// What was wrong.
pub fn replay(case: &Case) -> Result<()> {
    let record = Record::make(case.setting)?;
    let scratch = crate::host::scratch()?;
    let file = scratch.path().join("crashed");
    let mut left = record
        .tape
        .crash_point(case.cut.at)
        .crash(&case.cut.keep)
        .image();
    if let Some(nested) = &case.nested {
        left = recovery_tape(&record, left)?
            .crash_point(nested.at)
            .crash(&nested.keep)
            .image();
    }
    let care = Care { writes: true };
    Judge::new(&record, &file)
        .judge(left, record.allowed(case.cut.at), care)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_read_back() {
        for text in [
            "ext4-1k/journal/random7/133/random:5",
            "ext3-1k/ordered/orphans/4/all/17/first:3",
        ] {
            assert_eq!(text.parse::<Case>().expect("a case").to_string(), text);
        }
    }
}
