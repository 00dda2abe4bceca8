//! Bugs that can be planted, to test that the crash explorer finds them.
//!
//! They exist only with the feature `planted-bugs`. Without it, [`is_planted`] is the constant
//! `false`, and the compiler drops the bugs. One bug at a time is planted, for the whole process.
//! The code of a bug asks [`is_planted`] just before it does the right thing. The trials of schemes
//! (`stetfs_scheme::Trial::planted`) and the flash translation layer (`stetfs_ftl::PLANTED`) list
//! the bugs that they show.
#![forbid(unsafe_code)]

#[cfg(feature = "planted-bugs")]
pub mod found;

use serde::Serialize;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Bug {
    /// The commit record is durable before its body is written.
    RecordBeforeBody,
    /// No flush between the body and its commit record.
    MissingBodyFlush,
    /// The commit record is written, but the commit does not wait until it is durable.
    MissingRecordFlush,
    /// Data goes home after the record of its transaction, and the commit does not wait for it.
    LateData,
    /// Freed blocks are not revoked.
    ForgottenRevoke,
    /// The tag of a logged block that begins with JBD2's magic lacks the escape flag, although the
    /// log has zeros in place of the magic.
    UntoldEscape,
    /// The superblock does not say where the log of an empty journal begins.
    LateFirstMark,
    /// A checkpoint frees log space before the blocks that it wrote home are flushed.
    MissingCheckpointFlush,
    /// A checkpoint's log space is used again before the superblock has the log's new beginning.
    LateTail,
    /// Replay takes a transaction without computing its checksum.
    UncheckedReplay,
    /// Replay goes on through transactions of an earlier lap.
    StaleLap,
    /// Replay writes blocks that were revoked.
    IgnoredRevoke,
    /// Replay writes the oldest copy of a block that was logged several times.
    OldestCopy,
    /// Replay marks the log empty before the blocks that it wrote home are durable.
    MissingReplayFlush,
    /// Group descriptors are not journaled.
    UnloggedGroupDesc,
    /// `fsync` returns at once.
    EarlyFsync,
    /// Deleted open files and files being cut short are not in the orphan list.
    ForgottenOrphan,
    /// Freed blocks get a new owner before the transaction that freed them is durable.
    EarlyReuse,
    /// The journal's own pages are given back before the list that remaps them home is durable.
    EarlyRelease,
    /// Garbage collection trusts the address in a page's spare area, also when the page was
    /// remapped.
    BelievedSpare,
    /// Garbage collection moves a page that two addresses share, and leaves one of them at the old
    /// page.
    ForgottenSharer,
    /// Nothing records the version of a home block, so its delta is applied again.
    DeltaTwice,
    /// A block on which deltas rest is not kept while it is on its way home.
    UnkeptBase,
    /// The state that marks a cache block as committed is durable before the block.
    StateBeforeLines,
    /// The ring's end that makes a transaction valid is durable before the transaction's entries.
    TailBeforeEntries,
    /// A part of a committed block is changed in place before its log copy is durable.
    EarlySubBlock,
    /// A block that is not home is evicted.
    EvictedDirty,
    /// Recovery records that a transaction is undone before it is.
    EarlyHead,
    /// When preallocated blocks are written, four more count as written too.
    ConvertedBeyond,
    /// `fsync` does not know that blocks beyond the end were allocated.
    UnnotedAllocation,
    /// Times are not stored with a write that leaves the size.
    UnstoredTimes,
    /// A commit takes pages for clean that the next transaction has changed.
    CleanedNext,
    /// While a transaction commits, the next one does not count as newer, so a sync leaves it out.
    OlderNewest,
    /// Removing an orphan from the middle of the list removes those behind it too.
    BrokenChain,
    /// A rename makes the new name in one transaction and drops the old one in another.
    SplitRename,
    /// A file that is cut in several transactions is not in the orphan list.
    UnlistedTruncate,
    /// After recovery sequence numbers begin again with that of the oldest transaction in the log.
    ReusedSequence,
    /// No fence between a slot of the ring and the change that it can undo.
    MissingRingFence,
    /// Places of the cache are used again before their release is durable.
    EarlyRoom,
    /// `fsync` does not know what transaction changed an inode that has left the cache.
    ForgottenInode,
    /// Recovery applies the changes of the map in the order in which it finds them.
    UnsortedChanges,
    /// Recovery goes on from the newest page without programming it again.
    UnsecuredPage,
    /// The log's end moves behind a transaction before the transaction is listed: a checkpoint in
    /// between forgets it.
    LateListing,
    /// Each root overwrites the one before.
    SingleSlot,
    /// A transaction's blocks go to places that the newest durable root still names.
    EarlyPlace,
    /// Freed blocks are not revoked if they are home, although the log still has bytes of them.
    EarlyForget,
    /// Bytes to be carried forward count as logged, and are not.
    LostCarry,
    /// A change to a block that is on its way home counts as home.
    LostChange,
    /// The changed bytes of a new block are laid over the old content of its home.
    UnzeroedBase,
    /// Recovery accepts the last transaction without checking the blocks that it wrote in place.
    UncheckedPayload,
    /// The pages of a write that is to be whole count one by one.
    SplitWrite,
    /// A block is written home with the commit although the log has older bytes of it.
    PlacedOverLog,
    /// Data of files that are marked atomic is written in place, as other data is.
    UnloggedWhole,
    /// One write to a file that is marked atomic takes a handle for each block.
    TornRecord,
    /// A group takes a handle for each of its files, and for each of its names.
    TornGroup,
    /// Aborting a group leaves a staged page.
    KeptPage,
    /// Staged content of a group is in the file at once.
    ShownGroup,
    /// A group is committed although another one has written to its file since.
    UnseenConflict,
    /// Data that is overwritten without a transaction is not flushed.
    UnflushedOverwrite,
    /// The stored size covers data that is still delayed.
    EarlySize,
    /// An inode leaves the cache while it has delayed data.
    EvictedDelayed,
    /// A rename over another file leaves the data of the renamed file delayed.
    UnplacedRename,
    /// Closing a file that was truncated to nothing leaves its new data delayed.
    UnplacedClose,
    /// `fsync` leaves the file's data delayed.
    UnplacedFsync,
    /// An overwrite of a block that is on its way home without a transaction counts as home.
    ForgottenOverwrite,
    /// `fsync` looks at the inode alone: at its times, and not at its data.
    TimesForData,
    /// Marking a file atomic leaves its data delayed.
    UnplacedMark,
    /// One write to a file that is marked atomic is split where one to others is.
    SplitRecord,
    /// The state of the memory beside a volume is written over the copy that counts
    /// (dm-pcache in Linux 6.18, mended by ebbb90344a7d).
    CurrentSlot,
    /// After a recovery the copy that counts is taken for the other one (dm-pcache in Linux 6.18,
    /// which found its copies by a wrong stride, mended by 13ea55ea2017).
    MiscountedSlot,
    /// A record is durable before the homes that it rests on (dm-writecache since Linux 4.18,
    /// mended by aa9509209c5a).
    LateHomes,
    /// A home that was read while it was written is taken for its newest content (bcache, reported
    /// on linux-bcache on 2026-05-21).
    RacedRead,
    /// What an earlier life of the machine above has left is taken for this one's (Open CAS,
    /// ocf#617).
    EarlierLife,
    /// A commit is answered whose transaction went to a server that died.
    ConfirmedLost,
}

