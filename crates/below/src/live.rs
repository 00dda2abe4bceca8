//! Which blocks the kernel's log has since its tail. On a plain device a replay would write these
//! over whatever is at their homes, so a home that is written meanwhile counts for nothing after a
//! crash.

use std::collections::VecDeque;

use hashbrown::HashMap;
use stetfs_format::Tid;

/// The blocks that a replay would write, with the transaction that has the newest copy of each.
#[derive(Default)]
pub(crate) struct Live {
    newest: HashMap<u64, Tid>,
    transactions: VecDeque<(Tid, Vec<u64>)>,
}

impl Live {
    /// Whether a replay would write this block.
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.newest.contains_key(&block)
    }

    /// A transaction has come.
    pub(crate) fn logged(&mut self, tid: Tid, blocks: Vec<u64>) {
        self.newest.extend(blocks.iter().map(|block| (*block, tid)));
        self.transactions.push_back((tid, blocks));
    }

    /// A replay would not write this block any more: it was revoked.
    pub(crate) fn forget(&mut self, block: u64) {
        self.newest.remove(&block);
    }

    /// The log begins with this transaction now; none: it is empty. Returns the blocks that it has
    /// no more.
    pub(crate) fn begins(&mut self, tail: Option<Tid>) -> Vec<u64> {
        let mut gone = Vec::new();
        while let Some((tid, _)) = self.transactions.front()
            && Some(*tid) != tail
        {
            let (tid, blocks) = self.transactions.pop_front().expect("seen");
            for block in blocks {
                if self.newest.get(&block) == Some(&tid) {
                    self.newest.remove(&block);
                    gone.push(block);
                }
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_live_as_long_as_its_newest_copy() {
        let mut live = Live::default();
        live.logged(Tid(1), vec![10, 11]);
        live.logged(Tid(2), vec![11, 12]);
        live.logged(Tid(3), vec![13]);
        assert_eq!(live.begins(Some(Tid(2))), [10]);
        assert!(!live.contains(10) && live.contains(11));
        live.forget(12);
        assert_eq!(live.begins(Some(Tid(3))), [11]);
        assert!(live.contains(13));
        assert_eq!(live.begins(None), [13]);
    }
}
