//! What a journaling scheme is.
//!
//! A scheme receives whole transactions and makes them durable in its own way. It never sees a
//! handle, an inode or a mount; it knows blocks, what changed in them, and what kind each is. One
//! file a scheme in `schemes/`, its seven verbs in the order of the trait.

use std::sync::Arc;

use serde::Serialize;
use stetfs_format::{BlockNo, InodeNo, LBlock, Tid};
use stetfs_media::{BlockDev, BlockRef, Class, Pmem};

use crate::error::{JournalError, Result};
use crate::ranges::Ranges;
use crate::stats::CacheStats;

/// What a scheme says of itself: read by the command line, the documents, the tests and the lab.
#[derive(Debug, Serialize)]
pub struct About {
    /// The one word by which it is chosen (`-o scheme=`).
    pub name: &'static str,
    /// One line for people.
    pub title: &'static str,
    /// The paper or document that it follows.
    pub source: &'static str,
    /// What `data=` may say; the first is the default. Empty: the scheme has no modes.
    pub modes: &'static [DataMode],
    /// It needs the journal area that mke2fs made inside the volume.
    pub needs_journal_area: bool,
    /// The home medium must be byte-addressable ([`BlockDev::pmem`]).
    pub needs_pmem: bool,
    /// The home medium must be able to remap ([`BlockDev::remap`]).
    pub needs_remap: bool,
    /// The size in bytes of the persistent memory that it needs beside the home medium, unless the
    /// user has a region of another size.
    pub nvm: Option<u64>,
    /// That memory is a cache in which what was read and committed is kept.
    pub caches: bool,
    /// And it is all that there is for clean data: none is kept in other memory too.
    pub is_buffer_cache: bool,
    /// What the superblock says while the scheme has the volume.
    pub mark: Mark,
    /// After a crash every transaction is there entirely or not at all.
    pub atomic: bool,
    /// It wants the content that a block had before the transaction ([`LoggedBlock::base`]).
    pub wants_base: bool,
    /// It asks for relocation ([`Placement::Relocate`]).
    pub relocates: bool,
    /// What writing costs, in a line: bytes and flushes of a commit of n blocks.
    pub cost: &'static str,
    /// Mount options of its own.
    pub options: &'static [&'static OptionAbout],
}

/// How a volume that is mounted is marked for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// Not cleanly unmounted: e2fsck must look at it after a crash.
    Unclean,
    /// `needs_recovery`: the kernel and e2fsck replay the journal.
    NeedsRecovery,
    /// The feature `PRIVATE_LOG`, which neither the kernel nor e2fsck knows: the newest content is
    /// where only the scheme finds it.
    PrivateLog,
}

/// A mount option that a scheme has for itself.
#[derive(Debug, Serialize)]
pub struct OptionAbout {
    /// Its name.
    pub name: &'static str,
    /// What may stand behind `=`; an option that takes `on|off` may stand alone and means `on`
    /// then.
    pub syntax: &'static str,
    /// What holds when it is not given.
    pub default: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
}

/// How file data is treated (ext4's `data=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataMode {
    /// Data goes through the journal like metadata.
    Journal,
    /// Data is written home before the transaction that refers to it commits.
    #[default]
    Ordered,
    /// Data is written home in no order with the commit.
    Writeback,
}

impl DataMode {
    /// The word that `data=` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Ordered => "ordered",
            Self::Writeback => "writeback",
        }
    }
}

/// What a crash may do to file data (metadata: see [`About::atomic`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPromise {
    /// Data changes with its transaction: all of it or none.
    Atomic,
    /// New blocks hold what was written to them; an overwritten block may hold old or new bytes.
    Ordered,
    /// Any block written since the last sync may hold old, new or stale bytes.
    Writeback,
    /// Nothing is promised before a clean unmount.
    Nothing,
}

/// What the mount asks of the scheme.
#[derive(Clone, Debug, Default)]
pub struct SchemeOptions {
    /// `data=`; `None` takes the scheme's default.
    pub data: Option<DataMode>,
    /// Options of the scheme's own ([`About::options`]) with their values; a later one overrides an
    /// earlier one.
    pub extra: Vec<(String, String)>,
}

impl SchemeOptions {
    /// An error naming the first option that the scheme does not have.
    pub fn check_known(&self, about: &'static About) -> Result<()> {
        let is_known = |name: &str| about.options.iter().any(|option| option.name == name);
        match self.extra.iter().find(|(name, _)| !is_known(name)) {
            None => Ok(()),
            Some((name, _)) => Err(JournalError::SchemeOption {
                scheme: about.name,
                why: format!("it has no option \"{name}\""),
            }),
        }
    }