/// A bug.
#[derive(Debug, Serialize)]
pub struct BugAbout {
    /// Which.
    #[serde(skip)]
    pub bug: Bug,
    /// Its name on the command line.
    pub name: &'static str,
    /// What goes wrong, in a line.
    pub what: &'static str,
}

macro_rules! bugs {
    ($($bug:ident $name:literal $what:literal;)*) => {
        /// Every bug, in the order in which reports list them.
        pub static BUGS: &[BugAbout] = &[$(BugAbout {
            bug: Bug::$bug,
            name: $name,
            what: $what,
        }),*];
    };
}

bugs! {
    RecordBeforeBody "record-before-body" "commit record durable before its body is written";
    MissingBodyFlush "missing-body-flush" "no flush between body and commit record";
    MissingRecordFlush "missing-record-flush" "commit record not made durable";
    LateData "late-data" "data written home after its commit";
    ForgottenRevoke "forgotten-revoke" "freed blocks not revoked";
    UntoldEscape "untold-escape" "replay not told of blocks that begin with the journal's magic";
    LateFirstMark "late-first-mark"
        "superblock does not say where the log begins before a checkpoint";
    MissingCheckpointFlush "missing-checkpoint-flush" "log space freed before home is durable";
    LateTail "late-tail" "log space used again before the tail is moved";
    UncheckedReplay "unchecked-replay" "no checksum check at replay";
    StaleLap "stale-lap" "replay of transactions of an earlier lap";
    IgnoredRevoke "ignored-revoke" "replay of revoked blocks";
    OldestCopy "oldest-copy" "replay of the oldest copy of a block";
    MissingReplayFlush "missing-replay-flush"
        "log marked empty before the replayed blocks are durable";
    UnloggedGroupDesc "unlogged-group-desc" "group descriptors not journaled";
    EarlyFsync "early-fsync" "fsync returns before the commit";
    ForgottenOrphan "forgotten-orphan" "orphans not in the list";
    EarlyReuse "early-reuse" "freed blocks reused before the freeing is durable";
    EarlyRelease "early-release" "journal's pages given back before the remap is durable";
    BelievedSpare "believed-spare" "address in the spare area of a remapped page believed";
    ForgottenSharer "forgotten-sharer" "garbage collection moves one of two sharers";
    DeltaTwice "delta-twice" "delta applied to a home that has it already";
    UnkeptBase "unkept-base" "home torn under the deltas that rest on it";
    StateBeforeLines "state-before-lines" "cached block vouched for before it is durable";
    TailBeforeEntries "tail-before-entries" "transaction made valid before its entries are durable";
    EarlySubBlock "early-sub-block"
        "part of a block changed in place before its log copy is durable";
    EvictedDirty "evicted-dirty" "block evicted from the cache before home has it";
    EarlyHead "early-head" "recovery done before what it undoes is durable";
    ConvertedBeyond "converted-beyond" "four preallocated blocks too many count as written";
    UnnotedAllocation "unnoted-allocation" "allocation beyond the end not noted for fsync";
    UnstoredTimes "unstored-times" "times of a write that leaves the size not stored";
    CleanedNext "cleaned-next" "commit takes pages of the next transaction for clean";
    OlderNewest "older-newest" "sync during a commit leaves out what runs beside it";
    BrokenChain "broken-chain" "removing a middle orphan breaks the list";
    SplitRename "split-rename" "rename in two transactions";
    UnlistedTruncate "unlisted-truncate" "cut in several transactions without an orphan";
    ReusedSequence "reused-sequence" "sequence numbers used again after recovery";
    MissingRingFence "missing-ring-fence" "no fence behind slots of the ring";
    EarlyRoom "early-room" "place of an evicted block used again too early";
    ForgottenInode "forgotten-inode" "fsync forgets inodes that left the cache";
    UnsortedChanges "unsorted-changes" "changes of the map not in order at recovery";
    UnsecuredPage "unsecured-page" "newest page not programmed again at recovery";
    LateListing "late-listing" "log's end moves before the transaction is listed";
    SingleSlot "single-slot" "each root written over the one before";
    EarlyPlace "early-place" "blocks written to places that the durable root names";
    EarlyForget "early-forget" "freed blocks not revoked that are home and in the log";
    LostCarry "lost-carry" "what is carried forward in the log not logged";
    LostChange "lost-change" "what changed on its way home taken for home";
    UnzeroedBase "unzeroed-base" "bytes of a new block put over what its home had";
    UncheckedPayload "unchecked-payload" "blocks written in place not checked at recovery";
    SplitWrite "split-write" "pages of an atomic write count one by one";
    PlacedOverLog "placed-over-log" "block written home of which the log has older bytes";
    UnloggedWhole "unlogged-whole" "data of files marked atomic written in place";
    TornRecord "torn-record" "one write to a file marked atomic in several handles";
    TornGroup "torn-group" "group of writes in a handle for each of its files";
    KeptPage "kept-page" "abort of a group leaves a page";
    ShownGroup "shown-group" "what is staged in a group seen by others before the commit";
    UnseenConflict "unseen-conflict" "group committed over one that wrote to its file since";
    UnflushedOverwrite "unflushed-overwrite" "overwritten data is not flushed";
    EarlySize "early-size" "stored size covers data that waits for a place";
    EvictedDelayed "evicted-delayed" "inode evicted whose data is delayed";
    UnplacedRename "unplaced-rename" "data left waiting by a rename over another file";
    UnplacedClose "unplaced-close"
        "data left waiting by the close of a file that was cut to nothing";
    UnplacedFsync "unplaced-fsync" "data left waiting by fsync";
    ForgottenOverwrite "forgotten-overwrite"
        "what was overwritten on its way home without a transaction taken for home";
    TimesForData "times-for-data" "fsync looks at times, and not at data";
    UnplacedMark "unplaced-mark" "data left waiting by a mark (`chattr +j`)";
    SplitRecord "split-record" "one write to a file marked atomic split as others are";
    CurrentSlot "current-slot" "memory's state written over the copy that counts";
    MiscountedSlot "miscounted-slot" "memory's copies confused after a recovery";
    LateHomes "late-homes" "record durable before the homes that it rests on";
    RacedRead "raced-read" "home that was read while it was written taken for the newest";
    EarlierLife "earlier-life" "what an earlier life has left taken for this one's";
    ConfirmedLost "confirmed-lost" "commit answered whose transaction a dead server had";
}

