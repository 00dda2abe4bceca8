//! From the running transaction to the scheme.
//!
//! The thread that asks first commits:
//! 1. it locks the gate and waits for the last open handle;
//! 2. the file system places the data ([`Placer`](crate::placer::Placer)), which changes more
//!    metadata of the same transaction;
//! 3. it takes the snapshot: shared references to every changed block, no copies;
//! 4. the next transaction may run; it copies a block that the snapshot still holds before it
//!    changes it;
//! 5. the scheme makes the snapshot durable, after the one before;
//! 6. the pages become clean, and all waiting threads wake.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;
use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, LBlock, Tid};
use stetfs_media::Class;

use crate::cache::Buffer;
use crate::error::{JournalError, Result};
use crate::file_data::FileData;
use crate::gate::{Begin, Gate, Load, Wish};
use crate::handle::{Handle, Owner};
use crate::journal::Journal;
use crate::page::{Change, Origin, Page};
use crate::stats::count;
use crate::transaction::Transaction;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{LoggedBlock, Snapshot};

/// A commit that has begun. If a panic ends it, the threads that wait for it are told that it
/// failed.
struct Closing<'a>(&'a Gate<Transaction>, Tid);

impl Closing<'_> {
    fn finish(self, result: Result<()>) {
        self.0.finish(self.1, result);
        std::mem::forget(self);
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let why = JournalError::Unusable("a commit panicked".to_owned());
        self.0.finish(self.1, Err(why));
    }
}

impl Journal {
    /// Returns when transaction `tid` is durable. Concurrent callers share one commit.
    ///
    /// Must not be called with an open handle or [`Span`](crate::Span) in the same thread: it would
    /// wait for itself.
    pub fn commit(self: &Arc<Self>, tid: Tid) -> Result<()> {
        self.commit_as(tid, Wish::Durable)
    }

    /// Commits as [`commit`](Self::commit) does, for either reason.
    pub(crate) fn commit_as(self: &Arc<Self>, tid: Tid, wish: Wish) -> Result<()> {
        match self.gate().begin_commit(tid, wish)? {
            Begin::Done { waited } => {
                count(&self.counters().shared_commits, u64::from(waited));
                Ok(())
            }
            Begin::Closed { tid, load } => {
                let closing = Closing(self.gate(), tid);
                let result = self.commit_closed(tid, load);
                closing.finish(result.clone());
                self.after_commit();
                match result {
                    Ok(()) => Ok(()),
                    Err(error) => Err(self.gate().stopped().unwrap_or(error)),
                }
            }
        }
    }

    /// Makes everything that was done before this call durable, except for delayed data that nobody
    /// has [enlisted](Self::enlist).
    pub fn commit_running(self: &Arc<Self>) -> Result<()> {
        self.commit(self.gate().newest())
    }

    fn commit_closed(self: &Arc<Self>, tid: Tid, txn: Arc<Transaction>) -> Result<()> {
        let files = txn.take_files();
        self.place(tid, &txn, &files)?;
        let buffers = txn.take_meta();
        let (snapshot, owners) = self.snapshot(tid, &txn, &buffers, &files);
        self.gate().switch();
        self.gate().take_turn()?;
        for (file, _) in owners.iter().filter(|(_, blocks)| *blocks > 0) {
            drop(file.no_home_writes());
        }
        if !(snapshot.meta.is_empty() && snapshot.data.is_empty() && snapshot.revoked.is_empty()) {
            self.account(&snapshot);
            self.served().scheme.commit(&snapshot)?;
        }
        for buffer in &buffers {
            if let Some(page) = buffer.page.lock().as_mut() {
                page.finish(tid);
            }
        }
        let mut rest = snapshot.data.as_slice();
        for (file, n) in owners {
            let (its, others) = rest.split_at(n);
            rest = others;
            let blocks = its.iter().filter_map(|b| b.owner).map(|(_, l)| l);
            file.committed(tid, blocks, |home| self.keeps_clean(home));
        }
        Ok(())
    }

    fn place(
        self: &Arc<Self>,
        tid: Tid,
        txn: &Arc<Transaction>,
        files: &[Arc<FileData>],
    ) -> Result<()> {
        let handle = Handle::of_commit(Arc::clone(self), Arc::clone(txn), tid);
        for file in files {
            self.place_file(&handle, file)?;
        }
        match self.placer_if_attached() {
            Some(placer) => placer?.settle(&handle),
            None => Ok(()),
        }
    }

