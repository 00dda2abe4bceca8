//! What may be found after a cut.
//!
//! 1. The volume mounts (which recovers it), the tree can be read, it unmounts, and `e2fsck -fn` finds nothing.
//! 2. Names, attributes and sizes are those of one of the allowed states.
//! 3. Data, by what the scheme promises: *atomic*: it is that state's too. *Ordered*: each sector holds
//!    what it held in that state or in a later one of the allowed. *Writeback*: a page that changed in any of the allowed states
//!    may hold anything. *Nothing*: judged as atomic, to see that the judge can fail.
//! 4. The volume mounts again, takes writes, and e2fsck still finds nothing.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use stetfs::MountOptions;
use stetfs_journal::DataPromise;
use stetfs_media::sim::CrashImage;
use stetfs_media::{BlockDev, Image};

use super::record::Record;
use crate::image::check;
use crate::world::World;
use crate::world::library::Library;
use crate::world::op::{Op, Payload};
use crate::world::sparse::PAGE;
use crate::world::tree::{Facts, Tree, differences};

/// How thorough a judgement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Care {
    /// The volume must take writes afterwards.
    pub writes: bool,
}

/// A judge of the crashes of one run, with a scratch file for e2fsck.
pub struct Judge<'a> {
    record: &'a Record,
    trees: Vec<Tree>,
    scratch: &'a Path,
}

const SECTOR: usize = 512;

impl<'a> Judge<'a> {
    /// A judge; `scratch` is a file that it may overwrite.
    pub fn new(record: &'a Record, scratch: &'a Path) -> Self {
        let trees = record
            .states
            .iter()
            .map(crate::world::model::Model::tree)
            .collect();
        Self {
            record,
            trees,
            scratch,
        }
    }

    /// Judges what a crash left.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn judge(&self, left: Image, allowed: RangeInclusive<usize>, care: Care) -> Result<usize> {
        let dev = Arc::new(CrashImage::new(
            left,
            stetfs_media::sim::SimOptions::default(),
        ));
        let options = self.record.setting.options();
        let (mut library, _) = Library::mount(dev.clone(), options.clone()).context("recovery")?;
        let state = self.find_state(&library, allowed)?;
        library.unmount().context("unmount after recovery")?;
        dev.to_file(self.scratch)?;
        check(self.scratch).context("after recovery")?;
        if care.writes {
            self.use_it(dev.clone(), options)
                .context("use after recovery")?;
            dev.to_file(self.scratch)?;
            check(self.scratch).context("after use")?;
        }
        Ok(state)
    }

    /// The allowed state that was found.
    fn find_state(&self, library: &Library, allowed: RangeInclusive<usize>) -> Result<usize> {
        let found = library.tree().context("reading the tree")?;
        let atomic = matches!(
            self.record.promise,
            DataPromise::Atomic | DataPromise::Nothing
        );
        let mut nearest: Option<(usize, Vec<String>)> = None;
        let verbose = std::env::var_os("STETFS_LAB_CASE").is_some();
        for state in allowed.clone().rev() {
            let mut wrong = match atomic {
                true => differences(&self.trees[state], &found),
                false => differences(&without_data(&self.trees[state]), &without_data(&found)),
            };
            if wrong.is_empty() && !atomic {
                wrong = self.data_differences(library, &found, state, &allowed)?;
            }
            if wrong.is_empty() {
                return Ok(state);
            }
            if verbose {
                eprintln!("not state {state}: {}", wrong.join("; "));
            }
            if nearest
                .as_ref()
                .is_none_or(|(_, least)| wrong.len() < least.len())
            {
                nearest = Some((state, wrong));
            }
        }
        match nearest {
            Some((state, wrong)) => {
                bail!(
                    "no allowed state ({allowed:?}) was found; nearest is {state}:\n{}",
                    wrong.join("\n")
                )
            }
            None => bail!("no state is allowed: {allowed:?}"),
        }
    }

    /// What is wrong with the data when the metadata is that of `state`.
    fn data_differences(
        &self,
        library: &Library,
        found: &Tree,
        state: usize,
        allowed: &RangeInclusive<usize>,
    ) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for (path, facts) in found {
            let expected = &self.trees[state][path];
            let indices: std::collections::BTreeSet<u64> = facts
                .pages
                .keys()
                .chain(expected.pages.keys())
                .copied()
                .collect();
            for index in indices {
                if facts.pages.get(&index) == expected.pages.get(&index) {
                    continue;
                }
                let bytes = library.page(path, index)?;
                if let Err(why) = self.page_allowed(path, index, &bytes, state, allowed) {
                    wrong.push(format!("{} page {index}: {why}", path.escape_ascii()));
                }
            }
        }
        Ok(wrong)
    }

    fn page_allowed(
        &self,
        path: &[u8],
        index: u64,
        bytes: &[u8],
        state: usize,
        allowed: &RangeInclusive<usize>,
    ) -> Result<()> {
        let record = self.record;
        let id = record.states[state]
            .id(path)
            .context("no such file in the model")?;
        let zeros = [0; PAGE as usize];
        let versions: Vec<&[u8]> = (state..=*allowed.end())
            .filter_map(|s| record.states[s].page_of(id, index))
            .map(|page| page.unwrap_or(&zeros))
            .collect();
        if record.promise == DataPromise::Writeback {
            let all: Vec<_> = allowed
                .clone()
                .filter_map(|s| record.states[s].page_of(id, index))
                .collect();
            ensure!(
                all.windows(2).any(|w| w[0] != w[1]),
                "changed although nobody wrote it"
            );
            return Ok(());
        }
        for (at, sector) in bytes.chunks(SECTOR).enumerate() {
            let range = at * SECTOR..at * SECTOR + sector.len();
            let known = versions
                .iter()
                .any(|version| version[range.clone()] == *sector);
            ensure!(
                known,
                "sector {at} holds none of {} versions",
                versions.len()
            );
        }
        Ok(())
    }

    /// Writes to the recovered volume and reads it back.
    fn use_it(&self, dev: Arc<dyn BlockDev>, options: MountOptions) -> Result<()> {
        let (mut library, report) = Library::mount(dev, options)?;
        ensure!(
            !report.recovery.was_needed,
            "recovery was needed after a clean unmount"
        );
        let payload = Payload {
            seed: 77,
            len: 30_000,
        };
        let ops = [
            Op::Mkdir {
                path: "after-the-crash".into(),
                mode: 0o755,
            },
            Op::Create {
                path: "after-the-crash/f".into(),
                mode: 0o600,
                exclusive: true,
            },
            Op::Open {
                slot: 0,
                path: "after-the-crash/f".into(),
                truncate: false,
            },
            Op::Write {
                slot: 0,
                offset: 100,
                payload,
            },
            Op::Fsync { slot: 0 },
            Op::Create {
                path: "after-the-crash/g".into(),
                mode: 0o600,
                exclusive: true,
            },
            Op::Unlink {
                path: "after-the-crash/g".into(),
            },
        ];
        for op in &ops {
            library.apply(op).with_context(|| format!("{op:?}"))?;
        }
        let read = library.apply(&Op::Read {
            slot: 0,
            offset: 100,
            len: payload.len,
        });
        ensure!(
            read == Ok(crate::world::Reply::Bytes(payload.bytes())),
            "read back wrong: {read:?}"
        );
        library.unmount()?;
        Ok(())
    }
}

fn without_data(tree: &Tree) -> Tree {
    let bare = |facts: &Facts| Facts {
        pages: Default::default(),
        ..facts.clone()
    };
    tree.iter()
        .map(|(path, facts)| (path.clone(), bare(facts)))
        .collect()
}