    /// The value of an option, or its default.
    pub fn value<'a>(&'a self, option: &'a OptionAbout) -> &'a str {
        let given = self
            .extra
            .iter()
            .rev()
            .find(|(name, _)| *name == option.name);
        given.map_or(option.default, |(_, value)| value)
    }

    /// The value of an option that is on or off.
    pub fn switch(&self, about: &'static About, option: &OptionAbout) -> Result<bool> {
        match self.value(option) {
            "on" => Ok(true),
            "off" => Ok(false),
            value => Err(JournalError::SchemeOption {
                scheme: about.name,
                why: format!("{}={value}: on or off", option.name),
            }),
        }
    }

    /// The value of an option that is a share: 1 to 100 percent.
    pub(crate) fn percent(&self, about: &'static About, option: &OptionAbout) -> Result<u64> {
        let number = self.value(option).parse().ok();
        let share = number.filter(|n| (1..=100).contains(n));
        share.ok_or_else(|| self.wrong(about, option))
    }

    /// The error that says what may stand behind an option instead of its value.
    pub(crate) fn wrong(&self, about: &'static About, option: &OptionAbout) -> JournalError {
        JournalError::SchemeOption {
            scheme: about.name,
            why: format!("{}={}: {}", option.name, self.value(option), option.syntax),
        }
    }
}

/// A run of blocks of the journal area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogExtent {
    /// First block.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u32,
}

/// What a scheme is opened with.
pub struct OpenArgs {
    /// The home medium.
    pub dev: Arc<dyn BlockDev>,
    /// The persistent memory beside it, where there is one.
    pub nvm: Option<Arc<dyn Pmem>>,
    /// That memory may be overwritten, whatever is in it that no volume needs.
    pub nvm_new: bool,
    /// The file system's block size in bytes.
    pub block_size: usize,
    /// The volume's size in blocks.
    pub blocks: u64,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The volume has the 64bit feature.
    pub has_64bit: bool,
    /// The volume has the metadata_csum feature.
    pub has_metadata_csum: bool,
    /// The journal area in order of its logical blocks; empty without one.
    pub log: Vec<LogExtent>,
    /// Bytes that the scheme may use to hold committed blocks before it should write them home.
    pub memory: usize,
    /// The superblock has the mark of a private log: what is in the scheme's log counts.
    pub has_private_log: bool,
    /// Bytes of an inode.
    pub inode_size: usize,
    /// Recover and write; otherwise look only (a journal that needs recovery is then an error).
    pub writable: bool,
    /// The mount's wishes.
    pub options: SchemeOptions,
}

/// A dirty data block that has a home, as a scheme sees it that may want another one for it.
#[derive(Clone, Copy, Debug)]
pub struct DirtyBlock<'a> {
    /// Where it is now.
    pub home: BlockNo,
    /// Its new content.
    pub content: &'a BlockRef,
    /// The bytes that changed, or those that were written to: see [`Scheme::changes_wanted`].
    pub ranges: &'a Ranges,
}

/// What opening found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// The volume had been left unclean.
    pub was_needed: bool,
    /// Committed transactions put in place.
    pub transactions: u32,
    /// Blocks written home.
    pub blocks: u64,
    /// Blocks not replayed because a later transaction revoked them.
    pub revoked: u64,
    /// The error that the journal had been stopped with (a negative errno), 0 for none.
    pub journal_errno: i32,
    /// First and last transaction replayed, when there was one.
    pub sequences: Option<(u32, u32)>,
}

/// Whether a scheme holds a block's newest committed version.
#[derive(Clone, Debug)]
pub enum Held {
    /// This is it.
    Here(BlockRef),
    /// It is at home.
    Home,
}

/// Where a data block should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To its present home.
    Home,
    /// To a new block, to which the file's mapping is switched in the same transaction.
    Relocate,
}

/// Where a scheme keeps a block that the running transaction changes: a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spot(pub u32);

/// A block as a transaction leaves it.
#[derive(Clone, Debug)]
pub struct LoggedBlock {
    /// Where it belongs.
    pub home: BlockNo,
    /// What it is.
    pub class: Class,
    /// Its content at the end of the transaction.
    pub content: BlockRef,
    /// Its content before the transaction, when the scheme [wants](About::wants_base) it and it had
    /// one.
    pub base: Option<BlockRef>,
    /// The bytes that the transaction changed, or those that it wrote to: see
    /// [`Scheme::changes_wanted`].
    pub ranges: Ranges,
    /// The block was free or a hole before: its old content means nothing.
    pub fresh: bool,
    /// For file data: whose.
    pub owner: Option<(InodeNo, LBlock)>,
    /// The home is new: the file's mapping was switched to it in this transaction.
    pub relocated: bool,
    /// Where the scheme has it already ([`Scheme::before_write`]).
    pub spot: Option<Spot>,
}

