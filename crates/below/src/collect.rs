//! Collects the blocks that the kernel's jbd2 writes into its journal, and gives whole
//! transactions.
//!
//! Nothing of the journal reaches the medium: its area belongs to the scheme below. Blocks may come
//! in any order, since jbd2 waits for them only before the commit block, and with
//! `journal_async_commit` not even then.
//!
//! # Where the next transaction begins
//!
//! jbd2 writes it into its superblock (`s_start`, `s_sequence`) before the first transaction of a
//! life, and from then on each transaction begins where the one before it ended. Later writes of
//! the superblock only move the tail: they name a transaction that has been here. One that names
//! another place begins a new life: the machine above has crashed and come back.
//!
//! # When the device was another before
//!
//! A server may have died under a kernel that lives on, such as an NBD client that connects again.
//! What the kernel had written of its running transaction died too. So a commit block is refused
//! that is not the next transaction's, or whose transaction is not here: the kernel aborts its
//! journal, and no fsync is answered for what is lost. With `journal_async_commit` blocks may come
//! behind their commit block, and only the next commit block tells.
//!
//! # How the journal reads
//!
//! As empty, with the number of the next transaction: whatever is committed is already visible at
//! home. Whoever opens the volume after a crash of the machine above has nothing to replay.

use std::collections::VecDeque;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use stetfs_format::checksum::crc32_be;
use stetfs_format::jbd2::{
    BlockType, ChecksumVersion, CommitBlock, DescriptorBlock, Header, JournalIncompat,
    JournalSuperblock, RevokeBlock, unescape,
};
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::Block;
use stetfs_planted::{Bug, is_planted};

use crate::error::BelowError;
use crate::log::Log;

/// The shortest journal that the kernel takes, in blocks (`JBD2_MIN_JOURNAL_BLOCKS`).
const SHORTEST: u32 = 1024;
/// A transaction of jbd2 takes at most this part of its journal
/// (`jbd2_journal_get_max_txn_bufs`).
const PART: u32 = 4;

/// What a written superblock of JBD2's says of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// It begins with this transaction.
    Tail(Tid),
    /// It is empty: everything is home.
    Empty,
    /// It is another log: the machine above has crashed and come back.
    Another,
}

/// A transaction whose commit block has come.
pub(crate) struct Closed {
    /// Its number.
    pub(crate) tid: Tid,
    /// Its blocks with their homes, each once, in the order of the log.
    pub(crate) blocks: Vec<(BlockNo, Block)>,
    /// The blocks that it revokes; none of them is in `blocks`.
    pub(crate) revoked: Vec<BlockNo>,
    /// Bytes of the journal that it took, with its descriptors and its commit block.
    pub(crate) journaled: u64,
}

/// Where a transaction begins in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begin {
    tid: Tid,
    at: u32,
}

/// What has come of the journal and is in no transaction that was given away.
pub(crate) struct Collector {
    log: Log,
    /// JBD2's superblock as the kernel wrote it last.
    head: Block,
    /// Blocks that the kernel is shown to have.
    shown: u32,
    blocks: HashMap<u32, Block>,
    /// Where the next transaction begins; none before the first one of a life.
    next: Option<Begin>,
    /// Where those begin that came since the journal's tail.
    past: VecDeque<Begin>,
    /// The number of the next transaction.
    sequence: Tid,
    /// A commit block of the next transaction has come.
    is_committed: bool,
}

impl Collector {
    /// Begins with an empty journal, whose superblock is `head`. A transaction shall have at most
    /// `most` blocks, so the kernel is shown no more of a long journal than what that takes.
    ///
    /// # Errors
    /// What is wrong with `head`.
    pub(crate) fn new(log: Log, head: Block, most: u32) -> Result<Self, Corrupt> {
        let found = JournalSuperblock::decode(head.bytes(), log.block)?;
        let longest = most.saturating_mul(PART).max(SHORTEST);
        let mut collector = Self {
            shown: found.maxlen.min(longest),
            sequence: found.sequence,
            log,
            head,
            blocks: HashMap::new(),
            next: None,
            past: VecDeque::new(),
            is_committed: false,
        };
        collector.head = collector.superblock();
        collector.log.set_head(collector.head.bytes());
        Ok(collector)
    }

