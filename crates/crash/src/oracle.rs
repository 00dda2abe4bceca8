//! Decides what a volume may hold after a power cut: by the model's states, and by the scheme's
//! promise for file data.
//!
//! All names and attributes must be those of one of the allowed states. For file data, the promise
//! decides:
//! - *atomic*: the data is that of the same state.
//! - *ordered*: each sector holds its content of that state or of a later allowed one.
//! - *writeback*: a page that changed in any of the allowed states, or since a sync has reported
//!   the file's data durable, may hold anything.
//! - *nothing*: judged as atomic, to see that the judge can fail.
//!
//! One write to a marked file (`chattr +j`) is atomic, whatever the promise. If nothing else has
//! written to the file since the state, its data is that of the state.
//!
//! A sync may have made ordered or writeback data of a file durable that is newer than the state.
//! Then the file's data is judged from that newer state on.
//!
//! Ordered and writeback data may have been delayed in that state, unless a sync reported it
//! durable, or `auto_da_alloc` or its age had ended the delay ([`Placed`], [`Model::placed`]).
//! Since the newest state in which none was delayed, the size may be any that the file has had, or
//! a block boundary, but not below the smallest. Within that size, only ranges that were holes
//! since then may still be holes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use stetfs_scheme::DataPromise;

use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::model::{Id, Model, Synced};
use stetfs_testkit::world::sparse::PAGE;
use stetfs_testkit::world::tree::{Facts, Tree, are_alike, differences};

const SECTOR: usize = 512;

/// Facts that are compared in no state. The checkers see that the structure of these is sound, not
/// that the values are right.
pub const NOT_COMPARED: [&str; 6] = [
    "inode numbers, generations, flags, project ids, versions",
    "atime by reading (noatime)",
    "where a file's blocks are, and which are preallocated",
    "blocks of directories, links and attributes",
    "the superblock's times and counts",
    "files outside the workload's directory",
];

/// First block and length of each run of a file's blocks.
type Runs = [(u64, u64)];

/// The states that a power cut may leave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Allowed {
    /// The allowed states, as numbers of operations.
    pub states: RangeInclusive<usize>,
    /// The files whose data cannot be delayed.
    pub placed: Placed,
}

/// For each file, the newest state whose data a sync made durable: no data up to it is delayed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Placed {
    all: usize,
    files: BTreeMap<Id, usize>,
}

impl Placed {
    /// Takes note that the data of a state is durable, for one file or for all.
    pub fn note(&mut self, whose: Synced, state: usize) {
        let noted = match whose {
            Synced::Nothing => return,
            Synced::All => &mut self.all,
            Synced::File(id) => self.files.entry(id).or_default(),
        };
        *noted = state.max(*noted);
    }

    /// Returns the newest state in which none of a file's data is delayed.
    fn of(&self, id: Id) -> usize {
        self.files.get(&id).copied().unwrap_or(0).max(self.all)
    }
}

/// Pages by the path of their file and their number in it.
type PagesOf = BTreeMap<(Vec<u8>, u64), Vec<u8>>;

/// Everything that can be seen of a volume.
#[derive(Debug, PartialEq, Eq)]
pub struct Observation {
    /// Names, attributes, and hashes of the contents.
    tree: Tree,
    /// For promises that judge data apart from its metadata: the tree without contents, and those
    /// pages of files that are not all zeros.
    apart: Option<(Tree, PagesOf)>,
}

impl Observation {
    /// Reads a mounted volume.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn of(library: &Library) -> Result<Self> {
        let tree = library.tree().context("reading the tree")?;
        if !library.fs().promise().is_apart() {
            return Ok(Self { tree, apart: None });
        }
        let mut pages = BTreeMap::new();
        for (path, facts) in &tree {
            for index in facts.pages.keys() {
                pages.insert((path.clone(), *index), library.page(path, *index)?);
            }
        }
        let bare = without_data(&tree);
        Ok(Self {
            tree,
            apart: Some((bare, pages)),
        })
    }

    /// Returns the differences from another observation, one a line; nothing when they are equal.
    pub fn differences_from(&self, expected: &Self) -> Vec<String> {
        differences(&expected.tree, &self.tree)
    }
}

