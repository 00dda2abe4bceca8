//! Runs all of a ground, or a shard of it.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use anyhow::Result;
use parking_lot::Mutex;
use stetfs_crash::sharing::Shard;

use super::sheet::Sheet;
use super::{Found, Ground};
use crate::cell::{Cell, Store, run_all};
use crate::system::Outcome;

impl Ground {
    /// Runs the cells of this shard that the store does not have, on `jobs` threads. Calls `tell`
    /// with the number of runs done and their total. Returns a sheet of what is there; with a
    /// shard, also of what the store has of the other shards.
    ///
    /// # Errors
    /// A setting that does not exist; errors of the store. A run that fails is no error: its reason
    /// is in the sheet.
    pub fn run(
        self,
        jobs: usize,
        store: Option<&Store>,
        shard: Shard,
        tell: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Sheet> {
        let pairings = self.pairings()?;
        let cells = pairings
            .iter()
            .flat_map(|pairing| pairing.runs.iter().flatten());
        // Systems without a use for the memory beside a device run once for several media.
        let mut mine: Vec<(u64, Cell)> = Vec::new();
        let mut keys = HashSet::new();
        for cell in cells {
            let key = cell.key()?;
            if shard.has(key) && keys.insert(key) {
                mine.push((key, cell.clone()));
            }
        }
        let (keys, cells): (Vec<u64>, Vec<Cell>) = mine.into_iter().unzip();
        let (of, done) = (cells.len() as u64, Mutex::new(0));
        let failed = Mutex::new(HashMap::new());
        let outcomes = run_all(&cells, jobs, store, &|n, outcome| {
            if let Err(error) = outcome {
                failed.lock().insert(keys[n], format!("{error:#}"));
            }
            let mut done = done.lock();
            *done += 1;
            tell(*done, of);
            ControlFlow::Continue(())
        });
        let failed = failed.into_inner();
        let ours: HashMap<u64, Outcome> = keys
            .into_iter()
            .zip(outcomes)
            .filter_map(|(key, outcome)| Some((key, outcome?)))
            .collect();
        let find = |cell: &Cell| -> Result<Found> {
            let key = cell.key()?;
            Ok(match (ours.get(&key), failed.get(&key), store) {
                (Some(outcome), ..) => Found::Run(outcome.clone()),
                (None, Some(why), _) => Found::Failed(why.clone()),
                (None, None, Some(store)) => match store.get(cell)? {
                    Some(outcome) => Found::Run(outcome),
                    None => Found::Missing,
                },
                (None, None, None) => Found::Missing,
            })
        };
        Sheet::of(self, pairings, &find)
    }
}