    /// The number in the journal of a block of the volume: 0 is JBD2's superblock.
    pub(crate) fn number(&self, block: u64) -> Option<u32> {
        self.log.number(block)
    }

    /// Blocks that a transaction has at most.
    pub(crate) fn longest(&self) -> u32 {
        self.shown / PART
    }

    /// The number of the next transaction.
    pub(crate) fn sequence(&self) -> Tid {
        self.sequence
    }

    /// Takes a part of JBD2's superblock, from byte `within` on.
    ///
    /// # Errors
    /// What is there now is none.
    pub(crate) fn write_head(&mut self, within: usize, part: &[u8]) -> Result<Head, Corrupt> {
        self.head.bytes_mut()[within..within + part.len()].copy_from_slice(part);
        self.head_written()
    }

    /// Takes a part of block `at` of the log, from byte `within` on. Returns true when a
    /// transaction may be complete.
    ///
    /// # Errors
    /// [`BelowError::Lost`]: it commits a transaction that is not the next.
    pub(crate) fn write(
        &mut self,
        at: u32,
        within: usize,
        part: &[u8],
    ) -> Result<bool, BelowError> {
        if !self.log.is_in_log(at) {
            return Ok(false);
        }
        let Some(next) = self.next else {
            // Nothing has said where a transaction begins.
            return match commits(part).filter(|_| within == 0) {
                Some(tid) => lost(tid).map(|()| false),
                None => Ok(false),
            };
        };
        let len = self.log.block.bytes();
        let block = self.blocks.entry(at).or_insert_with(|| Block::zeroed(len));
        block.bytes_mut()[within..within + part.len()].copy_from_slice(part);
        match commits(block.bytes()) {
            Some(tid) if tid.is_after(next.tid) => lost(tid)?,
            commits => self.is_committed |= commits == Some(next.tid),
        }
        Ok(self.is_committed)
    }

    /// Whether the blocks of a transaction may come behind its commit block.
    fn is_async(&self) -> bool {
        let head = JournalSuperblock::decode(self.head.bytes(), self.log.block);
        head.is_ok_and(|head| {
            let features = head.feature_incompat;
            features.contains(JournalIncompat::ASYNC_COMMIT)
        })
    }

    /// Says that all requests have come as a whole.
    ///
    /// # Errors
    /// [`BelowError::Lost`]: blocks are missing of the transaction that was committed.
    pub(crate) fn check_whole(&self) -> Result<(), BelowError> {
        match self.next.filter(|_| self.is_committed && !self.is_async()) {
            Some(Begin { tid, .. }) => lost(tid),
            None => Ok(()),
        }
    }

    fn head_written(&mut self) -> Result<Head, Corrupt> {
        let found = JournalSuperblock::decode(self.head.bytes(), self.log.block)?;
        self.log.set_head(self.head.bytes());
        if found.start == 0 {
            self.forget();
            self.sequence = found.sequence;
            return Ok(Head::Empty);
        }
        let tail = Begin {
            tid: found.sequence,
            at: found.start,
        };
        if self.next == Some(tail) || self.past.contains(&tail) {
            while self.past.front().is_some_and(|first| *first != tail) {
                self.past.pop_front();
            }
            return Ok(Head::Tail(tail.tid));
        }
        // The first one of a life, too: nothing is live then.
        if !is_planted(Bug::EarlierLife) {
            self.forget();
        }
        self.next = Some(tail);
        self.sequence = tail.tid;
        Ok(Head::Another)
    }

    fn forget(&mut self) {
        self.blocks.clear();
        self.past.clear();
        self.next = None;
        self.is_committed = false;
    }

    /// The next transaction, if all of it is here.
    ///
    /// # Errors
    /// A record that does not fit its checksum, though its commit block has come.
    pub(crate) fn take(&mut self) -> Result<Option<Closed>, Corrupt> {
        let Some(begin) = self.next.filter(|_| self.is_committed) else {
            return Ok(None);
        };
        let Some((homes, revoked, end)) = self.walk(begin)? else {
            return Ok(None);
        };
        let mut blocks = Vec::with_capacity(homes.len());
        for Logged {
            home,
            at,
            is_escaped,
        } in homes
        {
            let mut block = self.blocks.remove(&at).expect("walked over");
            if is_escaped {
                unescape(block.bytes_mut());
            }
            if !revoked.contains(&home) {
                blocks.push((home, block));
            }
        }
        let mut at = begin.at;
        let mut count = 0;
        while at != end {
            self.blocks.remove(&at);
            at = self.log.step(at, 1);
            count += 1;
        }
        self.past.push_back(begin);
        let tid = begin.tid.next();
        self.next = Some(Begin { tid, at: end });
        self.sequence = tid;
        self.is_committed = false;
        Ok(Some(Closed {
            tid: begin.tid,
            blocks,
            revoked: revoked.into_iter().collect(),
            journaled: self.log.block.offset_of(count),
        }))
    }