/// Knows the states that a run went through.
pub struct Oracle {
    states: Vec<Model>,
    /// For each number of operations, what may be seen after it: first the state itself, then the
    /// states between the handles of the next operation, if it takes several.
    views: Vec<Vec<View>>,
    promise: DataPromise,
}

/// A state as it is seen.
struct View {
    tree: Tree,
    bare: Tree,
}

impl View {
    fn of(model: &Model) -> Self {
        let tree = model.tree();
        Self {
            bare: without_data(&tree),
            tree,
        }
    }
}

impl Oracle {
    /// An oracle for these states, in the order in which they were reached, and this promise. A cut
    /// may also leave the states of `between`, which come between a state and the next one.
    pub fn new(states: Vec<Model>, between: &[Vec<Model>], promise: DataPromise) -> Self {
        let views = states.iter().enumerate().map(|(n, state)| {
            let between = between.get(n).into_iter().flatten();
            let models = std::iter::once(state).chain(between);
            models.map(View::of).collect()
        });
        Self {
            views: views.collect(),
            states,
            promise,
        }
    }

    /// The states.
    pub fn states(&self) -> &[Model] {
        &self.states
    }

    /// Returns the newest allowed state that looks like the observation.
    ///
    /// # Errors
    /// No allowed state does: the differences from the nearest one.
    pub fn judge(&self, seen: &Observation, allowed: &Allowed) -> Result<usize> {
        let views = || self.views_in(&allowed.states);
        for (state, view) in views() {
            if self.is_right(seen, state, view, allowed)? {
                return Ok(state);
            }
        }
        let described = |(state, view)| Ok((state, self.wrong(seen, state, view, allowed)?));
        let described: Vec<(usize, Vec<String>)> = views().map(described).collect::<Result<_>>()?;
        let nearest = described.into_iter().min_by_key(|(_, wrong)| wrong.len());
        let (state, wrong) = nearest.context("no state is allowed")?;
        let (first, last) = (allowed.states.start(), allowed.states.end());
        bail!(
            "it is in none of the allowed states (after {first} to {last} operations); compared \
                with the state after {state}:\n{}",
            wrong.join("\n")
        )
    }

    /// Returns what may be seen where these states are allowed, the newest first.
    fn views_in(&self, allowed: &RangeInclusive<usize>) -> impl Iterator<Item = (usize, &View)> {
        let last = *allowed.end();
        allowed.clone().rev().flat_map(move |state| {
            // The states between this one and the next count only if the next operation may have
            // begun.
            let most = if state < last { usize::MAX } else { 1 };
            let views = self.views[state].iter().take(most);
            views.map(move |view| (state, view))
        })
    }

    /// True if it is exactly this state, with its data, and not one between it and the next.
    pub fn is_exactly(&self, seen: &Observation, state: usize) -> bool {
        are_alike(&self.views[state][0].tree, &seen.tree)
    }

    /// True if [`wrong`](Self::wrong) would find nothing.
    fn is_right(
        &self,
        seen: &Observation,
        state: usize,
        view: &View,
        allowed: &Allowed,
    ) -> Result<bool> {
        Ok(match &seen.apart {
            None => are_alike(&view.tree, &seen.tree),
            Some((bare, _)) => {
                let delayed = self.as_delayed(view, bare, state, allowed);
                are_alike(delayed.as_ref().unwrap_or(&view.bare), bare)
                    && self.wrong(seen, state, view, allowed)?.is_empty()
            }
        })
    }