/// The bug called `name`.
pub fn find_bug(name: &str) -> Option<&'static BugAbout> {
    BUGS.iter().find(|about| about.name == name)
}

/// Plants a bug in place of the one before, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    let number = bug.map_or(NONE, |bug| bug as u8);
    PLANTED.store(number, std::sync::atomic::Ordering::SeqCst);
}

/// The bug that is planted.
#[cfg(feature = "planted-bugs")]
#[inline]
pub fn planted() -> Option<Bug> {
    let number = PLANTED.load(std::sync::atomic::Ordering::Relaxed);
    BUGS.get(usize::from(number)).map(|about| about.bug)
}

/// The bug that is planted: none, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn planted() -> Option<Bug> {
    None
}

/// Whether this bug is planted.
#[cfg(feature = "planted-bugs")]
#[inline]
pub fn is_planted(bug: Bug) -> bool {
    planted() == Some(bug)
}

/// Whether this bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
const NONE: u8 = u8::MAX;

#[cfg(feature = "planted-bugs")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(NONE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_is_listed_once_in_order() {
        for (i, about) in BUGS.iter().enumerate() {
            assert_eq!(about.bug as usize, i);
            let name = serde_json::to_string(&about.bug).expect("a name");
            assert_eq!(name, format!("\"{}\"", about.name));
        }
    }
}