/// A transaction, closed and complete.
#[derive(Debug)]
pub struct Snapshot {
    /// Which transaction.
    pub tid: Tid,
    /// Changed metadata blocks, each once.
    pub meta: Vec<LoggedBlock>,
    /// Changed data blocks, each once.
    pub data: Vec<LoggedBlock>,
    /// Blocks freed in this transaction whose older versions must never be replayed; none of them
    /// is in `meta` or `data`.
    pub revoked: Vec<BlockNo>,
    /// When it was closed: seconds and nanoseconds since 1970.
    pub time: (u64, u32),
}

/// How much of the log to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// As much as brings the log back to a comfortable size; called in the background.
    Background,
    /// As much as takes a moment: for those who show progress.
    Some,
    /// Everything that is committed.
    All,
}

/// A journaling scheme. `commit` is called by one thread at a time; `checkpoint` by one thread at a
/// time, possibly while another commits; `read` and `before_write` by any thread.
pub trait Scheme: Send + Sync {
    /// What it is and promises.
    fn about(&self) -> &'static About;

    /// What a crash may do to data in the mode that it was opened with.
    fn data_promise(&self) -> DataPromise;

    /// The most blocks that one transaction may log.
    fn max_transaction(&self) -> u32;

    /// Data blocks go through [`commit`](Self::commit)'s log (they count as credits, and freed ones
    /// are revoked).
    fn logs_data(&self) -> bool;

    /// Of how many bytes of a block the scheme wants to know whether they changed, in ranges that
    /// tell changes from what was only written: with 0 they need not, and with n they need not when
    /// n bytes or more changed.
    fn changes_wanted(&self) -> usize {
        0
    }

    /// By what means of the device committed blocks get home without being copied, if they do.
    fn remaps(&self) -> Option<&'static str> {
        None
    }

    /// The user wants the newest content left where only the scheme finds it, when it is closed.
    fn keeps(&self) -> bool {
        false
    }

    /// Of its cache.
    fn cache_stats(&self) -> Option<CacheStats> {
        None
    }

    // -- the verbs; `open` is in the registry, as it makes the scheme --

    /// The newest committed version of a home block, if the scheme holds one.
    fn read(&self, block: BlockNo) -> Result<Held>;

    /// Reads a part of a block, from byte `offset` of it on, in the newest committed version; false
    /// if the scheme does not hold one.
    fn read_part(&self, block: BlockNo, offset: usize, out: &mut [u8]) -> Result<bool> {
        match self.read(block)? {
            Held::Here(content) => {
                out.copy_from_slice(&content[offset..offset + out.len()]);
                Ok(true)
            }
            Held::Home => Ok(false),
        }
    }

    /// Offers a block that was read from home to a scheme that [caches](About::caches). Nobody
    /// changes it meanwhile.
    fn fill(&self, block: BlockNo, class: Class, content: &[u8]) -> Result<()> {
        let _ = (block, class, content);
        Ok(())
    }

    /// Some block from `start` on, `count` blocks long, may be held: a cheap filter before long
    /// reads.
    fn holds_any(&self, start: BlockNo, count: u32) -> bool;

    /// A block is about to change for the first time in transaction `tid` (JBD2's
    /// `get_write_access`). A scheme that lets the running transaction change blocks where it keeps
    /// them says where. `home` is given when what the scheme would read of it is what is going to
    /// change. Must not wait.
    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        let _ = (tid, home);
        None
    }

    /// `len` bytes from `offset` on of a block in such a spot have changed; `content` is all of it.
    fn after_write(
        &self,
        spot: Spot,
        class: Class,
        offset: usize,
        len: usize,
        content: &[u8],
    ) -> Result<()> {
        let _ = (spot, class, offset, len, content);
        Ok(())
    }

    /// Where a dirty data block that has a home should go.
    fn placement(&self, block: &DirtyBlock<'_>) -> Placement {
        let _ = block;
        Placement::Home
    }

    /// Makes the transaction durable. After an error nothing may be assumed of it and no further
    /// commit is made.
    fn commit(&self, txn: &Snapshot) -> Result<()>;

    /// The log wants reclaiming in the background.
    fn wants_checkpoint(&self) -> bool {
        false
    }

    /// Checkpoints that commits have made since there was no room.
    fn forced_checkpoints(&self) -> u64 {
        0
    }

    /// Writes committed blocks home and frees their log space.
    fn checkpoint(&self, goal: Goal) -> Result<()>;

    /// Leaves a plain, clean ext4 image: everything home, the log empty; unless it
    /// [keeps](Self::keeps) it. No commit follows.
    fn close(&self) -> Result<()>;
}