    /// Returns the differences between the observation and a state.
    fn wrong(
        &self,
        seen: &Observation,
        state: usize,
        view: &View,
        allowed: &Allowed,
    ) -> Result<Vec<String>> {
        let Some((bare, pages)) = &seen.apart else {
            return Ok(differences(&view.tree, &seen.tree));
        };
        let delayed = self.as_delayed(view, bare, state, allowed);
        let wrong = differences(delayed.as_ref().unwrap_or(&view.bare), bare);
        if !wrong.is_empty() {
            return Ok(wrong);
        }
        let mut wrong = Vec::new();
        for (path, facts) in &seen.tree {
            let expected = &view.tree[path];
            let id = self.states[state].id(path);
            // A sync has acknowledged the data of this newer state.
            let told = id.map(|id| (id, allowed.placed.of(id)));
            let newer = told.filter(|(_, told)| *told > state);
            let pages_then = newer
                .into_iter()
                .flat_map(|(id, told)| self.states[told].pages_of(id));
            let indices: BTreeSet<u64> = facts
                .pages
                .keys()
                .chain(expected.pages.keys())
                .copied()
                .chain(pages_then)
                .filter(|index| index * PAGE < facts.size)
                .collect();
            for index in indices {
                if newer.is_none() && facts.pages.get(&index) == expected.pages.get(&index) {
                    continue;
                }
                let zeros = vec![0; (facts.size - index * PAGE).min(PAGE) as usize];
                let bytes = pages.get(&(path.clone(), index)).unwrap_or(&zeros);
                if let Err(why) = self.check_page(path, index, bytes, state, allowed) {
                    wrong.push(format!("{} page {index}: {why}", path.escape_ascii()));
                }
            }
        }
        Ok(wrong)
    }

    /// Returns a view with the sizes and blocks of `seen` wherever delayed data may explain that
    /// they differ from the view's; `None` if there is no such place.
    fn as_delayed(
        &self,
        view: &View,
        seen: &Tree,
        state: usize,
        allowed: &Allowed,
    ) -> Option<Tree> {
        let mut tree = None;
        for (path, facts) in seen {
            let Some(expected) = view.bare.get(path) else {
                continue;
            };
            if (facts.size, &facts.blocks) == (expected.size, &expected.blocks) {
                continue;
            }
            let id = self.states[state].id(path)?;
            let since = self.placed(id, state, allowed)..=state;
            let size = if facts.size < expected.size {
                Some(facts.size).filter(|size| self.may_have_size(id, *size, &since))
            } else {
                None
            };
            let blocks = match (&facts.blocks, &expected.blocks) {
                (Some(has), Some(all)) => self.may_have_blocks(id, (has, all), facts.size, &since),
                _ => false,
            };
            if size.is_some() || blocks {
                let tree = tree.get_or_insert_with(|| view.bare.clone());
                if let Some(expected) = tree.get_mut(path) {
                    expected.size = size.unwrap_or(expected.size);
                    if blocks {
                        expected.blocks.clone_from(&facts.blocks);
                    }
                }
            }
        }
        tree
    }

    /// True if a file may have this smaller size after one of these states, because data was
    /// delayed.
    fn may_have_size(&self, id: Id, size: u64, since: &RangeInclusive<usize>) -> bool {
        let had = since.clone().filter_map(|s| self.states[s].size_of(id));
        let (mut least, mut is_known) = (u64::MAX, false);
        for had in had {
            least = least.min(had);
            is_known |= had == size;
        }
        let block = self.states[*since.end()].rules().block;
        size >= least && (is_known || size.is_multiple_of(block))
    }

    /// True if all blocks that the file lacks may be delayed after one of these states. Within the
    /// file's size, only blocks that were holes before may be.
    fn may_have_blocks(
        &self,
        id: Id,
        (has, all): (&Runs, &Runs),
        size: u64,
        since: &RangeInclusive<usize>,
    ) -> bool {
        let blocks = |runs: &Runs| -> BTreeSet<u64> {
            runs.iter().flat_map(|(at, len)| *at..at + len).collect()
        };
        let (has, all) = (blocks(has), blocks(all));
        let bytes = self.states[*since.end()].rules().block;
        let may_be_delayed = |block: &u64| {
            let (mut since, at) = (since.clone(), block * bytes);
            let was_hole = |s: usize| at >= size || self.states[s].size_of(id) > Some(at);
            since.any(|s| !self.states[s].has_block(id, *block) && was_hole(s))
        };
        has.is_subset(&all) && all.difference(&has).all(may_be_delayed)
    }