    /// The blocks that a transaction logs, those that it revokes, and the block behind its commit
    /// block; none if some of its blocks have not come yet.
    fn walk(&self, begin: Begin) -> Result<Option<Walked>, Corrupt> {
        let (format, mut at) = (self.log.format, begin.at);
        let mut logged: Vec<Logged> = Vec::new();
        let mut place: HashMap<BlockNo, usize> = HashMap::new();
        let mut revoked = HashSet::new();
        // Only checksums v1 cover a whole transaction.
        let mut crc = !0;
        let cover = |crc, block: &[u8]| match format.checksum {
            ChecksumVersion::V1 => crc32_be(crc, block),
            _ => crc,
        };
        for _ in 0..self.log.capacity() {
            let Some(block) = self.blocks.get(&at).map(Block::bytes) else {
                return Ok(None);
            };
            let header = Header::decode(block).filter(|header| header.sequence == begin.tid);
            match header.and_then(|header| header.known_type()) {
                Some(BlockType::Descriptor) => {
                    crc = cover(crc, block);
                    for tag in DescriptorBlock::decode(block, &format)?.tags() {
                        let tag = tag?;
                        at = self.log.step(at, 1);
                        let Some(content) = self.blocks.get(&at).map(Block::bytes) else {
                            return Ok(None);
                        };
                        if !format.is_intact(&tag, begin.tid, content) {
                            return Err(Corrupt::JournalTagChecksum(tag.block));
                        }
                        crc = cover(crc, content);
                        let found = Logged {
                            home: tag.block,
                            at,
                            is_escaped: tag.escaped,
                        };
                        // The newest copy counts.
                        match place.entry(tag.block) {
                            Entry::Occupied(earlier) => logged[*earlier.get()] = found,
                            Entry::Vacant(first) => {
                                first.insert(logged.len());
                                logged.push(found);
                            }
                        }
                    }
                }
                Some(BlockType::Revoke) => {
                    revoked.extend(RevokeBlock::decode(block, &format)?.blocks());
                }
                Some(BlockType::Commit) => {
                    CommitBlock::decode(block, &format)?.check_transaction(crc)?;
                    return Ok(Some((logged, revoked, self.log.step(at, 1))));
                }
                _ => return Ok(None),
            }
            at = self.log.step(at, 1);
        }
        Ok(None)
    }

    /// JBD2's superblock as the kernel reads it.
    pub(crate) fn superblock(&self) -> Block {
        let mut shown = self.head.clone();
        if let Ok(mut head) = JournalSuperblock::decode(shown.bytes(), self.log.block) {
            head.maxlen = self.shown;
            // A number that this life does not use: the blocks of a transaction that it has begun
            // cannot be taken for blocks of the next life's.
            let mut unused = self.next.map_or(self.sequence, |next| next.tid.next());
            if is_planted(Bug::EarlierLife) {
                unused = self.sequence;
            }
            (head.start, head.head, head.sequence) = (0, head.first, unused);
            head.encode_into(shown.bytes_mut());
        }
        shown
    }
}

/// What a commit of this transaction is answered, whose blocks are not here.
fn lost(tid: Tid) -> Result<(), BelowError> {
    if is_planted(Bug::ConfirmedLost) {
        return Ok(());
    }
    Err(BelowError::Lost { tid })
}

/// The transaction that a block of the journal commits, if it is a commit block.
fn commits(block: &[u8]) -> Option<Tid> {
    let header = Header::decode(block)?;
    let is_commit = header.known_type() == Some(BlockType::Commit);
    is_commit.then_some(header.sequence)
}

type Walked = (Vec<Logged>, HashSet<BlockNo>, u32);

/// A block in the journal.
struct Logged {
    home: BlockNo,
    at: u32,
    is_escaped: bool,
}