    fn place_file(&self, handle: &Handle, file: &FileData) -> Result<()> {
        let mut reqs = SmallVec::new();
        file.to_place(handle.tid(), self.served(), &mut reqs);
        if reqs.is_empty() {
            return Ok(());
        }
        let mut homes = Vec::with_capacity(reqs.len());
        let placer = self.placer()?;
        placer.place(handle, file.ino(), &reqs, &mut homes)?;
        let ino = file.ino();
        assert_eq!(reqs.len(), homes.len(), "a home for each block of {ino}");
        file.placed(&reqs, &homes);
        Ok(())
    }

    /// Places the blocks of a file that transaction `tid` changed before the transaction is closed,
    /// if other threads would otherwise wait for this. The caller is about to commit `tid` and
    /// holds the inode's lock, so that nobody else changes or places the file's blocks.
    pub fn place_early(self: &Arc<Self>, tid: Tid, file: &FileData) -> Result<()> {
        let Some(load) = self.gate().join_early(tid) else {
            return Ok(());
        };
        let handle = Handle::new(Arc::clone(self), load, tid, 0, Owner::Early);
        let placed = self.place_file(&handle, file);
        // As at a commit: half placed, the transaction must not become durable.
        placed.inspect_err(|error| self.abort(error.clone()))
    }

    /// Returns the transaction's blocks, and for each file the number of its data blocks, in order.
    fn snapshot<'a>(
        &self,
        tid: Tid,
        txn: &Transaction,
        buffers: &[Arc<Buffer>],
        files: &'a [Arc<FileData>],
    ) -> (Snapshot, Vec<(&'a Arc<FileData>, usize)>) {
        let mut meta = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            if let Some(page) = buffer.page.lock().as_mut()
                && let Some(change) = page.close(tid)
                && !(page.class == Class::GroupDesc && is_planted(Bug::UnloggedGroupDesc))
            {
                meta.push(logged(page, change, buffer.home, None));
            }
        }
        let mut data = Vec::with_capacity(u32_as_usize(txn.pinned()).saturating_sub(buffers.len()));
        let mut owners = Vec::with_capacity(files.len());
        for file in files {
            let before = data.len();
            file.close(tid, |lblk, page, change| {
                if let Some(home) = page.home {
                    data.push(logged(page, change, home, Some((file, lblk))));
                }
            });
            owners.push((file, data.len() - before));
        }
        // The log has room for the blocks that were charged, less those that were given back.
        debug_assert!(
            {
                let logs_data = self.served().terms.logs_data;
                let of_data = data.iter().filter(|block| logs_data || block.whole);
                meta.len() + of_data.count() <= u32_as_usize(txn.blocks())
            },
            "more blocks are logged than the {} that were charged",
            txn.blocks()
        );
        let mut revoked = txn.take_revoked();
        if !revoked.is_empty() {
            for block in meta.iter().chain(&data) {
                revoked.remove(&block.home);
            }
        }
        let mut revoked: Vec<_> = revoked.into_iter().collect();
        revoked.sort_unstable();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let time = (now.as_secs(), now.subsec_nanos());
        (
            Snapshot {
                tid,
                meta,
                data,
                revoked,
                time,
            },
            owners,
        )
    }

    fn account(&self, snapshot: &Snapshot) {
        let counters = self.counters();
        count(&counters.commits, 1);
        count(&counters.meta_blocks, usize_as_u64(snapshot.meta.len()));
        count(&counters.data_blocks, usize_as_u64(snapshot.data.len()));
        count(
            &counters.revoked_blocks,
            usize_as_u64(snapshot.revoked.len()),
        );
        let changed: usize = snapshot
            .meta
            .iter()
            .chain(&snapshot.data)
            .map(|b| b.ranges.bytes())
            .sum();
        count(&counters.changed_bytes, usize_as_u64(changed));
    }
}

fn logged(
    page: &Page,
    change: Change,
    home: BlockNo,
    owner: Option<(&Arc<FileData>, LBlock)>,
) -> LoggedBlock {
    LoggedBlock {
        home,
        class: match owner {
            Some(_) => Class::Data,
            None => page.class,
        },
        content: page.content.clone(),
        base: change.base,
        ranges: change.ranges,
        origin: match change.origin {
            Origin::Old | Origin::Unread => stetfs_scheme::Origin::Old,
            Origin::Fresh => stetfs_scheme::Origin::Fresh,
            Origin::Relocated => stetfs_scheme::Origin::Relocated,
        },
        whole: change.whole && !is_planted(Bug::UnloggedWhole),
        owner: owner.map(|(file, lblk)| (file.ino(), lblk)),
        spot: change.spot,
    }
}