    /// Returns the newest state, up to `state`, in which no data of the file is delayed, if the cut
    /// left the names of `state`.
    fn placed(&self, id: Id, state: usize, allowed: &Allowed) -> usize {
        let before = self.states[0].steps();
        let forced = self.states[state].placed(id).saturating_sub(before);
        allowed.placed.of(id).max(forced).min(state)
    }

    /// True if a file's data must be exactly that of the state: all later writes are atomic by the
    /// file's mark, and all earlier writes without a mark are settled. Ordered data is settled when
    /// it has its place, writeback data when a sync has acknowledged it.
    fn is_whole(&self, id: Id, state: usize, allowed: &Allowed) -> bool {
        let loose = self.states[state].loose(id);
        let settled = match self.promise {
            DataPromise::Writeback => allowed.placed.of(id),
            _ => self.placed(id, state, allowed),
        };
        let mut since = self.states[state..=*allowed.states.end()].iter();
        loose.saturating_sub(self.states[0].steps()) <= settled
            && since.all(|s| s.size_of(id).is_some() && s.is_marked(id) && s.loose(id) == loose)
    }

    fn check_page(
        &self,
        path: &[u8],
        index: u64,
        bytes: &[u8],
        state: usize,
        allowed: &Allowed,
    ) -> Result<()> {
        let id = self.states[state]
            .id(path)
            .context("no such file in the model")?;
        let last = *allowed.states.end();
        let told = allowed.placed.of(id);
        let oldest = state.max(told);
        if self.is_whole(id, state, allowed) && oldest == state {
            let page = self.states[state].page_of(id, index).flatten();
            let is_right = match page {
                Some(page) => page.starts_with(bytes),
                None => bytes.iter().all(|b| *b == 0),
            };
            ensure!(is_right, "not what the file held, which is marked atomic");
            return Ok(());
        }
        if self.promise == DataPromise::Writeback {
            // Data that has its place may get there after the commit.
            let first = if told > state {
                told
            } else {
                told.min(*allowed.states.start())
            };
            let all: Vec<_> = (first..=last)
                .filter_map(|s| self.states[s].page_of(id, index))
                .collect();
            let is_known = |page: &Option<&[u8]>| {
                page.map_or(bytes.iter().all(|b| *b == 0), |page| {
                    page.starts_with(bytes)
                })
            };
            ensure!(
                all.windows(2).any(|w| w[0] != w[1]) || all.iter().any(is_known),
                "changed although nobody wrote it"
            );
            return Ok(());
        }
        let zeros = [0; PAGE as usize];
        let page_of = |s: usize| Some(self.states[s].page_of(id, index)?.unwrap_or(&zeros));
        let versions: Vec<&[u8]> = (oldest..=last).filter_map(page_of).collect();
        let placed = self.placed(id, state, allowed);
        let before =
            (placed..state).filter_map(|s| Some((self.states[s].size_of(id)?, page_of(s)?)));
        let before: Vec<(u64, &[u8])> = before.collect();
        for (at, sector) in bytes.chunks(SECTOR).enumerate() {
            let range = at * SECTOR..at * SECTOR + sector.len();
            let is_known = versions.iter().any(|v| v[range.clone()] == *sector);
            let may_be_zeros = || {
                let is_zero = |bytes: &[u8]| bytes.iter().all(|b| *b == 0);
                let start = index * PAGE + range.start as u64;
                let was_hole =
                    |(size, v): &(u64, &[u8])| *size > start && is_zero(&v[range.clone()]);
                is_zero(sector) && before.iter().any(was_hole)
            };
            ensure!(
                is_known || may_be_zeros(),
                "sector {at} holds none of {} versions",
                versions.len()
            );
        }
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
